//! The store of slots: Berth's claim path, over two nodes that stand for the two capacity types.
//!
//! A revision of a Kubernetes workload is a Berth workload whose members are created by the caller; a
//! pod is an instance, and a reservation is a lease on its slot. The planner proposes the lowest free
//! slot and the ledger assigns it in the same commit as the claim, so any number of replicas over one
//! ledger assign each slot once. Nothing here knows Kubernetes objects.

use std::sync::Arc;
use std::time::Duration;

use berth_control::catalog::Catalog;
use berth_control::workload::{Definition, WorkloadKey};
use berth_control::{
    MaintenanceConfig, MaintenanceWorker, PlaceAnswer, PlaceJob, PlaceRequest, Placer,
    PlacerOptions, RequestedSlot,
};
use berth_engine::PolicyError;
use berth_engine::workload::{CapacityRule, lowest_free_slot, on_demand_slots, slot_class};
use berth_engine::{
    Amounts, BatchMode, CapacityType, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy,
};
use berth_ledger::{
    Advance, Answer, Backend, ClaimKey, ClaimRejection, ClaimState, Expect, Guard, Job,
    LedgerError, Op, Outcome, Release, Slot, Step, Text, Workload,
};
use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::breaker::Breaker;
use crate::watch::parse_version;

/// The node that stands for all on-demand nodes.
const ON_DEMAND: &str = "kubernetes/on-demand";
/// The node that stands for all spot nodes.
const SPOT: &str = "kubernetes/spot";

/// Every revision of a Kubernetes workload is a workload of its own, which has one revision.
const REVISION: i64 = 1;

/// The two nodes have no agents, so filters on what agents report are off.
const POLICY: &str = r#"
name = "kubernetes-webhook"
[filters]
off = ["heartbeat-fresh", "kvm", "scratch-disk", "overlay-healthy", "not-sick"]
"#;

/// Timeout of a write; the API server waits a few seconds for the whole admission.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Attempts to assign a slot under contention.
const TRIES: u32 = 8;

/// How often the database is probed while it answers, and while it does not.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const PROBE_INTERVAL_AWAY: Duration = Duration::from_millis(500);
/// Timeout of a probe: a database that hangs is as useless as one that is gone.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The built-in policy is invalid.
    #[error("the webhook's built-in policy is invalid")]
    Policy(#[from] PolicyError),
    /// The ledger or one of its threads cannot be started.
    #[error("failed to open the ledger: {0}")]
    Ledger(String),
    /// The ledger belongs to a Berth server.
    #[error(
        "the ledger contains node {0:?}, so it belongs to a Berth server; use a separate database for the webhook"
    )]
    NotOurs(String),
}

/// A slot cannot be assigned or read now.
#[derive(Debug, Error)]
pub(super) enum SlotStoreError {
    #[error("the ledger is unavailable")]
    Ledger(#[from] LedgerError),
    #[error("the slot database does not answer")]
    Unavailable,
    #[error("the ledger rejected the request: {0}")]
    Refused(String),
    #[error("the ledger is closing")]
    Closed,
}

/// The claim of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotClaim {
    pub(super) id: InstanceId,
    pub(super) key: WorkloadKey,
    pub(super) slot: i64,
    pub(super) class: CapacityType,
    pub(super) state: ClaimState,
    pub(super) fence: i64,
}

/// A request for a slot.
#[derive(Clone, Debug)]
pub(super) struct SlotRequest {
    pub(super) key: WorkloadKey,
    pub(super) id: InstanceId,
    /// A retry with the same id returns the first result.
    pub(super) request_id: String,
    /// The capacity type that the pod chose itself, or runs on.
    pub(super) class: Option<CapacityType>,
    /// The slot it must have; absent: the lowest free one.
    pub(super) slot: Option<i64>,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlotResult {
    /// The slot is assigned.
    Assigned(SlotClaim),
    /// Another pod has the requested slot.
    Taken(InstanceId),
}

/// The store.
pub(super) struct SlotStore {
    placer: Placer,
    catalog: Arc<Catalog>,
    breaker: Breaker,
    lease_s: u32,
    /// Runs maintenance until the store is closed.
    _maintenance: MaintenanceWorker,
}

impl SlotStore {
    /// Opens the ledger and reads it.
    pub(super) async fn open(backend: Backend, lease_s: u32) -> Result<Self, OpenError> {
        let opening = tokio::task::spawn_blocking(move || Self::open_blocking(backend, lease_s));
        let slots = opening.await.map_err(|error| OpenError::Ledger(error.to_string()))??;
        slots.wait_for_writes().await;
        // The nodes of a server would be assigned to pods, and its instances would mix with ours.
        let foreign = {
            let catalog = slots.catalog.read();
            let ours = |id: &&NodeId| ![ON_DEMAND, SPOT].contains(&id.as_str());
            catalog.nodes.keys().find(ours).map(|id| id.as_str().to_owned())
        };
        foreign.map_or(Ok(slots), |name| Err(OpenError::NotOurs(name)))
    }

