//! The four examples of the seed, and the cases of the state table that need nothing but creations.

use serde_json::{Value, json};

use crate::fixture::{Fixture, Owned, shared};

/// Creates pods one after the other, and says which slot each got.
async fn create(fixture: &Fixture, owned: &Owned, count: usize) -> Vec<String> {
    let mut slots = Vec::new();
    for _ in 0..count {
        let pod = owned.pod();
        slots.push(fixture.review(&pod).await.slot(&pod));
    }
    slots
}

fn slots(kinds: &[&str]) -> Vec<String> {
    kinds.iter().enumerate().map(|(slot, kind)| format!("{slot} {kind}")).collect()
}

const O: &str = "on-demand";
const S: &str = "spot";

#[tokio::test]
async fn the_examples_of_the_seed_hold() {
    let fixture = Fixture::new().await;
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
        let owned =
            fixture.deployment(&name, u32::try_from(replicas).unwrap(), &shared(count)).await;
        assert_eq!(create(&fixture, &owned, replicas).await, slots(expected), "{replicas} {count}");
    }
}

#[tokio::test]
async fn without_a_count_all_are_on_demand() {
    let fixture = Fixture::new().await;
    let marks = json!({ "berth.dev/webhook-scheduler": "true" });
    let owned = fixture.deployment("web", 3, &marks).await;
    assert_eq!(create(&fixture, &owned, 3).await, slots(&[O, O, O]));
}

#[tokio::test]
async fn a_label_works_like_an_annotation() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 2, &Value::Null).await;
    assert_eq!(create(&fixture, &owned, 1).await, ["-"]);
    let labels = json!({ "metadata": { "labels": {
        "cloudpilot.ai/webhook-scheduler": "true",
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": "1",
    } } });
    fixture.fake.merge("deployments", "shop", "web", labels).await.unwrap();
    assert_eq!(create(&fixture, &owned, 2).await, slots(&[O, S]));
}

#[tokio::test]
async fn s10_a_workload_that_grows_gets_further_spot_slots() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    create(&fixture, &owned, 5).await;
    fixture.fake.scale("replicasets", "shop", "web-abc", 8).await.unwrap();
    assert_eq!(create(&fixture, &owned, 3).await, ["5 spot", "6 spot", "7 spot"]);
}

#[tokio::test]
async fn s16_every_revision_counts_for_itself() {
    let fixture = Fixture::new().await;
    let old = fixture.deployment("web", 5, &shared(3)).await;
    assert_eq!(create(&fixture, &old, 5).await, slots(&[O, O, O, S, S]));
    let deployment = fixture.fake.get("deployments", "shop", "web").unwrap();
    let new = fixture.replica_set(&deployment, "web-def", "def", 5).await;
    assert_eq!(create(&fixture, &new, 5).await, slots(&[O, O, O, S, S]));
}

#[tokio::test]
async fn s18_pods_of_a_stateful_set_have_the_slot_of_their_ordinal() {
    let fixture = Fixture::new().await;
    let mut set = berth_kube_fake::samples::stateful_set("shop", "db", 4);
    set["metadata"]["annotations"] = shared(2);
    let set = fixture.fake.create(set).await.unwrap();
    let owned = Owned { owner: set.object.clone(), labels: json!({ "app": "db" }) };
    // In whatever order they come, and also when one comes again.
    for (ordinal, expected) in [(3, S), (0, O), (1, O), (2, S), (0, O), (3, S)] {
        let mut pod = owned.pod();
        pod["metadata"]["name"] = json!(format!("db-{ordinal}"));
        let slot = fixture.review(&pod).await.slot(&pod);
        assert_eq!(slot, format!("{ordinal} {expected}"));
    }
}

#[tokio::test]
async fn s18_ordinals_may_start_elsewhere_and_be_told_by_a_label() {
    let fixture = Fixture::new().await;
    let mut set = berth_kube_fake::samples::stateful_set("shop", "db", 3);
    set["metadata"]["annotations"] = shared(1);
    set["spec"]["ordinals"] = json!({ "start": 5 });
    let set = fixture.fake.create(set).await.unwrap();
    let owned = Owned { owner: set.object.clone(), labels: json!({ "app": "db" }) };
    for (ordinal, expected) in [(5, "0 on-demand"), (6, "1 spot"), (7, "2 spot")] {
        let mut pod = owned.pod();
        pod["metadata"]["name"] = json!(format!("db-{ordinal}"));
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
        assert_eq!(fixture.review(&pod).await.slot(&pod), expected);
    }
}

