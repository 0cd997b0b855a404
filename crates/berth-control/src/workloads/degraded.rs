//! Why a workload is degraded after a pass, and whether that has to be reported.

use berth_api::Degraded;
use berth_engine::Audience;
use berth_ledger::Text;
use jiff::Timestamp;

use super::placing::PlacementFailure;
use super::plan::ReconcilePlan;
use crate::control_plane::ControlPlane;
use crate::state::degradations;

/// What a pass found out about a workload.
#[derive(Clone, Debug, Default)]
pub(super) struct PassResult {
    /// Members that could not be placed.
    pub(super) waiting: u32,
    /// Why, if that was explained.
    pub(super) why: Option<PlacementFailure>,
    /// Whether the same refusal with other numbers is reported again.
    pub(super) refresh: bool,
    /// Whether some members were not tried, so that nothing new is known about them.
    pub(super) untried: bool,
}

/// Stores why a workload is degraded, if that changed.
pub(super) async fn report(control: &ControlPlane, plan: &ReconcilePlan, found: PassResult) {
    let now = control.now();
    let was = plan.was.as_deref().map(|known| &known.value);
    let wrong = match find_change(control, plan, found, now) {
        DegradedChange::Unchanged => return,
        DegradedChange::Recovered => None,
        DegradedChange::Degraded(wrong) => Some(wrong),
    };
    if was.is_none() && wrong.is_none() {
        return;
    }
    let key = &plan.definition.key;
    let op = degradations::set_degraded(key, Some(&plan.definition), wrong.as_ref());
    if let Err(error) = control.submit(op).await {
        let (tenant, workload): (&Text, &Text) = (&key.0, &key.1);
        tracing::warn!(%error, %tenant, %workload, "failed to store scheduling state");
    }
}

enum DegradedChange {
    /// As it was, or nothing new is known.
    Unchanged,
    Recovered,
    Degraded(Degraded),
}

fn find_change(
    control: &ControlPlane,
    plan: &ReconcilePlan,
    found: PassResult,
    now: Timestamp,
) -> DegradedChange {
    let was = plan.was.as_deref().map(|known| &known.value);
    if let Some(excess) = &plan.definition.quarantined {
        let code = "quarantined";
        let message = format!(
            "it exceeds a limit, so nothing is placed for it: {excess}; store it again within the limit, \
             or remove it"
        );
        if was.is_some_and(|was| was.code == code && was.message == message) {
            return DegradedChange::Unchanged;
        }
        let code = code.to_owned();
        return DegradedChange::Degraded(Degraded {
            code,
            message,
            since: now,
            members: 0,
            refusal: None,
        });
    }
    if let Some(instance) = &plan.stranded {
        let code = "node_lost";
        if was.is_some_and(|was| was.code == code) {
            return DegradedChange::Unchanged;
        }
        let message = format!(
            "instance {instance} has a volume, and its node is lost; bring the node back, or restore \
             the volume elsewhere and release the instance"
        );
        let code = code.to_owned();
        return DegradedChange::Degraded(Degraded {
            code,
            message,
            since: now,
            members: 1,
            refusal: None,
        });
    }
    if found.waiting == 0 {
        return if found.untried { DegradedChange::Unchanged } else { DegradedChange::Recovered };
    }
    let Some(why) = found.why else { return DegradedChange::Unchanged };
    let since = was.filter(|was| was.code == why.code).map_or(now, |was| was.since);
    let message = match (&why.refusal, control.catalog.policy()) {
        // Tenants read it, so it names nothing that they may not see.
        (Some(refusal), Some(policy)) => {
            let tenant = Audience::Tenant(plan.definition.tenant());
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
    if was.is_some_and(is_same) {
        DegradedChange::Unchanged
    } else {
        DegradedChange::Degraded(fresh)
    }
}
