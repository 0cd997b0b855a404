//! The volumes of a pod are made ready before it is bound: claims are given the volumes that were
//! chosen, or told the node that theirs are to be made for; then they are waited for.
//!
//! Claims are bound by Kubernetes' own controllers. Whatever was decided here is guarded by the
//! version of the object it was decided for.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::bind::Fate;
use super::{Failure, Hands, back_off};
use crate::cluster::outcome::Reservation;
use crate::cluster::pod::Key;

/// Tells a provisioner for which node a volume is to be made. It removes it when it cannot.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// A volume that was bound to its claim, and not by a person: it may be unbound again.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// A claim that is bound for good.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// How often claims are looked at while they are waited for.
const LOOK: Duration = Duration::from_millis(500);
/// How often a write is tried that others keep spoiling.
const TRIES: u32 = 5;

/// Why a step of the preparation ended.
enum Stop {
    Fate(Fate),
    /// Somebody wrote at the same time, or the answer did not come: try again.
    Again(String),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict(why) | Failure::Later { why, .. } | Failure::Unknown(why) => {
                Self::Again(why)
            }
            Failure::Gone(why) | Failure::Refused(why) => {
                Self::Fate(Fate::Failed(format!("a volume could not be prepared: {why}")))
            }
        }
    }
}

fn failed<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Fate(Fate::Failed(why)))
}

impl Hands {
    /// Makes a pod's volumes ready.
    ///
    /// # Errors
    /// With the pod's fate, when they cannot be.
    pub(super) async fn prepare_volumes(&self, reservation: &Reservation) -> Result<(), Fate> {
        let plan = &reservation.volumes;
        for (claim, volume) in &plan.bind {
            self.persist(|| self.give_volume(claim, volume)).await?;
        }
        for claim in &plan.provision {
            self.persist(|| self.select_node(claim, &reservation.node)).await?;
        }
        let claims: Vec<(&Key, bool)> = plan
            .bind
            .iter()
            .map(|(claim, _)| (claim, false))
            .chain(plan.provision.iter().map(|claim| (claim, true)))
            .collect();
        self.wait_for_claims(&claims, reservation).await
    }

    /// Repeats a step that others spoil, a few times.
    async fn persist<F, R>(&self, step: F) -> Result<(), Fate>
    where
        F: Fn() -> R,
        R: Future<Output = Result<(), Stop>>,
    {
        let mut last = String::new();
        for failures in 1..=TRIES {
            if !self.leads() {
                return Err(Fate::NotLeading);
            }
            match step().await {
                Ok(()) => return Ok(()),
                Err(Stop::Fate(fate)) => return Err(fate),
                Err(Stop::Again(why)) => last = why,
            }
            tokio::time::sleep(back_off(failures)).await;
        }
        Err(Fate::Failed(format!("a volume could not be prepared: {last}")))
    }

    async fn claim(&self, key: &Key) -> Result<core::PersistentVolumeClaim, Failure> {
        let api: Api<core::PersistentVolumeClaim> =
            Api::namespaced(self.inner.client.clone(), &key.namespace);
        self.ask("get", api.get(&key.name)).await
    }

    /// Names the claim in a volume that is free.
    async fn give_volume(&self, key: &Key, name: &str) -> Result<(), Stop> {
        let claim = self.claim(key).await?;
        if claim
            .spec
            .as_ref()
            .and_then(|it| it.volume_name.as_deref())
            .is_some_and(|it| !it.is_empty())
        {
            // Somebody has bound it; whether to the right one is seen when it is waited for.
            return Ok(());
        }
        let api: Api<core::PersistentVolume> = Api::all(self.inner.client.clone());
        let mut volume = self.ask("get", api.get(name)).await?;
        let spec = volume.spec.get_or_insert_default();
        if let Some(other) = &spec.claim_ref {
            let same = other.namespace.as_deref() == Some(&*key.namespace)
                && other.name.as_deref() == Some(&*key.name);
            let is_ours = other.uid.is_none() || other.uid == claim.metadata.uid;
            if !same || !is_ours {
                let whose = format!(
                    "{}/{}",
                    other.namespace.as_deref().unwrap_or_default(),
                    other.name.as_deref().unwrap_or_default()
                );
                return failed(format!("volume {name} was taken by claim {whose} meanwhile"));
            }
            if other.uid.is_some() {
                return Ok(());
            }
        } else {
            let annotations = volume.metadata.annotations.get_or_insert_default();
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
        spec.claim_ref = Some(core::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: claim.metadata.uid,
            resource_version: claim.metadata.resource_version,
            ..core::ObjectReference::default()
        });
        // It carries the version it was read at: what changed since is not overwritten.
        self.ask("update", api.replace(name, &PostParams::default(), &volume)).await?;
        Ok(())
    }

