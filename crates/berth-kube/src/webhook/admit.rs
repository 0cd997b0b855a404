//! One admission: whose pod, what its workload asks for, which seat, which patch.
//!
//! It answers in time or not at all; what it cannot decide is answered by settings, never by a
//! guess. A dry run goes the same way and keeps nothing.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::CapacityType;
use berth_engine::workload::{CapacityRule, slot_class};
use berth_ledger::ClaimState;
use kube::api::ObjectMeta;
use serde_json::Value;
use tokio::sync::watch;

use super::affinity::{Leaves, leaves};
use super::desk::{Ask, Asked as Given, DeskError, Seated};
use super::events::Events;
use super::keeper::{KeepError, Keeper, ordinal};
use super::keys::{self, Asked, Marks, Problem};
use super::metrics::{Admission, Metrics};
use super::owners::{Look, Numbering, Owner};
use super::patch::{Told, patch};
use super::review::{Answer, Refused, Request, short};
use super::roster::{derived, read_token};
use super::settings::{NodeLabel, OnError, OnInvalid};

/// Answers reviews.
pub(super) struct Clerk {
    pub(super) keeper: Arc<Keeper>,
    pub(super) events: Arc<Events>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) label: NodeLabel,
    pub(super) on_invalid: OnInvalid,
    pub(super) on_error: OnError,
    pub(super) deadline: Duration,
    pub(super) excluded: Vec<String>,
    /// Whether the desk is in step with the pods.
    pub(super) ready: watch::Receiver<bool>,
}

/// Why no seat could be given.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Desk(#[from] DeskError),
    #[error("{0}")]
    Keep(#[from] KeepError),
    #[error("the API server does not answer")]
    Api(#[from] kube::Error),
    #[error("the webhook is still starting")]
    Starting,
}

/// A pod that is being created.
struct Coming<'a> {
    uid: &'a str,
    namespace: &'a str,
    pod: &'a Value,
    metadata: ObjectMeta,
    dry_run: bool,
}

impl Clerk {
    /// Answers a review, in time.
    pub(super) async fn answer(
        &self,
        request: &Request,
        patience: Option<Duration>,
    ) -> (Answer, Admission) {
        if !request.creates_a_pod() {
            return (Answer::untouched(), Admission::Untouched);
        }
        let deadline = patience.map_or(self.deadline, |it| self.deadline.min(it * 4 / 5));
        let why = match tokio::time::timeout(deadline, self.admit(request)).await {
            Ok(Ok(answered)) => return answered,
            Ok(Err(failed)) => failed.to_string(),
            Err(_) => format!("no answer within {deadline:?}"),
        };
        tracing::warn!(why, "a pod could not be given a slot");
        match self.on_error {
            OnError::Ignore => {
                let warning = format!("berth: no slot was given, the pod is as it came: {why}");
                (Answer::warned(&warning), Admission::Failed)
            }
            OnError::Refuse => {
                let message = format!("berth: no slot can be given now, try again: {why}");
                let refused = Refused { code: 503, reason: "ServiceUnavailable", message };
                let answer = Answer { refused: Some(refused), ..Answer::default() };
                (answer, Admission::Refused)
            }
        }
    }

    async fn admit(&self, request: &Request) -> Result<(Answer, Admission), Failed> {
        let untouched = Ok((Answer::untouched(), Admission::Untouched));
        let Some(coming) = Coming::read(request) else { return untouched };
        if self.excluded.iter().any(|it| it == coming.namespace) {
            return untouched;
        }
        if self.keeper.owners.keys().opts_out(Marks::of(&coming.metadata)) {
            return untouched;
        }
        let owner =
            self.keeper.owners.owner(coming.namespace, &coming.metadata, Look::Fresh).await?;
        let Some(owner) = owner else { return untouched };
        let (rule, problem) = match &owner.asked {
            Asked::Off => return untouched,
            Asked::UnclearSwitch(problem) => {
                self.unclear(&coming, &owner, problem);
                let answer = Answer::warned(&format!("berth: {problem}"));
                return Ok((answer, Admission::Untouched));
            }
            Asked::InvalidCount(problem) => return Ok(self.invalid(&coming, &owner, problem)),
            Asked::On { rule, problem } => (*rule, problem.clone()),
        };
        if let Some(why) = coming.cannot_be_placed() {
            let answer = Answer::warned(&format!("berth: {why}"));
            return Ok((answer, Admission::Untouched));
        }
        self.started().await?;
        let (seated, pinned) = match self.given_before(&coming, &owner).await? {
            Some(seated) => (seated, coming.annotation(keys::PINNED) == Some("true")),
            None => {
                let pinned = match leaves(&coming.pod["spec"], &self.label) {
                    Leaves::Both => None,
                    Leaves::Only(class) => Some(class),
                    Leaves::Neither => {
                        let key = &self.label.key;
                        let what = format!("berth: the pod asks for a {key} that is neither kind");
                        return Ok((Answer::warned(&what), Admission::Untouched));
                    }
                };
                (self.seat(&coming, &owner, rule, pinned).await?, pinned.is_some())
            }
        };
        if let Some(problem) = &problem {
            self.unclear(&coming, &owner, problem);
        }
        let mut answer = self.told(&coming, &owner, &seated, pinned);
        answer.warnings.extend(problem.map(|it| short(&format!("berth: {it}"))));
        let result = match (coming.dry_run, seated.class) {
            (true, _) => Admission::DryRun,
            (false, CapacityType::OnDemand) => Admission::OnDemand,
            (false, CapacityType::Spot) => Admission::Spot,
        };
        Ok((answer, result))
    }

