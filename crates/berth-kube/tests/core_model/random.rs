//! Random nodes, pods and namespaces, each from a seed of its own. The worlds are small, so that
//! rules meet: few labels, few zones, nodes that are full after a few pods.

use serde_json::{Value, json};

use crate::objects::{container, merge, node, patched, pod};

/// Splitmix64: small, seeded, good enough.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).expect("below a usize")
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
pub(crate) const HOST: &str = "kubernetes.io/hostname";
pub(crate) const NAMESPACES: [&str; 3] = ["default", "blue", "red"];
const FEATURE_NAMES: [&str; 3] = [
    "RestartAllContainersOnContainerExits",
    "UserNamespacesHostNetworkSupport",
    "VolumeBindMountOptions",
];
const KEYS: [&str; 3] = [ZONE, HOST, "rack"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// A node's object; a plain one takes everybody, as long as there is room.
pub(crate) fn any_node(name: &str, plain: bool, rng: &mut Rng) -> Value {
    let mut labels = json!({"cores": rng.pick(&["2", "4", "16", "many"])});
    if rng.chance(85) {
        labels[ZONE] = rng.pick(&["a", "b", "c"]).into();
    }
    if rng.chance(60) {
        labels["rack"] = rng.pick(&["r1", "r2"]).into();
    }
    if rng.chance(30) {
        labels["disk"] = "ssd".into();
    }
    let mut taints = Vec::new();
    for key in ["dedicated", "node.kubernetes.io/unschedulable", "gpu"] {
        if !plain && rng.chance(8) {
            let effect = rng.pick(&["NoSchedule", "PreferNoSchedule", "NoExecute"]);
            taints.push(json!({"key": key, "value": rng.pick(&["", "x", "7"]), "effect": effect}));
        }
    }
    let mut allocatable = json!({
        "cpu": rng.pick(if plain { &["1", "1500m", "2"] } else { &["1", "1500m", "0"] }),
        "memory": rng.pick(&["1Gi", "1000000001", "512Mi", "1500M"]),
        "pods": rng.pick(&["2", "3", "5", "110"]),
    });
    if rng.chance(70) {
        allocatable["ephemeral-storage"] = rng.pick(&["1Gi", "10Gi"]).into();
    }
    let features: Vec<&str> = FEATURE_NAMES.into_iter().filter(|_| rng.chance(50)).collect();
    if rng.chance(20) {
        allocatable["example.com/gpu"] = rng.pick(&["1", "2"]).into();
    }
    let patch = json!({
        "metadata": {"labels": labels},
        "spec": {"taints": taints, "unschedulable": !plain && rng.chance(7)},
        "status": {"allocatable": allocatable, "declaredFeatures": features},
    });
    node(name, &patch)
}

/// A pod's object. `wild` is how often, in percent, it has each kind of rule.
pub(crate) fn any_pod(number: u64, wild: u64, rng: &mut Rng) -> Value {
    let name = format!("p{number:06}");
    let uid = if rng.chance(80) {
        format!("00000000-0000-4000-8000-{number:012}")
    } else {
        format!("no-uuid-{number}")
    };
    let mut made = pod(
        &name,
        &json!({
            "metadata": {"namespace": rng.pick(&NAMESPACES), "uid": uid, "labels": any_labels(rng)},
            "spec": {"priority": rng.pick(&[0, 0, 10, 100]), "containers": [any_container("main", rng)]},
        }),
    );
    for feature in FEATURES {
        if rng.chance(wild) {
            merge(&mut made, &feature(rng));
        }
    }
    if rng.chance(30) {
        let owner = rng.pick(&["web", "db"]);
        made["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true
        }]);
    }
    made
}

/// Labels of a pod.
pub(crate) fn any_labels(rng: &mut Rng) -> Value {
    let mut labels = json!({"app": rng.pick(&["a", "b"])});
    if rng.chance(50) {
        labels["tier"] = rng.pick(&["front", "back"]).into();
    }
    if rng.chance(50) {
        labels["pod-template-hash"] = rng.pick(&["1", "2"]).into();
    }
    labels
}

fn any_container(name: &str, rng: &mut Rng) -> Value {
    let cpu = rng.pick(&["0", "1m", "100m", "250m", "0.5", "1"]);
    let memory = rng.pick(&["0", "1", "1Mi", "100Mi", "250M", "333333333"]);
    match rng.below(10) {
        0 => json!({"name": name}),
        1 => json!({"name": name, "resources": {"limits": {"cpu": cpu, "memory": memory}}}),
        2 => json!({"name": name, "resources": {
            "limits": {"cpu": "2", "memory": memory}, "requests": {"cpu": cpu}
        }}),
        _ => container(name, cpu, memory),
    }
}

