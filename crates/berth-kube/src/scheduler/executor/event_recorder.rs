//! Records events, and the condition that says why a pod cannot be scheduled.
//!
//! Nothing waits for it, and it never delays a binding: writes are limited per second, of several
//! notices for one pod only the last is written, and if too many events wait, the oldest are dropped.
//!
//! The webhook uses kube-rs's `Recorder`, for a few events per workload. It does not suit an event per
//! binding: it neither limits nor retries writes, a retry would write the event a second time, each write
//! walks all events of the last six minutes under a lock, and a repeated event keeps its first note,
//! although the numbers of nodes in it have changed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::MissedTickBehavior;

use super::{ApiFailure, call};
use crate::client::object_reference;
use crate::cluster::pod::Key;
use crate::leader_election::Leadership;
use crate::scheduler::messages::{PolicyNotice, UnschedulableNotice};
use crate::scheduler::metrics::Metrics;

/// The length limit of an event's note, in bytes.
const NOTE_BYTES_MAX: usize = 1_024;
/// Most events that wait to be written.
pub(crate) const EVENTS_MAX: usize = 50_000;
/// Concurrent writes.
const CONCURRENT_WRITES: usize = 16;
/// Timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts at one write.
const TRIES: u32 = 4;
/// The delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The condition that says whether a new node would take a pod, and which.
const WOULD_FIT: &str = "berth.dev/WouldFit";
/// How long an API server may take to read the roles after its start, for one try.
const FORBIDDEN_DELAY: Duration = Duration::from_secs(2);

enum Notification {
    Unschedulable(UnschedulableNotice),
    Event(ObjectEvent),
}

/// An event about a pod or node.
struct ObjectEvent {
    about: core::ObjectReference,
    warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
}

/// Queues events and notices for the writer.
pub(super) struct EventRecorder {
    queue: mpsc::UnboundedSender<Notification>,
}

/// Writes them to the API server.
struct EventWriter {
    client: Client,
    name: String,
    identity: String,
    leadership: Leadership,
    metrics: Arc<Metrics>,
}

impl EventRecorder {
    pub(super) fn start(
        client: Client,
        name: &str,
        identity: &str,
        per_s: u32,
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (queue, notifications) = mpsc::unbounded_channel();
        let (name, identity) = (name.to_owned(), identity.chars().take(128).collect());
        let writer = EventWriter { client, name, identity, leadership, metrics };
        tokio::spawn(run_writer(Arc::new(writer), notifications, per_s.max(1)));
        Self { queue }
    }

    fn enqueue(&self, notification: Notification) {
        // The writer stops only with the process.
        let _ = self.queue.send(notification);
    }

    pub(super) fn record_unschedulable(&self, notice: UnschedulableNotice) {
        self.enqueue(Notification::Unschedulable(notice));
    }

    pub(super) fn record_scheduled(&self, pod: &Key, uid: &Arc<str>, node: &str) {
        let note = format!("Successfully assigned {pod} to {node}");
        self.record_pod_event(pod, uid, "Scheduled", "Binding", note);
    }

    pub(super) fn record_preempted(&self, pod: &Key, uid: &Arc<str>, message: &str) {
        let note = format!("Preempted: {message}");
        self.record_pod_event(pod, uid, "Preempted", "Preempting", note);
    }

    pub(super) fn record_departure(&self, pod: &Key, uid: &Arc<str>, evicted: bool, note: String) {
        let (reason, action) = match evicted {
            true => ("EvictedForPressure", "Evicting"),
            false => ("MigratingForPressure", "Migrating"),
        };
        self.record_pod_event(pod, uid, reason, action, note);
    }

    pub(super) fn record_resize_failure(&self, pod: &Key, uid: &Arc<str>, note: String) {
        let about = pod_reference(pod, uid);
        let (reason, action) = ("ResizeFailed", "Resizing");
        let event = ObjectEvent { about, warning: true, reason, action, note };
        self.enqueue(Notification::Event(event));
    }

    pub(super) fn record_policy(&self, notice: PolicyNotice) {
        let PolicyNotice { config_map, uid, result } = notice;
        let (namespace, name) = (&config_map.namespace, &config_map.name);
        let about = object_reference("ConfigMap", Some(namespace), name, Some(&uid));
        let (warning, reason, note) = match result {
            Ok(policy) => (false, "PolicyApplied", format!("policy {policy} is in use")),
            Err(why) => (true, "PolicyInvalid", format!("the last policy stays in use: {why}")),
        };
        let event = ObjectEvent { about, warning, reason, action: "ApplyingPolicy", note };
        self.enqueue(Notification::Event(event));
    }