    /// A warning in an answer is read by a controller, not by a person: the workload says it, too.
    fn unclear(&self, coming: &Coming<'_>, owner: &Owner, problem: &Problem) {
        if !coming.dry_run {
            self.events.warn(&owner.object, "InvalidSetting", "Admitting", problem.to_string());
        }
    }

    fn invalid(
        &self,
        coming: &Coming<'_>,
        owner: &Owner,
        problem: &Problem,
    ) -> (Answer, Admission) {
        if !coming.dry_run {
            let note = format!("{problem}; its pods are not shared between on-demand and spot");
            self.events.warn(&owner.object, "InvalidMaxOnDemandCount", "Admitting", note);
        }
        match self.on_invalid {
            OnInvalid::Admit => (Answer::warned(&format!("berth: {problem}")), Admission::Invalid),
            OnInvalid::Refuse => {
                let message = format!("berth: {problem}");
                let refused = Refused { code: 422, reason: "Invalid", message };
                let answer = Answer { refused: Some(refused), ..Answer::default() };
                (answer, Admission::Invalid)
            }
        }
    }

    fn told(&self, coming: &Coming<'_>, owner: &Owner, seated: &Seated, pinned: bool) -> Answer {
        let (token, slot, class) = (seated.id.0.to_string(), seated.slot, seated.class);
        let told = Told { token, slot, class, pinned, workload: &owner.key.1 };
        let mut answer =
            Answer { patch: patch(coming.pod, &told, &self.label), ..Answer::default() };
        answer.audit.insert("workload", owner.key.1.to_string());
        answer.audit.insert("slot", slot.to_string());
        answer.audit.insert("capacity", class.name().to_owned());
        answer
    }

    /// What an earlier call for the same pod was given, before others changed it: it keeps that. A
    /// token that is not known, of another workload, or of a pod that lives, was copied.
    async fn given_before(
        &self,
        coming: &Coming<'_>,
        owner: &Owner,
    ) -> Result<Option<Seated>, Failed> {
        let Some(token) = coming.annotation(keys::TOKEN).and_then(read_token) else {
            return Ok(None);
        };
        self.keeper.desk.settled().await;
        let seated = self.keeper.desk.find(token).await?;
        let same = |it: &Seated| it.key == owner.key && it.state == ClaimState::Held;
        if self.keeper.roster.named(token).is_some() {
            return Ok(None);
        }
        // A dry run is written nowhere, nor is an ordinal whose seat another still has: what was
        // answered stands in the pod alone. Our own affinity must not be taken for the user's.
        let unwritten = coming.dry_run || matches!(owner.numbering, Numbering::Ordinal { .. });
        let told = || coming.told_before(owner, token).filter(|_| unwritten);
        Ok(seated.filter(same).or_else(told))
    }

    /// The seat of a pod that is being created.
    async fn seat(
        &self,
        coming: &Coming<'_>,
        owner: &Owner,
        rule: CapacityRule,
        pinned: Option<CapacityType>,
    ) -> Result<Seated, Failed> {
        if let Numbering::Ordinal { start } = owner.numbering {
            return self.by_ordinal(coming, owner, rule, pinned, start).await;
        }
        if coming.dry_run {
            let (slot, class) = self.keeper.desk.preview(&owner.key, &rule, pinned, None).await;
            return Ok(coming.seated(owner, slot, class));
        }
        // A retry of a call that was answered with a second try.
        if let Some(seated) = self.keeper.desk.in_books(coming.new_id(2)) {
            return Ok(seated);
        }
        let version = owner.version.as_deref();
        self.keeper.desk.define(&owner.key, rule, version).await?;
        let seated = self.lowest(coming, owner, pinned, 1).await?;
        let expected = owner.replicas.is_none_or(|replicas| seated.slot < replicas);
        if expected {
            return Ok(seated);
        }
        // More seats are taken than there should be pods. Most likely one was lost, and its
        // controller knew before we did: ask, and give the seat that is free.
        self.metrics.refreshes.inc();
        if let Err(error) = self.keeper.refresh(coming.namespace, owner).await {
            tracing::debug!(%error, "pods could not be listed anew");
        }
        let desk = &self.keeper.desk;
        let (free, _) = desk.preview(&owner.key, &rule, pinned, Some(seated.id)).await;
        if free >= seated.slot {
            return Ok(seated);
        }
        self.keeper.desk.release(&seated, "replaced").await?;
        self.lowest(coming, owner, pinned, 2).await
    }

