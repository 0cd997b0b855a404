//! Pods that get a place all together or not at all.

use berth_kube::cluster::outcome::{GangOutcome, GroupPlan};
use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, node, patched, pod};

fn cores(name: &str, cpu: &str) -> Value {
    node(name, &json!({"status": {"allocatable": {"cpu": cpu}}}))
}

fn member(name: &str, cpu: &str, size: &str) -> Value {
    pod(
        name,
        &json!({
            "metadata": {"labels": {"berth.dev/gang": "g"}, "annotations": {"berth.dev/gang-size": size}},
            "spec": {"containers": [container("main", cpu, "1")]},
        }),
    )
}

fn reserved(outcome: &GangOutcome) -> Vec<(String, String)> {
    let GangOutcome::Reserved(all) = outcome else { panic!("no places: {outcome:?}") };
    let mut all: Vec<_> =
        all.iter().map(|it| (it.pod.name.to_string(), it.node.to_string())).collect();
    all.sort_unstable();
    all
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn a_gang_waits_until_it_is_complete_and_is_then_reserved_as_a_whole() {
    let mut core = Core::of(&[cores("n1", "1"), cores("n2", "1"), member("a", "1", "2")]);
    assert_eq!(core.gang("g"), GangOutcome::Incomplete { present: 1, size: 2 });
    core.tell(&member("b", "1", "2"));
    let outcome = core.gang("g");
    let nodes: Vec<String> = reserved(&outcome).into_iter().map(|it| it.1).collect();
    assert!(nodes == ["n1", "n2"] || nodes == ["n2", "n1"], "{nodes:?}");
}

#[test]
fn a_gang_that_does_not_fit_as_a_whole_gets_nothing_and_leaves_no_trace() {
    let mut core = Core::of(&[cores("n1", "2"), member("a", "1", "3"), member("b", "1", "3")]);
    core.tell(&member("c", "1", "3"));
    core.tell(&pod("other", &json!({"spec": {"containers": [container("main", "2", "1")]}})));
    let before = core.explain("other");
    core.cluster.take_changed();
    let GangOutcome::Refused(refusal) = core.gang("g") else { panic!("it cannot fit") };
    assert_eq!(refusal.code, "no_capacity_cpu");
    assert!(
        refusal.line.starts_with("gang g is scheduled all together or not at all"),
        "{}",
        refusal.line
    );
    assert!(!core.cluster.take_changed(), "what was tried is no news");
    assert_eq!(core.explain("other"), before);
    assert_eq!(core.node_of("other"), "n1");
}

#[test]
fn a_gang_that_is_refused_keeps_its_nominations() {
    let nominated = json!({"spec": {"priority": 5}, "status": {"nominatedNodeName": "n1"}});
    let mut core = Core::of(&[cores("n1", "1"), patched(member("a", "1", "2"), &nominated)]);
    core.tell(&member("b", "1", "2"));
    core.tell(&pod("other", &json!({"spec": {"containers": [container("main", "500m", "1")]}})));
    assert!(core.nodes_for("other").is_empty());
    assert!(matches!(core.gang("g"), GangOutcome::Refused(_)));
    assert!(core.nodes_for("other").is_empty());
}

#[test]
fn bound_members_count_and_only_the_others_are_reserved() {
    let bound = patched(member("a", "1", "2"), &json!({"spec": {"nodeName": "n1"}}));
    let mut core = Core::of(&[cores("n1", "1"), cores("n2", "1"), bound, member("b", "1", "2")]);
    assert_eq!(reserved(&core.gang("g")), pairs(&[("b", "n2")]));
}

#[test]
fn the_names_of_members_do_not_decide_whether_they_fit() {
    // In order of name, the small one would take the large node.
    let mut core = Core::of(&[cores("n1", "2"), cores("n2", "1")]);
    core.tell(&patched(member("a", "1", "2"), &json!({"spec": {"nodeSelector": null}})));
    core.tell(&member("b", "2", "2"));
    assert_eq!(reserved(&core.gang("g")), pairs(&[("a", "n2"), ("b", "n1")]));
}

#[test]
fn a_member_with_affinity_to_another_may_come_first_in_name() {
    let with_affinity = json!({"spec": {"affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }}}});
    let mut core = Core::of(&[cores("n1", "2"), patched(member("a", "1", "2"), &with_affinity)]);
    core.tell(&patched(
        member("leader", "1", "2"),
        &json!({"metadata": {"labels": {"role": "leader"}}}),
    ));
    assert_eq!(reserved(&core.gang("g")), pairs(&[("a", "n1"), ("leader", "n1")]));
}

#[test]
fn an_invalid_or_inconsistent_size_is_refused() {
    let mut core = Core::of(&[cores("n1", "4"), member("a", "1", "two")]);
    let GangOutcome::Refused(refusal) = core.gang("g") else { panic!("it has no size") };
    assert_eq!(refusal.code, "gang_size_invalid");
    assert_eq!(
        refusal.line,
        "berth.dev/gang-size is \"two\"; accepted: a number of pods, at least 1"
    );
    let mut core = Core::of(&[cores("n1", "4"), member("a", "1", "2"), member("b", "1", "3")]);
    let GangOutcome::Refused(refusal) = core.gang("g") else { panic!("they disagree") };
    assert_eq!(refusal.line, "pods of gang g disagree on berth.dev/gang-size: 3 and 2");
}

fn pod_group(name: &str, spec: &Value) -> Value {
    json!({"kind": "PodGroup", "metadata": {"namespace": "default", "name": name}, "spec": spec})
}

fn gang_of(name: &str, min_count: u32) -> Value {
    pod_group(name, &json!({"schedulingPolicy": {"gang": {"minCount": min_count}}}))
}

/// A pod of a PodGroup.
fn grouped(name: &str, group: &str, cpu: &str) -> Value {
    let container = container("main", cpu, "1");
    let group = json!({ "podGroupName": group });
    pod(name, &json!({"spec": {"schedulingGroup": group, "containers": [container]}}))
}

fn plan(outcome: GangOutcome) -> GroupPlan {
    let GangOutcome::Group(plan) = outcome else { panic!("no places: {outcome:?}") };
    plan
}

fn code(outcome: GangOutcome) -> (String, String) {
    let GangOutcome::Refused(refusal) = outcome else { panic!("not refused: {outcome:?}") };
    (refusal.code.clone(), refusal.line.clone())
}

#[test]
fn a_pod_group_is_scheduled_when_its_minimum_fits_and_the_others_follow() {
    let mut core = Core::of(&[cores("n1", "2"), gang_of("train", 3)]);
    for name in ["a", "b"] {
        core.tell(&grouped(name, "train", "1"));
    }
    let incomplete = GangOutcome::Incomplete { present: 2, size: 3 };
    assert_eq!(core.gang("podgroup/train"), incomplete);
    for name in ["c", "d"] {
        core.tell(&grouped(name, "train", "1"));
    }
    let (why, line) = code(core.gang("podgroup/train"));
    assert_eq!(why, "no_capacity_cpu");
    let start = "PodGroup train is scheduled at least 3 pods at once: 2 of 4 pods fit, then for c ";
    assert!(line.starts_with(start), "{line}");
    // Nothing is held by what did not fit.
    core.tell(&cores("n2", "1"));
    let found = plan(core.gang("podgroup/train"));
    assert_eq!((found.members.len(), found.is_gang), (3, true));
    assert_eq!(found.refusal.expect("one does not fit").code, "no_capacity_cpu");
    core.tell(&cores("n3", "1"));
    let found = plan(core.gang("podgroup/train"));
    assert_eq!((found.members.len(), found.is_gang, found.refusal), (1, false, None));
}

#[test]
fn the_pods_of_a_basic_group_are_scheduled_one_by_one() {
    let basic = pod_group("web", &json!({"schedulingPolicy": {"basic": {}}}));
    let mut core = Core::of(&[cores("n1", "1"), basic]);
    for name in ["a", "b"] {
        core.tell(&grouped(name, "web", "1"));
    }
    let found = plan(core.gang("podgroup/web"));
    assert_eq!((found.members.len(), found.is_gang), (1, false));
    let found = plan(core.gang("podgroup/web"));
    assert!(found.members.is_empty() && found.refusal.is_some(), "one has no place yet");
}

#[test]
fn a_pod_whose_group_is_absent_or_not_understood_is_refused_and_not_scheduled_alone() {
    let mut core = Core::of(&[cores("n1", "8"), grouped("a", "train", "1")]);
    let (why, line) = code(core.gang("podgroup/train"));
    assert_eq!(why, "pod_group_missing");
    assert!(line.starts_with("PodGroup train does not exist in namespace default"), "{line}");
    core.tell(&pod_group(
        "train",
        &json!({
            "schedulingPolicy": {"gang": {"minCount": 1}},
            "schedulingConstraints": {"topology": [{"key": "rack"}]},
        }),
    ));
    let (why, line) = code(core.gang("podgroup/train"));
    assert_eq!(why, "pod_group_unsupported");
    assert_eq!(line, "PodGroup train: spec.schedulingConstraints is not supported");
    core.tell(&pod_group("train", &json!({"schedulingPolicy": {"ring": {}}})));
    let (why, line) = code(core.gang("podgroup/train"));
    assert_eq!(why, "pod_group_unsupported");
    assert!(line.contains("accepted: basic, or gang"), "{line}");
    // A kind of group that is not known yet, and a pod with two gangs.
    core.tell(&pod("b", &json!({"spec": {"schedulingGroup": {}}})));
    assert_eq!(code(core.gang("unknown/")).0, "pod_group_unknown");
    let label = json!({"metadata": {"labels": {"berth.dev/gang": "g"}}});
    core.tell(&patched(grouped("c", "both", "1"), &label));
    core.tell(&gang_of("both", 1));
    assert_eq!(code(core.gang("podgroup/both")).0, "pod_group_unknown");
    assert_eq!(core.explain("a").refusal.expect("a refusal").code, "pod_group_unsupported");
}

#[test]
fn a_group_of_a_workload_counts_per_replica() {
    let policy = json!({"gang": {"minCount": 2}});
    let workload = json!({
        "kind": "Workload", "metadata": {"namespace": "default", "name": "job"},
        "spec": {"podGroups": [{"name": "workers", "policy": policy}]},
    });
    let mut core = Core::of(&[cores("n1", "8"), workload]);
    for (name, replica) in [("a", "0"), ("b", "1"), ("c", "1")] {
        let of = json!({"name": "job", "podGroup": "workers", "podGroupReplicaKey": replica});
        core.tell(&pod(name, &json!({"spec": {"workloadRef": of}})));
    }
    let incomplete = GangOutcome::Incomplete { present: 1, size: 2 };
    assert_eq!(core.gang("workload/job/workers/0"), incomplete);
    assert_eq!(plan(core.gang("workload/job/workers/1")).members.len(), 2);
    core.tell(&pod("d", &json!({"spec": {"workloadRef": {"name": "job", "podGroup": "drivers"}}})));
    assert_eq!(code(core.gang("workload/job/drivers/")).0, "pod_group_missing");
}
