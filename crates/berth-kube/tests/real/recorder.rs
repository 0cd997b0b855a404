//! What happened in the cluster, in the order of resource versions, from watches that are resumed.
//!
//! A watch that cannot be resumed, because a new API server remembers no history, is begun again with a list, and
//! that is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, pin_mut};
use http::{Method, Request};
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::api::{ApiServer, key, node_of, path_of, text};
use crate::checker::{self, Violation, World, check_placement};

/// The kinds that decide where pods may be.
const KINDS: [&str; 7] = [
    "Node",
    "Pod",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "ResourceClaim",
];
/// The nodes that another scheduler uses as well: who fills them beyond what they have is counted, not judged.
pub(crate) const SHARED_POOL: &str = "shared-nodes";
/// Judged when a case is over: bindings overtake each other on their way to the API server.
const JUDGED_LATER: [&str; 2] = ["spread", "affinity"];

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    version: u64,
    /// The object is gone.
    pub(crate) gone: bool,
    /// It, with its kind.
    pub(crate) object: Value,
}

#[derive(Default)]
struct Recording {
    history: Vec<Change>,
    /// What there is, by kind and `namespace/name`.
    objects: BTreeMap<(String, String), Value>,
    /// Watches that could not be resumed.
    gaps: usize,
}

/// Follows the cluster.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recording>>);

/// What the bindings of a recording were like.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Pods that Berth placed.
    pub(crate) placements: usize,
    /// Rules that they broke.
    pub(crate) violations: Vec<String>,
    /// Bindings to nodes of [`SHARED_POOL`], by scheduler.
    pub(crate) shared: BTreeMap<String, SharedBindings>,
}

/// Bindings to nodes that several schedulers use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedBindings {
    /// All of them.
    pub(crate) bindings: usize,
    /// Those after which the node had more than it has room for.
    pub(crate) overfull: usize,
}

