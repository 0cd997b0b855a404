//! The entry at the API server: restored when it is changed, missed when it is deleted, and not fought over.
//! All with the rights of the manifests, unless a test says otherwise.

use std::time::Duration;

use berth_kube::webhook::{Options, WebhookAddress};
use berth_kube_fake::{FakeApi, Options as FakeOptions, Rule};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{
    Fixture, Running, eventually, external_registration, free_port, manifests, options,
    registration, until_readyz,
};

fn entry(fake: &FakeApi) -> Option<Value> {
    fake.get("mutatingwebhookconfigurations", "", "berth-webhook")
}

/// How often the entry was written.
fn writes(fake: &FakeApi) -> usize {
    let is_write = |verb: &str| ["create", "update", "patch"].contains(&verb);
    let audit = fake.audit();
    let ours = audit.iter().filter(|it| it.resource.starts_with("mutatingwebhookconfigurations"));
    ours.filter(|it| is_write(&it.verb) && it.done).count()
}

#[tokio::test]
async fn a_changed_registration_is_restored_and_a_deleted_one_makes_it_unready() {
    let fixture = Fixture::as_installed(|_| {}).await;
    let right = entry(&fixture.fake).unwrap()["webhooks"].clone();
    assert!(right[0]["clientConfig"]["caBundle"].is_string(), "{right}");
    let mut changed = entry(&fixture.fake).unwrap();
    changed["webhooks"][0]["clientConfig"]["caBundle"] = json!("bm90aGluZw==");
    changed["webhooks"][0]["failurePolicy"] = json!("Fail");
    fixture.fake.update(changed).await.unwrap();
    let is_right = || entry(&fixture.fake).is_some_and(|it| it["webhooks"] == right);
    eventually("it is right again", is_right).await;

    fixture.fake.delete("mutatingwebhookconfigurations", "", "berth-webhook").await.unwrap();
    let line = "MutatingWebhookConfiguration berth-webhook does not exist, so no pod is reviewed, and \
                this webhook may not create it: apply deploy/kubernetes/webhook/50-configuration.yaml, or \
                run helm upgrade\n";
    until_readyz(fixture.webhook(), 503, line).await;
    fixture.fake.create(registration()).await.unwrap();
    eventually("it is right again", is_right).await;
    until_readyz(fixture.webhook(), 200, "ok").await;
}

#[tokio::test]
async fn with_the_right_to_create_it_a_deleted_registration_is_created_again() {
    let mut rights = manifests();
    rights.push(Rule {
        groups: vec!["admissionregistration.k8s.io".to_owned()],
        resources: vec!["mutatingwebhookconfigurations".to_owned()],
        verbs: vec!["create".to_owned()],
        ..Rule::default()
    });
    let fixture = Fixture::with(|fake| fake.rbac = Some(rights), |_| {}).await;
    let right = entry(&fixture.fake).unwrap()["webhooks"].clone();
    fixture.fake.delete("mutatingwebhookconfigurations", "", "berth-webhook").await.unwrap();
    let is_right = || entry(&fixture.fake).is_some_and(|it| it["webhooks"] == right);
    eventually("it is there again", is_right).await;
    until_readyz(fixture.webhook(), 200, "ok").await;
}

#[tokio::test]
async fn two_webhooks_with_different_settings_do_not_rewrite_the_registration_without_end() {
    let fixture = Fixture::as_installed(|_| {}).await;
    let timeout = || entry(&fixture.fake).unwrap()["webhooks"][0]["timeoutSeconds"].clone();
    assert_eq!(timeout(), 5);
    let folder = TempDir::new().unwrap();
    let other = Options { timeout: Duration::from_secs(9), ..options(&folder, free_port()) };
    let other = Running::start(&fixture.fake, other).await;
    eventually("the later one decides", || timeout() == 9).await;
    let before = writes(&fixture.fake);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(writes(&fixture.fake), before, "neither writes any more");
    // What another program changes is restored, by one of them.
    let mut changed = entry(&fixture.fake).unwrap();
    changed["webhooks"][0]["failurePolicy"] = json!("Fail");
    changed["webhooks"][0]["timeoutSeconds"] = json!(1);
    fixture.fake.update(changed).await.unwrap();
    let is_right = || {
        let webhook = &entry(&fixture.fake).unwrap()["webhooks"][0];
        webhook["failurePolicy"] == "Ignore" && webhook["timeoutSeconds"] != 1
    };
    eventually("it is right again", is_right).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(writes(&fixture.fake) <= before + 2, "{} more", writes(&fixture.fake) - before);
    other.stop().await;
}

/// `kubectl apply`: what the manifest has is added to what is there.
async fn apply(fake: &FakeApi, manifest: &Value) -> Result<(), String> {
    let patch = http::Request::patch(
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/berth-webhook",
    )
    .header("content-type", "application/strategic-merge-patch+json")
    .body(manifest.to_string().into_bytes())
    .unwrap();
    let client = crate::fixture::client(fake);
    client.request::<Value>(patch).await.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_manifest_for_a_webhook_outside_the_cluster_can_be_applied_again() {
    let outside = |options: &mut Options| {
        let url = format!("https://127.0.0.1:{}/mutate", options.listen.port());
        options.reach = WebhookAddress::Url(url);
    };
    let all = |fake: &mut FakeOptions| fake.audit = true;
    let fixture = Fixture::prepared(all, outside, vec![external_registration()]).await;
    let right = entry(&fixture.fake).unwrap()["webhooks"].clone();
    assert!(right[0]["clientConfig"]["url"].as_str().unwrap().starts_with("https://127.0.0.1:"));
    // The manifest of a webhook in the cluster would add its Service.
    let refused = apply(&fixture.fake, &registration()).await.unwrap_err();
    assert!(refused.contains("exactly one of url or service is required"), "{refused}");
    apply(&fixture.fake, &external_registration()).await.unwrap();
    let is_right = || entry(&fixture.fake).is_some_and(|it| it["webhooks"] == right);
    eventually("the flag decides", is_right).await;
}