    fn open_blocking(backend: Backend, lease_s: u32) -> Result<Self, OpenError> {
        fn failed(error: impl std::error::Error) -> OpenError {
            OpenError::Ledger(chain(&error))
        }
        let mut options = PlacerOptions::new(Policy::from_toml(POLICY)?);
        let (catalog, notes, _) = Catalog::start(&options.supervisor, None).map_err(failed)?;
        options.notes = Some(notes);
        // An embedded ledger has no other writers to follow.
        options.follow_every = match &backend {
            Backend::Sqlite(_) => Duration::from_millis(200),
            Backend::Postgres(_) => Duration::from_millis(25),
        };
        options.ledger.retry_budget = WRITE_TIMEOUT;
        let placer = Placer::start(backend, &options).map_err(failed)?;
        let ledger = placer.ledger().clone();
        for (name, class) in [(ON_DEMAND, CapacityType::OnDemand), (SPOT, CapacityType::Spot)] {
            ledger.administer(Op::put_node(node_facts(name, class))).map_err(failed)?;
        }
        let config = MaintenanceConfig {
            reap_every: Duration::from_secs(1),
            ..MaintenanceConfig::default()
        };
        let maintenance = MaintenanceWorker::start(ledger, config).map_err(failed)?;
        let breaker = Breaker::default();
        Ok(Self { placer, catalog, breaker, lease_s, _maintenance: maintenance })
    }

    /// Waits until every commit made here is visible in the catalog.
    pub(super) async fn wait_for_writes(&self) {
        self.placer.wait_for_read_your_writes().await;
    }

    /// Stores a workload's rule, read from an object of this version. Returns the rule in effect:
    /// another replica may have read a newer version.
    pub(super) async fn put_rule(
        &self,
        key: &WorkloadKey,
        rule: CapacityRule,
        version: Option<&str>,
    ) -> Result<CapacityRule, SlotStoreError> {
        for _ in 0..TRIES {
            let now = self.catalog.read().workloads.get(key).cloned();
            let stored = now.as_ref().and_then(|now| now.body.capacity);
            if let Some(stored) = stored {
                let known = now.as_ref().and_then(|now| now.body.release.as_deref());
                if stored == rule || is_newer(known, version) {
                    return Ok(stored);
                }
            }
            let next = now.as_ref().map_or(1, |it| it.version + 1);
            let expect = now.as_ref().map_or(Expect::Absent, |it| Expect::Revision(it.version));
            let op = Op::PutWorkload { workload: row(key, rule, version, next), expect };
            match self.administer(op).await? {
                Outcome::Done | Outcome::Unchanged => {
                    self.wait_for_writes().await;
                    return Ok(rule);
                }
                // Another replica was faster: its write arrives with the log.
                Outcome::Stale { .. } => tokio::time::sleep(Duration::from_millis(30)).await,
                Outcome::Impossible(why) => return Err(SlotStoreError::Refused(why)),
                Outcome::TenantRemoving(tenant) => {
                    let why = format!("tenant {tenant} is being removed");
                    return Err(SlotStoreError::Refused(why));
                }
            }
        }
        Err(SlotStoreError::Refused("other replicas keep changing the workload".to_owned()))
    }

