//! Reading a placement request: whose it is, which ids its instances get, what is out of bounds.

use std::sync::Arc;

use berth_api::{ExplainLevel, InstanceSpec, Mode, PlaceRequest};
use berth_engine::policy::PolicyHash;
use berth_engine::{BatchMode, InstanceRequest, Policy};
use berth_ledger::Text;
use uuid::Uuid;

use crate::caller::{Caller, is_name};
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::instance_spec::{apply_default_disk, request_of};
use crate::placer::{self, OrderedAttempt};
use crate::state::instance_ids::{InstancePosition, derive_unkeyed};
use crate::state::tickets::hash_of_request;

/// Nodes that a full explanation begins with.
pub const EXPLAINED_NODES: usize = 100;

/// Most instances in one request.
const MOST: usize = 1000;

/// How long a claim may stay unbound unless its request says otherwise.
pub(crate) const DEFAULT_LEASE_S: u32 = 120;

/// A request that was read and found in order.
#[derive(Debug)]
pub struct PreparedPlacement {
    /// The request with everything filled in that the server chooses.
    pub request: PlaceRequest,
    /// The tenant.
    pub tenant: String,
    /// Whether the caller chose the request id, so that it may be a retry.
    pub(crate) may_be_retry: bool,
    /// Whether it waits under a ticket.
    pub(crate) has_ticket: bool,
    /// Its place among waiting requests that are tried together.
    pub(crate) attempt: Option<OrderedAttempt>,
    instances: Vec<Arc<InstanceRequest>>,
    /// The policy whose defaults the instances have.
    defaults_of: Option<PolicyHash>,
}

impl PreparedPlacement {
    /// Whether it may wait.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.request.mode == Mode::Wait
    }

    /// Its id.
    #[must_use]
    pub fn place_id(&self) -> &str {
        self.request.request_id.as_deref().unwrap_or_default()
    }

    /// The instances.
    #[must_use]
    pub fn instances(&self) -> &[Arc<InstanceRequest>] {
        &self.instances
    }

    /// The same with the instance ids that releases before the key of the ledger derived: an
    /// answer that they stored is known by them. Absent if every instance was given its id.
    #[must_use]
    pub(crate) fn with_unkeyed_ids(&self) -> Option<Self> {
        let request_id = self.place_id();
        let specs = self.request.instances.iter().enumerate();
        let positions = specs.flat_map(|(place, spec)| {
            (0..spec.count.unwrap_or(1)).map(move |number| (place, number, spec.id))
        });
        let mut instances = self.instances.clone();
        let mut is_derived = false;
        for (instance, (place, number, id)) in instances.iter_mut().zip(positions) {
            if id.is_none() {
                is_derived = true;
                let tenant = &self.tenant;
                let position = InstancePosition { tenant, request_id, place, number };
                Arc::make_mut(instance).id = derive_unkeyed(position);
            }
        }
        let (request, tenant) = (self.request.clone(), self.tenant.clone());
        let (may_be_retry, has_ticket) = (self.may_be_retry, self.has_ticket);
        let defaults_of = self.defaults_of;
        let attempt = self.attempt.clone();
        let earlier =
            Self { request, tenant, may_be_retry, has_ticket, attempt, instances, defaults_of };
        is_derived.then_some(earlier)
    }

    /// The same read once more, with the defaults of the policy that is in force by now.
    pub(crate) async fn read_again(&self, control: &ControlPlane) -> ControlResult<Self> {
        let (request, tenant) = (self.request.clone(), self.tenant.clone());
        let (instances, defaults_of) =
            read_instances(control, &tenant, self.place_id(), &request).await?;
        let (may_be_retry, has_ticket) = (self.may_be_retry, self.has_ticket);
        let attempt = self.attempt.clone();
        Ok(Self { request, tenant, may_be_retry, has_ticket, attempt, instances, defaults_of })
    }

    /// The same for the claim path.
    #[must_use]
    pub fn place_request(&self) -> placer::PlaceRequest {
        let request = &self.request;
        let at_least = usize::try_from(request.at_least.unwrap_or(1)).unwrap_or(usize::MAX);
        placer::PlaceRequest {
            request_id: Text::from(self.place_id()),
            tenant: Text::from(self.tenant.as_str()),
            instances: self.instances.clone(),
            mode: match request.mode {
                Mode::AllOrNothing | Mode::Wait => BatchMode::AllOrNothing,
                Mode::AtLeast => BatchMode::AtLeast(at_least),
                Mode::BestEffort => BatchMode::BestEffort,
            },
            lease_s: request.lease_s.unwrap_or(DEFAULT_LEASE_S),
            pools: request.pools.iter().map(|pool| Text::from(pool.as_str())).collect(),
            by: None,
            explain: match request.explain {
                ExplainLevel::None => None,
                ExplainLevel::Summary => Some(0),
                ExplainLevel::Full => Some(EXPLAINED_NODES),
            },
            dry_run: request.dry_run,
            quiet: false,
            slots: Vec::new(),
            workload_version: None,
            defaults_of: self.defaults_of,
            release: None,
            preemption: None,
            // No ticket can have an id that was drawn just now.
            request_hash: self.may_be_retry.then(|| hash_of_request(request)),
            has_ticket: self.has_ticket,
            attempt: self.attempt.clone(),
        }
    }
}

