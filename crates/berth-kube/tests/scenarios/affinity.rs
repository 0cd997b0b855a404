//! Pods near and away from others, by the examples of the page "Assigning Pods to Nodes".

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{container, namespace, node, node_in, patched, pod, pod_on};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn term(key: &str, value: &str, topology: &str) -> Value {
    let is = json!({"key": key, "operator": "In", "values": [value]});
    json!({"labelSelector": {"matchExpressions": [is]}, "topologyKey": topology})
}

fn must(kind: &str, terms: &[Value]) -> Value {
    json!({"spec": {"affinity": {kind: {REQUIRED: terms}}}})
}

fn nodes_for(objects: &[Value], pod: &Value) -> Vec<String> {
    let mut core = Core::of(objects);
    core.tell(pod);
    core.nodes_for(pod["metadata"]["name"].as_str().unwrap())
}

fn zones() -> Vec<Value> {
    vec![node_in("V", "v1"), node_in("V", "v2"), node_in("R", "r1"), node("nowhere", &json!({}))]
}

#[test]
fn example_with_pod_affinity_goes_to_the_zone_of_s1_and_rather_not_beside_s2() {
    let mut objects = zones();
    objects.push(pod_on("v1", "s1", &json!({"security": "S1"})));
    objects.push(pod_on("v2", "s2", &json!({"security": "S2"})));
    let wish = json!({"weight": 100, "podAffinityTerm": term("security", "S2", HOST)});
    let new = pod(
        "with-pod-affinity",
        &json!({"spec": {"affinity": {
            "podAffinity": {REQUIRED: [term("security", "S1", ZONE)]},
            "podAntiAffinity": {PREFERRED: [wish]},
        }}}),
    );
    assert_eq!(nodes_for(&objects, &new), ["v1", "v2"]);
    let mut core = Core::of(&objects);
    core.tell(&new);
    assert_eq!(core.node_of("with-pod-affinity"), "v1");
}

#[test]
fn example_a_cache_with_every_web_server_and_never_two_of_a_kind() {
    let mut core =
        Core::of(&[node("n1", &json!({})), node("n2", &json!({})), node("n3", &json!({}))]);
    let away = |app: &str| json!({REQUIRED: [term("app", app, HOST)]});
    let place = |core: &mut Core, name: &str, app: &str, affinity: &Value| {
        let patch = json!({"metadata": {"labels": {"app": app}}, "spec": {"affinity": affinity}});
        core.tell(&pod(name, &patch));
        core.node_of(name)
    };
    let store = json!({"podAntiAffinity": away("store")});
    let web = json!({
        "podAntiAffinity": away("web-store"), "podAffinity": {REQUIRED: [term("app", "store", HOST)]}
    });
    let mut stores: Vec<String> =
        ["s1", "s2", "s3"].iter().map(|it| place(&mut core, it, "store", &store)).collect();
    let mut webs: Vec<String> =
        ["w1", "w2", "w3"].iter().map(|it| place(&mut core, it, "web-store", &web)).collect();
    stores.sort_unstable();
    webs.sort_unstable();
    assert_eq!(stores, ["n1", "n2", "n3"]);
    assert_eq!(webs, ["n1", "n2", "n3"]);
    let patch = json!({"metadata": {"labels": {"app": "web-store"}}, "spec": {"affinity": web}});
    core.tell(&pod("w4", &patch));
    assert_eq!(core.refusal("w4").code, "pod_anti_affinity");
}

#[test]
fn the_first_pod_of_a_group_with_affinity_to_itself_may_go_anywhere() {
    let together = must("podAffinity", &[term("app", "group", ZONE)]);
    let member = |name: &str| {
        patched(pod(name, &json!({"metadata": {"labels": {"app": "group"}}})), &together)
    };
    let mut core = Core::of(&zones());
    core.tell(&member("first"));
    // Anywhere with a zone, that is.
    assert_eq!(core.nodes_for("first"), ["r1", "v1", "v2"]);
    let home = core.node_of("first");
    core.tell(&member("second"));
    let expected: &[&str] = if home == "r1" { &["r1"] } else { &["v1", "v2"] };
    assert_eq!(core.nodes_for("second"), expected);
    // One that does not match its own rule is no first.
    let stranger =
        patched(pod("stranger", &json!({})), &must("podAffinity", &[term("app", "x", ZONE)]));
    assert!(nodes_for(&zones(), &stranger).is_empty());
}

