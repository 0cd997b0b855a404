//! What pods and nodes are told: events, and the condition that says why a pod has no place.
//!
//! Nobody waits for it, and it never holds up a binding: so many are written in a second, of several
//! about one pod only the last, and when there are far too many events the oldest are dropped.

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

use super::{Failure, ask};
use crate::cluster::pod::Key;
use crate::lease::Leadership;
use crate::scheduler::messages::Notice;
use crate::scheduler::metrics::Metrics;

/// Bytes of an event's note.
const NOTE_MOST: usize = 1_024;
/// Events that wait to be written.
const WAITING_MOST: usize = 50_000;
/// Writes at once.
const AT_ONCE: usize = 16;
/// How long one write may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a write is tried, on a pod that keeps changing or an API server that fails.
const TRIES: u32 = 4;
/// How long to wait after a failure.
const PAUSE: Duration = Duration::from_millis(200);

enum Said {
    Unschedulable(Notice),
    Event(Told),
}

/// An event to be written.
struct Told {
    about: core::ObjectReference,
    warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
}

/// See the module.
pub(super) struct Teller {
    queue: mpsc::UnboundedSender<Said>,
}

/// Who tells, and where.
struct Voice {
    client: Client,
    name: String,
    identity: String,
    leadership: Leadership,
    metrics: Arc<Metrics>,
}

impl Teller {
    pub(super) fn start(
        client: Client,
        name: &str,
        identity: &str,
        per_s: u32,
        leadership: Leadership,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (queue, waiting) = mpsc::unbounded_channel();
        let (name, identity) = (name.to_owned(), identity.chars().take(128).collect());
        let voice = Voice { client, name, identity, leadership, metrics };
        tokio::spawn(speak(Arc::new(voice), waiting, per_s.max(1)));
        Self { queue }
    }

    fn say(&self, said: Said) {
        // It ends with the process.
        let _ = self.queue.send(said);
    }

    pub(super) fn unschedulable(&self, notice: Notice) {
        self.say(Said::Unschedulable(notice));
    }

    pub(super) fn scheduled(&self, pod: &Key, uid: &Arc<str>, node: &str) {
        self.say(Said::Event(Told {
            about: pod_reference(pod, uid),
            warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: format!("Assigned {pod} to {node}"),
        }));
    }

    pub(super) fn preempted(&self, pod: &Key, uid: &Arc<str>, why: &str) {
        self.say(Said::Event(Told {
            about: pod_reference(pod, uid),
            warning: false,
            reason: "Preempted",
            action: "Preempting",
            note: format!("It has to go: {why}"),
        }));
    }

    pub(super) fn about_node(&self, node: &str, warning: bool, reason: &'static str, note: String) {
        let about = core::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            // As kubelets do it: `kubectl describe node` looks for this.
            uid: Some(node.to_owned()),
            ..core::ObjectReference::default()
        };
        self.say(Said::Event(Told { about, warning, reason, action: "Draining", note }));
    }
}

fn pod_reference(pod: &Key, uid: &Arc<str>) -> core::ObjectReference {
    core::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.to_string()),
        name: Some(pod.name.to_string()),
        uid: Some(uid.to_string()),
        ..core::ObjectReference::default()
    }
}

/// What waits to be written.
#[derive(Default)]
struct Waiting {
    notices: FxHashMap<Arc<str>, Notice>,
    order: VecDeque<Arc<str>>,
    events: VecDeque<Told>,
}

impl Waiting {
    fn add(&mut self, said: Said) {
        match said {
            Said::Unschedulable(notice) => {
                let uid = Arc::clone(&notice.uid);
                if self.notices.insert(Arc::clone(&uid), notice).is_none() {
                    self.order.push_back(uid);
                }
            }
            Said::Event(event) => {
                if event.reason == "Scheduled"
                    && let Some(uid) = event.about.uid.as_deref()
                {
                    // That it had no place is not true any more.
                    self.notices.remove(uid);
                }
                if self.events.len() >= WAITING_MOST {
                    self.events.pop_front();
                }
                self.events.push_back(event);
            }
        }
    }

    /// Those without a place first: somebody may be adding nodes for them.
    fn next(&mut self) -> Option<Said> {
        while let Some(uid) = self.order.pop_front() {
            if let Some(notice) = self.notices.remove(&uid) {
                return Some(Said::Unschedulable(notice));
            }
        }
        self.events.pop_front().map(Said::Event)
    }
}

async fn speak(voice: Arc<Voice>, mut queue: mpsc::UnboundedReceiver<Said>, per_s: u32) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_s);
    // After a quiet time, a few at once do no harm.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut waiting = Waiting::default();
    loop {
        while let Ok(said) = queue.try_recv() {
            waiting.add(said);
        }
        let Some(said) = waiting.next() else {
            match queue.recv().await {
                Some(said) => waiting.add(said),
                None => return,
            }
            continue;
        };
        pace.tick().await;
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let voice = Arc::clone(&voice);
        tokio::spawn(async move {
            voice.write(said).await;
            drop(permit);
        });
    }
}