    fn record_pod_event(
        &self,
        pod: &Key,
        uid: &Arc<str>,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let about = pod_reference(pod, uid);
        let event = ObjectEvent { about, warning: false, reason, action, note };
        self.enqueue(Notification::Event(event));
    }

    pub(super) fn record_node_event(
        &self,
        node: &str,
        warning: bool,
        (reason, action): (&'static str, &'static str),
        note: String,
    ) {
        // Kubelets use the name as the uid, and `kubectl describe node` looks for it.
        let about = object_reference("Node", None, node, Some(node));
        let event = ObjectEvent { about, warning, reason, action, note };
        self.enqueue(Notification::Event(event));
    }
}

fn retry_delay(failure: &ApiFailure) -> Duration {
    match failure {
        ApiFailure::Forbidden(_) => FORBIDDEN_DELAY,
        _ => RETRY_DELAY,
    }
}

fn pod_reference(pod: &Key, uid: &Arc<str>) -> core::ObjectReference {
    object_reference("Pod", Some(&pod.namespace), &pod.name, Some(uid))
}

/// Notifications that wait to be written.
#[derive(Default)]
struct NotificationQueue {
    notices: FxHashMap<Arc<str>, UnschedulableNotice>,
    order: VecDeque<Arc<str>>,
    events: VecDeque<ObjectEvent>,
}

impl NotificationQueue {
    fn push(&mut self, notification: Notification) {
        match notification {
            Notification::Unschedulable(notice) => {
                let uid = Arc::clone(&notice.uid);
                if self.notices.insert(Arc::clone(&uid), notice).is_none() {
                    self.order.push_back(uid);
                }
            }
            Notification::Event(event) => {
                if event.reason == "Scheduled"
                    && let Some(uid) = event.about.uid.as_deref()
                {
                    // An older notice is obsolete.
                    self.notices.remove(uid);
                }
                if self.events.len() >= EVENTS_MAX {
                    self.events.pop_front();
                }
                self.events.push_back(event);
            }
        }
    }

    /// Notices come first: a cluster autoscaler may be waiting for the condition.
    fn pop(&mut self) -> Option<Notification> {
        while let Some(uid) = self.order.pop_front() {
            if let Some(notice) = self.notices.remove(&uid) {
                return Some(Notification::Unschedulable(notice));
            }
        }
        self.events.pop_front().map(Notification::Event)
    }
}

async fn run_writer(
    writer: Arc<EventWriter>,
    mut notifications: mpsc::UnboundedReceiver<Notification>,
    per_s: u32,
) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_s);
    // After a quiet time, a small burst does no harm.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let permits = Arc::new(Semaphore::new(CONCURRENT_WRITES));
    let mut queue = NotificationQueue::default();
    loop {
        while let Ok(notification) = notifications.try_recv() {
            queue.push(notification);
        }
        let Some(notification) = queue.pop() else {
            match notifications.recv().await {
                Some(notification) => queue.push(notification),
                None => return,
            }
            continue;
        };
        pace.tick().await;
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let writer = Arc::clone(&writer);
        tokio::spawn(async move {
            writer.write(notification).await;
            drop(permit);
        });
    }
}

impl EventWriter {
    async fn write(&self, notification: Notification) {
        match notification {
            Notification::Event(event) => self.write_event(event).await,
            Notification::Unschedulable(notice) => {
                if !self.leadership.is_leader() || !self.write_condition(&notice).await {
                    return;
                }
                let event = ObjectEvent {
                    about: pod_reference(&notice.pod, &notice.uid),
                    warning: true,
                    reason: "FailedScheduling",
                    action: "Scheduling",
                    note: notice.message,
                };
                self.write_event(event).await;
            }
        }
    }

