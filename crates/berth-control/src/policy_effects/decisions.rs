//! Instances, each placed again under both policies with everything else where it is.

use std::sync::Arc;

use berth_api::{LiveCounts, LiveDecision};
use berth_engine::{InstanceId, InstanceRequest, NodeId, PlaceError, Policy};
use berth_ledger::{ClaimState, Role};

use super::{ComparisonRange, MAX_COMPARED};
use crate::catalog::ClaimEntry;
use crate::moves::sandbox::{FleetSnapshot, Sandbox};

pub(super) struct DecisionChanges {
    pub(super) counts: LiveCounts,
    pub(super) decisions: Vec<LiveDecision>,
    pub(super) next: Option<InstanceId>,
}

/// Where an instance would go, or the code of why nowhere.
type Choice = Result<NodeId, String>;

pub(super) fn changed(
    snapshot: &FleetSnapshot,
    from: Policy,
    to: Policy,
    extent: ComparisonRange,
) -> DecisionChanges {
    let mut under_from = PolicySandbox::new(snapshot, from);
    let mut under_to = PolicySandbox::new(snapshot, to);
    // Claims are in order of instance; what is on its way out is decided already.
    let stays = |claim: &&Arc<ClaimEntry>| {
        claim.key.role == Role::Primary && claim.state != ClaimState::Releasing
    };
    let after = |claim: &&Arc<ClaimEntry>| extent.after.is_none_or(|id| claim.key.instance > id);
    let all: Vec<&Arc<ClaimEntry>> = snapshot.claims().iter().filter(stays).filter(after).collect();
    let looked_at = &all[..all.len().min(MAX_COMPARED)];
    let mut counts = LiveCounts {
        looked_at: looked_at.len(),
        not_looked_at: all.len() - looked_at.len(),
        ..LiveCounts::default()
    };
    let mut decisions = Vec::new();
    for claim in looked_at {
        let (from, to) = (under_from.choose(claim), under_to.choose(claim));
        let count = match (&from, &to) {
            (Ok(one), Ok(other)) if one == other => &mut counts.same,
            (Ok(_), Ok(_)) => &mut counts.other_node,
            (Ok(_), Err(_)) => &mut counts.only_from,
            (Err(_), Ok(_)) => &mut counts.only_to,
            (Err(_), Err(_)) => &mut counts.refused,
        };
        *count += 1;
        let same = from.as_ref().ok() == to.as_ref().ok();
        if !same && decisions.len() < extent.listed {
            decisions.push(live_decision(claim, from, to));
        }
    }
    let more = counts.not_looked_at > 0;
    let next = looked_at.last().filter(|_| more).map(|claim| claim.key.instance);
    DecisionChanges { counts, decisions, next }
}

fn live_decision(claim: &ClaimEntry, from: Choice, to: Choice) -> LiveDecision {
    LiveDecision {
        instance: claim.key.instance,
        tenant: claim.request.tenant.clone(),
        node: claim.node.clone(),
        code: from.as_ref().err().or(to.as_ref().err()).cloned(),
        from: from.ok(),
        to: to.ok(),
    }
}

/// The fleet under one policy.
struct PolicySandbox {
    sandbox: Sandbox,
    policy: Policy,
}

impl PolicySandbox {
    fn new(snapshot: &FleetSnapshot, policy: Policy) -> Self {
        Self { sandbox: snapshot.under(policy.clone()).build(), policy }
    }

    fn choose(&mut self, claim: &ClaimEntry) -> Choice {
        let Some(request) = request(claim, &self.policy) else {
            return Err("unknown_class".to_owned());
        };
        self.sandbox.place_again(&request).map_err(|error| match error {
            PlaceError::Refused(refusal) => refusal.code.to_string(),
            PlaceError::Invalid(_) => "invalid_request".to_owned(),
        })
    }
}

/// What an instance would ask for now: as large as it is, charged as the policy says of its class;
/// absent: the policy does not know its class.
fn request(claim: &ClaimEntry, policy: &Policy) -> Option<InstanceRequest> {
    let mut request = InstanceRequest {
        id: claim.key.instance,
        name: claim.name.as_deref().map(str::to_owned),
        resources: claim.amounts,
        ..InstanceRequest::clone(&claim.request)
    };
    let (Some(elastic), Some(permit)) = (&request.elastic, &claim.permit) else {
        return Some(request);
    };
    let overcommit = match &elastic.class {
        Some(class) => policy.elastic().classes.get(class)?.overcommit_permille,
        None => permit.overcommit,
    };
    let charged = overcommit.charge(permit.reserved());
    request.resources = charged.within(claim.amounts);
    // Bounds say nothing of where it goes, and may have changed since it was granted what it has.
    request.elastic = None;
    Some(request)
}
