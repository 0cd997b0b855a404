//! Events on workloads for their owners, rate-limited instead of one per pod.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::Instant;

/// The same event is published at most this often.
const RETRY_DELAY: Duration = Duration::from_secs(600);

/// Most events that are remembered.
pub(crate) const REMEMBERED_MAX: usize = 10_000;

/// Publishes events on workloads.
pub(super) struct WorkloadEvents {
    recorder: Recorder,
    published: Mutex<HashMap<(String, &'static str, String), Instant>>,
}

impl WorkloadEvents {
    pub(super) fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter {
            controller: "berth-webhook".to_owned(),
            instance: Some(identity.to_owned()),
        };
        Self { recorder: Recorder::new(client, reporter), published: Mutex::default() }
    }

    /// Publishes a warning in the background.
    pub(super) fn record_warning(
        &self,
        about: &ObjectReference,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        self.publish(EventType::Warning, (about, None), reason, action, note);
    }

    /// Publishes a normal event in the background. A secondary object keeps events with the same reason
    /// from being aggregated.
    pub(super) fn record_normal(
        &self,
        about: (&ObjectReference, Option<ObjectReference>),
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        self.publish(EventType::Normal, about, reason, action, note);
    }

    fn publish(
        &self,
        type_: EventType,
        (about, secondary): (&ObjectReference, Option<ObjectReference>),
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        if !self.is_due(about, reason, &note) {
            return;
        }
        let (recorder, about) = (self.recorder.clone(), about.clone());
        // The API server accepts at most 1024 characters.
        let note = Some(note.chars().take(1000).collect());
        let (reason, action) = (reason.to_owned(), action.to_owned());
        tokio::spawn(async move {
            let event = Event { type_, reason, note, action, secondary };
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, "failed to write event");
            }
        });
    }

    fn is_due(&self, about: &ObjectReference, reason: &'static str, note: &str) -> bool {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (about.uid.clone().unwrap_or_default(), reason, note.to_owned());
        if published.get(&key).is_some_and(|at| at.elapsed() < RETRY_DELAY) {
            return false;
        }
        if published.len() >= REMEMBERED_MAX {
            published.retain(|_, at| at.elapsed() < RETRY_DELAY);
        }
        published.insert(key, Instant::now());
        true
    }
}
