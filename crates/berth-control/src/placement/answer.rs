//! The answer to a placement, as its caller may see it.

use std::sync::Arc;

use berth_api::name_hints::{HintReader, Names};
use berth_api::{
    ExplainLevel, HeldValue, InstanceExplanation, PlaceRequest, Placed, PlacedInstance, PlacedSlot,
};
use berth_engine::workload::deletion_cost;
use berth_engine::{Explanation, Fix, InstanceId, InstanceRequest, NodeId, Policy, Refusal};
use berth_ledger::{ClaimKey, GrantedClaim, Slot, Text};
use rustc_hash::FxHashMap;
use uuid::Uuid;

use super::PreparedPlacement;
use crate::caller::Caller;
use crate::catalog::Catalog;
use crate::clock::moment;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult, describe_guard};
use crate::placer::{Granted, PlaceAnswer};

/// Seconds after which a refused request may be worth another try.
const RETRY_AFTER_S: u32 = 5;

/// For whom an answer is written.
pub struct Audience {
    tenant: Option<String>,
    policy: Option<Arc<Policy>>,
    catalog: Arc<Catalog>,
}

impl Audience {
    /// The audience that a caller is.
    #[must_use]
    pub fn of(control: &ControlPlane, caller: &Caller, tenant: &str) -> Self {
        let tenant = caller.is_tenant().then(|| tenant.to_owned());
        let policy = tenant.as_ref().and_then(|_| control.catalog.policy());
        Self { tenant, policy, catalog: Arc::clone(&control.catalog) }
    }

    /// The tenant itself.
    #[must_use]
    pub fn tenant(control: &ControlPlane, tenant: &str) -> Self {
        let policy = control.catalog.policy();
        let catalog = Arc::clone(&control.catalog);
        Self { tenant: Some(tenant.to_owned()), policy, catalog }
    }

    /// Whether the names of nodes may be shown.
    #[must_use]
    pub fn sees_nodes(&self) -> bool {
        let shown =
            || self.policy.as_ref().is_some_and(|policy| policy.explain().tenants_see_nodes);
        self.tenant.is_none() || shown()
    }

    /// The name of an instance, while it is placed.
    #[must_use]
    pub fn name_of(&self, instance: InstanceId) -> Option<String> {
        let catalog = self.catalog.read();
        let claim = catalog.claims.get(&ClaimKey::primary(instance))?;
        claim.name.as_deref().map(str::to_owned)
    }

    /// Of instances that were preempted those that may be seen.
    #[must_use]
    pub fn preempted(&self, preempted: &[(InstanceId, Text)]) -> Vec<InstanceId> {
        let sees = |tenant: &Text| self.tenant.as_deref().is_none_or(|own| *own == **tenant);
        preempted.iter().filter(|(_, tenant)| sees(tenant)).map(|(id, _)| *id).collect()
    }

    /// Refusals as they may be seen.
    #[must_use]
    pub fn refusals(&self, mut refusals: Vec<Refusal>) -> Vec<Refusal> {
        if let Some(tenant) = &self.tenant {
            // Without a policy it is not known what a tenant may see.
            let Some(policy) = &self.policy else { return Vec::new() };
            let audience = berth_engine::Audience::Tenant(tenant);
            refusals.iter_mut().for_each(|it| *it = it.redacted_for(audience, policy));
        }
        refusals.iter_mut().for_each(|refusal| self.name_instances(&mut refusal.fixes));
        refusals
    }

    /// Adds the names of instances to fixes that this audience may see: to a tenant, its own.
    fn name_instances(&self, fixes: &mut [Fix]) {
        fixes.iter_mut().for_each(|fix| fix.name_instances(&|id| self.name_of(id)));
    }

    /// Hints about names in a request that no node has.
    fn hints(&self, request: &PlaceRequest) -> Vec<String> {
        let wanted = Names::of_request(request);
        if wanted.is_empty() {
            return Vec::new();
        }
        let reader = match self.tenant {
            Some(_) => HintReader::Tenant,
            None => HintReader::Operator,
        };
        let known = self.catalog.node_names().filter(|known| !known.is_empty());
        known.map(|known| wanted.hints(&known, reader)).unwrap_or_default()
    }

    /// What would help, as it may be seen: to a tenant only what it can do itself.
    #[must_use]
    pub fn fixes(&self, mut fixes: Vec<Fix>) -> Vec<Fix> {
        if let Some(tenant) = &self.tenant {
            fixes.retain(|fix| fix.is_for_tenant(tenant));
        }
        if !self.sees_nodes() {
            fixes.iter_mut().for_each(Fix::hide_nodes);
        }
        self.name_instances(&mut fixes);
        fixes
    }

    /// The explanation of one instance as it may be seen; absent when it is not known how much that
    /// is.
    #[must_use]
    pub fn instance_explanation(
        &self,
        explanation: InstanceExplanation,
    ) -> Option<InstanceExplanation> {
        let Some(tenant) = &self.tenant else { return Some(explanation) };
        let audience = berth_engine::Audience::Tenant(tenant);
        let page = explanation.page.redacted_for(audience, self.policy.as_deref()?);
        Some(InstanceExplanation { page, ..explanation })
    }

    fn explanation(&self, explanation: &Explanation) -> Option<Explanation> {
        let Some(tenant) = &self.tenant else { return Some(explanation.clone()) };
        let audience = berth_engine::Audience::Tenant(tenant);
        self.policy.as_ref().map(|policy| explanation.redacted_for(audience, policy))
    }
}