impl Voice {
    async fn write(&self, said: Said) {
        match said {
            Said::Event(event) => self.event(event).await,
            Said::Unschedulable(notice) => {
                if !self.leadership.leads() || !self.condition(&notice).await {
                    return;
                }
                let event = Told {
                    about: pod_reference(&notice.pod, &notice.uid),
                    warning: true,
                    reason: "FailedScheduling",
                    action: "Scheduling",
                    note: notice.message,
                };
                self.event(event).await;
            }
        }
    }

    /// Says on the pod why it has no place. False: it is not so any more.
    async fn condition(&self, notice: &Notice) -> bool {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &notice.pod.namespace);
        let mut version = notice.version.map(|it| it.to_string());
        for _ in 0..TRIES {
            let body = unschedulable(notice, version.as_deref());
            let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
            let request = api.patch_status(&notice.pod.name, &params, &patch);
            match ask(&self.metrics, PATIENCE, "patch", request).await {
                Ok(_) => return true,
                Err(Failure::Gone(_)) => return false,
                Err(Failure::Refused(why)) => {
                    tracing::warn!(pod = %notice.pod, why, "its condition could not be written");
                    return true;
                }
                Err(Failure::Conflict(_)) => {
                    // It has changed: is it still without a place?
                    let Ok(pod) =
                        ask(&self.metrics, PATIENCE, "get", api.get(&notice.pod.name)).await
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
                Err(Failure::Later { .. } | Failure::Unknown(_)) => {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        true
    }

    async fn event(&self, told: Told) {
        let now = Timestamp::now();
        // Its own name must have room after it.
        let about = told.about.name.iter().flat_map(|it| it.chars()).take(220);
        let name: String = about.collect();
        // Events about what is in no namespace are in this one.
        let namespace = told.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(self.name.clone()),
            reporting_instance: Some(self.identity.clone()),
            action: Some(told.action.to_owned()),
            reason: Some(told.reason.to_owned()),
            note: Some(cut(&told.note, NOTE_MOST)),
            type_: Some(if told.warning { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(told.about),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        for _ in 0..TRIES {
            let written = ask(&self.metrics, PATIENCE, "event", api.create(&params, &event)).await;
            match written {
                Ok(_) => return,
                // It has a name of its own: one that was not answered is there, or is not.
                Err(failure) if failure.may_pass() => tokio::time::sleep(PAUSE).await,
                Err(failure) => {
                    tracing::debug!(why = failure.why(), "an event could not be written");
                    return;
                }
            }
        }
    }
}

fn unschedulable(notice: &Notice, version: Option<&str>) -> serde_json::Value {
    let mut condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": notice.message,
    });
    // What is already false does not become false again.
    if notice.first {
        condition["lastTransitionTime"] =
            Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    }
    let mut meta = json!({"uid": &*notice.uid});
    if let Some(version) = version {
        meta["resourceVersion"] = version.into();
    }
    json!({"metadata": meta, "status": {"conditions": [condition]}})
}

/// The beginning of a text, so many bytes at most, and whole letters.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub('…'.len_utf8());
    let end = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(uid: &str, message: &str) -> Said {
        Said::Unschedulable(Notice {
            pod: Key::new("default", uid),
            uid: uid.into(),
            message: message.to_owned(),
            version: Some(1),
            first: true,
        })
    }

    fn scheduled(uid: &str) -> Said {
        Said::Event(Told {
            about: pod_reference(&Key::new("default", uid), &uid.into()),
            warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: String::new(),
        })
    }

    #[test]
    fn a_long_text_is_cut_at_a_whole_letter() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("äöüß", 7), "äö…");
        assert!(cut(&"ß".repeat(2_000), NOTE_MOST).len() <= NOTE_MOST);
    }

    #[test]
    fn of_several_refusals_of_one_pod_only_the_last_is_told() {
        let mut waiting = Waiting::default();
        waiting.add(notice("a", "first"));
        waiting.add(notice("b", "other"));
        waiting.add(notice("a", "second"));
        let mut told = Vec::new();
        while let Some(Said::Unschedulable(notice)) = waiting.next() {
            told.push(notice.message);
        }
        assert_eq!(told, ["second", "other"]);
    }

    #[test]
    fn a_pod_that_was_bound_is_not_told_that_it_has_no_place() {
        let mut waiting = Waiting::default();
        waiting.add(notice("a", "no place"));
        waiting.add(scheduled("a"));
        assert!(matches!(waiting.next(), Some(Said::Event(_))));
        assert!(waiting.next().is_none());
    }
}
