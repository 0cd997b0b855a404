//! From Deployment to ready pod and back, with controllers that do their work: creation, scale,
//! roll-outs, losses, quotas, restarts.

use std::time::Duration;

use berth_kube_fake::samples;
use serde_json::{Value, json};

use crate::cluster::{annotate, binder, count, evictions, pods, slots, uids, until};
use crate::fixture::{Fixture, eventually, shared};

async fn web(fixture: &Fixture, replicas: u32, marks: Value) {
    let mut deployment = samples::deployment("shop", "web", replicas);
    deployment["metadata"]["annotations"] = marks;
    fixture.fake.create(deployment).await.unwrap();
}

#[tokio::test]
async fn a_deployment_grows_shrinks_and_refills() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 5, shared(3)).await;
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    // S10.
    fixture.fake.scale("deployments", "shop", "web", 8).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S 5:S 6:S 7:S").await;
    // S9: spot pods go first.
    fixture.fake.scale("deployments", "shop", "web", 3).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:O").await;
    fixture.fake.scale("deployments", "shop", "web", 5).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    // S7, as often as there are pods: the lost slot is filled, whichever it is.
    for slot in ["1", "3", "0", "4", "2"] {
        let uids = uids(&fixture.fake, "web");
        let lost = pods(&fixture.fake).into_iter().find(|it| it["metadata"]["uid"] == uids[slot]);
        let name = lost.unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        fixture.fake.delete("pods", "shop", &name).await.unwrap();
        eventually("it is gone", || fixture.fake.get("pods", "shop", &name).is_none()).await;
        until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    }
    assert_eq!(evictions(&fixture.fake), 0, "nothing was ever misplaced");
}

#[tokio::test]
async fn s16_a_roll_out_ends_with_the_right_counts() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 5, shared(3)).await;
    until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    let old = uids(&fixture.fake, "web");
    for (number, surge) in [json!(1), json!(5), json!("25%")].into_iter().enumerate() {
        let spec = json!({ "spec": {
            "strategy": { "rollingUpdate": { "maxSurge": surge, "maxUnavailable": 0 } },
            "template": { "metadata": { "annotations": { "version": number.to_string() } } },
        } });
        fixture.fake.merge("deployments", "shop", "web", spec).await.unwrap();
        let rolled = || {
            let all = pods(&fixture.fake);
            let version = json!(number.to_string());
            let new = |it: &Value| it["metadata"]["annotations"]["version"] == version;
            all.len() == 5 && all.iter().all(new)
        };
        eventually("the new revision runs alone", rolled).await;
        until(&fixture, "web", "0:O 1:O 2:O 3:S 4:S").await;
    }
    assert!(uids(&fixture.fake, "web").values().all(|uid| !old.values().any(|it| it == uid)));
    assert_eq!(evictions(&fixture.fake), 0);
}

#[tokio::test]
async fn s16_an_old_revision_lets_its_on_demand_pods_go_first() {
    let fixture = Fixture::alive().await;
    let hand = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 4, shared(2)).await;
    until(&fixture, "web", "0:O 1:O 2:S 3:S").await;
    let old = uids(&fixture.fake, "web");
    // Nobody binds the first new pod, so that the roll-out stands still.
    drop(hand);
    let spec = json!({ "spec": {
        "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
        "template": { "metadata": { "annotations": { "version": "2" } } },
    } });
    fixture.fake.merge("deployments", "shop", "web", spec).await.unwrap();
    let cost = |pod: &Value| {
        let cost = &pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
        cost.as_str().unwrap_or("-").to_owned()
    };
    let costs = || {
        let all = pods(&fixture.fake);
        let of = |slot: &&str| {
            let pod = all.iter().find(|it| it["metadata"]["uid"] == old[*slot]);
            pod.map_or_else(String::new, cost)
        };
        ["0", "1", "2", "3"].iter().map(of).collect::<Vec<_>>().join(" ")
    };
    eventually("on-demand is cheapest in the old revision", || costs() == "0 0 1 1").await;
    let _hand = binder(&fixture.fake, "n-spot").await;
    let alone = || {
        let all = pods(&fixture.fake);
        all.len() == 4 && all.iter().all(|it| it["metadata"]["annotations"]["version"] == "2")
    };
    eventually("the new revision runs alone", alone).await;
    until(&fixture, "web", "0:O 1:O 2:S 3:S").await;
    let mut found: Vec<String> = pods(&fixture.fake).iter().map(cost).collect();
    found.sort();
    assert_eq!(found, ["1", "1", "100", "100"]);
}

