//! The cluster and its crowd: nodes in pools, and pods of every kind that the rules know.
//!
//! Some pools are exactly as large as what is to go there: a scheduler that counts a pod twice leaves one
//! without a place, one that forgets a pod oversells a node. All is drawn from one seed.

use fastrand::Rng;
use serde_json::{Value, json};

use crate::objects::patched;

/// How many gangs more there are than have room.
pub(crate) const GANGS_TOO_MANY: usize = 2;
/// Pods in a gang, each with an eighth of a node.
pub(crate) const GANG: usize = 8;
/// Pods of an application that are spread over zones.
const SPREAD: usize = 24;
/// Pods of an application, no two of them on one node.
const APART: usize = 20;

const SPREAD_RULE: &str = "topologySpreadConstraints";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const GPU: &str = "example.dev/gpu";
/// The annotation that says what is to become of a pod.
const FATE: &str = "soak.example.dev/fate";

/// What is to become of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It was bound before all began.
    There,
    /// The same, but of so low a priority that it may have to go.
    Low,
    /// It is bound.
    Bound,
    /// Berth or the rival binds it.
    Contended,
    /// It is deleted at some moment, bound or not.
    Fleeting,
    /// It is of a gang, and there is no room for all gangs.
    Ganged,
    /// It never finds a place.
    Hopeless,
}

impl Fate {
    const ALL: [(Self, &'static str); 7] = [
        (Self::There, "there"),
        (Self::Low, "low"),
        (Self::Bound, "bound"),
        (Self::Contended, "contended"),
        (Self::Fleeting, "fleeting"),
        (Self::Ganged, "ganged"),
        (Self::Hopeless, "hopeless"),
    ];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(fate, _)| *fate == self).map_or("", |(_, word)| word)
    }

    /// The fate that was written on a pod.
    pub(crate) fn of(pod: &Value) -> Option<Self> {
        let word = pod.get("metadata")?.get("annotations")?.get(FATE)?.as_str()?;
        Self::ALL.iter().find(|(_, it)| *it == word).map(|(fate, _)| *fate)
    }
}

/// How large the cluster is: units of a hundred nodes and four hundred pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) units: usize,
}

impl Size {
    /// Gangs for which there is room.
    pub(crate) fn gangs(self) -> usize {
        6 * self.units
    }
}

/// All that is made.
pub(crate) struct SoakWorkload {
    pub(crate) nodes: Vec<Value>,
    /// Bound from the beginning.
    pub(crate) there: Vec<Value>,
    /// Those who want a place, in the order in which they come.
    pub(crate) coming: Vec<Value>,
}

/// Classes of priority that pods name.
pub(crate) fn classes() -> Vec<Value> {
    let class = |(name, value): (&str, i64)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": { "name": name }, "value": value,
        })
    };
    [("low", -100), ("middle", 100), ("high", 1_000)].map(class).to_vec()
}

impl SoakWorkload {
    pub(crate) fn new(size: Size, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes = nodes(size);
        let there = there(size);
        let mut coming = Vec::new();
        for unit in 0..size.units {
            pools(unit, &mut coming);
            applications(unit, &mut coming);
            singles(unit, &mut rng, &mut coming);
            hopeless(unit, &mut coming);
        }
        gangs(size, &mut coming);
        rng.shuffle(&mut coming);
        Self { nodes, there, coming }
    }
}

fn node(name: &str, zone: usize, cpu_milli: u64, patch: &Value) -> Value {
    let amounts =
        json!({ "cpu": format!("{cpu_milli}m"), "memory": "16Gi", "pods": "110", GPU: "0" });
    let zone = ["a", "b", "c"][zone % 3];
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { HOST: name, ZONE: zone } },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
        },
    });
    patched(node, patch)
}

/// What makes a node one of a pool: nobody comes who does not tolerate it.
fn in_pool(pool: &str) -> Value {
    let taint = json!({ "key": "pool", "value": pool, "effect": "NoSchedule" });
    json!({ "metadata": { "labels": { "pool": pool } }, "spec": { "taints": [taint] } })
}

