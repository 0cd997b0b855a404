//! Follows leadership. A new leader first lists all virtual machines and pods, so that it neither schedules a
//! pod that the previous leader has bound, nor forgets a permit that it granted.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use rustc_hash::FxHashSet;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::messages::{Change, Message, SyncStatus};
use super::optional_kinds::VIRTUAL_MACHINES;
use crate::cluster::observed_pod::ObservedPod;
use crate::leader_election::Leadership;
use crate::watch::parse_version;

/// Pods per page of a list.
const PAGE_SIZE: u32 = 500;
/// The pause between checks of the initial lists, and after a failed list.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Tells the core whether this replica leads.
pub(super) struct LeadershipSync {
    pub(super) client: Client,
    pub(super) inbox: mpsc::Sender<Message>,
    pub(super) sync_status: Arc<SyncStatus>,
    pub(super) stop: CancellationToken,
}

impl LeadershipSync {
    pub(super) async fn run(self, mut leadership: Leadership) {
        loop {
            if leadership.is_leader() && self.relist_as_leader(&leadership).await {
                self.send(Message::LeadershipChanged(true)).await;
            }
            let changed = tokio::select! {
                () = self.stop.cancelled() => return,
                changed = leadership.changed() => changed,
            };
            if changed || !leadership.is_leader() {
                self.send(Message::LeadershipChanged(false)).await;
            }
            if !changed {
                // The election is over, or there is none.
                return;
            }
        }
    }

    async fn send(&self, message: Message) {
        // The core has stopped if this fails.
        let _ = self.inbox.send(message).await;
    }

    /// Waits for the initial lists, then sends a fresh list of all pods. Returns false if leadership was
    /// lost meanwhile.
    async fn relist_as_leader(&self, leadership: &Leadership) -> bool {
        loop {
            if !leadership.is_leader() || self.stop.is_cancelled() {
                return false;
            }
            if self.sync_status.unsynced_kinds().is_empty() {
                match self.relist().await {
                    Ok(()) => return leadership.is_leader(),
                    Err(error) => {
                        tracing::warn!(%error, "failed to list pods and virtual machines after becoming leader; retrying");
                    }
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn relist(&self) -> Result<(), kube::Error> {
        self.relist_vms().await?;
        self.relist_pods().await
    }

    /// Lists all virtual machines: the previous leader may have stored permits that the watch has not
    /// shown yet.
    async fn relist_vms(&self) -> Result<(), kube::Error> {
        let Some(resource) = VIRTUAL_MACHINES.discover(&self.client).await? else { return Ok(()) };
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let mut token = None;
        loop {
            let params =
                ListParams { limit: Some(PAGE_SIZE), continue_token: token, ..Default::default() };
            let page = api.list(&params).await?;
            for vm in page.items {
                self.send(Message::Change(VIRTUAL_MACHINES.change(&vm))).await;
            }
            token = page.metadata.continue_.filter(|it| !it.is_empty());
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Lists all pods. Without a resource version, the API server answers from etcd and not from its
    /// watch cache, so the list is current.
    async fn relist_pods(&self) -> Result<(), kube::Error> {
        let api: Api<ObservedPod> = Api::all(self.client.clone());
        let (mut uids, mut token) = (FxHashSet::default(), None);
        self.send(Message::RelistStarted).await;
        loop {
            let params =
                ListParams { limit: Some(PAGE_SIZE), continue_token: token, ..Default::default() };
            let page = api.list(&params).await?;
            for mut pod in page.items {
                pod.pod.metadata.managed_fields = None;
                if let Some(uid) = &pod.pod.metadata.uid {
                    uids.insert(Arc::from(uid.as_str()));
                }
                self.send(Message::Change(Change::Pod(Box::new(pod)))).await;
            }
            token = page.metadata.continue_.filter(|it| !it.is_empty());
            if token.is_none() {
                let version = page.metadata.resource_version.as_deref().and_then(parse_version);
                self.send(Message::Relisted { uids, version }).await;
                return Ok(());
            }
        }
    }
}