type Feature = fn(&mut Rng) -> Value;
const FEATURES: [Feature; 14] = [
    more_containers,
    storage_and_gpus,
    host_ports,
    node_features,
    tolerations,
    node_selector,
    node_affinity,
    node_wishes,
    pod_affinity,
    pod_anti_affinity,
    pod_wishes,
    spreads,
    never_preempts,
    gated,
];

fn more_containers(rng: &mut Rng) -> Value {
    let mut init = vec![any_container("first", rng)];
    if rng.chance(50) {
        init.push(patched(any_container("proxy", rng), &json!({"restartPolicy": "Always"})));
        init.push(any_container("then", rng));
    }
    let mut spec = json!({ "initContainers": init });
    if rng.chance(30) {
        spec["overhead"] = json!({"cpu": "10m", "memory": "1"});
    }
    if rng.chance(20) {
        spec["resources"] = json!({"requests": {"cpu": "300m", "memory": "200Mi"}});
    }
    json!({ "spec": spec })
}

fn storage_and_gpus(rng: &mut Rng) -> Value {
    let mut made = any_container("main", rng);
    let more = if rng.chance(50) {
        json!({"resources": {"requests": {"ephemeral-storage": rng.pick(&["1Gi", "512Mi"])}}})
    } else {
        json!({"resources": {"requests": {"example.com/gpu": rng.pick(&["0", "1"])}}})
    };
    merge(&mut made, &more);
    json!({"spec": {"containers": [made]}})
}

fn host_ports(rng: &mut Rng) -> Value {
    let mut made = any_container("main", rng);
    let mut ports = vec![json!({"containerPort": 80, "hostPort": 80})];
    if rng.chance(50) {
        ports[0]["hostIP"] = rng.pick(&["10.0.0.1", "10.0.0.2", "0.0.0.0", "::"]).into();
    }
    if rng.chance(30) {
        ports.push(json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}));
    }
    made["ports"] = ports.into();
    json!({"spec": {"containers": [made]}})
}

/// Fields that need a declared feature.
fn node_features(rng: &mut Rng) -> Value {
    let rules =
        |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]);
    let mut made = any_container("main", rng);
    match rng.below(4) {
        0 => made["restartPolicyRules"] = rules("RestartAllContainers"),
        1 => made["restartPolicyRules"] = rules("Restart"),
        2 => {
            let options = rng.pick(&[json!([]), json!(["noexec"])]);
            made["volumeMounts"] =
                json!([{"name": "v", "mountPath": "/v", "bindMountOptions": options}]);
        }
        _ => {
            let user_namespace = !rng.chance(50);
            return json!({"spec": {"hostNetwork": true, "hostUsers": !user_namespace}});
        }
    }
    json!({"spec": {"containers": [made]}})
}

fn tolerations(rng: &mut Rng) -> Value {
    let all = [
        json!({"operator": "Exists"}),
        json!({"key": "dedicated", "operator": "Exists"}),
        json!({"key": "dedicated", "value": "x"}),
        json!({"key": "dedicated", "operator": "Equal", "effect": "NoSchedule"}),
        json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
        json!({"key": "gpu", "operator": "Gt", "value": rng.pick(&["6", "7", "07"])}),
        json!({"key": "dedicated", "operator": "Lt", "value": rng.pick(&["7", "8"])}),
        json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}),
    ];
    json!({"spec": {"tolerations": [rng.pick(&all), rng.pick(&all)]}})
}

fn node_selector(rng: &mut Rng) -> Value {
    json!({"spec": {"nodeSelector": rng.pick(&[
        json!({"disk": "ssd"}), json!({ZONE: "a"}), json!({"rack": "r1", ZONE: "b"}),
    ])}})
}