    /// Assigns a slot.
    pub(super) async fn reserve(
        &self,
        request: &SlotRequest,
    ) -> Result<SlotResult, SlotStoreError> {
        self.check_available()?;
        for tried in 1..=TRIES {
            match self.submit(request).await? {
                PlaceAnswer::Granted(granted) => {
                    let claim = granted.grant.claims.first();
                    let assigned = claim.and_then(|claim| Some((claim, claim.slot?)));
                    let Some((claim, slot)) = assigned else {
                        return Err(SlotStoreError::Refused("the claim has no slot".to_owned()));
                    };
                    return Ok(SlotResult::Assigned(SlotClaim {
                        id: request.id,
                        key: request.key.clone(),
                        slot: slot.slot,
                        class: class_of(&claim.node),
                        state: ClaimState::Held,
                        fence: claim.fence,
                    }));
                }
                PlaceAnswer::Contended(conflict) => match conflict.guard {
                    Guard::SlotTaken { by, .. } if request.slot.is_some() => {
                        return Ok(SlotResult::Taken(by));
                    }
                    _ => tokio::time::sleep(Duration::from_millis(5 * u64::from(tried))).await,
                },
                PlaceAnswer::Busy(_) => {
                    tokio::time::sleep(Duration::from_millis(5 * u64::from(tried))).await;
                }
                PlaceAnswer::Invalid(invalid) => {
                    // It has a slot from another request.
                    return match self.find_claim(request.id).await? {
                        Some(claim) => Ok(SlotResult::Assigned(claim)),
                        None => Err(SlotStoreError::Refused(invalid.to_string())),
                    };
                }
                PlaceAnswer::NoRoom(refusals) => {
                    let code = refusals.first().map_or("no node", |it| it.code.as_ref());
                    return Err(SlotStoreError::Refused(code.to_owned()));
                }
                PlaceAnswer::Refused(by, _) => {
                    return Err(SlotStoreError::Refused(by.code().to_owned()));
                }
                PlaceAnswer::Unknown(error) => return Err(error.into()),
            }
        }
        Err(SlotStoreError::Refused("too many concurrent requests; retry".to_owned()))
    }

    async fn submit(&self, request: &SlotRequest) -> Result<PlaceAnswer, SlotStoreError> {
        let resources = Amounts::new(0, 1);
        let mut instance = InstanceRequest::new(request.id, &request.key.0, resources);
        instance.resources = resources;
        instance.workload = Some(request.key.1.to_string());
        instance.capacity_type = request.class;
        let slots =
            request.slot.map(|slot| RequestedSlot { slot: slot_key(slot), takes_over: None });
        let request = PlaceRequest {
            request_id: Text::from(request.request_id.as_str()),
            tenant: Text::clone(&request.key.0),
            instances: vec![Arc::new(instance)],
            mode: BatchMode::AllOrNothing,
            lease_s: self.lease_s,
            slots: slots.into_iter().collect(),
            ..PlaceRequest::default()
        };
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.placer.submit(PlaceJob { request, reply });
        let answer = receiver.await.map_err(|_| SlotStoreError::Closed)?;
        self.breaker.record(!matches!(answer, PlaceAnswer::Unknown(_)));
        Ok(answer)
    }

    /// Fails at once while the database does not answer.
    fn check_available(&self) -> Result<(), SlotStoreError> {
        if self.breaker.is_available() { Ok(()) } else { Err(SlotStoreError::Unavailable) }
    }

    /// Whether the database answers, and each change of it.
    pub(super) fn availability(&self) -> watch::Receiver<bool> {
        self.breaker.subscribe()
    }

    /// Probes the database until stopped: soon after a failure, and now and then while all is well, so that
    /// its absence shows without an admission.
    pub(super) async fn keep_probing(&self, stop: CancellationToken) {
        let mut availability = self.availability();
        loop {
            let answers = *availability.borrow_and_update();
            let pause = if answers { PROBE_INTERVAL } else { PROBE_INTERVAL_AWAY };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = availability.changed() => continue,
                () = tokio::time::sleep(pause) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.probe() => {}
            }
        }
    }

    /// Asks the writer of the database for something that does not exist. Changes nothing.
    async fn probe(&self) {
        let key = ClaimKey::primary(InstanceId(Uuid::nil()));
        let op = Op::Advance(Advance { key, tenant: None, fence: 0, step: Step::Activate });
        let answer = tokio::time::timeout(PROBE_TIMEOUT, self.submit_op(op)).await;
        self.breaker.record(matches!(answer, Ok(Ok(_))));
    }