#[tokio::test]
async fn a_stateful_set_is_shared_by_ordinal_and_rebuilt_when_the_count_changes() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    let mut set = samples::stateful_set("shop", "db", 4);
    set["metadata"]["annotations"] = shared(2);
    fixture.fake.create(set).await.unwrap();
    until(&fixture, "db", "0:O 1:O 2:S 3:S").await;
    let before = uids(&fixture.fake, "db");
    annotate(&fixture, "statefulsets", "db", count(3)).await;
    until(&fixture, "db", "0:O 1:O 2:O 3:S").await;
    let after = uids(&fixture.fake, "db");
    let changed: Vec<&String> =
        before.keys().filter(|slot| before[*slot] != after[*slot]).collect();
    assert_eq!(changed, ["2"]);
}

#[tokio::test]
async fn creations_that_a_quota_rejects_end_with_the_right_counts() {
    let short = |options: &mut berth_kube::webhook::Options| {
        options.reserve_for = Duration::from_secs(2);
        options.rebuild.every = Duration::from_millis(200);
    };
    let fixture = Fixture::with(
        |fake| {
            fake.controllers = true;
            fake.kubelet = true;
            fake.audit = true;
        },
        short,
    )
    .await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    fixture.fake.set_quota("shop", Some(2));
    web(&fixture, 5, shared(3)).await;
    eventually("two are there", || pods(&fixture.fake).len() == 2).await;
    // The others are rejected again and again, and take reservations that come to nothing.
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.fake.set_quota("shop", None);
    // In the end the count is right: the one that got a high slot gives way to the low ones.
    let right = || {
        let found = slots(&fixture.fake, "web");
        let (o, s) = (found.matches(":O").count(), found.matches(":S").count());
        (o, s) == (3, 2) && !found.contains(['!', '?'])
    };
    eventually("three on-demand and two spot", right).await;
}

#[tokio::test]
async fn a_restart_in_the_middle_of_everything_changes_nothing() {
    let mut fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 6, shared(2)).await;
    until(&fixture, "web", "0:O 1:O 2:S 3:S 4:S 5:S").await;
    let before = uids(&fixture.fake, "web");
    fixture.halt().await;
    fixture.resume().await;
    fixture.fake.scale("deployments", "shop", "web", 8).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:S 3:S 4:S 5:S 6:S 7:S").await;
    let after = uids(&fixture.fake, "web");
    assert!(before.iter().all(|(slot, uid)| after[slot] == *uid));
    assert_eq!(evictions(&fixture.fake), 0);
}

#[tokio::test]
async fn pods_created_while_the_webhook_is_down_are_corrected_afterwards() {
    let mut fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    fixture.halt().await;
    // failurePolicy is Ignore: they are created as they come, and all go to spot nodes.
    web(&fixture, 5, shared(3)).await;
    until(&fixture, "web", "-:S -:S -:S -:S -:S").await;
    fixture.resume().await;
    until(&fixture, "web", "0:O 1:O 2:O -:S -:S").await;
    assert_eq!(evictions(&fixture.fake), 3, "and no more than need be");
}

#[tokio::test]
async fn s22_switching_off_leaves_what_is_there() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 3, shared(2)).await;
    until(&fixture, "web", "0:O 1:O 2:S").await;
    let off = json!({ "cloudpilot.ai/webhook-scheduler": "false" });
    annotate(&fixture, "deployments", "web", off).await;
    fixture.fake.scale("deployments", "shop", "web", 5).await.unwrap();
    until(&fixture, "web", "0:O 1:O 2:S -:S -:S").await;
    annotate(&fixture, "deployments", "web", count(0)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(slots(&fixture.fake, "web"), "0:O 1:O 2:S -:S -:S");
    assert_eq!(evictions(&fixture.fake), 0);
}

#[tokio::test]
async fn a_dry_run_at_the_api_server_reserves_nothing() {
    let fixture = Fixture::alive().await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    web(&fixture, 2, shared(1)).await;
    until(&fixture, "web", "0:O 1:S").await;
    let client = crate::fixture::client(&fixture.fake);
    let mut pod = pods(&fixture.fake)[0].clone();
    let owner = pod["metadata"]["ownerReferences"].clone();
    pod["metadata"] = json!({
        "generateName": "web-", "namespace": "shop", "labels": pod["metadata"]["labels"],
        "ownerReferences": owner,
    });
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    pod["spec"].as_object_mut().unwrap().remove("affinity");
    let request = http::Request::post("/api/v1/namespaces/shop/pods?dryRun=All")
        .header("content-type", "application/json")
        .body(pod.to_string().into_bytes())
        .unwrap();
    let created: Value = client.request(request).await.unwrap();
    assert_eq!(created["metadata"]["annotations"]["berth.dev/slot"], "2");
    fixture.fake.scale("deployments", "shop", "web", 3).await.unwrap();
    until(&fixture, "web", "0:O 1:S 2:S").await;
}
