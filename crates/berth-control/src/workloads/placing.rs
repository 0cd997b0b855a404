//! Placing members: through the one claim path, in a given slot.

use std::sync::Arc;

use berth_engine::policy::PolicyHash;
use berth_engine::{CapacityType, InstanceId, InstanceRequest, Refusal};
use berth_ledger::Text;
use uuid::Uuid;

use super::plan::CreateAction;
use crate::control_plane::ControlPlane;
use crate::elastic::classify;
use crate::error::{ControlError, describe_guard};
use crate::placement::attachments::volumes_of;
use crate::placement::{apply_default_disk, request_of};
use crate::placer::{PlaceAnswer, PlaceRequest, RequestedSlot};
use crate::workload::Definition;

/// How long a member may stay unbound before its claim is released.
const LEASE_S: u32 = 300;

/// Why a member could not be placed.
#[derive(Clone, Debug)]
pub(super) struct PlacementFailure {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) refusal: Option<Box<Refusal>>,
}

/// What became of a member that was to be placed.
#[derive(Clone, Debug)]
pub(super) enum PlaceOutcome {
    /// It has a place.
    Placed,
    /// Another instance has the slot, or another server was faster.
    Retry,
    /// There is no room for it; why, if that was asked for.
    Refused(Option<PlacementFailure>),
    /// The ledger does not know.
    Unknown,
}

/// What the members of one revision request.
#[derive(Clone, Debug)]
pub(super) struct MemberTemplate {
    request: InstanceRequest,
    pools: Vec<Text>,
    release: Option<Text>,
    /// The version of the workload that it was read from.
    workload_version: i64,
    /// The policy whose defaults it has.
    defaults_of: Option<PolicyHash>,
}

/// Reads what members of a revision request, with all sets of volumes looked up.
///
/// # Errors
/// When the revision is not kept, or a set of volumes is not there.
pub(super) async fn read_template(
    control: &ControlPlane,
    definition: &Definition,
    revision: i64,
) -> Result<MemberTemplate, PlacementFailure> {
    let body = &definition.body;
    let past = body.history.iter().find(|past| past.revision == revision);
    let (spec, pools, release) = match past.filter(|_| revision != body.revision) {
        Some(past) => (&past.template, &past.pools, &past.release),
        None if revision == body.revision => (&body.template, &body.pools, &body.release),
        None => {
            let code = "no_earlier_revision".to_owned();
            let message = format!("revision {revision} is not kept any more; resume the roll-out");
            return Err(PlacementFailure { code, message, refusal: None });
        }
    };
    let mut request = request_of(definition.tenant(), spec);
    request.workload = Some(definition.name().to_owned());
    let policy = control.catalog.policy();
    apply_default_disk(policy.as_deref(), spec, &mut request);
    classify(policy.as_deref(), &mut request, "template.elastic").map_err(control_failure)?;
    for set in &spec.attachments {
        let found = volumes_of(control, definition.tenant(), set).await;
        request.volumes.extend(found.map_err(control_failure)?);
    }
    request.volumes.sort();
    request.volumes.dedup();
    if let Some(volume) =
        request.volumes.iter().find(|it| control.moves.volume_moves.is_stopping(it))
    {
        let message = format!("volume {volume} is on its way to another node");
        return Err(PlacementFailure { code: "volume_moving".to_owned(), message, refusal: None });
    }
    let pools = pools.iter().map(|pool| Text::from(pool.as_str())).collect();
    Ok(MemberTemplate {
        request,
        pools,
        release: release.as_deref().map(Text::from),
        workload_version: definition.version,
        defaults_of: policy.map(|policy| policy.hash()),
    })
}

/// How a member is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceMode {
    /// A refusal is neither explained nor recorded.
    Quiet,
    /// A refusal is explained and recorded.
    Record,
    /// Only whether there is room, and why not: nothing is placed or recorded.
    Preview,
}

/// Hands a member over to be placed.
pub(super) fn submit(
    control: &ControlPlane,
    template: &MemberTemplate,
    create: &CreateAction,
    class: Option<CapacityType>,
    mode: PlaceMode,
) -> impl Future<Output = PlaceAnswer> + Send + use<> {
    let mut instance = template.request.clone();
    instance.id = InstanceId::from_u128(Uuid::now_v7().as_u128());
    instance.capacity_type = class.or(instance.capacity_type);
    let request = PlaceRequest {
        request_id: Text::from(format!("member-{}", instance.id)),
        tenant: Text::from(instance.tenant.as_str()),
        instances: vec![Arc::new(instance)],
        lease_s: LEASE_S,
        pools: template.pools.clone(),
        quiet: mode == PlaceMode::Quiet,
        dry_run: mode == PlaceMode::Preview,
        slots: vec![RequestedSlot { slot: create.slot, takes_over: create.takes_over }],
        workload_version: Some(template.workload_version),
        defaults_of: template.defaults_of,
        release: template.release.clone(),
        ..PlaceRequest::default()
    };
    control.placer.send(request)
}

/// Waits for the answer to a request.
pub(super) async fn await_outcome(answer: impl Future<Output = PlaceAnswer>) -> PlaceOutcome {
    match answer.await {
        PlaceAnswer::Granted(_) => PlaceOutcome::Placed,
        PlaceAnswer::Contended(conflict) => {
            tracing::debug!(
                guard = describe_guard(&conflict.guard),
                "placement contended; retrying"
            );
            PlaceOutcome::Retry
        }
        PlaceAnswer::Busy(_) => PlaceOutcome::Retry,
        PlaceAnswer::NoRoom(refusals) => {
            PlaceOutcome::Refused(refusals.into_iter().next().map(refusal_failure))
        }
        PlaceAnswer::Refused(by, _) => {
            // The answer to a caller is named after its request; here there is none.
            let code = by.code().to_owned();
            PlaceOutcome::Refused(Some(PlacementFailure {
                code,
                ..control_failure(ControlError::from(&by))
            }))
        }
        PlaceAnswer::Invalid(invalid) => {
            let code = match &invalid {
                berth_engine::InvalidRequest::UnknownGroup { .. } => "unknown_group",
                berth_engine::InvalidRequest::UnknownVolume { .. } => "unknown_volume",
                berth_engine::InvalidRequest::TooManyRules { .. } => "too_many_rules",
                _ => "invalid_request",
            };
            let (code, message) = (code.to_owned(), invalid.to_string());
            PlaceOutcome::Refused(Some(PlacementFailure { code, message, refusal: None }))
        }
        PlaceAnswer::Unknown(error) => {
            tracing::warn!(%error, "outcome of a placement is unknown");
            PlaceOutcome::Unknown
        }
    }
}

fn refusal_failure(refusal: Refusal) -> PlacementFailure {
    let (code, message) = (refusal.code.to_string(), refusal.headline());
    PlacementFailure { code, message, refusal: Some(Box::new(refusal)) }
}

fn control_failure(error: ControlError) -> PlacementFailure {
    let problem = error.into_problem();
    PlacementFailure { code: problem.code, message: problem.detail, refusal: None }
}

/// The other kind of capacity.
pub(super) const fn other_class(class: CapacityType) -> CapacityType {
    match class {
        CapacityType::OnDemand => CapacityType::Spot,
        CapacityType::Spot => CapacityType::OnDemand,
    }
}