    /// The slot that the next pod would get if one pod were gone, and its type. Writes nothing.
    pub(super) async fn preview_slot(
        &self,
        key: &WorkloadKey,
        rule: &CapacityRule,
        pinned: Option<CapacityType>,
        without: Option<InstanceId>,
    ) -> (i64, CapacityType) {
        self.wait_for_writes().await;
        let others = self.claims_of(key).into_iter().filter(|member| Some(member.id) != without);
        let mut taken: Vec<u32> =
            others.filter_map(|member| u32::try_from(member.slot).ok()).collect();
        taken.sort_unstable();
        let first = match pinned {
            Some(CapacityType::Spot) => on_demand_slots(rule, None),
            Some(CapacityType::OnDemand) | None => 0,
        };
        let free = lowest_free_slot(taken.into_iter().filter_map(|slot| slot.checked_sub(first)));
        let slot = first.saturating_add(free);
        let class = pinned.or_else(|| slot_class(rule, None, slot));
        (i64::from(slot), class.unwrap_or_default())
    }

    /// The slot of an instance, as far as this replica knows.
    pub(super) fn cached_claim(&self, id: InstanceId) -> Option<SlotClaim> {
        let claim = self.catalog.read().claims.get(&ClaimKey::primary(id)).cloned()?;
        let (key, slot) = (claim.workload()?, claim.slot?.slot);
        let (class, state, fence) = (class_of(&claim.node), claim.state, claim.fence);
        Some(SlotClaim { id, key, slot, class, state, fence })
    }

    /// The slot of an instance, including reservations that another replica just made.
    pub(super) async fn find_claim(
        &self,
        id: InstanceId,
    ) -> Result<Option<SlotClaim>, SlotStoreError> {
        if let Some(known) = self.cached_claim(id) {
            return Ok(Some(known));
        }
        self.check_available()?;
        let key = ClaimKey::primary(id);
        let ledger = self.placer.ledger().clone();
        let read = tokio::task::spawn_blocking(move || ledger.claim(key)).await;
        let read = read.map_err(|_| SlotStoreError::Closed)?;
        self.breaker.record(read.is_ok());
        let Some(claim) = read? else { return Ok(None) };
        let (Some(workload), Some(slot)) = (claim.workload.clone(), claim.slot()) else {
            return Ok(None);
        };
        Ok(Some(SlotClaim {
            id,
            key: (Text::clone(&claim.tenant), workload),
            slot: slot.slot,
            class: class_of(&claim.node),
            state: claim.state,
            fence: claim.fence,
        }))
    }

    /// Makes a reservation permanent, because its pod exists. Returns false if the lease has expired.
    pub(super) async fn activate(&self, claim: &SlotClaim) -> Result<bool, SlotStoreError> {
        if claim.state == ClaimState::Active {
            return Ok(true);
        }
        let key = ClaimKey::primary(claim.id);
        let step = |step| Op::Advance(Advance { key, tenant: None, fence: claim.fence, step });
        let (bound, activated) =
            tokio::join!(self.call(step(Step::Bind)), self.call(step(Step::Activate)));
        match (bound?, activated?) {
            (_, Answer::Claim(Ok(_))) => Ok(true),
            (Answer::Claim(Err(_)), _) | (_, Answer::Claim(Err(_))) => Ok(false),
            (_, other) => Err(SlotStoreError::Refused(format!("{other:?}"))),
        }
    }

    /// Releases a slot. It may be free already, or assigned to another pod.
    pub(super) async fn release(
        &self,
        claim: &SlotClaim,
        reason: &str,
    ) -> Result<(), SlotStoreError> {
        let release = Release {
            request_id: Text::from(format!("release/{}/{}", claim.id.0, claim.fence)),
            key: ClaimKey::primary(claim.id),
            tenant: None,
            fence: Some(claim.fence),
            confirmed: true,
            reason: Text::from(reason),
        };
        match self.call(Op::Release(release)).await? {
            Answer::Claim(
                Ok(_) | Err(ClaimRejection::NoClaim(_) | ClaimRejection::StaleFence { .. }),
            ) => Ok(()),
            other => Err(SlotStoreError::Refused(format!("{other:?}"))),
        }
    }

