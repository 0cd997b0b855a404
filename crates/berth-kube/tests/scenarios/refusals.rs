//! What users read when a pod has no place: one clear line first, then what would help.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, node, node_in, patched, pod, pod_on};
use berth_kube::cluster::outcome::GangOutcome;

const ZONE: &str = "topology.kubernetes.io/zone";

fn text(objects: &[Value]) -> String {
    let mut core = Core::of(objects);
    core.refusal("new").text()
}

fn asking(cpu: &str, memory: &str) -> Value {
    pod("new", &json!({"spec": {"containers": [container("main", cpu, memory)]}}))
}

#[test]
fn no_nodes_at_all() {
    insta::assert_snapshot!(text(&[pod("new", &json!({}))]), @r"
    the cluster has no nodes
    Add a node; the pod is retried when it joins.
    A new node would help with 100m cpu and 100Mi memory free.
    ");
}

#[test]
fn nodes_that_are_full_name_the_nearest_with_both_numbers() {
    let nodes =
        [node("n1", &json!({})), node("n2", &json!({"status": {"allocatable": {"cpu": "5"}}}))];
    insta::assert_snapshot!(text(&[&nodes[..], &[asking("6", "1Gi")]].concat()), @r"
    0/2 nodes are available: 2 short of cpu (nearest n2: 5 free of 6 requested)
    Request less cpu, or add a larger node: n2 has only 5 cpu.
    A new node would help with 6 cpu and 1Gi memory free.
    ");
    insta::assert_snapshot!(text(&[&nodes[..], &[asking("1", "9Gi")]].concat()), @r"
    0/2 nodes are available: 2 short of memory (nearest n1: 8Gi free of 9Gi requested)
    Request less memory, or add a larger node: n1 has only 8Gi memory.
    A new node would help with 1 cpu and 9Gi memory free.
    ");
}

#[test]
fn a_mixture_of_reasons_is_counted_the_most_first() {
    let objects = [
        node("n1", &json!({"spec": {"unschedulable": true}})),
        node(
            "n2",
            &json!({"spec": {"taints": [{"key": "gpu", "value": "a100", "effect": "NoSchedule"}]}}),
        ),
        node("n3", &json!({"metadata": {"labels": {"disk": "ssd"}}})),
        node("n4", &json!({"metadata": {"labels": {"disk": "ssd"}}})),
        node("n5", &json!({"metadata": {"labels": {"disk": "hdd"}}})),
        patched(asking("5", "1Gi"), &json!({"spec": {"nodeSelector": {"disk": "ssd"}}})),
    ];
    insta::assert_snapshot!(text(&objects), @r"
    0/5 nodes are available: 2 short of cpu (nearest n3: 4 free of 5 requested); 1 cordoned, not matching its node-selector and short of cpu (nearest n1: label disk is missing, nodeSelector requires ssd, cpu: 4 free of 5 requested); 1 not matching its node-selector and short of cpu (nearest n5: label disk is hdd, nodeSelector requires ssd, cpu: 4 free of 5 requested); 1 with an untolerated taint, not matching its node-selector and short of cpu (nearest n2: taint gpu=a100:NoSchedule is not tolerated, label disk is missing, nodeSelector requires ssd, cpu: 4 free of 5 requested)
    Request less cpu, or add a larger node: n3 has only 4 cpu.
    A new node would help with 5 cpu and 1Gi memory free, and label disk=ssd.
    ");
}

#[test]
fn each_rule_about_other_pods_has_its_own_message() {
    let rule = |kind: &str| {
        let term = json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE});
        json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}})
    };
    let web = pod_on("n1", "web", &json!({"app": "web"}));
    let nodes = [node_in("a", "n1"), node_in("a", "n2")];
    let with = |more: &[Value]| text(&[&nodes[..], more].concat());
    insta::assert_snapshot!(with(&[web.clone(), pod("new", &rule("podAntiAffinity"))]), @r"
    0/2 nodes are available: 2 violating its pod anti-affinity (n1: 1 matching pod in topology.kubernetes.io/zone=a)
    Add a node in another domain, or make the rule preferred instead of required.
    A new node would help with 100m cpu and 100Mi memory free.
    ");
    insta::assert_snapshot!(with(&[pod("new", &rule("podAffinity"))]), @r"
    0/2 nodes are available: 2 not matching its pod affinity (n1: no matching pod in topology.kubernetes.io/zone=a)
    Start a pod that its affinity matches, or make the rule preferred instead of required.
    ");
    let guard = patched(pod_on("n1", "guard", &json!({})), &rule("podAntiAffinity"));
    let new = pod("new", &json!({"metadata": {"labels": {"app": "web"}}}));
    insta::assert_snapshot!(with(&[guard, new]), @r"
    0/2 nodes are available: 2 violating the anti-affinity of other pods (n1: 1 matching pod in topology.kubernetes.io/zone=a)
    Add a node in another domain, or make the rule preferred instead of required.
    A new node would help with 100m cpu and 100Mi memory free.
    ");
    let spread = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
        "labelSelector": {"matchLabels": {"app": "web"}},
    }]}});
    insta::assert_snapshot!(with(&[web, pod("new", &spread)]), @r"
    0/2 nodes are available: 2 violating its topology spread constraints (n1: 1 matching pod(s) in topology.kubernetes.io/zone=a, with 1 of 2 domains (minDomains) the minimum counts as 0, maxSkew is 1)
    Add a node in the least loaded domain, raise maxSkew, or use ScheduleAnyway.
    ");
}

