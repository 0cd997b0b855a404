//! Certificates that come and go while the API server calls: of our own making, and from files.

use std::time::Duration;

use berth_kube::webhook::{SelfSignedTls, TlsSource};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::fixture::{Fixture, HOST, connect, eventually, kind, shared};

/// The certificate that is served now, as it is.
async fn served(fixture: &Fixture) -> Vec<u8> {
    let stream = connect(fixture.webhook(), b"http/1.1").await.expect("it can be trusted");
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    chain[0].as_ref().to_vec()
}

fn bundle(fixture: &Fixture) -> String {
    let entry = fixture.fake.get("mutatingwebhookconfigurations", "", "berth-webhook").unwrap();
    let bytes = entry["webhooks"][0]["clientConfig"]["caBundle"].clone();
    let bytes: ByteString = serde_json::from_value(bytes).unwrap();
    String::from_utf8(bytes.0).unwrap()
}

#[tokio::test]
async fn certificates_and_authorities_change_and_no_call_fails() {
    // Everything that takes months takes seconds here.
    let own = SelfSignedTls {
        certificate_lifetime: Duration::from_secs(6),
        authority_lifetime: Duration::from_secs(15),
        overlap: Duration::from_secs(2),
        check_interval: Duration::from_millis(100),
        ..SelfSignedTls::default()
    };
    // A call that fails is seen, because then the pod is not created.
    let change = |options: &mut berth_kube::webhook::Options| {
        options.tls = TlsSource::SelfSigned(own);
        let install = options.install.as_mut().unwrap();
        install.failure_policy = berth_kube::webhook::FailurePolicy::Fail;
    };
    let fixture = Fixture::with(|_| {}, change).await;
    let owned = fixture.deployment("web", 100_000, &shared(0)).await;
    let (first, authority) = (served(&fixture).await, bundle(&fixture));
    assert_eq!(authority.matches("BEGIN CERTIFICATE").count(), 1);
    let mut both = false;
    let done = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let created = fixture.fake.create(owned.pod()).await;
            let created = created.unwrap_or_else(|error| panic!("a call failed: {error}"));
            assert_eq!(kind(&created), "spot");
            let trusted = bundle(&fixture);
            both |= trusted.matches("BEGIN CERTIFICATE").count() == 2;
            // The first authority is gone from the bundle, and so is its certificate.
            if both && !trusted.contains(authority.trim()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    done.await.expect("another authority takes over");
    assert_ne!(served(&fixture).await, first);
}

#[tokio::test]
async fn a_secret_that_somebody_deletes_is_created_again() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(5)).await;
    let (first, authority) = (served(&fixture).await, bundle(&fixture));
    fixture.fake.delete("secrets", "berth", "berth-webhook-tls").await.unwrap();
    eventually("another authority", || bundle(&fixture) != authority).await;
    eventually("another secret", || {
        fixture.fake.get("secrets", "berth", "berth-webhook-tls").is_some()
    })
    .await;
    let created = fixture.fake.create(owned.pod()).await.unwrap();
    assert_eq!(kind(&created), "on-demand");
    assert_ne!(served(&fixture).await, first);
}

/// A certificate for the webhook in a folder, as cert-manager would mount it.
fn write(folder: &std::path::Path) -> String {
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("ca.crt"), made.cert.pem()).unwrap();
    made.cert.pem()
}

#[tokio::test]
async fn certificates_from_files_are_served_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = write(folder.path());
    let tls = TlsSource::Files {
        folder: folder.path().to_owned(),
        ca_file: Some(folder.path().join("ca.crt")),
    };
    let fixture = Fixture::with(|_| {}, |options| options.tls = tls).await;
    let owned = fixture.deployment("web", 5, &shared(5)).await;
    assert_eq!(bundle(&fixture), first);
    assert_eq!(kind(&fixture.fake.create(owned.pod()).await.unwrap()), "on-demand");
    let before = served(&fixture).await;
    let second = write(folder.path());
    eventually("the other authority", || bundle(&fixture) == second).await;
    assert_eq!(kind(&fixture.fake.create(owned.pod()).await.unwrap()), "on-demand");
    assert_ne!(served(&fixture).await, before);
    assert_eq!(fixture.fake.list("secrets"), Vec::<Value>::new(), "no secret is kept");
}

#[tokio::test]
async fn a_bundle_that_is_managed_elsewhere_is_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let tls = TlsSource::Files { folder: folder.path().to_owned(), ca_file: None };
    let fixture = Fixture::with(|_| {}, |options| options.tls = tls).await;
    let injected = ByteString(b"what an injector wrote".to_vec());
    let mut entry = fixture.fake.get("mutatingwebhookconfigurations", "", "berth-webhook").unwrap();
    entry["webhooks"][0]["clientConfig"]["caBundle"] = json!(injected);
    entry["webhooks"][0]["timeoutSeconds"] = json!(29);
    fixture.fake.update(entry).await.unwrap();
    let put_right = || {
        let get = || fixture.fake.get("mutatingwebhookconfigurations", "", "berth-webhook");
        get().unwrap()["webhooks"][0]["timeoutSeconds"] == 5
    };
    eventually("the rest is put right", put_right).await;
    assert_eq!(bundle(&fixture), "what an injector wrote");
}
