//! Leader election by a Lease object: one of several replicas acts, the others stand by.
//!
//! A lease that is not renewed in time is taken over. Clocks of different machines are never compared: a
//! candidate measures from when it last saw the lease change, by its own clock. Leadership is advisory,
//! not a lock: whatever must not happen twice is guarded where it happens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A candidate for a lease, with its timing.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Unique identity of this replica.
    pub identity: String,
    /// How long others wait for a renewal before they take over.
    pub duration: Duration,
    /// How long the leader tries to renew before it steps down; less than `duration`.
    pub renew_deadline: Duration,
    /// The interval between attempts.
    pub retry_period: Duration,
}

impl Candidate {
    /// A candidate with Kubernetes' default timing: 15 s, 10 s and 2 s.
    #[must_use]
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Campaigns until stopped, and then releases the lease. The receiver tells whether this replica
    /// leads; it says no before any other replica may say yes.
    pub fn campaign(self, client: Client, stop: CancellationToken) -> watch::Receiver<bool> {
        self.campaign_guarded(client, stop).watched
    }

    /// The same, with a handle that can be asked at any moment.
    pub fn campaign_guarded(self, client: Client, stop: CancellationToken) -> Leadership {
        let (is_leader, watched) = watch::channel(false);
        let term = Arc::default();
        let leadership = Leadership { watched, term: Arc::clone(&term) };
        let api = Api::namespaced(client, &self.namespace);
        let election = Election { candidate: self, api, observed: None, is_leader, term };
        tokio::spawn(election.run(stop));
        leadership
    }
}

/// How long this replica leads without a further renewal.
#[derive(Clone, Copy, Debug, Default)]
enum Term {
    #[default]
    None,
    Until(Instant),
    Unlimited,
}

/// Whether this replica leads.
#[derive(Clone)]
pub struct Leadership {
    watched: watch::Receiver<bool>,
    term: Arc<Mutex<Term>>,
}

impl Leadership {
    /// The leadership of a replica without rivals.
    #[must_use]
    pub fn alone() -> Self {
        let (_, watched) = watch::channel(true);
        Self { watched, term: Arc::new(Mutex::new(Term::Unlimited)) }
    }

    /// Whether this replica leads at this moment. Also false if the task that renews the lease was
    /// delayed: a process that was suspended for a minute does not resume as the leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        match *self.term.lock().unwrap_or_else(PoisonError::into_inner) {
            Term::None => false,
            Term::Until(end) => Instant::now() < end,
            Term::Unlimited => true,
        }
    }

    /// Waits for a change of leadership. False: the election has ended, and the lease is released.
    pub async fn changed(&mut self) -> bool {
        self.watched.changed().await.is_ok()
    }
}

/// The last observed lease, and when it was first seen in this state.
struct ObservedLease {
    spec: LeaseSpec,
    at: Instant,
}

struct Election {
    candidate: Candidate,
    api: Api<Lease>,
    observed: Option<ObservedLease>,
    is_leader: watch::Sender<bool>,
    term: Arc<Mutex<Term>>,
}

