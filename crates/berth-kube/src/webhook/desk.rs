//! The desk where seats are given: Berth's claim path, over two nodes that stand for the two kinds
//! of capacity.
//!
//! A revision of a Kubernetes workload is a workload of Berth's whose members somebody else creates;
//! a pod is an instance; the slot is its seat, a reservation its lease. The planner proposes the
//! lowest free seat and the ledger gives it in the same commit as the claim, so any number of
//! replicas over one ledger give each seat once. Nothing here knows of Kubernetes objects.

use std::sync::Arc;
use std::time::Duration;

use berth_control::catalog::Catalog;
use berth_control::workload::{Definition, WorkloadKey};
use berth_control::{
    MaintenanceConfig, MaintenanceWorker, PlaceAnswer, PlaceJob, PlaceRequest, Placer,
    PlacerOptions, WantedSeat,
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
use tokio::sync::oneshot;

/// The node that stands for all on-demand nodes.
const ON_DEMAND: &str = "kubernetes/on-demand";
/// The node that stands for all spot nodes.
const SPOT: &str = "kubernetes/spot";

/// Every revision of a Kubernetes workload is a workload of its own, which has one revision.
const REVISION: i64 = 1;

/// Nodes that stand for kinds have no agents and lack nothing.
const POLICY: &str = r#"
name = "kubernetes-webhook"
[filters]
off = ["heartbeat-fresh", "kvm", "scratch-disk", "overlay-healthy", "not-sick"]
"#;

/// How long a write waits for the database; the API server waits a few seconds for all of it.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a seat is asked for anew when others were faster every time.
const TRIES: u32 = 8;

/// The desk cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The built-in policy is broken.
    #[error("the webhook's own policy is not accepted")]
    Policy(#[from] PolicyError),
    /// The ledger or a thread cannot be had.
    #[error("the ledger cannot be used: {0}")]
    Ledger(String),
    /// The ledger is somebody else's.
    #[error(
        "the ledger has node {0:?}, so it is a Berth server's; give the webhook a database of its own"
    )]
    NotOurs(String),
}

/// A seat cannot be given or looked at now.
#[derive(Debug, Error)]
pub(super) enum DeskError {
    #[error("the ledger does not answer")]
    Ledger(#[from] LedgerError),
    #[error("the ledger refused: {0}")]
    Refused(String),
    #[error("the ledger is being closed")]
    Closed,
}

/// A seat that somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seated {
    pub(super) id: InstanceId,
    pub(super) key: WorkloadKey,
    pub(super) slot: i64,
    pub(super) class: CapacityType,
    pub(super) state: ClaimState,
    pub(super) fence: i64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) key: WorkloadKey,
    pub(super) id: InstanceId,
    /// A retry under the same id gets the first answer.
    pub(super) request_id: String,
    /// The kind of capacity that the pod chose itself, or is on already.
    pub(super) class: Option<CapacityType>,
    /// The seat it must have; absent: the lowest that is free.
    pub(super) slot: Option<i64>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It has a seat.
    Seated(Seated),
    /// Another has the seat that was asked for.
    Taken(InstanceId),
}

/// The desk.
pub(super) struct Desk {
    placer: Placer,
    catalog: Arc<Catalog>,
    lease_s: u32,
    /// Keeps house until the desk closes.
    _housekeeper: MaintenanceWorker,
}

impl Desk {
    /// Opens the ledger and reads it.
    pub(super) async fn open(backend: Backend, lease_s: u32) -> Result<Self, OpenError> {
        let opening = tokio::task::spawn_blocking(move || Self::open_blocking(backend, lease_s));
        let desk = opening.await.map_err(|error| OpenError::Ledger(error.to_string()))??;
        desk.settled().await;
        // A server's own nodes would be given to pods, and its instances to ours.
        let foreign = {
            let books = desk.catalog.books();
            let ours = |id: &&NodeId| ![ON_DEMAND, SPOT].contains(&id.as_str());
            books.nodes.keys().find(ours).map(|id| id.as_str().to_owned())
        };
        foreign.map_or(Ok(desk), |name| Err(OpenError::NotOurs(name)))
    }

