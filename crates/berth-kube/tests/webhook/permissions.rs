//! With the rights of the manifests and no more, everything works and nothing is refused.

use berth_kube_fake::{Rule, samples};
use serde_json::json;

use crate::cluster::{annotate, binder, count, until};
use crate::fixture::{Fixture, manifests, registration, shared};

#[tokio::test]
async fn the_permissions_of_the_manifests_are_enough() {
    let mut rights = manifests();
    let rule = |resources: &[&str], group: &str, verbs: &[&str]| Rule {
        groups: vec![group.to_owned()],
        resources: resources.iter().map(|it| (*it).to_owned()).collect(),
        verbs: verbs.iter().map(|it| (*it).to_owned()).collect(),
        ..Rule::default()
    };
    // The test binds pods through the same interface.
    rights.push(rule(&["pods/binding"], "", &["create"]));
    let change = |fake: &mut berth_kube_fake::Options| {
        fake.controllers = true;
        fake.kubelet = true;
        fake.audit = true;
        fake.rbac = Some(rights);
    };
    let quick = |options: &mut berth_kube::webhook::Options| {
        options.rebuild.every = std::time::Duration::from_millis(200);
    };
    let fixture = Fixture::prepared(change, quick, vec![registration()]).await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    let mut marks = shared(2);
    marks["berth.dev/webhook-scheduler-on-change"] = json!("lazy");
    let mut deployment = samples::deployment("shop", "web", 3);
    deployment["metadata"]["annotations"] = marks;
    fixture.fake.create(deployment).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:S").await;
    // Costs are patched, then pods evicted, an event written, a lost pod looked for.
    annotate(&fixture, "deployments", "web", count(1)).await;
    let priced = || {
        fixture.fake.audit().iter().any(|it| it.verb == "patch" && it.resource == "pods" && it.done)
    };
    crate::fixture::eventually("a cost is changed", priced).await;
    let rebuild = json!({ "berth.dev/webhook-scheduler-on-change": "rebuild" });
    annotate(&fixture, "deployments", "web", rebuild).await;
    until(&fixture, "web", "0:O 1:S 2:S").await;
    let mut set = samples::stateful_set("shop", "db", 2);
    set["metadata"]["annotations"] = shared("many");
    fixture.fake.create(set).await.unwrap();
    until(&fixture, "db", "-:S -:S").await;
    let told = || !fixture.fake.list("events.events.k8s.io").is_empty();
    crate::fixture::eventually("an event", told).await;
    let refused: Vec<String> = fixture
        .fake
        .audit()
        .iter()
        .filter(|it| it.code == 403)
        .map(|it| format!("{} {} {} {}", it.verb, it.resource, it.subresource, it.name))
        .collect();
    assert_eq!(refused, Vec::<String>::new());
}