fn nodes(size: Size) -> Vec<Value> {
    let mut nodes = Vec::new();
    let mut add = |pool: &str, count: usize, cpu_milli: u64, patch: &dyn Fn(usize) -> Value| {
        for at in 0..count * size.units {
            nodes.push(node(&format!("{pool}-{at}"), at, cpu_milli, &patch(at)));
        }
    };
    add("general", 60, 2_500, &|at| match at % 4 {
        0 => json!({ "metadata": { "labels": { "disk": "ssd" } } }),
        _ => json!({}),
    });
    add("tight", 10, 2_000, &|_| in_pool("tight"));
    add("gang", 6, 4_000, &|_| in_pool("gang"));
    add("contested", 6, 4_000, &|_| in_pool("contested"));
    add("ports", 6, 4_000, &|_| in_pool("ports"));
    let amounts = |amounts: &Value| json!({ "capacity": amounts, "allocatable": amounts });
    let gpus = json!({ "status": amounts(&json!({ GPU: "4" })) });
    // Three processors in use keep out a pod that needs two. All other pods of a unit need 32, which
    // is enough for ten nodes and two thirds: with eleven, each pod has a place in whatever order
    // they come.
    add("gpu", 11, 4_000, &|_| patched(in_pool("gpu"), &gpus));
    // What the rival binds there at the same moment cannot be too much.
    let vast = json!({ "status": amounts(&json!({ "memory": "4Ti", "pods": "20000" })) });
    add("rival", 2, 1_000_000, &|_| patched(in_pool("rival"), &vast));
    nodes
}

/// A pod for Berth. No two names are the same.
fn pod(name: &str, fate: Fate, cpu_milli: u64, patch: &Value) -> Value {
    let requests = json!({ "cpu": format!("{cpu_milli}m"), "memory": "64Mi" });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "annotations": { FATE: fate.word() },
        },
        "spec": {
            "schedulerName": "berth",
            "containers": [{
                "name": "main", "image": "example.invalid/app:1",
                "resources": { "requests": requests },
            }],
        },
    });
    patched(pod, patch)
}

/// The same pod, but one that is to be bound and stays.
pub(crate) fn that_stays(pod: Value) -> Value {
    patched(pod, &json!({ "metadata": { "annotations": { FATE: Fate::Bound.word() } } }))
}

fn tolerating(pool: &str) -> Value {
    json!({ "tolerations": [{ "key": "pool", "value": pool, "effect": "NoSchedule" }] })
}

/// What makes a pod go to a pool and nowhere else.
fn to_pool(pool: &str) -> Value {
    json!({ "spec": patched(tolerating(pool), &json!({ "nodeSelector": { "pool": pool } })) })
}

/// Pods that were bound by others before.
fn there(size: Size) -> Vec<Value> {
    let on = |node: String| json!({ "spec": { "nodeName": node, "schedulerName": "other" } });
    let mut pods = Vec::new();
    for at in 0..20 * size.units {
        let patch = on(format!("general-{}", at * 3));
        pods.push(pod(&format!("there-{at}"), Fate::There, 500, &patch));
    }
    for at in 0..24 * size.units {
        let patch = patched(on(format!("contested-{}", at / 4)), &to_pool("contested"));
        let patch = patched(patch, &json!({ "spec": { "priorityClassName": "low" } }));
        pods.push(pod(&format!("low-{at}"), Fate::Low, 1_000, &patch));
    }
    // In the second zone.
    let anchor = json!({ "metadata": { "labels": { "app": "anchor" } } });
    pods.push(pod("anchor", Fate::There, 100, &patched(on("general-1".to_owned()), &anchor)));
    pods
}

fn gpu(count: &str) -> Value {
    let amounts = json!({ "cpu": "100m", "memory": "64Mi", GPU: count });
    let container = json!({
        "name": "main", "image": "example.invalid/app:1",
        "resources": { "requests": amounts, "limits": { GPU: count } },
    });
    patched(to_pool("gpu"), &json!({ "spec": { "containers": [container] } }))
}

/// Pods that go to pools of their own; all but the graphics processors are then full.
fn pools(unit: usize, pods: &mut Vec<Value>) {
    for at in 0..40 {
        pods.push(pod(&format!("tight-{unit}-{at}"), Fate::Bound, 500, &to_pool("tight")));
    }
    for at in 0..24 {
        pods.push(pod(&format!("gpu-{unit}-{at}"), Fate::Bound, 100, &gpu("1")));
    }
    for at in 0..4 {
        pods.push(pod(&format!("gpus-{unit}-{at}"), Fate::Bound, 100, &gpu("2")));
    }
    let high = json!({ "spec": { "priorityClassName": "high" } });
    let high = patched(to_pool("contested"), &high);
    for at in 0..10 {
        pods.push(pod(&format!("high-{unit}-{at}"), Fate::Bound, 1_000, &high));
    }
    let port = json!({ "spec": { "containers": [{
        "name": "main", "image": "example.invalid/app:1",
        "ports": [{ "containerPort": 8080, "hostPort": 8080 }],
        "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
    }] } });
    let port = patched(to_pool("ports"), &port);
    for at in 0..6 {
        pods.push(pod(&format!("port-{unit}-{at}"), Fate::Bound, 100, &port));
    }
}