#[test]
fn ports_pods_and_extended_resources() {
    let port = json!({"spec": {"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]}});
    let there = patched(pod_on("n1", "there", &json!({})), &port);
    insta::assert_snapshot!(text(&[node("n1", &json!({})), there.clone(), pod("new", &port)]), @r"
    0/1 nodes are available: 1 with its host port in use (n1: host port 80/TCP is in use)
    Use a Service instead of a host port, or add a node.
    A new node would help with room for one pod.
    ");
    let small = node("n1", &json!({"status": {"allocatable": {"pods": "1"}}}));
    insta::assert_snapshot!(text(&[small, there, pod("new", &json!({}))]), @r"
    0/1 nodes are available: 1 with too many pods (n1: 1 of 1 pods)
    Add a node, delete other pods, or raise maxPods of the kubelet.
    A new node would help with 100m cpu and 100Mi memory free.
    ");
    let gpu = json!({"requests": {"nvidia.com/gpu": "1"}});
    let gpu = json!({"spec": {"containers": [{"name": "main", "resources": gpu}]}});
    insta::assert_snapshot!(text(&[node("n1", &json!({})), pod("new", &gpu)]), @r"
    0/1 nodes are available: 1 short of nvidia.com/gpu (nearest n1: 0 free of 1 requested)
    Request less nvidia.com/gpu, or add a larger node: n1 has no nvidia.com/gpu.
    A new node would help with 1 nvidia.com/gpu free.
    ");
    let affinity = json!({"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
        ]}
    }}}});
    insta::assert_snapshot!(text(&[node_in("a", "n1"), pod("new", &affinity)]), @r"
    0/1 nodes are available: 1 not matching its node-affinity (n1: no required node affinity term matches)
    Label a node to match, or relax the pod's node-affinity.
    A new node would help with 100m cpu and 100Mi memory free, matching its required node affinity.
    ");
}

#[test]
fn a_gang_says_how_far_it_came() {
    let member = |name: &str| {
        let meta = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "2"}});
        pod(name, &json!({"metadata": meta, "spec": {"containers": [container("main", "3", "1")]}}))
    };
    let mut core = Core::of(&[node("n1", &json!({})), member("a"), member("b")]);
    let GangOutcome::Refused(refusal) = core.gang("g") else { panic!("it cannot fit") };
    insta::assert_snapshot!(refusal.text(), @r"
    gang g is scheduled all together or not at all: 1 of 2 pods fit, then for b 0/1 nodes are available: 1 short of cpu (nearest n1: 1 free of 3 requested)
    Request less cpu, add a node, or delete other pods (nearest: n1).
    A new node would help with 3 cpu and 1 memory free.
    ");
}

