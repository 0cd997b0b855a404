//! Events on workloads: what its owner should know, said now and then, not for every pod.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::Instant;

/// The same is said at most this often.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Most things that are remembered as said.
const REMEMBERED: usize = 10_000;

/// Says things about workloads.
pub(super) struct Events {
    recorder: Recorder,
    said: Mutex<HashMap<(String, &'static str, String), Instant>>,
}

impl Events {
    pub(super) fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter {
            controller: "berth-webhook".to_owned(),
            instance: Some(identity.to_owned()),
        };
        Self { recorder: Recorder::new(client, reporter), said: Mutex::default() }
    }

    /// Warns, and does not wait for it.
    pub(super) fn warn(
        &self,
        about: &ObjectReference,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        self.say(EventType::Warning, (about, None), reason, action, note);
    }

    /// Tells, and does not wait for it. What it concerns beside the workload keeps two events with
    /// the same reason from being counted as one.
    pub(super) fn tell(
        &self,
        about: (&ObjectReference, Option<ObjectReference>),
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        self.say(EventType::Normal, about, reason, action, note);
    }

    fn say(
        &self,
        type_: EventType,
        (about, secondary): (&ObjectReference, Option<ObjectReference>),
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        if !self.is_news(about, reason, &note) {
            return;
        }
        let (recorder, about) = (self.recorder.clone(), about.clone());
        // The API server takes no more than 1024 characters.
        let note = Some(note.chars().take(1000).collect());
        let (reason, action) = (reason.to_owned(), action.to_owned());
        tokio::spawn(async move {
            let event = Event { type_, reason, note, action, secondary };
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, "an event could not be written");
            }
        });
    }

    fn is_news(&self, about: &ObjectReference, reason: &'static str, note: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (about.uid.clone().unwrap_or_default(), reason, note.to_owned());
        if said.get(&key).is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return false;
        }
        if said.len() >= REMEMBERED {
            said.retain(|_, at| at.elapsed() < AGAIN_AFTER);
        }
        said.insert(key, Instant::now());
        true
    }
}
