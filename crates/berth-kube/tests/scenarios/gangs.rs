//! Pods that get a place all together or not at all.

use berth_kube::cluster::outcome::GangOutcome;
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