    /// Ends expired reservations.
    pub(super) async fn expire_reservations(&self) -> Result<(), SlotStoreError> {
        self.check_available()?;
        let ledger = self.placer.ledger().clone();
        let reaped = tokio::task::spawn_blocking(move || ledger.reap()).await;
        reaped.map_err(|_| SlotStoreError::Closed)??;
        Ok(())
    }

    /// The claims of a workload.
    pub(super) fn claims_of(&self, key: &WorkloadKey) -> Vec<SlotClaim> {
        let catalog = self.catalog.read();
        let members = catalog.members.get(key).into_iter().flatten();
        members
            .map(|member| SlotClaim {
                id: member.key.instance,
                key: key.clone(),
                slot: member.slot.slot,
                class: class_of(&member.node),
                state: member.state,
                fence: member.fence,
            })
            .collect()
    }

    /// All claims.
    pub(super) fn all_claims(&self) -> Vec<SlotClaim> {
        let keys: Vec<WorkloadKey> = self.catalog.read().members.keys().cloned().collect();
        keys.iter().flat_map(|key| self.claims_of(key)).collect()
    }

    /// All workloads and their rules.
    pub(super) fn workloads(&self) -> Vec<(WorkloadKey, CapacityRule)> {
        let catalog = self.catalog.read();
        let rule =
            |(key, it): (&WorkloadKey, &Arc<Definition>)| Some((key.clone(), it.body.capacity?));
        catalog.workloads.iter().filter_map(rule).collect()
    }

    /// The rule of a workload, if known.
    pub(super) fn rule(&self, key: &WorkloadKey) -> Option<CapacityRule> {
        self.catalog.read().workloads.get(key)?.body.capacity
    }

    /// Removes a workload without members.
    pub(super) async fn remove_workload(&self, key: &WorkloadKey) -> Result<(), SlotStoreError> {
        let (tenant, name) = key.clone();
        // If it has members again, it stays.
        self.administer(Op::RemoveWorkload { tenant, name, expect: Expect::Any }).await.map(drop)
    }

    async fn administer(&self, op: Op) -> Result<Outcome, SlotStoreError> {
        match self.call(op).await? {
            Answer::Outcome(outcome) => Ok(outcome),
            other => Err(SlotStoreError::Refused(format!("{other:?}"))),
        }
    }

    async fn call(&self, op: Op) -> Result<Answer, SlotStoreError> {
        self.check_available()?;
        let answer = self.submit_op(op).await;
        self.breaker.record(answer.is_ok());
        answer
    }

    async fn submit_op(&self, op: Op) -> Result<Answer, SlotStoreError> {
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.placer.ledger().submit([Job { op, reply }]);
        Ok(receiver.await.map_err(|_| SlotStoreError::Closed)??)
    }
}

fn slot_key(slot: i64) -> Slot {
    Slot { revision: REVISION, slot }
}

fn node_facts(name: &str, class: CapacityType) -> NodeFacts {
    let most = Amounts::MAX;
    let capacity = Amounts::new(most, most).with_disk(most).with_bandwidth(most);
    let mut facts = NodeFacts::new(name, capacity);
    facts.capacity_type = class;
    facts.vmm_overhead_mib = 0;
    facts.instance_limit = most;
    facts
}

fn class_of(node: &NodeId) -> CapacityType {
    if node.as_str() == SPOT { CapacityType::Spot } else { CapacityType::OnDemand }
}

/// Whether the known version is newer than the given one. Resource versions increase; those that are
/// not numbers are never newer.
fn is_newer(known: Option<&str>, version: Option<&str>) -> bool {
    let numbers = known.and_then(parse_version).zip(version.and_then(parse_version));
    numbers.is_some_and(|(known, version)| known > version)
}

/// A workload as it is stored. The release is the version of the object that the rule was read from.
fn row(key: &WorkloadKey, rule: CapacityRule, read_from: Option<&str>, version: i64) -> Workload {
    let body = serde_json::json!({
        "revision": REVISION,
        "template": { "resources": { "memory_mib": 1, "disk_mib": 0 } },
        "capacity": rule,
        "release": read_from,
    });
    let (tenant, name) = (key.0.to_string(), key.1.to_string());
    // The caller creates the members.
    Workload { tenant, name, revision: version, replicas: -1, body: body.to_string() }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
