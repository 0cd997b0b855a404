//! Nodes: what their hosts would keep, where pressure would begin, and who would have to leave.

use std::sync::Arc;

use berth_api::{LiveNode, LiveStanding};
use berth_engine::elastic::{Account, Holding, Size, Sums};
use berth_engine::{NodeFacts, Policy, Used};

use super::Holdings;
use crate::elastic::facts_under;
use crate::moves::sandbox::FleetSnapshot;

/// Nodes that would stand otherwise, in order of id.
pub(super) fn changed(
    snapshot: &FleetSnapshot,
    holdings: &Holdings,
    from: &Policy,
    to: &Policy,
) -> Vec<LiveNode> {
    let now = snapshot.now().0;
    let rooms = snapshot.rooms().filter_map(|(facts, used)| {
        let facts = Arc::new(facts.clone());
        let here = holdings.get(&facts.id).map_or(&[][..], Vec::as_slice);
        let (from, to) =
            (standing(from, &facts, used, here, now), standing(to, &facts, used, here, now));
        (from != to).then(|| LiveNode { node: facts.id.clone(), from, to })
    });
    rooms.collect()
}

fn standing(
    policy: &Policy,
    facts: &Arc<NodeFacts>,
    used: &Used,
    here: &[Holding],
    now: i64,
) -> LiveStanding {
    let settings = policy.elastic();
    let facts = facts_under(policy, facts);
    let on = settings.on(&facts);
    let sums = Sums::of(here.iter().copied(), now, settings.pressure_half_life_s);
    let account = Account::of(&facts, used, on.watermark, &sums);
    let below = account.below_watermark();
    LiveStanding {
        system: Size::of(&facts.kept_by_host()),
        over_limit: account.is_over(),
        watermark_cpu: account.cpu.watermark,
        watermark_memory: account.memory.watermark,
        above_watermark: below.cpu < 0 || below.memory < 0,
        must_shed: account.must_shed(),
        compute_unit: on.compute_unit,
    }
}
