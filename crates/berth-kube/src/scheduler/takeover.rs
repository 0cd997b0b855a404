//! Leadership is won and lost. Whoever wins it first looks at all pods, so that nothing is placed that
//! the last leader has bound.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::{Api, Client};
use rustc_hash::FxHashSet;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::brain::Status;
use super::messages::{Change, Message};
use super::version;
use crate::lease::Leadership;

/// Pods in one answer.
const PAGE: u32 = 500;
/// How long to wait for the first lists, and after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Tells the brain when to act.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) brain: mpsc::Sender<Message>,
    pub(super) status: Arc<Status>,
    pub(super) stop: CancellationToken,
}

impl Follower {
    pub(super) async fn follow(self, mut leadership: Leadership) {
        loop {
            if leadership.leads() && self.take_over(&leadership).await {
                self.tell(Message::Lead(true)).await;
            }
            let changed = tokio::select! {
                () = self.stop.cancelled() => return,
                changed = leadership.changed() => changed,
            };
            if changed || !leadership.leads() {
                self.tell(Message::Lead(false)).await;
            }
            if !changed {
                // The election is over, or there is none.
                return;
            }
        }
    }

    async fn tell(&self, message: Message) {
        // A brain that has ended needs to be told nothing.
        let _ = self.brain.send(message).await;
    }

    /// Waits until everything was listed once, and tells the brain of all pods as they are now. False:
    /// leadership was lost meanwhile.
    async fn take_over(&self, leadership: &Leadership) -> bool {
        loop {
            if !leadership.leads() || self.stop.is_cancelled() {
                return false;
            }
            if self.status.missing().is_empty() {
                match self.list().await {
                    Ok(()) => return leadership.leads(),
                    Err(error) => tracing::warn!(%error, "the pods could not be listed"),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Lists all pods as they are, not as some cache has them: without a version to start from, the
    /// API server answers with what is true now.
    async fn list(&self) -> Result<(), kube::Error> {
        let api: Api<core::Pod> = Api::all(self.client.clone());
        let (mut uids, mut token) = (FxHashSet::default(), None);
        self.tell(Message::Listing).await;
        loop {
            let params =
                ListParams { limit: Some(PAGE), continue_token: token, ..Default::default() };
            let page = api.list(&params).await?;
            for mut pod in page.items {
                pod.metadata.managed_fields = None;
                if let Some(uid) = &pod.metadata.uid {
                    uids.insert(Arc::from(uid.as_str()));
                }
                self.tell(Message::Change(Change::Pod(Box::new(pod)))).await;
            }
            token = page.metadata.continue_.filter(|it| !it.is_empty());
            if token.is_none() {
                let version = page.metadata.resource_version.as_deref().and_then(version::number);
                self.tell(Message::Fresh { uids, version }).await;
                return Ok(());
            }
        }
    }
}