impl Recorder {
    /// Starts to follow; changes of pods are sent on.
    pub(crate) fn start(api: &ApiServer) -> (Self, mpsc::UnboundedReceiver<Change>) {
        let recorder = Self::default();
        let (sender, changes) = mpsc::unbounded_channel();
        for kind in KINDS {
            let (api, recorder, sender) = (api.clone(), recorder.clone(), sender.clone());
            tokio::spawn(async move { recorder.follow(api, kind, sender).await });
        }
        (recorder, changes)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(self, api: ApiServer, kind: &str, sender: mpsc::UnboundedSender<Change>) {
        let (mut version, mut is_current) = ("0".to_owned(), false);
        loop {
            if !is_current {
                version = self.list(&api, kind, &version, &sender).await;
                is_current = true;
            }
            let path = format!(
                "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds=240&resourceVersion={version}",
                path_of(kind, "")
            );
            let request = Request::get(path).body(Vec::new()).unwrap();
            if let Ok(events) = api.client.request_events::<Value>(request).await {
                pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    let (gone, object) = match event {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => (false, object),
                        WatchEvent::Deleted(object) => (true, object),
                        WatchEvent::Bookmark(bookmark) => {
                            version = bookmark.metadata.resource_version;
                            continue;
                        }
                        WatchEvent::Error(status) if status.code == 410 => {
                            self.lock().gaps += 1;
                            is_current = false;
                            break;
                        }
                        WatchEvent::Error(_) => break,
                    };
                    text(&object, "/metadata/resourceVersion").clone_into(&mut version);
                    self.record(kind, gone, object, &sender);
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lists a kind. What is gone since `before` counts as gone right after it: when it went is not known, and
    /// who was bound in its place is not to be blamed.
    async fn list(
        &self,
        api: &ApiServer,
        kind: &str,
        before: &str,
        sender: &mpsc::UnboundedSender<Change>,
    ) -> String {
        loop {
            let path = path_of(kind, "");
            let listed = api.request(&Method::GET, &path, ("", &Value::Null)).await;
            if let Ok(list) = listed {
                let items = list["items"].as_array().cloned().unwrap_or_default();
                let found: BTreeSet<String> = items.iter().map(key).collect();
                for mut lost in self.objects_but(kind, &found) {
                    lost["metadata"]["resourceVersion"] = before.into();
                    self.record(kind, true, lost, sender);
                }
                for object in items {
                    self.record(kind, false, object, sender);
                }
                return text(&list, "/metadata/resourceVersion").to_owned();
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn record(
        &self,
        kind: &str,
        gone: bool,
        mut object: Value,
        sender: &mpsc::UnboundedSender<Change>,
    ) {
        object["kind"] = kind.into();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        let version = text(&object, "/metadata/resourceVersion").parse().unwrap_or(0);
        let change = Change { version, gone, object };
        let mut recording = self.lock();
        let at = (kind.to_owned(), key(&change.object));
        match gone {
            true => recording.objects.remove(&at),
            false => recording.objects.insert(at, change.object.clone()),
        };
        if kind == "Pod" {
            // Nobody may follow any more.
            let _ = sender.send(change.clone());
        }
        recording.history.push(change);
    }

    /// The objects of a kind whose keys are not among these.
    fn objects_but(&self, kind: &str, keys: &BTreeSet<String>) -> Vec<Value> {
        let recording = self.lock();
        let of_kind = recording.objects.iter().filter(|((it, _), _)| it == kind);
        of_kind.filter(|((_, at), _)| !keys.contains(at)).map(|(_, it)| it.clone()).collect()
    }

    /// The pods of a namespace, as the watch has them.
    pub(crate) fn pods(&self, namespace: &str) -> Vec<Value> {
        let mut pods = self.objects_but("Pod", &BTreeSet::new());
        pods.retain(|it| text(it, "/metadata/namespace") == namespace);
        pods
    }

    /// A pod, as the watch has it.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        let at = ("Pod".to_owned(), format!("{namespace}/{name}"));
        self.lock().objects.get(&at).cloned()
    }

    /// Pods of a namespace that have or had a node.
    pub(crate) fn bindings_in(&self, namespace: &str) -> usize {
        let recording = self.lock();
        let bound = recording.history.iter().map(|it| &it.object).filter(|it| {
            text(it, "/kind") == "Pod"
                && text(it, "/metadata/namespace") == namespace
                && !node_of(it).is_empty()
        });
        bound.map(|it| text(it, "/metadata/uid")).collect::<BTreeSet<&str>>().len()
    }

    /// Watches that could not be resumed.
    pub(crate) fn gaps(&self) -> usize {
        self.lock().gaps
    }

    /// Judges every binding of pods of a scheduler against the state just before it.
    pub(crate) fn replay(&self, scheduler: &str) -> Verdict {
        let mut history = self.lock().history.clone();
        history.sort_by_key(|it| it.version);
        let mut verdict = Verdict::default();
        let mut world = World::default();
        let mut nodes: BTreeMap<String, String> = BTreeMap::new();
        for Change { gone, object, .. } in &history {
            let name = text(object, "/metadata/name");
            match (text(object, "/kind"), gone) {
                ("Node", false) => world.put_node(object),
                ("Node", true) => world.remove_node(name),
                ("Pod", true) => world.remove_pod(&key(object)),
                ("Pod", false) => {
                    let uid = text(object, "/metadata/uid").to_owned();
                    let node = node_of(object);
                    let before = nodes.insert(uid, node.to_owned());
                    let is_ours = text(object, "/spec/schedulerName") == scheduler;
                    match before {
                        Some(before) if !before.is_empty() && before != node => {
                            let line = format!("{} went from {before} to {node:?}", key(object));
                            verdict.violations.push(line);
                        }
                        Some(before) if before.is_empty() && !node.is_empty() => {
                            let mut found = check_placement(&world, object, node);
                            if text(object, "/metadata/namespace") == SHARED_POOL {
                                let is_overfull = found.iter().any(|it| it.rule == "resources");
                                found.retain(|it| it.rule != "resources");
                                let by = text(object, "/spec/schedulerName").to_owned();
                                let shared = verdict.shared.entry(by).or_default();
                                shared.bindings += 1;
                                shared.overfull += usize::from(is_overfull);
                            }
                            if is_ours {
                                verdict.placements += 1;
                                found.retain(|it| !JUDGED_LATER.contains(&it.rule));
                                verdict.violations.extend(found.iter().map(ToString::to_string));
                            }
                        }
                        _ => {}
                    }
                    world.put_pod(object);
                }
                (_, false) => world.put_other(object),
                (_, true) => world.remove_other(object),
            }
        }
        verdict
    }
}

/// What is wrong with the pods of one namespace where they are now: what [`Recorder::replay`] cannot tell.
pub(crate) async fn judge_namespace(api: &ApiServer, namespace: &str) -> Vec<String> {
    let nodes = api.list("Node", "").await;
    let pods = api.list("Pod", "").await;
    let mut others = Vec::new();
    for kind in &KINDS[2..] {
        others.extend(api.list(kind, "").await.into_iter().map(|it| with_kind(it, kind)));
    }
    others.extend(
        api.list("PodGroup", namespace).await.into_iter().map(|it| with_kind(it, "PodGroup")),
    );
    let mut world = World::new(&nodes, &pods, &others);
    let mut found: Vec<Violation> = Vec::new();
    for pod in pods.iter().filter(|it| text(it, "/metadata/namespace") == namespace) {
        if node_of(pod).is_empty() || !pod["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        world.remove_pod(&key(pod));
        let broken = check_placement(&world, pod, node_of(pod)).into_iter();
        found.extend(broken.filter(|it| JUDGED_LATER.contains(&it.rule)));
        world.put_pod(pod);
    }
    found.extend(checker::check_final(&nodes, &pods, &others));
    found.iter().map(ToString::to_string).collect()
}

fn with_kind(mut object: Value, kind: &str) -> Value {
    object["kind"] = kind.into();
    object
}