impl Election {
    async fn run(mut self, stop: CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            let began = Instant::now();
            // A leader without an answer steps down at its deadline, not later.
            let timeout = match *self.is_leader.borrow() {
                true => self.candidate.renew_deadline.saturating_sub(renewed.elapsed()),
                false => self.candidate.renew_deadline,
            };
            let attempt = tokio::time::timeout(timeout, self.acquire_or_renew());
            let outcome = tokio::select! {
                () = stop.cancelled() => break,
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(Ok(true)) => {
                    renewed = began;
                    self.set_term(Term::Until(began + self.candidate.renew_deadline));
                    self.set_leader(true);
                }
                Ok(Ok(false)) => self.set_leader(false),
                Ok(Err(_)) | Err(_) => {
                    match outcome {
                        // Retrying does not help: an operator has to fix this.
                        Ok(Err(kube::Error::Api(status))) if (400..404).contains(&status.code) => {
                            let lease = &self.candidate.name;
                            tracing::warn!(lease, %status, "failed to acquire lease");
                        }
                        Ok(Err(error)) => {
                            let lease = &self.candidate.name;
                            tracing::debug!(lease, %error, "lease renewal failed");
                        }
                        Ok(Ok(_)) | Err(_) => {}
                    }
                    if renewed.elapsed() >= self.candidate.renew_deadline {
                        self.set_leader(false);
                    }
                }
            }
            let left = match *self.is_leader.borrow() {
                true => self.candidate.renew_deadline.saturating_sub(renewed.elapsed()),
                false => self.candidate.retry_period,
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.candidate.retry_period.min(left)) => {}
            }
        }
        self.release().await;
    }

    fn set_term(&self, term: Term) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    fn set_leader(&self, is_leader: bool) {
        if !is_leader {
            self.set_term(Term::None);
        }
        let changed =
            self.is_leader.send_if_modified(|now| std::mem::replace(now, is_leader) != is_leader);
        if changed {
            let (lease, identity) = (&self.candidate.name, &self.candidate.identity);
            let event = if is_leader { "lease acquired" } else { "lease lost or released" };
            tracing::info!(lease, identity, "{event}");
        }
    }

    /// Acquires or renews the lease if it is free, expired or already ours. Returns whether it is ours.
    async fn acquire_or_renew(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.candidate.name).await? else {
            let lease = Lease { metadata: self.metadata(), spec: Some(self.spec(None)) };
            return is_written(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.candidate.identity && !self.is_expired(&spec) {
            return Ok(false);
        }
        lease.spec = Some(self.spec(Some(&spec)));
        let written = self.api.replace(&self.candidate.name, &PostParams::default(), &lease).await;
        is_written(written)
    }

    /// Whether the holder has not renewed the lease for its duration.
    fn is_expired(&mut self, spec: &LeaseSpec) -> bool {
        let same = self.observed.as_ref().is_some_and(|observed| observed.spec == *spec);
        if !same {
            self.observed = Some(ObservedLease { spec: spec.clone(), at: Instant::now() });
        }
        let duration = spec.lease_duration_seconds.and_then(|it| u64::try_from(it).ok());
        let duration = duration.map_or(self.candidate.duration, Duration::from_secs);
        self.observed.as_ref().is_some_and(|observed| observed.at.elapsed() >= duration)
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.candidate.name.clone()),
            namespace: Some(self.candidate.namespace.clone()),
            ..ObjectMeta::default()
        }
    }

    /// The lease held by this replica; if another held it before, with one more transition.
    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let identity = Some(self.candidate.identity.clone());
        let ours = before.filter(|before| before.holder_identity == identity);
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or(0);
        LeaseSpec {
            acquire_time: ours
                .and_then(|before| before.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            holder_identity: identity,
            lease_duration_seconds: i32::try_from(self.candidate.duration.as_secs()).ok(),
            lease_transitions: Some(if before.is_some() && ours.is_none() {
                transitions.saturating_add(1)
            } else {
                transitions
            }),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }

    /// Releases the lease, so that another replica can acquire it at once.
    async fn release(&mut self) {
        let was_leader = *self.is_leader.borrow();
        self.set_leader(false);
        if !was_leader {
            return;
        }
        let release = async {
            let Ok(mut lease) = self.api.get(&self.candidate.name).await else { return };
            let Some(spec) = lease.spec.as_mut() else { return };
            if spec.holder_identity.as_deref() != Some(&self.candidate.identity) {
                return;
            }
            // An empty name is not accepted; an absent one is.
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            // If this fails, others wait until the lease expires.
            let _ = self.api.replace(&self.candidate.name, &PostParams::default(), &lease).await;
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), release).await;
    }
}

/// Whether the write succeeded; losing a race is no error.
fn is_written(written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