    async fn lowest(
        &self,
        coming: &Coming<'_>,
        owner: &Owner,
        class: Option<CapacityType>,
        attempt: u8,
    ) -> Result<Seated, Failed> {
        let ask = Ask {
            key: owner.key.clone(),
            id: coming.new_id(attempt),
            request_id: format!("review/{}/{attempt}", coming.uid),
            class,
            slot: None,
        };
        match self.keeper.desk.reserve(&ask).await? {
            Given::Seated(seated) => Ok(seated),
            Given::Taken(_) => Err(DeskError::Refused("the seat is taken".to_owned()).into()),
        }
    }

    /// A pod of a StatefulSet has the slot that its name says, whoever is counted there.
    async fn by_ordinal(
        &self,
        coming: &Coming<'_>,
        owner: &Owner,
        rule: CapacityRule,
        pinned: Option<CapacityType>,
        start: i64,
    ) -> Result<Seated, Failed> {
        let name = coming.metadata.name.as_deref().unwrap_or_default();
        let Some(number) = ordinal(name, coming.metadata.labels.as_ref()) else {
            let why = format!("pod {name:?} of a StatefulSet has no ordinal");
            return Err(DeskError::Refused(why).into());
        };
        let slot = number.saturating_sub(start).max(0);
        let narrow = u32::try_from(slot).unwrap_or(u32::MAX);
        let class = pinned.or_else(|| slot_class(&rule, None, narrow)).unwrap_or_default();
        let seated = coming.seated(owner, slot, class);
        if coming.dry_run {
            return Ok(seated);
        }
        self.keeper.desk.define(&owner.key, rule, owner.version.as_deref()).await?;
        let ask = Ask {
            key: owner.key.clone(),
            id: seated.id,
            request_id: format!("review/{}/1", coming.uid),
            class: Some(class),
            slot: Some(slot),
        };
        match self.keeper.desk.reserve(&ask).await? {
            Given::Seated(seated) => Ok(seated),
            // The one before it is on its way out, or this creation will fail. Which of them it is
            // shows when the pod does; the kind is the same.
            Given::Taken(_) => Ok(seated),
        }
    }

    /// Seats are given only when those of the pods there are have been taken.
    async fn started(&self) -> Result<(), Failed> {
        let mut ready = self.ready.clone();
        ready.wait_for(|ready| *ready).await.map(drop).map_err(|_| Failed::Starting)
    }
}

impl<'a> Coming<'a> {
    fn read(request: &'a Request) -> Option<Self> {
        let pod = &request.object;
        // Metadata that is none is left to the API server, which says what is wrong.
        let metadata: ObjectMeta = serde_json::from_value(pod["metadata"].clone()).ok()?;
        let namespace = request.namespace.as_deref().filter(|it| !it.is_empty());
        let namespace = namespace.or_else(|| pod["metadata"]["namespace"].as_str())?;
        let dry_run = request.is_dry_run();
        Some(Self { uid: &request.uid, namespace, pod, metadata, dry_run })
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The name that the pod gets at the desk: a retry of the call gets the same, and a second try
    /// within the call another, so that nobody takes the one for the other.
    fn new_id(&self, attempt: u8) -> berth_engine::InstanceId {
        derived("review", &format!("{}/{attempt}", self.uid))
    }

    fn seated(&self, owner: &Owner, slot: i64, class: CapacityType) -> Seated {
        let (id, key) = (self.new_id(1), owner.key.clone());
        Seated { id, key, slot, class, state: ClaimState::Held, fence: 0 }
    }

    /// What the pod itself says that we answered, if all of it is there.
    fn told_before(&self, owner: &Owner, id: berth_engine::InstanceId) -> Option<Seated> {
        let slot = self.annotation(keys::SLOT)?.parse().ok()?;
        let class = self.metadata.labels.as_ref()?.get(keys::CAPACITY)?;
        let kinds = [CapacityType::OnDemand, CapacityType::Spot];
        let class = kinds.into_iter().find(|it| it.name() == class)?;
        let ours = self.annotation(keys::WORKLOAD)? == &*owner.key.1;
        ours.then(|| Seated { id, ..self.seated(owner, slot, class) })
    }

    /// Why the kind of capacity must not be chosen for it.
    fn cannot_be_placed(&self) -> Option<&'static str> {
        // The scheduler is not asked, and the node would refuse what it does not match.
        let node = self.pod["spec"]["nodeName"].as_str().is_some_and(|it| !it.is_empty());
        node.then_some("spec.nodeName is set, so the pod is left as it came")
    }
}