#[test]
fn every_short_resource_is_named_first_and_only_remedies_that_are_enough_are_given() {
    let gpu = "example.com/gpu";
    let labelled = |name: &str, disk: &str| {
        let amounts = json!({"cpu": "4", "memory": "8Gi", gpu: "1"});
        node(
            name,
            &json!({"metadata": {"labels": {"disk": disk}}, "status": {"allocatable": amounts}}),
        )
    };
    let asking = |spec: &Value| {
        let requests = json!({"cpu": "8", "memory": "16Gi", gpu: "2"});
        let container = json!({"name": "main", "resources": {"requests": requests}});
        patched(pod("new", &json!({"spec": {"containers": [container]}})), &json!({ "spec": spec }))
    };
    let mut core = Core::of(&[labelled("n1", "hdd"), labelled("n2", "hdd")]);
    core.tell(&asking(&json!({})));
    let refusal = core.refusal("new");
    let start = "0/2 nodes are available: 2 short of cpu, memory and example.com/gpu (nearest n1: cpu: 4 \
                 free of 8 requested, memory: 8Gi free of 16Gi requested, example.com/gpu: 1 free of 2 \
                 requested)";
    assert_eq!(refusal.line, start);
    assert_eq!(refusal.code, "no_capacity_cpu");
    let help = [
        "Request less cpu, memory and example.com/gpu, or add a larger node: n1 has only 4 cpu, only 8Gi \
         memory and only 1 example.com/gpu.",
        "A new node would help with 8 cpu, 16Gi memory and 2 example.com/gpu free.",
    ];
    assert_eq!(refusal.help, help);
    // A cordon is not all that is wrong with it: to uncordon it would not help.
    let cordoned = patched(labelled("n1", "hdd"), &json!({"spec": {"unschedulable": true}}));
    let mut core = Core::of(std::slice::from_ref(&cordoned));
    core.tell(&pod("new", &json!({"spec": {"nodeSelector": {"disk": "ssd"}}})));
    let shape = "A new node would help with 100m cpu and 100Mi memory free, and label disk=ssd.";
    let help = ["No single change is enough: n1 is rejected by cordoned and node-selector.", shape];
    assert_eq!(core.refusal("new").help, help);
    // Where it is enough, it is advised.
    let mut core = Core::of(&[cordoned, labelled("n2", "hdd")]);
    core.tell(&pod("new", &json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}})));
    let help = [
        "Uncordon a node, such as `kubectl uncordon n1`.",
        "Label a node to match, or relax the pod's node-selector.",
        "A new node would help with 100m cpu and 100Mi memory free, and label \
         kubernetes.io/hostname=n1.",
    ];
    assert_eq!(core.refusal("new").help, help);
}

#[test]
fn a_node_is_described_by_every_rule_that_rejects_it_and_amounts_have_one_unit() {
    let port = json!([{"containerPort": 80, "hostPort": 80}]);
    let amounts = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "1"}}});
    let mut there = pod_on("n1", "there", &json!({}));
    there["spec"]["containers"] = json!([
        {"name": "main", "ports": port, "resources": {"requests": {"cpu": "3500m", "memory": "1"}}},
    ]);
    let mut new = asking("1", "8Gi");
    new["spec"]["containers"][0]["ports"] = port.clone();
    let mut core = Core::of(&[node("n1", &amounts), there, new]);
    let refusal = core.refusal("new");
    assert_eq!(
        refusal.line,
        "0/1 nodes are available: 1 with its host port in use, with too many pods and short of cpu and \
         memory (nearest n1: host port 80/TCP is in use, 1 of 1 pods, cpu: 500m free of 1000m requested, \
         memory: 8589934591 free of 8589934592 requested)"
    );
    assert_eq!(refusal.code, "host_port_in_use");
    let start =
        "No single change is enough: n1 is rejected by host-ports, pods and cpu and memory.";
    assert_eq!(refusal.help[0], start);
}

#[test]
fn with_many_reasons_every_rule_is_named() {
    let labelled = |name: &str, label: &str, taint: bool, cordoned: bool, cpu: &str| {
        let taints = if taint { json!([{"key": "t", "effect": "NoSchedule"}]) } else { json!([]) };
        let spec = json!({"taints": taints, "unschedulable": cordoned});
        let labels = json!({"labels": {"disk": label}});
        let status = json!({"allocatable": {"cpu": cpu}});
        node(name, &json!({"metadata": labels, "spec": spec, "status": status}))
    };
    let objects = [
        labelled("n1", "ssd", false, false, "1"),
        labelled("n2", "hdd", false, false, "4"),
        labelled("n3", "ssd", true, false, "4"),
        labelled("n4", "ssd", false, true, "4"),
        labelled("n5", "hdd", true, true, "1"),
        labelled("n6", "hdd", true, false, "1"),
        patched(asking("2", "1Mi"), &json!({"spec": {"nodeSelector": {"disk": "ssd"}}})),
    ];
    let line = Core::of(&objects).refusal("new").line;
    assert!(!line.contains("other reasons"), "{line}");
    assert!(line.ends_with("; 2 more by cpu, node-selector and taints"), "{line}");
}

#[test]
fn a_volume_that_cannot_be_used_has_a_remedy() {
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "missing"}});
    let text = text(&[node("n1", &json!({})), pod("new", &json!({"spec": {"volumes": [claim]}}))]);
    assert!(text.contains("claim default/missing does not exist; create the claim"), "{text}");
}

#[test]
fn a_missing_topology_label_is_named_with_its_remedy() {
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    });
    let mut core = Core::of(&[node("n1", &json!({})), node("n2", &json!({}))]);
    core.tell(&pod("new", &json!({"spec": {"topologySpreadConstraints": [constraint]}})));
    let refusal = core.refusal("new");
    let start = "0/2 nodes are available: 2 violating its topology spread constraints, 2 of them without \
                 label rack ";
    assert!(refusal.line.starts_with(start), "{}", refusal.line);
    assert_eq!(refusal.help, ["Label all nodes with rack, or use another topology key."]);
}