/// Applications whose pods have rules about each other.
fn applications(unit: usize, pods: &mut Vec<Value>) {
    for group in 0..2 {
        let labels = json!({ "app": format!("apart-{unit}-{group}") });
        let term = json!({ "topologyKey": HOST, "labelSelector": { "matchLabels": labels } });
        let patch = json!({
            "metadata": { "labels": labels },
            "spec": { "affinity": { "podAntiAffinity": { REQUIRED: [term] } } },
        });
        for at in 0..APART {
            pods.push(pod(&format!("apart-{unit}-{group}-{at}"), Fate::Bound, 400, &patch));
        }
        let labels = json!({ "app": format!("spread-{unit}-{group}") });
        let constraint = json!({
            "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": labels },
            // Pools that it does not tolerate are none of its zones.
            "nodeTaintsPolicy": "Honor",
        });
        let patch =
            json!({ "metadata": { "labels": labels }, "spec": { SPREAD_RULE: [constraint] } });
        for at in 0..SPREAD {
            pods.push(pod(&format!("spread-{unit}-{group}-{at}"), Fate::Bound, 400, &patch));
        }
    }
}

/// Pods that each stand for themselves.
fn singles(unit: usize, rng: &mut Rng, pods: &mut Vec<Value>) {
    let term =
        json!({ "topologyKey": ZONE, "labelSelector": { "matchLabels": { "app": "anchor" } } });
    let with_affinity = json!({ "spec": { "affinity": { "podAffinity": { REQUIRED: [term] } } } });
    for at in 0..10 {
        pods.push(pod(&format!("near-{unit}-{at}"), Fate::Bound, 300, &with_affinity));
    }
    let zone = json!({ "spec": { "nodeSelector": { ZONE: "c" } } });
    let ssd =
        json!({ "matchExpressions": [{ "key": "disk", "operator": "In", "values": ["ssd"] }] });
    let ssd =
        json!({ "affinity": { "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": [ssd] } } } });
    for at in 0..15 {
        pods.push(pod(&format!("zone-{unit}-{at}"), Fate::Bound, 300, &zone));
        let ssd = json!({ "spec": ssd });
        pods.push(pod(&format!("ssd-{unit}-{at}"), Fate::Bound, 300, &ssd));
    }
    let anywhere = json!({ "spec": tolerating("rival") });
    for at in 0..20 {
        pods.push(pod(&format!("contended-{unit}-{at}"), Fate::Contended, 200, &anywhere));
    }
    for at in 0..30 {
        pods.push(pod(&format!("fleeting-{unit}-{at}"), Fate::Fleeting, 200, &json!({})));
    }
    for at in 0..84 {
        let cpu_milli = 50 * rng.u64(1..=12);
        let patch = match rng.u8(..4) {
            0 => json!({ "spec": { "priorityClassName": "middle" } }),
            _ => json!({}),
        };
        pods.push(pod(&format!("plain-{unit}-{at}"), Fate::Bound, cpu_milli, &patch));
    }
}

/// Gangs of a node each, and some more than there are nodes.
fn gangs(size: Size, pods: &mut Vec<Value>) {
    let mut add = |name: &str, fate: Fate, there: usize, declared: usize| {
        let labels = json!({
            "berth.dev/gang": name, "berth.dev/gang-size": declared.to_string(),
        });
        let patch = patched(to_pool("gang"), &json!({ "metadata": { "labels": labels } }));
        for at in 0..there {
            pods.push(pod(&format!("{name}-{at}"), fate, 500, &patch));
        }
    };
    for gang in 0..size.gangs() + GANGS_TOO_MANY {
        add(&format!("gang-{gang}"), Fate::Ganged, GANG, GANG);
    }
    add("incomplete", Fate::Hopeless, 3, 4);
}

/// Pods that find no place, each for another reason.
fn hopeless(unit: usize, pods: &mut Vec<Value>) {
    let nobody =
        json!({ "topologyKey": ZONE, "labelSelector": { "matchLabels": { "app": "nobody" } } });
    let reasons = [
        ("large", 64_000, json!({})),
        ("nowhere", 100, json!({ "spec": { "nodeSelector": { "disk": "tape" } } })),
        ("intolerant", 100, json!({ "spec": { "nodeSelector": { "pool": "tight" } } })),
        ("eight-gpus", 100, gpu("8")),
        (
            "lonely",
            100,
            json!({ "spec": { "affinity": { "podAffinity": { REQUIRED: [nobody] } } } }),
        ),
        ("elsewhere", 100, json!({ "spec": { "nodeSelector": { HOST: "no-such-node" } } })),
    ];
    for (name, cpu_milli, patch) in reasons {
        pods.push(pod(&format!("{name}-{unit}"), Fate::Hopeless, cpu_milli, &patch));
    }
}
