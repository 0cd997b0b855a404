//! Pods are told to go so that a more important one can come.

use std::sync::Arc;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use super::{Failure, Hands, back_off};
use crate::cluster::outcome::{Preemption, Victim};
use crate::cluster::pod::Key;
use crate::scheduler::messages::Report;

/// How often a step is tried that may pass.
const TRIES: u32 = 6;

impl Hands {
    /// Promises the node in the pod's status, then tells the others to go.
    pub(super) async fn preempt(&self, preemption: Preemption) {
        let done = self.make_room(&preemption).await;
        if done {
            self.inner.metrics.preempted(preemption.victims.len());
            tracing::info!(
                pod = %preemption.pod,
                node = &*preemption.node,
                victims = preemption.victims.len(),
                "room is made"
            );
        }
        self.report(Report::Preempted { uid: preemption.uid, done }).await;
    }

    async fn make_room(&self, preemption: &Preemption) -> bool {
        let (pod, uid, node) = (&preemption.pod, &preemption.uid, &preemption.node);
        if self.nominate(pod, uid, Some(node)).await.is_err() {
            return false;
        }
        for victim in &preemption.victims {
            if let Err(failure) = self.dismiss(preemption, victim).await {
                let why = failure.why();
                tracing::warn!(%pod, victim = %victim.pod, why, "a pod could not be told to go");
                return false;
            }
        }
        true
    }

    /// A pod is promised no node any more.
    pub(super) async fn unnominate(&self, pod: &Key, uid: &Arc<str>) {
        if let Err(failure) = self.nominate(pod, uid, None).await {
            tracing::debug!(%pod, why = failure.why(), "its promise could not be taken back");
        }
    }

    async fn nominate(&self, pod: &Key, uid: &str, node: Option<&Arc<str>>) -> Result<(), Failure> {
        let node = node.map(|it| it.to_string());
        let body = json!({"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}});
        let api = self.pods(&pod.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
        self.repeat(|| self.ask("patch", api.patch_status(&pod.name, &params, &patch))).await?;
        Ok(())
    }

    /// Says on a pod why it goes, and deletes it.
    async fn dismiss(&self, preemption: &Preemption, victim: &Victim) -> Result<(), Failure> {
        let api = self.pods(&victim.pod.namespace);
        let message =
            format!("{} of higher priority needs its place on {}", preemption.pod, preemption.node);
        let body = json!({
            "metadata": {"uid": &*victim.uid},
            "status": {"conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": message,
                "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            }]},
        });
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
        let patched = self
            .repeat(|| self.ask("patch", api.patch_status(&victim.pod.name, &params, &patch)))
            .await;
        match patched {
            // Another has its name: the deletion below is for its uid alone.
            Ok(_) | Err(Failure::Conflict(_) | Failure::Refused(_)) => {}
            Err(Failure::Gone(_)) => return Ok(()),
            Err(failure) => return Err(failure),
        }
        let uid = Some(victim.uid.to_string());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let deleted =
            self.repeat(|| self.ask("delete", api.delete(&victim.pod.name, &params))).await;
        match deleted {
            Ok(_) => {
                self.inner.teller.preempted(&victim.pod, &victim.uid, &message);
                Ok(())
            }
            Err(Failure::Gone(_) | Failure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Repeats what may pass, a few times, as long as we lead.
    pub(super) async fn repeat<T, F, R>(&self, step: F) -> Result<T, Failure>
    where
        F: Fn() -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        let mut failures = 0;
        loop {
            if !self.leads() {
                return Err(Failure::Refused("we do not lead any more".to_owned()));
            }
            match step().await {
                Err(failure) if failure.may_pass() && failures < TRIES => failures += 1,
                answer => return answer,
            }
            tokio::time::sleep(back_off(failures)).await;
        }
    }
}