    /// Sets the pod's PodScheduled condition. Returns false if the notice is obsolete.
    async fn write_condition(&self, notice: &UnschedulableNotice) -> bool {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &notice.pod.namespace);
        let mut version = notice.version.map(|it| it.to_string());
        let mut last = String::new();
        for _ in 0..TRIES {
            let body = unschedulable_patch(notice, version.as_deref());
            let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
            let request = api.patch_status(&notice.pod.name, &params, &patch);
            match call(&self.metrics, WRITE_TIMEOUT, "patch", request).await {
                Ok(_) => return true,
                Err(ApiFailure::NotFound(_)) => return false,
                Err(ApiFailure::Rejected(reason)) => {
                    tracing::warn!(pod = %notice.pod, reason, "failed to write pod condition");
                    return true;
                }
                Err(ApiFailure::Conflict(_)) => {
                    // It changed: does it still wait for a node?
                    let Ok(pod) =
                        call(&self.metrics, WRITE_TIMEOUT, "get", api.get(&notice.pod.name)).await
                    else {
                        continue;
                    };
                    let bound =
                        pod.spec.and_then(|it| it.node_name).is_some_and(|it| !it.is_empty());
                    if bound || pod.metadata.uid.as_deref() != Some(&*notice.uid) {
                        return false;
                    }
                    version = pod.metadata.resource_version;
                }
                Err(failure) => {
                    failure.reason().clone_into(&mut last);
                    tokio::time::sleep(retry_delay(&failure)).await;
                }
            }
        }
        tracing::warn!(pod = %notice.pod, reason = last, "failed to write pod condition");
        true
    }

    async fn write_event(&self, event: ObjectEvent) {
        let now = Timestamp::now();
        // Leaves room for the suffix.
        let about = event.about.name.iter().flat_map(|it| it.chars()).take(220);
        let name: String = about.collect();
        // Events about cluster-scoped objects live in this namespace.
        let namespace = event.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let object = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(self.name.clone()),
            reporting_instance: Some(self.identity.clone()),
            action: Some(event.action.to_owned()),
            reason: Some(event.reason.to_owned()),
            note: Some(truncate(&event.note, NOTE_BYTES_MAX)),
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(event.about),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        for _ in 0..TRIES {
            let request = api.create(&params, &object);
            match call(&self.metrics, WRITE_TIMEOUT, "event", request).await {
                Ok(_) => return,
                // The name is unique, so repeating an unanswered write is safe.
                Err(failure) if failure.is_transient() => {
                    tokio::time::sleep(retry_delay(&failure)).await;
                }
                Err(failure) => {
                    tracing::debug!(reason = failure.reason(), "failed to write event");
                    return;
                }
            }
        }
    }
}

fn unschedulable_patch(notice: &UnschedulableNotice, version: Option<&str>) -> serde_json::Value {
    let mut condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": notice.reason,
        "message": notice.message,
    });
    let (helps, why, shape) = match &notice.shape {
        Some(shape) => ("True", "NodeWouldHelp", &**shape),
        None => ("False", "NodeWouldNotHelp", ""),
    };
    let mut hint = json!({"type": WOULD_FIT, "status": helps, "reason": why, "message": shape});
    // Only the first notice is a transition.
    if notice.first {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        condition["lastTransitionTime"] = now.clone().into();
        hint["lastTransitionTime"] = now.into();
    }
    let mut meta = json!({"uid": &*notice.uid});
    if let Some(version) = version {
        meta["resourceVersion"] = version.into();
    }
    json!({"metadata": meta, "status": {"conditions": [condition, hint]}})
}

/// The beginning of a text: at most this many bytes, and whole characters.
fn truncate(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let room = max.saturating_sub('…'.len_utf8());
    let end = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(uid: &str, message: &str) -> Notification {
        Notification::Unschedulable(UnschedulableNotice {
            pod: Key::new("default", uid),
            uid: uid.into(),
            reason: "Unschedulable",
            message: message.to_owned(),
            shape: None,
            version: Some(1),
            first: true,
        })
    }

    fn scheduled(uid: &str) -> Notification {
        Notification::Event(ObjectEvent {
            about: pod_reference(&Key::new("default", uid), &uid.into()),
            warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: String::new(),
        })
    }

    #[test]
    fn a_long_text_is_truncated_at_a_character_boundary() {
        assert_eq!(truncate("short", 5), "short");
        assert_eq!(truncate("äöüß", 7), "äö…");
        assert!(truncate(&"ß".repeat(2_000), NOTE_BYTES_MAX).len() <= NOTE_BYTES_MAX);
    }

    #[test]
    fn only_the_last_notice_of_a_pod_is_written() {
        let mut queue = NotificationQueue::default();
        queue.push(notice("a", "first"));
        queue.push(notice("b", "other"));
        queue.push(notice("a", "second"));
        let mut messages = Vec::new();
        while let Some(Notification::Unschedulable(notice)) = queue.pop() {
            messages.push(notice.message);
        }
        assert_eq!(messages, ["second", "other"]);
    }

    #[test]
    fn a_pod_that_was_bound_gets_no_unschedulable_condition() {
        let mut queue = NotificationQueue::default();
        queue.push(notice("a", "no place"));
        queue.push(scheduled("a"));
        assert!(matches!(queue.pop(), Some(Notification::Event(_))));
        assert!(queue.pop().is_none());
    }
}
