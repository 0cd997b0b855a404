//! Whether waiting may help: whether a node could take a request once others have come and gone and
//! its state has changed.
//!
//! Others come and go by themselves; facts do not change, and volumes do not move. It says what is
//! possible, never what is likely.

use crate::filter::{FilterId, all_failures};
use crate::fleet::{NodeIndex, NodeRow};
use crate::model::{Demand, Evidence, Room, Used};
use crate::prepared_request::{Origin, PreparedRequest};

/// Whether a node could take the request later: nothing keeps it out that lasts, and it has room when
/// nothing else is on it.
pub(crate) fn may_take_later(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
) -> bool {
    let demand = Demand::new(prepared.request, prepared.policy);
    let mut failures = all_failures(prepared, index, row).into_iter();
    failures.all(|(id, evidence)| may_pass_later(prepared, id, index, &evidence))
        && holds_when_empty(prepared, &demand, row)
}

/// Whether a filter that a node fails may pass it later.
pub(super) fn may_pass_later(
    prepared: &PreparedRequest<'_>,
    id: FilterId,
    index: NodeIndex,
    evidence: &Evidence,
) -> bool {
    if !id.filter().transient || evidence.is_absence() {
        return false;
    }
    let may_hold = |origin: Origin| {
        let mut rules = prepared.hard_rules.iter().filter(|rule| rule.origin == origin);
        rules.all(|rule| rule.may_admit_later(prepared, index))
    };
    match id.filter().name {
        // Facts change by somebody's work, and volumes do not move by themselves.
        "volume-home" | "capacity-known" => false,
        "groups" => may_hold(Origin::Group),
        "resident-rules" => may_hold(Origin::Resident),
        "affinity" => may_hold(Origin::Affinity),
        "strict-locality" => may_hold(Origin::Locality),
        _ => true,
    }
}

/// Whether a node has room for the request when nothing else is on it.
pub(super) fn holds_when_empty(
    prepared: &PreparedRequest<'_>,
    demand: &Demand,
    row: &NodeRow,
) -> bool {
    let empty = Room { used: Used::default(), ..row.room() };
    let texts = prepared.fleet.texts();
    let mut classes = prepared.request.extra.iter();
    empty.first_lack(demand).is_none()
        && classes.all(|(name, &wanted)| {
            let class = row.extra.iter().find(|class| texts.text(class.name) == name);
            wanted <= class.map_or(0, |class| class.limit)
        })
}