fn node_term(rng: &mut Rng) -> Value {
    let is = |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
    let all = [
        json!({"matchExpressions": [is(ZONE, "In", json!(["a", "b"]))]}),
        json!({"matchExpressions": [is(ZONE, "NotIn", json!(["a"]))]}),
        json!({"matchExpressions": [is("cores", "Gt", json!(["2"]))]}),
        json!({"matchExpressions": [is("cores", "Lt", json!(["16"])), is("rack", "Exists", json!(null))]}),
        json!({"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]}),
        json!({"matchFields": [is("metadata.name", "In", json!(["n1"]))]}),
        json!({"matchFields": [is("metadata.name", "NotIn", json!(["n2"]))]}),
        json!({"matchExpressions": [], "matchFields": []}),
    ];
    rng.pick(&all)
}

fn node_affinity(rng: &mut Rng) -> Value {
    let mut terms = vec![node_term(rng)];
    if rng.chance(40) {
        terms.push(node_term(rng));
    }
    json!({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}})
}

fn node_wishes(rng: &mut Rng) -> Value {
    let wish = json!({"weight": 1 + rng.below(100), "preference": node_term(rng)});
    json!({"spec": {"affinity": {"nodeAffinity": {PREFERRED: [wish]}}}})
}

fn selector(rng: &mut Rng) -> Value {
    let all = [
        json!({"matchLabels": {"app": "a"}}),
        json!({"matchLabels": {"app": "b"}}),
        json!({"matchLabels": {"app": "a", "tier": "front"}}),
        json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
        json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["back"]}]}),
        json!({}),
    ];
    rng.pick(&all)
}

fn pod_term(rng: &mut Rng) -> Value {
    let mut term = json!({"topologyKey": rng.pick(&KEYS)});
    if rng.chance(95) {
        term["labelSelector"] = selector(rng);
        if rng.chance(20) {
            term["matchLabelKeys"] = json!(["pod-template-hash"]);
        } else if rng.chance(10) {
            term["mismatchLabelKeys"] = json!(["tier"]);
        }
    }
    match rng.below(8) {
        0 => term["namespaces"] = json!(["blue"]),
        1 => term["namespaceSelector"] = json!({}),
        2 => term["namespaceSelector"] = json!({"matchLabels": {"team": "x"}}),
        3 => {
            term["namespaces"] = json!(["red", "default"]);
            term["namespaceSelector"] = json!({"matchLabels": {"team": "y"}});
        }
        _ => {}
    }
    term
}

fn pod_terms(rng: &mut Rng) -> Vec<Value> {
    let mut terms = vec![pod_term(rng)];
    if rng.chance(30) {
        terms.push(pod_term(rng));
    }
    terms
}

fn pod_affinity(rng: &mut Rng) -> Value {
    json!({"spec": {"affinity": {"podAffinity": {REQUIRED: pod_terms(rng)}}}})
}

fn pod_anti_affinity(rng: &mut Rng) -> Value {
    json!({"spec": {"affinity": {"podAntiAffinity": {REQUIRED: pod_terms(rng)}}}})
}

fn pod_wishes(rng: &mut Rng) -> Value {
    let kind = rng.pick(&["podAffinity", "podAntiAffinity"]);
    let wish = json!({"weight": 1 + rng.below(100), "podAffinityTerm": pod_term(rng)});
    json!({"spec": {"affinity": {kind: {PREFERRED: [wish]}}}})
}

fn spread(rng: &mut Rng) -> Value {
    let hard = rng.chance(75);
    let mut one = json!({
        "maxSkew": rng.pick(&[1, 1, 2]), "topologyKey": rng.pick(&KEYS),
        "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
    });
    if rng.chance(95) {
        one["labelSelector"] = selector(rng);
        if rng.chance(20) {
            one["matchLabelKeys"] = json!(["pod-template-hash"]);
        }
    }
    if hard && rng.chance(25) {
        one["minDomains"] = rng.pick(&[1, 2, 3]).into();
    }
    if rng.chance(25) {
        one["nodeAffinityPolicy"] = rng.pick(&["Honor", "Ignore"]).into();
    }
    if rng.chance(25) {
        one["nodeTaintsPolicy"] = rng.pick(&["Honor", "Ignore"]).into();
    }
    one
}

fn spreads(rng: &mut Rng) -> Value {
    let mut all = vec![spread(rng)];
    if rng.chance(30) {
        all.push(spread(rng));
    }
    json!({"spec": {"topologySpreadConstraints": all}})
}

fn never_preempts(rng: &mut Rng) -> Value {
    json!({"spec": {"preemptionPolicy": rng.pick(&["Never", "PreemptLowerPriority"])}})
}

fn gated(rng: &mut Rng) -> Value {
    if rng.chance(30) {
        json!({"spec": {"schedulingGates": [{"name": "wait"}]}})
    } else {
        json!({})
    }
}