/// Reads a request for a caller.
pub(crate) async fn prepare(
    control: &ControlPlane,
    caller: &Caller,
    mut request: PlaceRequest,
    header_id: Option<String>,
) -> ControlResult<PreparedPlacement> {
    let tenant = tenant_for(caller, request.tenant.as_deref())?;
    check_bounds(&request)?;
    let may_be_retry = request.request_id.is_some() || header_id.is_some();
    let request_id = match (request.request_id.take(), header_id) {
        (Some(body), Some(header)) if body != header => {
            let value = Some(format!("{header:?}"));
            return Err(ControlError::field("Idempotency-Key", value, "the same as request_id"));
        }
        (Some(id), _) | (None, Some(id)) => check_id(id)?,
        (None, None) => Uuid::now_v7().to_string(),
    };
    let (instances, defaults_of) = read_instances(control, &tenant, &request_id, &request).await?;
    if instances.is_empty() || instances.len() > MOST {
        let value = Some(format!("{} instances", instances.len()));
        return Err(ControlError::field("instances", value, "1 to 1000 instances in all"));
    }
    if request.at_least.is_some_and(|least| least as usize > instances.len()) {
        let value = request.at_least.map(|least| least.to_string());
        return Err(ControlError::field(
            "at_least",
            value,
            "at most as many as there are instances",
        ));
    }
    (request.tenant, request.request_id) = (Some(tenant.clone()), Some(request_id));
    let (has_ticket, attempt) = (false, None);
    Ok(PreparedPlacement {
        request,
        tenant,
        may_be_retry,
        has_ticket,
        attempt,
        instances,
        defaults_of,
    })
}

/// Makes the instances of all specs, and names the policy whose defaults they have.
async fn read_instances(
    control: &ControlPlane,
    tenant: &str,
    request_id: &str,
    request: &PlaceRequest,
) -> ControlResult<(Vec<Arc<InstanceRequest>>, Option<PolicyHash>)> {
    let policy = control.catalog.policy();
    let mut instances = Vec::new();
    for (place, spec) in request.instances.iter().enumerate() {
        let position = SpecPosition { tenant, request_id, place };
        expand(control, policy.as_deref(), position, spec, &mut instances).await?;
    }
    Ok((instances, policy.map(|policy| policy.hash())))
}

/// Which spec of which request.
#[derive(Clone, Copy)]
struct SpecPosition<'a> {
    tenant: &'a str,
    request_id: &'a str,
    place: usize,
}