#[test]
fn required_affinity_needs_a_pod_that_matches_all_terms_at_once() {
    let both = must("podAffinity", &[term("app", "web", ZONE), term("tier", "front", HOST)]);
    let new = pod("new", &both);
    let mut objects = zones();
    objects.push(pod_on("v1", "x", &json!({"app": "web"})));
    objects.push(pod_on("v1", "y", &json!({"tier": "front"})));
    assert!(nodes_for(&objects, &new).is_empty());
    objects.push(pod_on("v2", "z", &json!({"app": "web", "tier": "front"})));
    assert_eq!(nodes_for(&objects, &new), ["v2"]);
}

#[test]
fn anti_affinity_is_symmetric_in_whole_domains() {
    let lonely = must("podAntiAffinity", &[term("app", "noisy", ZONE)]);
    let mut objects = zones();
    objects.push(patched(pod_on("v1", "lonely", &json!({})), &lonely));
    let noisy = pod("noisy", &json!({"metadata": {"labels": {"app": "noisy"}}}));
    assert_eq!(nodes_for(&objects, &noisy), ["nowhere", "r1"]);
    // The other way round it is the newcomer's own rule.
    let mut objects = zones();
    objects.push(pod_on("v1", "noisy", &json!({"app": "noisy"})));
    assert_eq!(
        nodes_for(&objects, &patched(pod("lonely", &json!({})), &lonely)),
        ["nowhere", "r1"]
    );
}

#[test]
fn terminating_pods_count_until_they_are_deleted_and_ended_ones_do_not() {
    let away = patched(pod("new", &json!({})), &must("podAntiAffinity", &[term("app", "a", HOST)]));
    let with_affinity =
        patched(pod("new", &json!({})), &must("podAffinity", &[term("app", "a", HOST)]));
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut objects = zones();
    objects.push(patched(pod_on("v1", "a", &json!({"app": "a"})), &going));
    assert_eq!(nodes_for(&objects, &away), ["nowhere", "r1", "v2"]);
    assert_eq!(nodes_for(&objects, &with_affinity), ["v1"]);
    objects[4] = patched(objects[4].clone(), &json!({"status": {"phase": "Failed"}}));
    assert_eq!(nodes_for(&objects, &away), ["nowhere", "r1", "v1", "v2"]);
    assert!(nodes_for(&objects, &with_affinity).is_empty());
}

#[test]
fn a_roll_out_does_not_keep_its_old_pods_away_with_match_label_keys() {
    let mut by_hash = term("app", "web", HOST);
    by_hash["matchLabelKeys"] = json!(["pod-template-hash"]);
    let of = |name: &str, hash: &str| {
        let labels = json!({"metadata": {"labels": {"app": "web", "pod-template-hash": hash}}});
        patched(
            patched(pod(name, &labels), &must("podAntiAffinity", std::slice::from_ref(&by_hash))),
            &json!({}),
        )
    };
    let mut objects = vec![node("n1", &json!({}))];
    objects.push(patched(of("old", "1"), &json!({"spec": {"nodeName": "n1"}})));
    assert_eq!(nodes_for(&objects, &of("new", "2")), ["n1"]);
    assert!(nodes_for(&objects, &of("twin", "1")).is_empty());
}

#[test]
fn tenants_keep_others_out_of_their_pool_with_mismatch_label_keys() {
    let is = json!([{"key": "tenant", "operator": "Exists"}]);
    let others = json!({
        "labelSelector": {"matchExpressions": is}, "namespaceSelector": {}, "topologyKey": ZONE,
        "mismatchLabelKeys": ["tenant"],
    });
    let of = |name: &str, tenant: &str| {
        let labels = json!({"metadata": {"labels": {"tenant": tenant}}});
        patched(pod(name, &labels), &must("podAntiAffinity", std::slice::from_ref(&others)))
    };
    let mut objects = zones();
    objects.push(patched(of("a", "blue"), &json!({"spec": {"nodeName": "v1"}})));
    assert_eq!(nodes_for(&objects, &of("b", "blue")), ["nowhere", "r1", "v1", "v2"]);
    assert_eq!(nodes_for(&objects, &of("c", "red")), ["nowhere", "r1"]);
    assert_eq!(nodes_for(&objects, &pod("d", &json!({}))), ["nowhere", "r1", "v1", "v2"]);
}