    /// Names the node in a claim whose volume is to be made.
    async fn select_node(&self, key: &Key, node: &Arc<str>) -> Result<(), Stop> {
        let mut claim = self.claim(key).await?;
        if is_bound(&claim) {
            return Ok(());
        }
        let annotations = claim.metadata.annotations.get_or_insert_default();
        if annotations.get(SELECTED_NODE).map(String::as_str) == Some(&**node) {
            return Ok(());
        }
        annotations.insert(SELECTED_NODE.to_owned(), node.to_string());
        let api: Api<core::PersistentVolumeClaim> =
            Api::namespaced(self.inner.client.clone(), &key.namespace);
        self.ask("update", api.replace(&key.name, &PostParams::default(), &claim)).await?;
        Ok(())
    }

    async fn wait_for_claims(
        &self,
        claims: &[(&Key, bool)],
        reservation: &Reservation,
    ) -> Result<(), Fate> {
        let end = Instant::now() + self.inner.limits.volumes;
        let mut open: Vec<(&Key, bool)> = claims.to_vec();
        loop {
            let mut still = Vec::new();
            for (key, made) in open {
                match self.claim(key).await {
                    Ok(claim) if is_bound(&claim) => {
                        self.right_volume(key, &claim, reservation)?;
                    }
                    Ok(claim) if made && selected_node(&claim) != Some(&*reservation.node) => {
                        return Err(Fate::Failed(format!(
                            "no volume could be made for claim {key} on node {}: its provisioner \
                             gave up",
                            reservation.node
                        )));
                    }
                    Ok(_) => still.push((key, made)),
                    Err(failure) if failure.may_pass() => still.push((key, made)),
                    Err(failure) => {
                        let why = failure.why();
                        return Err(Fate::Failed(format!("claim {key} cannot be read: {why}")));
                    }
                }
            }
            open = still;
            let Some((first, _)) = open.first() else { return Ok(()) };
            if !self.leads() {
                return Err(Fate::NotLeading);
            }
            if Instant::now() >= end {
                let waited = self.inner.limits.volumes.as_secs();
                return Err(Fate::Failed(format!("claim {first} was not bound within {waited} s")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A claim that was bound to another volume than was chosen may keep the pod off this node.
    fn right_volume(
        &self,
        key: &Key,
        claim: &core::PersistentVolumeClaim,
        reservation: &Reservation,
    ) -> Result<(), Fate> {
        let chosen = reservation.volumes.bind.iter().find(|(claim, _)| claim == key);
        let bound = claim.spec.as_ref().and_then(|it| it.volume_name.as_deref());
        match (chosen, bound) {
            (Some((_, chosen)), Some(bound)) if chosen != bound => Err(Fate::Failed(format!(
                "claim {key} was bound to volume {bound}, and {chosen} had been chosen"
            ))),
            _ => Ok(()),
        }
    }
}

fn selected_node(claim: &core::PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

fn is_bound(claim: &core::PersistentVolumeClaim) -> bool {
    let named = claim.spec.as_ref().and_then(|it| it.volume_name.as_deref());
    let phase = claim.status.as_ref().and_then(|it| it.phase.as_deref());
    let completed =
        claim.metadata.annotations.as_ref().is_some_and(|it| it.contains_key(BIND_COMPLETED));
    named.is_some_and(|it| !it.is_empty()) && (completed || phase == Some("Bound"))
}