/// The claim path's answer, as the caller may see it.
pub(crate) fn placed_or_error(
    prepared: &PreparedPlacement,
    answer: PlaceAnswer,
    audience: &Audience,
) -> ControlResult<Placed> {
    match answer {
        PlaceAnswer::Granted(granted) => Ok(placed(prepared, granted, audience)),
        PlaceAnswer::NoRoom(refusals) => {
            let hints = audience.hints(&prepared.request);
            Err(no_room(audience.refusals(refusals)).hints(hints))
        }
        PlaceAnswer::Refused(by, fixes) => {
            Err(ControlError::from(&by).fixes(audience.fixes(fixes)))
        }
        PlaceAnswer::Contended(conflict) => {
            let why = describe_guard(&conflict.guard);
            let detail = format!("too many concurrent placements; the last conflict: {why}");
            Err(ControlError::conflict("contended", detail).retry_after(1))
        }
        PlaceAnswer::Invalid(invalid) => Err(invalid_request(&invalid)),
        PlaceAnswer::Busy(overload) => Err(ControlError::from(&overload)),
        PlaceAnswer::Unknown(error) => Err(ControlError::from(error)),
    }
}

/// A request that means nothing, as its caller reads it.
pub(crate) fn invalid_request(invalid: &berth_engine::InvalidRequest) -> ControlError {
    use berth_engine::InvalidRequest;
    match invalid {
        InvalidRequest::AlreadyPlaced { id, .. } => ControlError::conflict(
            "already_placed",
            format!("instance {id} is already placed; release it first or use a new id"),
        ),
        InvalidRequest::InstanceIdUnavailable { .. } => {
            ControlError::conflict("instance_id_unavailable", invalid.to_string())
                .remedy("leave the id out to get a new one, or choose another")
        }
        InvalidRequest::UnknownGroup { .. } => {
            ControlError::conflict("unknown_group", invalid.to_string())
        }
        InvalidRequest::UnknownVolume { .. } => {
            ControlError::conflict("unknown_volume", invalid.to_string())
        }
        InvalidRequest::TooManyRules { .. } => {
            ControlError::conflict("too_many_rules", invalid.to_string())
        }
        InvalidRequest::TooMany(excess) => ControlError::from(excess.clone()),
        _ => ControlError::invalid(invalid.to_string()),
    }
}

fn no_room(refusals: Vec<Refusal>) -> ControlError {
    let Some(first) = refusals.first() else {
        return ControlError::conflict("no_room", "there is no room yet")
            .retry_after(RETRY_AFTER_S);
    };
    let may_help = refusals.iter().any(|refusal| refusal.waiting_may_help);
    let error = ControlError::conflict(first.code.to_string(), first.headline())
        .remedy(first.remedy.as_ref());
    let error = if may_help { error.retry_after(RETRY_AFTER_S) } else { error.retry(false) };
    error.titled("no node can take it").refusals(refusals)
}

fn placed(prepared: &PreparedPlacement, granted: Granted, audience: &Audience) -> Placed {
    let request = &prepared.request;
    let asked: FxHashMap<InstanceId, &InstanceRequest> =
        prepared.instances().iter().map(|instance| (instance.id, instance.as_ref())).collect();
    let instances = granted.grant.claims.iter().map(|claim| {
        instance(claim, asked.get(&claim.instance).copied(), request.dry_run, audience)
    });
    let instances = instances.collect();
    let explanation = granted.explanation.and_then(|explanation| {
        let mut seen = audience.explanation(&explanation)?;
        // A summary has no nodes, and so no next ones.
        seen.next = seen.next.filter(|_| request.explain == ExplainLevel::Full);
        Some(Box::new(seen))
    });
    Placed {
        request_id: prepared.place_id().to_owned(),
        tenant: prepared.tenant.clone(),
        decision: (!request.dry_run).then(|| decision_id(&granted.grant.decision)),
        dry_run: request.dry_run,
        instances,
        refusals: audience.refusals(granted.left_out),
        notices: granted.notices,
        explanation,
    }
}

fn instance(
    claim: &GrantedClaim,
    asked: Option<&InstanceRequest>,
    dry_run: bool,
    audience: &Audience,
) -> PlacedInstance {
    let is_real = !dry_run;
    let slot_id = |slot: Slot| {
        let asked = asked?;
        Some(berth_ledger::slot_id(&asked.tenant, asked.workload.as_deref()?, slot.slot))
    };
    let values = claim.values.iter();
    let values =
        values.map(|held| HeldValue { pool: held.pool.to_string(), value: held.value.clone() });
    PlacedInstance {
        instance: claim.instance,
        name: asked.and_then(|asked| asked.name.clone()),
        node: audience.sees_nodes().then(|| claim.node.clone()),
        fence: is_real.then_some(claim.fence),
        lease_until: claim.lease_until.filter(|_| is_real).map(moment),
        values: values.filter(|_| is_real).collect(),
        slot: claim.slot.map(|it| placed_slot(it, &claim.node, slot_id(it), audience)),
    }
}

/// A slot, and what follows from the kind of node it is on.
fn placed_slot(slot: Slot, node: &NodeId, id: Option<Uuid>, audience: &Audience) -> PlacedSlot {
    let catalog = audience.catalog.read();
    let on = catalog.nodes.get(node).map(|node| node.facts.capacity_type);
    let Slot { revision, slot } = slot;
    PlacedSlot { id, revision, slot, on, deletion_cost: on.map(deletion_cost) }
}

/// A decision's id as the API writes it: it is part of a path, and so has no slashes.
pub fn decision_id(stored: &str) -> String {
    stored.replace('/', ".")
}
