//! One of several replicas acts, the others stand by: leadership by a Lease object.
//!
//! A lease that is not renewed in time is taken by another. Clocks are never compared: whoever waits
//! counts from when it saw the lease change last, by its own clock. Leadership is advice, not a
//! lock: what must not happen twice is guarded where it happens.

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

/// Who stands for which lease, and how patiently.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The namespace of the lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are; no two may be the same.
    pub identity: String,
    /// How long others wait for a sign of life.
    pub duration: Duration,
    /// How long the leader tries to renew before it steps down; shorter than `duration`.
    pub renew_within: Duration,
    /// How often it is looked at.
    pub every: Duration,
}

impl Candidate {
    /// A candidate with Kubernetes' usual times: 15 s, 10 s and 2 s.
    #[must_use]
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            every: Duration::from_secs(2),
        }
    }

    /// Stands until it is told to stop, and then gives the lease back. The receiver says whether we
    /// lead; it says no in time before anyone else may.
    pub fn stand(self, client: Client, stop: CancellationToken) -> watch::Receiver<bool> {
        self.stand_guarded(client, stop).watched
    }

    /// The same, for those who must know at every moment whether they still lead.
    pub fn stand_guarded(self, client: Client, stop: CancellationToken) -> Leadership {
        let (leads, watched) = watch::channel(false);
        let until = Arc::default();
        let leadership = Leadership { watched, until: Arc::clone(&until) };
        let api = Api::namespaced(client, &self.namespace);
        tokio::spawn(Election { candidate: self, api, seen: None, leads, until }.run(stop));
        leadership
    }
}

/// Until when we lead.
#[derive(Clone, Copy, Debug, Default)]
enum Until {
    #[default]
    Never,
    Then(Instant),
    Always,
}

/// Whether we lead, now and at every later moment.
#[derive(Clone)]
pub struct Leadership {
    watched: watch::Receiver<bool>,
    until: Arc<Mutex<Until>>,
}

impl Leadership {
    /// The leadership of one that has no rivals.
    #[must_use]
    pub fn alone() -> Self {
        let (_, watched) = watch::channel(true);
        Self { watched, until: Arc::new(Mutex::new(Until::Always)) }
    }

    /// Whether we lead at this moment. Also says no when the task that renews the lease was held up:
    /// a process that was stopped for a minute does not wake as the leader.
    #[must_use]
    pub fn leads(&self) -> bool {
        match *self.until.lock().unwrap_or_else(PoisonError::into_inner) {
            Until::Never => false,
            Until::Then(end) => Instant::now() < end,
            Until::Always => true,
        }
    }

    /// Waits until leadership is won or lost. False: the election is over, and the lease given back.
    pub async fn changed(&mut self) -> bool {
        self.watched.changed().await.is_ok()
    }
}

/// A lease as it was last seen, and when we saw it so for the first time.
struct Seen {
    spec: LeaseSpec,
    at: Instant,
}

struct Election {
    candidate: Candidate,
    api: Api<Lease>,
    seen: Option<Seen>,
    leads: watch::Sender<bool>,
    until: Arc<Mutex<Until>>,
}

impl Election {
    async fn run(mut self, stop: CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            let began = Instant::now();
            // A leader that gets no answer steps down when its time is over, not later.
            let patience = match *self.leads.borrow() {
                true => self.candidate.renew_within.saturating_sub(renewed.elapsed()),
                false => self.candidate.renew_within,
            };
            let attempt = tokio::time::timeout(patience, self.attempt());
            let outcome = tokio::select! {
                () = stop.cancelled() => break,
                outcome = attempt => outcome,
            };
            match outcome {
                Ok(Ok(true)) => {
                    renewed = began;
                    self.lead_until(Until::Then(began + self.candidate.renew_within));
                    self.say(true);
                }
                Ok(Ok(false)) => self.say(false),
                Ok(Err(_)) | Err(_) => {
                    match outcome {
                        // Nothing gets better by waiting: somebody has to be told.
                        Ok(Err(kube::Error::Api(status))) if (400..404).contains(&status.code) => {
                            let lease = &self.candidate.name;
                            tracing::warn!(lease, %status, "the lease cannot be had");
                        }
                        Ok(Err(error)) => {
                            let lease = &self.candidate.name;
                            tracing::debug!(lease, %error, "no news of the lease");
                        }
                        Ok(Ok(_)) | Err(_) => {}
                    }
                    if renewed.elapsed() >= self.candidate.renew_within {
                        self.say(false);
                    }
                }
            }
            let left = match *self.leads.borrow() {
                true => self.candidate.renew_within.saturating_sub(renewed.elapsed()),
                false => self.candidate.every,
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.candidate.every.min(left)) => {}
            }
        }
        self.give_back().await;
    }

    fn lead_until(&self, until: Until) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn say(&self, leads: bool) {
        if !leads {
            self.lead_until(Until::Never);
        }
        let changed = self.leads.send_if_modified(|now| std::mem::replace(now, leads) != leads);
        if changed {
            let (lease, who) = (&self.candidate.name, &self.candidate.identity);
            tracing::info!(lease, who, leads, "leadership");
        }
    }

    /// Takes or renews the lease if it is ours, free or out of date. Says whether it is ours.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.candidate.name).await? else {
            let lease = Lease { metadata: self.metadata(), spec: Some(self.spec(None)) };
            return taken(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.candidate.identity && !self.is_out_of_date(&spec) {
            return Ok(false);
        }
        lease.spec = Some(self.spec(Some(&spec)));
        let written = self.api.replace(&self.candidate.name, &PostParams::default(), &lease).await;
        taken(written)
    }

    /// Whether nobody has renewed it for as long as its holder promised to.
    fn is_out_of_date(&mut self, spec: &LeaseSpec) -> bool {
        let same = self.seen.as_ref().is_some_and(|seen| seen.spec == *spec);
        if !same {
            self.seen = Some(Seen { spec: spec.clone(), at: Instant::now() });
        }
        let promised = spec.lease_duration_seconds.and_then(|it| u64::try_from(it).ok());
        let promised = promised.map_or(self.candidate.duration, Duration::from_secs);
        self.seen.as_ref().is_some_and(|seen| seen.at.elapsed() >= promised)
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.candidate.name.clone()),
            namespace: Some(self.candidate.namespace.clone()),
            ..ObjectMeta::default()
        }
    }

    /// The lease in our name; in place of another's, as a further transition.
    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let us = Some(self.candidate.identity.clone());
        let ours = before.filter(|before| before.holder_identity == us);
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or(0);
        LeaseSpec {
            acquire_time: ours
                .and_then(|before| before.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            holder_identity: us,
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

    /// Lets another take it at once.
    async fn give_back(&mut self) {
        let led = *self.leads.borrow();
        self.say(false);
        if !led {
            return;
        }
        let give = async {
            let Ok(mut lease) = self.api.get(&self.candidate.name).await else { return };
            let Some(spec) = lease.spec.as_mut() else { return };
            if spec.holder_identity.as_deref() != Some(&self.candidate.identity) {
                return;
            }
            // An empty name is not accepted; no name is.
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            // If it fails, others wait until it runs out.
            let _ = self.api.replace(&self.candidate.name, &PostParams::default(), &lease).await;
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), give).await;
    }
}

/// Whether it is ours now; somebody who was faster is no error.
fn taken(written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
