//! Requests for permits, and their answers.

use std::sync::Arc;

use berth_api::{AskPermit, Headroom, Permit};
use berth_engine::elastic::{
    ElasticSettings, Grants, NodeElastic, PermitRequest, Size, WatermarkRule,
};
use berth_engine::{Elastic, InstanceId, NodeId};
use berth_ledger::{
    Answer, ClaimKey, ClaimRejection, Op, PermitAnswer, PermitBasis, PermitOperation, Text,
};

use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::control_plane::unexpected;
use crate::error::{ControlError, ControlResult};

/// Who requests a permit, and in what way.
#[derive(Clone, Debug, Default)]
pub struct PermitCaller {
    /// The tenant, if one asks.
    pub tenant: Option<Text>,
    /// The node, if its agent asks: it knows nothing of instances elsewhere.
    pub node: Option<NodeId>,
    /// Whether node names may be shown.
    pub sees_nodes: bool,
    /// Whether the agent takes any size: it is not held to multiples of the unit.
    pub any_size: bool,
    /// Whether an instance that moves must not change its size at all.
    pub rigid_while_moving: bool,
}

/// What applies to an instance, as far as this server knows.
struct ElasticContext {
    unit: Size,
    grants: Grants,
    watermark: WatermarkRule,
    host_cpu_milli: Option<u32>,
    elastic: Option<Elastic>,
    /// What all of it was taken from.
    basis: PermitBasis,
}

/// How often a permit is decided again because policy or node had changed.
const TRIES: usize = 8;

/// Requests a size for an instance, by an agent that counts in what `unit_of` makes of the unit that its
/// policy says. The answer is durable.
///
/// # Errors
/// When the request is invalid, or its outcome is unknown.
pub async fn request_permit(
    control: &ControlPlane,
    by: PermitCaller,
    instance: InstanceId,
    asked: &AskPermit,
    unit_of: impl Fn(Size) -> Size,
) -> ControlResult<Permit> {
    let wish = permit_request(asked)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let context = elastic_context(control, instance);
        let op = Op::Permit(PermitOperation {
            instance,
            tenant: by.tenant.clone(),
            node: by.node.clone(),
            fence: asked.fence,
            wish,
            unit: unit_of(context.unit),
            grants: context.grants,
            whole_units: !by.any_size,
            rigid_while_moving: by.rigid_while_moving,
            watermark: context.watermark,
            host_cpu_milli: context.host_cpu_milli,
            basis: Some(context.basis),
        });
        let answer = match control.submit(op).await? {
            Answer::Permit(answer) => *answer,
            other => return Err(unexpected(&other)),
        };
        let answer = match answer {
            Err(ClaimRejection::Guard(guard)) if tries < TRIES => {
                control.metrics.conflict(guard.code());
                // What has changed is in the log.
                control.placer.catch_up().await;
                continue;
            }
            answer => answer?,
        };
        if answer.found_larger {
            let granted = answer.permit.granted;
            tracing::warn!(%instance, %granted, "agent holds more than was recorded");
        }
        control.permits.cache.record(instance, answer.fence, answer.permit);
        control.metrics.permit(&answer);
        return Ok(view(
            control,
            instance,
            &answer,
            context.elastic.as_ref(),
            (by.sees_nodes, true),
        ));
    }
}

/// How large an instance may be, as it was last answered. What is signed is not for tenants: it is
/// their agent's, and names the node.
///
/// # Errors
/// When there is no such instance, or it is not elastic.
pub fn read_permit(
    control: &ControlPlane,
    claim: &ClaimEntry,
    (sees_nodes, signs): (bool, bool),
) -> Option<Permit> {
    let answer = PermitAnswer {
        node: claim.node.clone(),
        tenant: Text::from(claim.request.tenant.as_str()),
        fence: claim.fence,
        // As all servers know it: a number must not seem to go back from one to the next.
        permit: claim.permit?,
        charged: claim.amounts,
        repeated: false,
        found_larger: false,
        moving_to: control.moves.migrations.target_of(claim.key.instance),
    };
    let elastic = claim.request.elastic.as_ref();
    Some(view(control, claim.key.instance, &answer, elastic, (sees_nodes, signs)))
}

/// The largest number that a request may have: every reader of JSON can hold it.
const MAX_SEQ: u64 = (1 << 53) - 1;