#[test]
fn namespaces_are_the_pods_own_or_those_named_and_those_whose_labels_match() {
    let mut core = Core::of(&zones());
    core.tell(&namespace("blue", &json!({"team": "blue"})));
    let there = json!({"metadata": {"namespace": "blue"}});
    core.tell(&patched(pod_on("v1", "web", &json!({"app": "web"})), &there));
    let cases = [
        (json!({}), false),
        (json!({"namespaces": ["blue"]}), true),
        (json!({"namespaces": ["red"]}), false),
        (json!({"namespaceSelector": {}}), true),
        (json!({"namespaceSelector": {"matchLabels": {"team": "blue"}}}), true),
        (json!({"namespaceSelector": {"matchLabels": {"team": "red"}}}), false),
        (
            json!({"namespaces": ["blue"], "namespaceSelector": {"matchLabels": {"team": "red"}}}),
            true,
        ),
    ];
    for (more, looks_there) in cases {
        let term = patched(term("app", "web", ZONE), &more);
        core.tell(&pod("new", &must("podAntiAffinity", &[term])));
        let out = !core.nodes_for("new").contains(&"v1".to_owned());
        assert_eq!(out, looks_there, "{more}");
        core.remove("new");
    }
    let red = json!({"namespaceSelector": {"matchLabels": {"team": "red"}}});
    core.tell(&pod("new", &must("podAntiAffinity", &[patched(term("app", "web", ZONE), &red)])));
    assert_eq!(core.nodes_for("new").len(), 4);
    core.tell(&namespace("blue", &json!({"team": "red"})));
    assert_eq!(core.nodes_for("new"), ["nowhere", "r1"]);
    core.cluster.remove_namespace("blue");
    assert_eq!(core.nodes_for("new").len(), 4);
}

#[test]
fn a_change_of_labels_changes_affinity() {
    let mut objects = zones();
    objects.push(pod_on("v1", "web", &json!({"app": "web"})));
    let mut core = Core::of(&objects);
    core.tell(&pod("new", &must("podAntiAffinity", &[term("app", "web", HOST)])));
    assert_eq!(core.nodes_for("new"), ["nowhere", "r1", "v2"]);
    core.change("web", &json!({"metadata": {"labels": {"app": "quarantine"}}}));
    assert_eq!(core.nodes_for("new"), ["nowhere", "r1", "v1", "v2"]);
}

#[test]
fn pods_of_a_deleted_node_do_not_count_for_affinity() {
    let mut objects = zones();
    objects.push(pod_on("v1", "web", &json!({"app": "web"})));
    let mut core = Core::of(&objects);
    core.tell(&pod("away", &must("podAntiAffinity", &[term("app", "web", ZONE)])));
    core.tell(&pod("near", &must("podAffinity", &[term("app", "web", ZONE)])));
    assert_eq!(core.nodes_for("away"), ["nowhere", "r1"]);
    assert_eq!(core.nodes_for("near"), ["v1", "v2"]);
    core.cluster.remove_node("v1");
    assert_eq!(core.nodes_for("away"), ["nowhere", "r1", "v2"]);
    assert!(core.nodes_for("near").is_empty());
    // It is back, in another zone.
    core.tell(&node_in("R", "v1"));
    assert_eq!(core.nodes_for("away"), ["nowhere", "v2"]);
    assert_eq!(core.nodes_for("near"), ["r1", "v1"]);
    // An explanation of a pod on a node that is gone does not lose the pod.
    core.cluster.remove_node("v1");
    core.explain("web");
    core.tell(&node_in("V", "v1"));
    core.tell(&pod("large", &json!({"spec": {"containers": [container("main", "4", "1Gi")]}})));
    assert!(!core.nodes_for("large").contains(&"v1".to_owned()));
}