    fn open_blocking(backend: Backend, lease_s: u32) -> Result<Self, OpenError> {
        fn failed(error: impl std::error::Error) -> OpenError {
            OpenError::Ledger(chain(&error))
        }
        let (catalog, notes, _) = Catalog::start().map_err(failed)?;
        let mut options = PlacerOptions::new(Policy::from_toml(POLICY)?);
        options.notes = Some(notes);
        // An embedded ledger has no other writers whose news one could wait for.
        options.follow_every = match &backend {
            Backend::Sqlite(_) => Duration::from_millis(200),
            Backend::Postgres(_) => Duration::from_millis(25),
        };
        options.ledger.retry_budget = PATIENCE;
        let placer = Placer::start(backend, &options).map_err(failed)?;
        let ledger = placer.ledger().clone();
        for (name, class) in [(ON_DEMAND, CapacityType::OnDemand), (SPOT, CapacityType::Spot)] {
            ledger.administer(Op::put_node(node_facts(name, class))).map_err(failed)?;
        }
        let chores = MaintenanceConfig {
            reap_every: Duration::from_secs(1),
            ..MaintenanceConfig::default()
        };
        let housekeeper = MaintenanceWorker::start(ledger, chores).map_err(failed)?;
        Ok(Self { placer, catalog, lease_s, _housekeeper: housekeeper })
    }

    /// Waits until everything committed here is in the books.
    pub(super) async fn settled(&self) {
        self.placer.settled().await;
    }

