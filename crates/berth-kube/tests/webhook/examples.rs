//! The four examples of the seed, and the cases of the state table that need nothing but creations.

use serde_json::{Value, json};

use crate::stage::{Owned, Stage, shared};

/// Creates pods one after the other, and says which seat each got.
async fn create(stage: &Stage, owned: &Owned, count: usize) -> Vec<String> {
    let mut seats = Vec::new();
    for _ in 0..count {
        let pod = owned.pod();
        seats.push(stage.review(&pod).await.seat(&pod));
    }
    seats
}

fn seats(kinds: &[&str]) -> Vec<String> {
    kinds.iter().enumerate().map(|(slot, kind)| format!("{slot} {kind}")).collect()
}

const O: &str = "on-demand";
const S: &str = "spot";

#[tokio::test]
async fn the_examples_of_the_seed_hold() {
    let stage = Stage::new().await;
    // S1 to S5: replicas, the count, and what comes of it.
    let cases: [(usize, u32, &[&str]); 5] = [
        (5, 5, &[O, O, O, O, O]),
        (5, 3, &[O, O, O, S, S]),
        (5, 0, &[S, S, S, S, S]),
        (5, 7, &[O, O, O, O, O]),
        (1, 1, &[O]),
    ];
    for (number, (replicas, count, expected)) in cases.into_iter().enumerate() {
        let name = format!("web{number}");
        let owned = stage.deployment(&name, u32::try_from(replicas).unwrap(), &shared(count)).await;
        assert_eq!(create(&stage, &owned, replicas).await, seats(expected), "{replicas} {count}");
    }
}

#[tokio::test]
async fn without_a_count_all_are_on_demand() {
    let stage = Stage::new().await;
    let marks = json!({ "berth.dev/webhook-scheduler": "true" });
    let owned = stage.deployment("web", 3, &marks).await;
    assert_eq!(create(&stage, &owned, 3).await, seats(&[O, O, O]));
}

#[tokio::test]
async fn a_label_does_as_well_as_an_annotation() {
    let stage = Stage::new().await;
    let owned = stage.deployment("web", 2, &Value::Null).await;
    assert_eq!(create(&stage, &owned, 1).await, ["-"]);
    let labels = json!({ "metadata": { "labels": {
        "cloudpilot.ai/webhook-scheduler": "true",
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": "1",
    } } });
    stage.fake.merge("deployments", "shop", "web", labels).await.unwrap();
    assert_eq!(create(&stage, &owned, 2).await, seats(&[O, S]));
}

#[tokio::test]
async fn s10_a_workload_that_grows_gets_further_spot_slots() {
    let stage = Stage::new().await;
    let owned = stage.deployment("web", 5, &shared(3)).await;
    create(&stage, &owned, 5).await;
    stage.fake.scale("replicasets", "shop", "web-abc", 8).await.unwrap();
    assert_eq!(create(&stage, &owned, 3).await, ["5 spot", "6 spot", "7 spot"]);
}

#[tokio::test]
async fn s16_every_revision_counts_for_itself() {
    let stage = Stage::new().await;
    let old = stage.deployment("web", 5, &shared(3)).await;
    assert_eq!(create(&stage, &old, 5).await, seats(&[O, O, O, S, S]));
    let deployment = stage.fake.get("deployments", "shop", "web").unwrap();
    let new = stage.replica_set(&deployment, "web-def", "def", 5).await;
    assert_eq!(create(&stage, &new, 5).await, seats(&[O, O, O, S, S]));
}

#[tokio::test]
async fn s18_pods_of_a_stateful_set_have_the_slot_of_their_ordinal() {
    let stage = Stage::new().await;
    let mut set = berth_kube_fake::samples::stateful_set("shop", "db", 4);
    set["metadata"]["annotations"] = shared(2);
    let set = stage.fake.create(set).await.unwrap();
    let owned = Owned { owner: set.object.clone(), labels: json!({ "app": "db" }) };
    // In whatever order they come, and also when one comes again.
    for (ordinal, expected) in [(3, S), (0, O), (1, O), (2, S), (0, O), (3, S)] {
        let mut pod = owned.pod();
        pod["metadata"]["name"] = json!(format!("db-{ordinal}"));
        let seat = stage.review(&pod).await.seat(&pod);
        assert_eq!(seat, format!("{ordinal} {expected}"));
    }
}