#[tokio::test]
async fn s19_pods_have_no_name_yet_and_are_known_by_their_token() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 2, &shared(1)).await;
    let pod = owned.pod();
    assert!(pod["metadata"].get("name").is_none());
    let (first, second) = (fixture.review(&pod).await, fixture.review(&pod).await);
    assert_eq!((first.slot(&pod), second.slot(&pod)), ("0 on-demand".into(), "1 spot".into()));
    assert_ne!(first.token(&pod), second.token(&pod));
}

#[tokio::test]
async fn s20_pods_that_are_nobodys_replica_pass() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 2, &shared(1)).await;
    let mut bare = owned.pod();
    bare["metadata"]["ownerReferences"] = json!([]);
    assert!(fixture.review(&bare).await.is_untouched());
    let mut no_controller = owned.pod();
    no_controller["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    assert!(fixture.review(&no_controller).await.is_untouched());
    for (version, kind) in [("batch/v1", "Job"), ("apps/v1", "DaemonSet"), ("v1", "Node")] {
        let mut pod = owned.pod();
        let reference = &mut pod["metadata"]["ownerReferences"][0];
        (reference["apiVersion"], reference["kind"]) = (json!(version), json!(kind));
        assert!(fixture.review(&pod).await.is_untouched(), "{kind}");
    }
    let mut stranger = owned.pod();
    stranger["metadata"]["ownerReferences"][0]["uid"] = json!("another-uid");
    assert!(fixture.review(&stranger).await.is_untouched(), "a reference to one that is gone");
}

#[tokio::test]
async fn a_replica_set_without_a_deployment_has_the_settings_itself() {
    let fixture = Fixture::new().await;
    let mut set = berth_kube_fake::samples::replica_set("shop", "lone", 3);
    set["metadata"]["annotations"] = shared(1);
    let set = fixture.fake.create(set).await.unwrap();
    let owned = Owned { owner: set.object.clone(), labels: json!({ "app": "lone" }) };
    assert_eq!(create(&fixture, &owned, 3).await, slots(&[O, S, S]));
}

#[tokio::test]
async fn any_controller_with_a_scale_works() {
    let fixture = Fixture::new().await;
    fixture.fake.create(berth_kube_fake::samples::rollout_definition()).await.unwrap();
    let rollout = json!({
        "apiVersion": "example.dev/v1", "kind": "Rollout",
        "metadata": { "name": "canary", "namespace": "shop", "annotations": shared(1) },
        "spec": { "replicas": 3 },
    });
    let rollout = fixture.fake.create(rollout).await.unwrap();
    let mut owned = Owned { owner: rollout.object.clone(), labels: json!({ "app": "canary" }) };
    assert_eq!(create(&fixture, &owned, 3).await, slots(&[O, S, S]));
    // A revision of its own counts for itself.
    owned.labels["controller-revision-hash"] = json!("r2");
    assert_eq!(create(&fixture, &owned, 2).await, slots(&[O, S]));

    fixture.fake.create(berth_kube_fake::samples::virtual_machine_definition()).await.unwrap();
    let machine = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": { "name": "vm", "namespace": "shop", "annotations": shared(1) },
    });
    let machine = fixture.fake.create(machine).await.unwrap();
    let owned = Owned { owner: machine.object.clone(), labels: json!({ "app": "vm" }) };
    assert_eq!(create(&fixture, &owned, 1).await, ["-"], "it has no scale");
}

#[tokio::test]
async fn s22_switched_off_new_pods_pass() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 3, &shared(1)).await;
    assert_eq!(create(&fixture, &owned, 1).await, ["0 on-demand"]);
    let off = json!({ "metadata": { "annotations": {
        "cloudpilot.ai/webhook-scheduler": "false",
    } } });
    fixture.fake.merge("deployments", "shop", "web", off).await.unwrap();
    assert_eq!(create(&fixture, &owned, 1).await, ["-"]);
    let gone =
        json!({ "metadata": { "annotations": { "cloudpilot.ai/webhook-scheduler": null } } });
    fixture.fake.merge("deployments", "shop", "web", gone).await.unwrap();
    assert_eq!(create(&fixture, &owned, 1).await, ["-"]);
}