fn permit_request(asked: &AskPermit) -> ControlResult<PermitRequest> {
    if let Some(seq) = asked.seq.filter(|seq| !(1..=MAX_SEQ).contains(seq)) {
        let accepted = format!("1 to {MAX_SEQ}");
        return Err(ControlError::field("seq", Some(seq.to_string()), &accepted));
    }
    Ok(PermitRequest {
        seq: asked.seq,
        size: asked.resources,
        last_permit: asked.last_permit,
        heard: asked.heard,
        headroom: asked.headroom.unwrap_or_default(),
        load_milli: asked.load.map(load_milli).transpose()?,
    })
}

/// A load in thousandths: of what it decides, the order is all that matters.
#[allow(clippy::float_arithmetic, reason = "agents say it with decimals; it ends here")]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
fn load_milli(load: f64) -> ControlResult<u32> {
    if !(0.0..=1_000_000.0).contains(&load) {
        return Err(ControlError::field("load", Some(load.to_string()), "0 to 1000000"));
    }
    Ok((load * 1000.0) as u32)
}

fn elastic_context(control: &ControlPlane, instance: InstanceId) -> ElasticContext {
    let catalog = control.catalog.read();
    let (policy, in_force) = (catalog.policy.clone(), catalog.policy_in_force.clone());
    let claim = catalog.claims.get(&ClaimKey::primary(instance)).cloned();
    let node = claim.as_ref().and_then(|claim| catalog.nodes.get(&claim.node));
    let node = node.map(|node| (Arc::clone(&node.facts), node.generation));
    drop(catalog);
    let fallback = ElasticSettings::default();
    let settings = policy.as_ref().map_or(&fallback, |policy| policy.elastic());
    // A policy that was stored before there was the rule goes without it.
    let is_limited = policy.as_ref().is_none_or(|policy| policy.filters().cpu_within_host);
    let capacity = node.as_ref().filter(|_| is_limited).and_then(|(facts, _)| facts.capacity);
    let cpu = capacity.map(|capacity| capacity.cpu_milli).filter(|cpu| *cpu > 0);
    let elastic = claim.and_then(|claim| claim.request.elastic.clone());
    // For an instance that this server does not know yet, the general settings apply: the ledger
    // finds that it is on a node.
    let on = node.as_ref().map(|(facts, _)| settings.on(facts)).unwrap_or(NodeElastic {
        compute_unit: settings.compute_unit,
        watermark: settings.watermark,
        system: None,
    });
    let unit = elastic.as_ref().map_or(on.compute_unit, |elastic| settings.unit_for(elastic, &on));
    let node = node.map(|(facts, generation)| (facts.id.clone(), generation));
    ElasticContext {
        unit,
        grants: settings.grants,
        watermark: on.watermark,
        host_cpu_milli: cpu,
        elastic,
        basis: PermitBasis { policy: in_force, node },
    }
}

fn view(
    control: &ControlPlane,
    instance: InstanceId,
    answer: &PermitAnswer,
    elastic: Option<&Elastic>,
    (sees_nodes, signs): (bool, bool),
) -> Permit {
    let permit = &answer.permit;
    let (min, max) = match elastic {
        Some(elastic) => elastic.bounds(permit.granted),
        None => (permit.granted, permit.granted),
    };
    let is_headroom = !permit.headroom.is_zero();
    Permit {
        instance,
        node: sees_nodes.then(|| answer.node.clone()),
        fence: answer.fence,
        seq: permit.seq,
        permit: permit.granted,
        wanted: permit.wanted,
        capacity_pressure: permit.pressure,
        limited_by: permit.limited_by,
        buffer: permit.buffer.less(permit.headroom),
        uncertain: permit.uncertain,
        compute_unit: permit.unit,
        min,
        max,
        charged: Size::of(&answer.charged),
        repeated: answer.repeated,
        found_larger: answer.found_larger,
        frozen: answer.moving_to.is_some(),
        headroom: (is_headroom && signs).then(|| sign_headroom(control, instance, answer)),
    }
}

fn sign_headroom(control: &ControlPlane, instance: InstanceId, answer: &PermitAnswer) -> Headroom {
    let up_to = answer.permit.granted.plus(answer.permit.headroom);
    let statement = format!(
        "berth-headroom-v1 {instance} {} {} {} {} {}",
        answer.node, answer.fence, answer.permit.seq, up_to.cpu_milli, up_to.memory_mib
    );
    let (signature, key) = control.permits.signer.sign(&statement);
    Headroom { up_to, statement, signature, key }
}