#[tokio::test]
async fn s18_ordinals_may_start_elsewhere_and_be_told_by_a_label() {
    let stage = Stage::new().await;
    let mut set = berth_kube_fake::samples::stateful_set("shop", "db", 3);
    set["metadata"]["annotations"] = shared(1);
    set["spec"]["ordinals"] = json!({ "start": 5 });
    let set = stage.fake.create(set).await.unwrap();
    let owned = Owned { owner: set.object.clone(), labels: json!({ "app": "db" }) };
    for (ordinal, expected) in [(5, "0 on-demand"), (6, "1 spot"), (7, "2 spot")] {
        let mut pod = owned.pod();
        pod["metadata"]["name"] = json!(format!("db-{ordinal}"));
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
        assert_eq!(stage.review(&pod).await.seat(&pod), expected);
    }
}

#[tokio::test]
async fn s19_pods_have_no_name_yet_and_are_known_by_their_token() {
    let stage = Stage::new().await;
    let owned = stage.deployment("web", 2, &shared(1)).await;
    let pod = owned.pod();
    assert!(pod["metadata"].get("name").is_none());
    let (first, second) = (stage.review(&pod).await, stage.review(&pod).await);
    assert_eq!((first.seat(&pod), second.seat(&pod)), ("0 on-demand".into(), "1 spot".into()));
    assert_ne!(first.token(&pod), second.token(&pod));
}

#[tokio::test]
async fn s20_pods_that_are_nobodys_replica_pass() {
    let stage = Stage::new().await;
    let owned = stage.deployment("web", 2, &shared(1)).await;
    let mut bare = owned.pod();
    bare["metadata"]["ownerReferences"] = json!([]);
    assert!(stage.review(&bare).await.is_untouched());
    let mut no_controller = owned.pod();
    no_controller["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    assert!(stage.review(&no_controller).await.is_untouched());
    for (version, kind) in [("batch/v1", "Job"), ("apps/v1", "DaemonSet"), ("v1", "Node")] {
        let mut pod = owned.pod();
        let reference = &mut pod["metadata"]["ownerReferences"][0];
        (reference["apiVersion"], reference["kind"]) = (json!(version), json!(kind));
        assert!(stage.review(&pod).await.is_untouched(), "{kind}");
    }
    let mut stranger = owned.pod();
    stranger["metadata"]["ownerReferences"][0]["uid"] = json!("another-uid");
    assert!(stage.review(&stranger).await.is_untouched(), "a reference to one that is gone");
}

#[tokio::test]
async fn a_replica_set_without_a_deployment_carries_the_switch_itself() {
    let stage = Stage::new().await;
    let mut set = berth_kube_fake::samples::replica_set("shop", "lone", 3);
    set["metadata"]["annotations"] = shared(1);
    let set = stage.fake.create(set).await.unwrap();
    let owned = Owned { owner: set.object.clone(), labels: json!({ "app": "lone" }) };
    assert_eq!(create(&stage, &owned, 3).await, seats(&[O, S, S]));
}

#[tokio::test]
async fn any_controller_with_a_scale_will_do() {
    let stage = Stage::new().await;
    stage.fake.create(berth_kube_fake::samples::rollout_definition()).await.unwrap();
    let rollout = json!({
        "apiVersion": "example.dev/v1", "kind": "Rollout",
        "metadata": { "name": "canary", "namespace": "shop", "annotations": shared(1) },
        "spec": { "replicas": 3 },
    });
    let rollout = stage.fake.create(rollout).await.unwrap();
    let mut owned = Owned { owner: rollout.object.clone(), labels: json!({ "app": "canary" }) };
    assert_eq!(create(&stage, &owned, 3).await, seats(&[O, S, S]));
    // A revision of its own counts for itself.
    owned.labels["controller-revision-hash"] = json!("r2");
    assert_eq!(create(&stage, &owned, 2).await, seats(&[O, S]));

    stage.fake.create(berth_kube_fake::samples::virtual_machine_definition()).await.unwrap();
    let machine = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": { "name": "vm", "namespace": "shop", "annotations": shared(1) },
    });
    let machine = stage.fake.create(machine).await.unwrap();
    let owned = Owned { owner: machine.object.clone(), labels: json!({ "app": "vm" }) };
    assert_eq!(create(&stage, &owned, 1).await, ["-"], "it has no scale");
}

#[tokio::test]
async fn s22_switched_off_new_pods_pass() {
    let stage = Stage::new().await;
    let owned = stage.deployment("web", 3, &shared(1)).await;
    assert_eq!(create(&stage, &owned, 1).await, ["0 on-demand"]);
    let off = json!({ "metadata": { "annotations": {
        "cloudpilot.ai/webhook-scheduler": "false",
    } } });
    stage.fake.merge("deployments", "shop", "web", off).await.unwrap();
    assert_eq!(create(&stage, &owned, 1).await, ["-"]);
    let gone =
        json!({ "metadata": { "annotations": { "cloudpilot.ai/webhook-scheduler": null } } });
    stage.fake.merge("deployments", "shop", "web", gone).await.unwrap();
    assert_eq!(create(&stage, &owned, 1).await, ["-"]);
}
