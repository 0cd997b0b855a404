//! From a request of the API to the claim path and back.

mod answer;
pub mod attachments;
mod read;

use std::time::Duration;

use berth_api::Placed;
use berth_ledger::{Guard, RefusalReason, Text};
use tracing::Instrument as _;

use crate::REQUESTS;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::placer::{Actor, PlaceAnswer};

pub use crate::instance_spec::{apply_default_disk, request_of};
pub use answer::Audience;
pub use answer::decision_id;
pub(crate) use answer::{invalid_request, placed_or_error};
pub(crate) use read::prepare;
pub use read::tenant_for;
pub use read::{EXPLAINED_NODES, PreparedPlacement};

/// How often a request is read again because another policy was put in force.
const READS_MAX: usize = 4;

/// Places for a caller what was read, now or not at all.
///
/// # Errors
/// A refusal is an error with the whole explanation.
pub(crate) async fn place_now(
    control: &ControlPlane,
    caller: &Caller,
    prepared: &PreparedPlacement,
) -> ControlResult<Placed> {
    let answer = decide(control, prepared, Some(actor(caller)), false).await;
    if matches!(answer, PlaceAnswer::NoRoom(_)) {
        let (instances, is_recorded) = (prepared.instances().len(), !prepared.request.dry_run);
        control.charge_refusal(caller, &prepared.tenant, instances, is_recorded);
    }
    placed_or_error(prepared, answer, &Audience::of(control, caller, &prepared.tenant))
}

/// Who asks, for the audit log.
pub(crate) fn actor(caller: &Caller) -> Actor {
    let (name, origin) = (Text::from(caller.actor()), Text::from(caller.origin()));
    Actor { name, origin, is_tenant: caller.is_tenant() }
}

/// Asks the claim path. A quiet request is neither counted nor explained.
pub(crate) async fn decide(
    control: &ControlPlane,
    prepared: &PreparedPlacement,
    by: Option<Actor>,
    quiet: bool,
) -> PlaceAnswer {
    let began = tokio::time::Instant::now();
    let span = tracing::info_span!(
        target: REQUESTS,
        "decide",
        berth.request_id = prepared.place_id(),
        berth.tenant = prepared.tenant,
        berth.instances = prepared.instances().len(),
    );
    let answer = ask_planner(control, prepared, by, quiet).instrument(span).await;
    // Retries of waiting requests and dry runs are not counted.
    if !quiet && !prepared.request.dry_run {
        count_answer(control, &answer, began.elapsed());
    }
    answer
}

async fn ask_planner(
    control: &ControlPlane,
    prepared: &PreparedPlacement,
    by: Option<Actor>,
    quiet: bool,
) -> PlaceAnswer {
    let ask = async |prepared: &PreparedPlacement, by| {
        let mut request = prepared.place_request();
        (request.by, request.quiet) = (by, quiet);
        control.placer.send(request).await
    };
    let mut answer = ask(prepared, by.clone()).await;
    let mut fresh = None;
    for _ in 0..READS_MAX {
        let PlaceAnswer::Contended(conflict) = &answer else { break };
        if !matches!(conflict.guard, Guard::PolicyChanged { .. }) {
            break;
        }
        // The planner has another policy than the catalogue had: with the newer one it is read again.
        control.wait_for_read_your_writes().await;
        // What cannot be read by the new policy was contended by the old one: a retry says why.
        let Ok(again) = prepared.read_again(control).await else { break };
        answer = ask(&again, by.clone()).await;
        fresh = Some(again);
    }
    let prepared = fresh.as_ref().unwrap_or(prepared);
    if !matches!(&answer, PlaceAnswer::Refused(RefusalReason::RequestIdReused { .. }, _)) {
        return answer;
    }
    // Perhaps a retry of a request that an earlier release answered.
    match prepared.with_unkeyed_ids() {
        Some(earlier) => ask(&earlier, by).await,
        None => answer,
    }
}

pub(crate) fn count_answer(control: &ControlPlane, answer: &PlaceAnswer, took: Duration) {
    let (outcome, code, instances) = match answer {
        PlaceAnswer::Granted(granted) => ("granted", None, granted.grant.claims.len()),
        PlaceAnswer::NoRoom(refusals) => {
            let code = refusals.first().map_or("no_room", |refusal| refusal.code.as_ref());
            ("refused", Some(code), 0)
        }
        PlaceAnswer::Refused(by, _) => ("refused", Some(by.code()), 0),
        PlaceAnswer::Contended(_) => ("contended", None, 0),
        PlaceAnswer::Busy(_) => ("busy", None, 0),
        PlaceAnswer::Invalid(_) => ("invalid", None, 0),
        PlaceAnswer::Unknown(_) => ("unknown", None, 0),
    };
    control.metrics.count_placement(outcome, code, instances, took);
}
