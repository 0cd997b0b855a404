//! What is wrong with a workload after its turn, and whether that has to be told.

use berth_api::Degraded;
use berth_engine::Audience;
use berth_ledger::Text;
use jiff::Timestamp;

use super::placing::PlacementFailure;
use super::plan::ReconcilePlan;
use crate::control_plane::ControlPlane;
use crate::state::degradations;

/// What a turn found out.
#[derive(Clone, Debug, Default)]
pub(super) struct PassResult {
    /// Members that could not be placed.
    pub(super) waiting: u32,
    /// PlacementFailure, where that was asked for.
    pub(super) why: Option<PlacementFailure>,
    /// Whether the same refusal with other numbers is to be told again.
    pub(super) refresh: bool,
    /// Whether some members were not tried, so that nothing new is known of them.
    pub(super) untried: bool,
}

/// Tells what is wrong with a workload now, if it is another than before.
pub(super) async fn tell(control: &ControlPlane, turn: &ReconcilePlan, found: PassResult) {
    let now = control.now();
    let was = turn.was.as_deref().map(|known| &known.value);
    let wrong = match wrong(control, turn, found, now) {
        Wrong::As => return,
        Wrong::Nothing => None,
        Wrong::Now(wrong) => Some(wrong),
    };
    if was.is_none() && wrong.is_none() {
        return;
    }
    let key = &turn.definition.key;
    let op = degradations::set_degraded(key, Some(&turn.definition), wrong.as_ref());
    if let Err(error) = control.submit(op).await {
        let (tenant, workload): (&Text, &Text) = (&key.0, &key.1);
        tracing::warn!(%error, %tenant, %workload, "what is wrong with a workload is not stored");
    }
}

enum Wrong {
    /// As it was, or nobody knows better.
    As,
    Nothing,
    Now(Degraded),
}

fn wrong(control: &ControlPlane, turn: &ReconcilePlan, found: PassResult, now: Timestamp) -> Wrong {
    let was = turn.was.as_deref().map(|known| &known.value);
    if let Some(instance) = &turn.stranded {
        let code = "node_lost";
        if was.is_some_and(|was| was.code == code) {
            return Wrong::As;
        }
        let message = format!(
            "instance {instance} has a volume, and its node is lost; bring the node back, or restore \
             the volume elsewhere and release the instance"
        );
        let code = code.to_owned();
        return Wrong::Now(Degraded { code, message, since: now, members: 1, refusal: None });
    }
    if found.waiting == 0 {
        return if found.untried { Wrong::As } else { Wrong::Nothing };
    }
    let Some(why) = found.why else { return Wrong::As };
    let since = was.filter(|was| was.code == why.code).map_or(now, |was| was.since);
    let message = match (&why.refusal, control.catalog.policy()) {
        // Tenants read it, so it names nothing that they may not see.
        (Some(refusal), Some(policy)) => {
            let tenant = Audience::Tenant(turn.definition.tenant());
            let headline = refusal.redacted_for(tenant, &policy).headline();
            headline.strip_prefix(&format!("{}: ", why.code)).unwrap_or(&headline).to_owned()
        }
        _ => why.message,
    };
    let members = found.waiting;
    let fresh = Degraded { code: why.code, message, since, members, refusal: why.refusal };
    let is_same = |was: &Degraded| {
        let same = was.code == fresh.code && was.members == fresh.members;
        same && (!found.refresh || was.message == fresh.message)
    };
    if was.is_some_and(is_same) { Wrong::As } else { Wrong::Now(fresh) }
}