/// Whose a request is: what it says, if the caller may; else the caller's only or first tenant.
pub fn tenant_for(caller: &Caller, stated: Option<&str>) -> ControlResult<String> {
    match (stated, caller.tenants()) {
        (Some(tenant), _) if !is_name(tenant) => {
            let value = Some(format!("{tenant:?}"));
            Err(ControlError::field("tenant", value, "1 to 200 characters, none of them control"))
        }
        (Some(tenant), _) if caller.sees(tenant) => Ok(tenant.to_owned()),
        // What a tenant may not see is as if it were not there.
        (Some(tenant), _) => Err(ControlError::not_found("tenant", tenant)),
        (None, Some([first, ..])) => Ok(first.clone()),
        (None, _) => Err(ControlError::field("tenant", None, "the tenant that it is for")),
    }
}

fn check_id(id: String) -> ControlResult<String> {
    if is_name(&id) {
        return Ok(id);
    }
    let value = Some(format!("{id:?}"));
    Err(ControlError::field("request_id", value, "1 to 200 characters, none of them control"))
}

fn check_bounds(request: &PlaceRequest) -> ControlResult<()> {
    let wrong = |field: &str, value: Option<u32>, accepted: &str| {
        Err(ControlError::field(field, value.map(|value| value.to_string()), accepted))
    };
    if request.lease_s.is_some_and(|lease| !(1..=86_400).contains(&lease)) {
        return wrong("lease_s", request.lease_s, "1 to 86400 seconds");
    }
    if request.wait_s.is_some_and(|wait| !(1..=604_800).contains(&wait)) {
        return wrong("wait_s", request.wait_s, "1 to 604800 seconds");
    }
    match (request.mode, request.at_least, request.wait_s) {
        (Mode::AtLeast, None | Some(0), _) => {
            wrong("at_least", request.at_least, "1 or more, since mode is at_least")
        }
        (mode, Some(_), _) if mode != Mode::AtLeast => {
            wrong("at_least", request.at_least, "nothing, unless mode is at_least")
        }
        (mode, _, Some(_)) if mode != Mode::Wait => {
            wrong("wait_s", request.wait_s, "nothing, unless mode is wait")
        }
        _ => match request.pools.iter().find(|pool| !is_name(pool)) {
            Some(pool) => {
                Err(ControlError::field("pools", Some(format!("{pool:?}")), "names of pools"))
            }
            None => Ok(()),
        },
    }
}

/// Makes the instances of one spec.
async fn expand(
    control: &ControlPlane,
    policy: Option<&Policy>,
    position: SpecPosition<'_>,
    spec: &InstanceSpec,
    instances: &mut Vec<Arc<InstanceRequest>>,
) -> ControlResult<()> {
    let SpecPosition { tenant, request_id, place } = position;
    let at = |field: &str| format!("instances[{place}].{field}");
    let count = spec.count.unwrap_or(1);
    if count == 0 || count as usize > MOST {
        return Err(ControlError::field(&at("count"), Some(count.to_string()), "1 to 1000"));
    }
    if spec.id.is_some() && count > 1 {
        let value = Some(count.to_string());
        return Err(ControlError::field(&at("count"), value, "1, since an id is given"));
    }
    let mut request = request_of(tenant, spec);
    apply_default_disk(policy, spec, &mut request);
    crate::elastic::classify(policy, &mut request, &at("elastic"))?;
    for set in &spec.attachments {
        request.volumes.extend(super::attachments::volumes_of(control, tenant, set).await?);
    }
    // Sets may share volumes with each other and with volumes that are named as well.
    let mut known = std::collections::BTreeSet::new();
    request.volumes.retain(|volume| known.insert(volume.clone()));
    if let Some(volume) =
        request.volumes.iter().find(|it| control.moves.volume_moves.is_stopping(it))
    {
        let why = format!("volume {volume} is on its way to another node");
        return Err(ControlError::conflict("volume_moving", why).retry_after(5));
    }
    for number in 0..count {
        let mut instance = request.clone();
        let position = InstancePosition { tenant, request_id, place, number };
        instance.id = spec.id.unwrap_or_else(|| control.instance_ids.derive(position));
        if let (Some(name), true) = (&spec.name, count > 1) {
            instance.name = Some(format!("{name}-{}", number + 1));
        }
        instances.push(Arc::new(instance));
    }
    Ok(())
}
