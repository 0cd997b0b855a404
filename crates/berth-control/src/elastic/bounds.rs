//! New bounds of an instance.

use berth_api::{Permit, SetBounds};
use berth_engine::InstanceId;
use berth_ledger::{Answer, Bounds, ClaimKey, Op, Text};

use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::control_plane::unexpected;
use crate::error::{ControlError, ControlResult};

/// Changes between which sizes an instance may be. What it was granted stands until it shrinks.
///
/// # Errors
/// When they mean nothing, or there is no such elastic instance.
pub async fn set_bounds(
    control: &ControlPlane,
    caller: &Caller,
    instance: InstanceId,
    asked: SetBounds,
    sees_nodes: bool,
) -> ControlResult<Permit> {
    let bounds = asked.min.named().into_iter().zip(asked.max.named());
    for ((field, min), (_, max)) in bounds {
        if max == 0 || min > max {
            let accepted = format!("at least min.{field}, which is {min}, and not 0");
            return Err(ControlError::field(
                &format!("max.{field}"),
                Some(max.to_string()),
                &accepted,
            ));
        }
    }
    if asked.min.memory_mib == 0 {
        return Err(ControlError::field("min.memory_mib", Some("0".to_owned()), "1 or more"));
    }
    let stored_tenant = {
        let catalog = control.catalog.read();
        let claim = catalog.claims.get(&ClaimKey::primary(instance));
        claim.map(|claim| claim.request.tenant.clone())
    };
    let seen = stored_tenant.filter(|tenant| caller.sees(tenant));
    let Some(tenant) = seen else {
        return Err(ControlError::not_found("instance", &instance.to_string()));
    };
    let op = Op::Bounds(Bounds {
        instance,
        tenant: Some(Text::from(tenant.as_str())),
        min: asked.min,
        max: asked.max,
    });
    let subject = format!("{instance} between {} and {}", asked.min, asked.max);
    match control.call(caller, "instance.bounds", subject, None, op).await? {
        Answer::Permit(answer) => drop((*answer)?),
        other => return Err(unexpected(&other)),
    }
    control.wait_for_read_your_writes().await;
    let catalog = control.catalog.read();
    let claim = catalog.claims.get(&ClaimKey::primary(instance)).cloned();
    drop(catalog);
    let permit = claim
        .and_then(|claim| super::read_permit(control, &claim, (sees_nodes, !caller.is_tenant())));
    permit.ok_or_else(|| ControlError::not_found("instance", &instance.to_string()))
}
