//! Instances that an agent finds on its node and Berth did not place: recorded under the rule that the
//! operator set, never for an id that belongs to another node.

use std::sync::Arc;

use berth_api::{FoundInstance, ReportedInstance, Role as CallerRole};
use berth_engine::{Demand, Elastic, InstanceId, InstanceRequest, NodeId};
use berth_ledger::{Adopt, ClaimKey, ClaimRejection, Guard, Op, Role, Text};

use crate::http::routes::claims::state_of;
use crate::problem::{ApiError, ApiResult};
use berth_control::adoption::adoption_request_id;
use berth_control::caller::Caller;
use berth_control::{Adoption, ControlError, ControlPlane, UNMANAGED};

/// The id belongs to a claim on another node.
const ELSEWHERE: &str = "instance_elsewhere";

/// The tenant that a found instance is recorded for, or why it is not. Operators are taken at their
/// word; an agent speaks for its node, not for tenants.
fn tenant_of(
    control: &ControlPlane,
    caller: &Caller,
    found: &FoundInstance,
) -> Result<String, &'static str> {
    if caller.role != CallerRole::Agent {
        return Ok(found.tenant.clone());
    }
    match &control.lifecycle.settings().adopt {
        Adoption::Off => Err("adoption_off"),
        Adoption::Unmanaged => Ok(UNMANAGED.to_owned()),
        Adoption::Listed(tenants) if !tenants.contains(&found.tenant) => Err("tenant_not_listed"),
        Adoption::Listed(_) | Adoption::Any => Ok(found.tenant.clone()),
    }
}

/// Refuses a report, with an event for operators, once for each instance.
async fn refuse(
    control: &ControlPlane,
    node: &NodeId,
    instance: InstanceId,
    code: &'static str,
) -> ApiResult<ReportedInstance> {
    if control.refused_reports.is_new(node, instance, code, control.now().as_second()) {
        tracing::warn!(%node, %instance, code, "refused report of an instance that was not placed");
        let (node, code) = (node.clone(), Text::from(code));
        control.submit(Op::RefuseReport { node, instance, code }).await?;
    }
    Ok(ReportedInstance { instance, state: None, refused: Some(code.to_owned()) })
}

/// Records an instance that an agent found and Berth did not place.
pub(super) async fn adopt(
    control: &ControlPlane,
    caller: &Caller,
    node: &NodeId,
    instance: InstanceId,
    found: FoundInstance,
) -> ApiResult<ReportedInstance> {
    if is_elsewhere(control, node, instance) {
        return refuse(control, node, instance, ELSEWHERE).await;
    }
    let tenant = match tenant_of(control, caller, &found) {
        Ok(tenant) => tenant,
        Err(code) => return refuse(control, node, instance, code).await,
    };
    let mut request = InstanceRequest::new(instance, &tenant, found.resources);
    request.resources = found.resources;
    request.tags = found.tags;
    request.elastic = found.elastic;
    let policy = control.catalog.policy();
    let asked = request.elastic.clone();
    let known = berth_control::elastic::classify(policy.as_deref(), &mut request, "found.elastic");
    if let Err(error) = known.and_then(|()| {
        request.validate().map_err(|invalid| ControlError::invalid(invalid.to_string()))
    }) {
        // Reality is recorded, never refused: what is wrong with its bounds is left out.
        let why = error.detail();
        tracing::warn!(why, %instance, %node, "adopting found instance with its reported size");
        request.elastic =
            asked.map(|asked| Elastic::new(found.resources, found.resources).widened(&asked));
        request.resources = found.resources;
    }
    request.validate().map_err(|invalid| ApiError::invalid(invalid.to_string()))?;
    let Some(policy) = policy else {
        return Err(ApiError::unavailable("no_policy", "no policy is active yet"));
    };
    let demand = Demand::new(&request, &policy);
    let op = Op::Adopt(Adopt {
        request_id: Text::from(adoption_request_id(instance)),
        request: Arc::new(request),
        node: node.clone(),
        demand,
    });
    let done = control.step(caller, "agent.adopt", format!("{instance} on {node}"), op).await?;
    match done {
        Ok(status) => {
            Ok(ReportedInstance { instance, state: status.state.map(state_of), refused: None })
        }
        // The catalogue was behind another server's grant.
        Err(ClaimRejection::Guard(guard)) if matches!(*guard, Guard::AlreadyPlaced { .. }) => {
            refuse(control, node, instance, ELSEWHERE).await
        }
        Err(rejected) => {
            let refused = Some(rejected.code().to_owned());
            Ok(ReportedInstance { instance, state: None, refused })
        }
    }
}

/// Whether the id belongs to a claim on another node.
fn is_elsewhere(control: &ControlPlane, node: &NodeId, instance: InstanceId) -> bool {
    let catalog = control.catalog.read();
    let mut claims =
        Role::ALL.iter().filter_map(|role| catalog.claims.get(&ClaimKey { instance, role: *role }));
    claims.any(|claim| claim.node != *node)
}