    /// States a workload's rule, as it was read from an object in this version. Returns the rule
    /// that holds: another replica may have read a newer version.
    pub(super) async fn define(
        &self,
        key: &WorkloadKey,
        rule: CapacityRule,
        version: Option<&str>,
    ) -> Result<CapacityRule, DeskError> {
        for _ in 0..TRIES {
            let now = self.catalog.books().workloads.get(key).cloned();
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
                    self.settled().await;
                    return Ok(rule);
                }
                // Another replica was faster: what it wrote comes with the log.
                Outcome::Stale { .. } => tokio::time::sleep(Duration::from_millis(30)).await,
                Outcome::Impossible(why) => return Err(DeskError::Refused(why)),
            }
        }
        Err(DeskError::Refused("other replicas keep changing the workload".to_owned()))
    }

    /// Gives a seat.
    pub(super) async fn reserve(&self, ask: &Ask) -> Result<Asked, DeskError> {
        for tried in 1..=TRIES {
            match self.place(ask).await? {
                PlaceAnswer::Granted(granted) => {
                    let claim = granted.grant.claims.first();
                    let seat = claim.and_then(|claim| Some((claim, claim.slot?)));
                    let Some((claim, seat)) = seat else {
                        return Err(DeskError::Refused("the claim has no seat".to_owned()));
                    };
                    return Ok(Asked::Seated(Seated {
                        id: ask.id,
                        key: ask.key.clone(),
                        slot: seat.slot,
                        class: class_of(&claim.node),
                        state: ClaimState::Held,
                        fence: claim.fence,
                    }));
                }
                PlaceAnswer::Contended(conflict) => match conflict.guard {
                    Guard::SlotTaken { by, .. } if ask.slot.is_some() => {
                        return Ok(Asked::Taken(by));
                    }
                    _ => tokio::time::sleep(Duration::from_millis(5 * u64::from(tried))).await,
                },
                PlaceAnswer::Invalid(invalid) => {
                    // It has a seat by another request.
                    return match self.find(ask.id).await? {
                        Some(seated) => Ok(Asked::Seated(seated)),
                        None => Err(DeskError::Refused(invalid.to_string())),
                    };
                }
                PlaceAnswer::NoRoom(refusals) => {
                    let code = refusals.first().map_or("no node", |it| it.code.as_ref());
                    return Err(DeskError::Refused(code.to_owned()));
                }
                PlaceAnswer::Refused(by) => return Err(DeskError::Refused(by.code().to_owned())),
                PlaceAnswer::Unknown(error) => return Err(error.into()),
            }
        }
        Err(DeskError::Refused("other replicas were faster every time".to_owned()))
    }

    async fn place(&self, ask: &Ask) -> Result<PlaceAnswer, DeskError> {
        let resources = Amounts::new(0, 1);
        let mut instance = InstanceRequest::new(ask.id, &ask.key.0, resources);
        instance.resources = resources;
        instance.workload = Some(ask.key.1.to_string());
        instance.capacity_type = ask.class;
        let seats = ask.slot.map(|slot| WantedSeat { seat: seat(slot), takes_over: None });
        let request = PlaceRequest {
            request_id: Text::from(ask.request_id.as_str()),
            owner: Text::clone(&ask.key.0),
            instances: vec![Arc::new(instance)],
            mode: BatchMode::AllOrNothing,
            lease_s: self.lease_s,
            seats: seats.into_iter().collect(),
            ..PlaceRequest::default()
        };
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.placer.submit(PlaceJob { request, reply });
        receiver.await.map_err(|_| DeskError::Closed)
    }

    /// The seat that the next pod would get if one were not there, and its kind. Nothing is written.
    pub(super) async fn preview(
        &self,
        key: &WorkloadKey,
        rule: &CapacityRule,
        pinned: Option<CapacityType>,
        without: Option<InstanceId>,
    ) -> (i64, CapacityType) {
        self.settled().await;
        let others = self.members(key).into_iter().filter(|member| Some(member.id) != without);
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

    /// The seat that an instance has, as far as this replica has heard.
    pub(super) fn in_books(&self, id: InstanceId) -> Option<Seated> {
        let claim = self.catalog.books().claims.get(&ClaimKey::primary(id)).cloned()?;
        let (key, seat) = (claim.workload()?, claim.seat?);
        let (class, state, fence) = (class_of(&claim.node), claim.state, claim.fence);
        Some(Seated { id, key, slot: seat.slot, class, state, fence })
    }

    /// The seat that an instance has. A reservation that another replica just made is found too.
    pub(super) async fn find(&self, id: InstanceId) -> Result<Option<Seated>, DeskError> {
        if let Some(known) = self.in_books(id) {
            return Ok(Some(known));
        }
        let key = ClaimKey::primary(id);
        let ledger = self.placer.ledger().clone();
        let read = tokio::task::spawn_blocking(move || ledger.claim(key)).await;
        let Some(claim) = read.map_err(|_| DeskError::Closed)?? else { return Ok(None) };
        let (Some(workload), Some(seat)) = (claim.workload.clone(), claim.slot()) else {
            return Ok(None);
        };
        Ok(Some(Seated {
            id,
            key: (Text::clone(&claim.owner), workload),
            slot: seat.slot,
            class: class_of(&claim.node),
            state: claim.state,
            fence: claim.fence,
        }))
    }

    /// The pod of a reservation is there: the seat is its own for as long as it lives. Returns
    /// whether it could be given; its lease may have ended.
    pub(super) async fn bind(&self, seated: &Seated) -> Result<bool, DeskError> {
        if seated.state == ClaimState::Active {
            return Ok(true);
        }
        let key = ClaimKey::primary(seated.id);
        let step = |step| Op::Advance(Advance { key, owner: None, fence: seated.fence, step });
        let (bound, activated) =
            tokio::join!(self.call(step(Step::Bind)), self.call(step(Step::Activate)));
        match (bound?, activated?) {
            (_, Answer::Claim(Ok(_))) => Ok(true),
            (Answer::Claim(Err(_)), _) | (_, Answer::Claim(Err(_))) => Ok(false),
            (_, other) => Err(DeskError::Refused(format!("{other:?}"))),
        }
    }

    /// A seat is free again. Somebody else may have freed it, or have got it since.
    pub(super) async fn release(&self, seated: &Seated, reason: &str) -> Result<(), DeskError> {
        let release = Release {
            request_id: Text::from(format!("release/{}/{}", seated.id.0, seated.fence)),
            key: ClaimKey::primary(seated.id),
            owner: None,
            fence: Some(seated.fence),
            confirmed: true,
            reason: Text::from(reason),
        };
        match self.call(Op::Release(release)).await? {
            Answer::Claim(
                Ok(_) | Err(ClaimRejection::NoClaim(_) | ClaimRejection::StaleFence { .. }),
            ) => Ok(()),
            other => Err(DeskError::Refused(format!("{other:?}"))),
        }
    }

    /// Ends reservations whose time is up.
    pub(super) async fn reap(&self) -> Result<(), DeskError> {
        let ledger = self.placer.ledger().clone();
        let reaped = tokio::task::spawn_blocking(move || ledger.reap()).await;
        reaped.map_err(|_| DeskError::Closed)??;
        Ok(())
    }

    /// Who has seats of a workload.
    pub(super) fn members(&self, key: &WorkloadKey) -> Vec<Seated> {
        let books = self.catalog.books();
        let members = books.members.get(key).into_iter().flatten();
        members
            .map(|member| Seated {
                id: member.key.instance,
                key: key.clone(),
                slot: member.seat.slot,
                class: class_of(&member.node),
                state: member.state,
                fence: member.fence,
            })
            .collect()
    }

    /// Who has any seat.
    pub(super) fn everyone(&self) -> Vec<Seated> {
        let keys: Vec<WorkloadKey> = self.catalog.books().members.keys().cloned().collect();
        keys.iter().flat_map(|key| self.members(key)).collect()
    }

    /// All workloads and their rules.
    pub(super) fn workloads(&self) -> Vec<(WorkloadKey, CapacityRule)> {
        let books = self.catalog.books();
        let rule =
            |(key, it): (&WorkloadKey, &Arc<Definition>)| Some((key.clone(), it.body.capacity?));
        books.workloads.iter().filter_map(rule).collect()
    }

    /// The rule of a workload, once it was stated.
    pub(super) fn rule(&self, key: &WorkloadKey) -> Option<CapacityRule> {
        self.catalog.books().workloads.get(key)?.body.capacity
    }

    /// Forgets a workload that has no members.
    pub(super) async fn forget(&self, key: &WorkloadKey) -> Result<(), DeskError> {
        let (owner, name) = key.clone();
        // One that has members again stays.
        self.administer(Op::RemoveWorkload { owner, name, expect: Expect::Any }).await.map(drop)
    }

    async fn administer(&self, op: Op) -> Result<Outcome, DeskError> {
        match self.call(op).await? {
            Answer::Outcome(outcome) => Ok(outcome),
            other => Err(DeskError::Refused(format!("{other:?}"))),
        }
    }

    async fn call(&self, op: Op) -> Result<Answer, DeskError> {
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.placer.ledger().submit([Job { op, reply }]);
        Ok(receiver.await.map_err(|_| DeskError::Closed)??)
    }
}

fn seat(slot: i64) -> Slot {
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

/// Whether what is known was read from a later version than what is said now. Versions of one kind
/// of object grow; those that are no numbers are never later.
fn is_newer(known: Option<&str>, said: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    number(known).zip(number(said)).is_some_and(|(known, said)| known > said)
}

/// A workload as it is stored. What members "run" is the version of the object that the rule was
/// read from.
fn row(key: &WorkloadKey, rule: CapacityRule, read_from: Option<&str>, version: i64) -> Workload {
    let body = serde_json::json!({
        "revision": REVISION,
        "template": { "resources": { "memory_mib": 1, "disk_mib": 0 } },
        "capacity": rule,
        "release": read_from,
    });
    let (owner, name) = (key.0.to_string(), key.1.to_string());
    // The caller creates the members.
    Workload { owner, name, revision: version, replicas: -1, body: body.to_string() }
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
