//! Admission webhooks over TLS.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_kube_fake::{FakeApi, Options, samples};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use crate::support::{post, start_with};

/// Answers a review: the `response`, without the uid.
type Decide = Arc<dyn Fn(&Value) -> Value + Send + Sync>;

/// A webhook that a test writes.
struct Hook {
    address: SocketAddr,
    ca: ByteString,
    reviews: Arc<Mutex<Vec<Value>>>,
}

impl Hook {
    async fn start(decide: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "hook.berth.svc".to_owned()];
        let certificate =
            CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reviews = Arc::<Mutex<Vec<Value>>>::default();
        let (seen, decide): (_, Decide) = (Arc::clone(&reviews), Arc::new(decide));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen, decide) =
                    (acceptor.clone(), Arc::clone(&seen), Arc::clone(&decide));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(
                        move |request: http::Request<hyper::body::Incoming>| {
                            let (seen, decide) = (Arc::clone(&seen), Arc::clone(&decide));
                            async move {
                                let body = request.into_body().collect().await.unwrap().to_bytes();
                                let review: Value = serde_json::from_slice(&body).unwrap();
                                let mut response = decide(&review["request"]);
                                seen.lock().unwrap().push(review.clone());
                                if response["uid"].is_null() {
                                    response["uid"] = review["request"]["uid"].clone();
                                }
                                if response["slow"] == true {
                                    tokio::time::sleep(Duration::from_secs(5)).await;
                                }
                                let answer = json!({ "apiVersion": "admission.k8s.io/v1",
                                "kind": "AdmissionReview", "response": response });
                                Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(
                                    bytes::Bytes::from(answer.to_string()),
                                )))
                            }
                        },
                    );
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address, ca: ByteString(authority.pem().into_bytes()), reviews }
    }

    fn configuration(&self, name: &str, more: &Value) -> Value {
        let mut webhook = json!({
            "name": format!("{name}.berth.dev"), "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
            "clientConfig": {
                "url": format!("https://{}/mutate", self.address), "caBundle": self.ca },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                        "resources": ["pods"] }],
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            webhook[key] = value.clone();
        }
        json!({ "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration", "metadata": { "name": name },
                "webhooks": [webhook] })
    }

    fn reviews(&self) -> Vec<Value> {
        self.reviews.lock().unwrap().clone()
    }
}

fn patching(patch: &Value) -> Value {
    let patch = serde_json::to_value(ByteString(patch.to_string().into_bytes())).unwrap();
    json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch })
}

fn pod(name: &str) -> Value {
    samples::pod("default", name, "berth", 1, 1)
}

async fn start() -> FakeApi {
    start_with(Options::default()).await.0
}

#[tokio::test]
async fn a_webhook_sees_and_changes_a_pod() {
    let fake = start().await;
    let hook = Hook::start(|_| {
        let mut answer = patching(&json!([
            { "op": "add", "path": "/metadata/annotations", "value": { "slot": "7" } },
            { "op": "add", "path": "/spec/nodeSelector", "value": { "capacity": "spot" } } ]));
        answer["warnings"] = json!(["a \"word\""]);
        answer
    })
    .await;
    fake.create(hook.configuration("a", &json!({}))).await.unwrap();
    let mut wanted = pod("x");
    wanted["metadata"] = json!({ "generateName": "web-" });
    let answer = post(&fake, "/api/v1/namespaces/default/pods", &wanted).await;
    assert_eq!(answer.code, 201, "{}", answer.text);
    assert_eq!(answer.json()["metadata"]["annotations"]["slot"], "7");
    assert_eq!(answer.json()["spec"]["nodeSelector"]["capacity"], "spot");
    assert_eq!(answer.headers["warning"], r#"299 - "a \"word\"""#);
    let reviews = hook.reviews();
    assert_eq!(reviews.len(), 1);
    assert_eq!(reviews[0]["apiVersion"], "admission.k8s.io/v1");
    let request = &reviews[0]["request"];
    assert_eq!(request["kind"], json!({ "group": "", "version": "v1", "kind": "Pod" }));
    assert_eq!(request["resource"], json!({ "group": "", "version": "v1", "resource": "pods" }));
    assert_eq!(request["requestKind"], request["kind"]);
    assert_eq!(
        (&request["operation"], &request["namespace"]),
        (&json!("CREATE"), &json!("default"))
    );
    assert!(request.get("name").is_none(), "the name is not known yet");
    assert_eq!((&request["oldObject"], &request["dryRun"]), (&Value::Null, &json!(false)));
    assert_eq!(request["userInfo"]["username"], "system:serviceaccount:berth:berth");
    assert_eq!(request["object"]["metadata"]["generateName"], "web-");
    assert!(request["object"]["metadata"].get("uid").is_none());
    assert_eq!(request["object"]["metadata"].get("creationTimestamp"), Some(&Value::Null));
    assert_eq!(request["object"]["status"], json!({}));
    assert_eq!(request["object"]["spec"]["schedulerName"], "berth");
    assert_eq!(request["object"]["spec"]["priority"], 0, "built-in plugins came before");
    let dry = post(&fake, "/api/v1/namespaces/default/pods?dryRun=All", &wanted).await;
    assert_eq!(dry.code, 201);
    let request = hook.reviews()[1]["request"].clone();
    assert_eq!(
        (&request["dryRun"], &request["options"]["dryRun"]),
        (&json!(true), &json!(["All"]))
    );
    assert_eq!(fake.count("pods"), 1);
    let direct = fake.create(pod("d")).await.unwrap();
    assert_eq!(direct.warnings, ["a \"word\""]);
    assert_eq!(fake.admissions().len(), 3);
}

#[tokio::test]
async fn selectors_decide_which_pods_are_seen() {
    let fake = start().await;
    let hook = Hook::start(|_| json!({ "allowed": true })).await;
    let more = json!({
        "namespaceSelector": { "matchExpressions": [
            { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"] } ] },
        "objectSelector": { "matchLabels": { "app": "web" } } });
    fake.create(hook.configuration("a", &more)).await.unwrap();
    let mut labelled = pod("a");
    labelled["metadata"]["labels"] = json!({ "app": "web" });
    fake.create(pod("b")).await.unwrap();
    fake.create(labelled.clone()).await.unwrap();
    labelled["metadata"]["namespace"] = json!("kube-system");
    fake.create(labelled).await.unwrap();
    fake.merge("Pod", "default", "a", json!({ "metadata": { "labels": { "b": "c" } } }))
        .await
        .unwrap();
    assert_eq!(hook.reviews().len(), 1, "only the creation of the labelled pod");
}

#[tokio::test]
async fn failures_are_ignored_or_not_as_the_policy_says() {
    let fake = start().await;
    let wrong_uid = Hook::start(|_| json!({ "allowed": true, "uid": "other" })).await;
    let slow = Hook::start(|_| json!({ "allowed": true, "slow": true })).await;
    let bad_patch = Hook::start(|_| {
        patching(&json!([{ "op": "replace", "path": "/spec/nothing/here", "value": 1 }]))
    })
    .await;
    let trusted = Hook::start(|_| json!({ "allowed": true })).await;
    for (name, hook) in [("uid", &wrong_uid), ("slow", &slow), ("patch", &bad_patch)] {
        let timeout_s = if name == "slow" { 1 } else { 30 };
        let options =
            |policy: &str| json!({ "failurePolicy": policy, "timeoutSeconds": timeout_s });
        fake.create(hook.configuration(name, &options("Ignore"))).await.unwrap();
        fake.create(pod(name)).await.unwrap();
        fake.delete("MutatingWebhookConfiguration", "", name).await.unwrap();
        fake.create(hook.configuration(name, &options("Fail"))).await.unwrap();
        let refused = fake.create(pod(&format!("{name}-2"))).await.unwrap_err();
        assert_eq!((refused.code, refused.reason), (500, "InternalError"), "{refused}");
        assert!(refused.message.contains(&format!("failed calling webhook \"{name}.berth.dev\"")));
        fake.delete("MutatingWebhookConfiguration", "", name).await.unwrap();
    }
    let mut distrusted = trusted.configuration("ca", &json!({}));
    distrusted["webhooks"][0]["clientConfig"]["caBundle"] = serde_json::to_value(&slow.ca).unwrap();
    fake.create(distrusted).await.unwrap();
    assert_eq!(fake.create(pod("ca")).await.unwrap_err().code, 500);
    assert!(trusted.reviews().is_empty(), "another authority is not trusted");
}

#[tokio::test]
async fn a_denial_reaches_the_caller() {
    let fake = start().await;
    let hook = Hook::start(|request| {
        let code = if request["name"] == "a" { json!(422) } else { Value::Null };
        json!({ "allowed": false, "status": { "code": code, "message": "too many" } })
    })
    .await;
    fake.create(hook.configuration("no", &json!({}))).await.unwrap();
    let refused = fake.create(pod("a")).await.unwrap_err();
    assert_eq!(refused.code, 422);
    assert_eq!(refused.message, "admission webhook \"no.berth.dev\" denied the request: too many");
    assert_eq!(fake.create(pod("b")).await.unwrap_err().code, 400);
    assert_eq!(fake.count("pods"), 0);
}

#[tokio::test]
async fn a_webhook_is_called_again_if_another_changed_the_pod() {
    let fake = start().await;
    let label = |name: &'static str| {
        move |request: &Value| {
            if request["object"]["metadata"]["labels"][name].is_string() {
                return json!({ "allowed": true });
            }
            let mut labels = request["object"]["metadata"]["labels"].clone();
            labels[name] = json!("yes");
            patching(&json!([{ "op": "add", "path": "/metadata/labels", "value": labels }]))
        }
    };
    let first = Hook::start(label("first")).await;
    let second = Hook::start(label("second")).await;
    let if_needed = json!({ "reinvocationPolicy": "IfNeeded" });
    fake.create(first.configuration("a-first", &if_needed)).await.unwrap();
    fake.create(second.configuration("b-second", &if_needed)).await.unwrap();
    let made = fake.create(pod("a")).await.unwrap();
    assert_eq!(made["metadata"]["labels"], json!({ "first": "yes", "second": "yes" }));
    assert_eq!((first.reviews().len(), second.reviews().len()), (2, 1));
    let again = &first.reviews()[1]["request"]["object"];
    assert_eq!(again["metadata"]["labels"]["second"], "yes");
}

#[tokio::test]
async fn a_service_is_found_by_its_name_and_a_quota_comes_last() {
    let hook = Hook::start(|_| json!({ "allowed": true })).await;
    let services = BTreeMap::from([("berth/hook".to_owned(), hook.address)]);
    let (fake, _client) = start_with(Options { services, ..Options::default() }).await;
    let client = json!({ "clientConfig": {
        "service": { "namespace": "berth", "name": "hook", "path": "/mutate" }, "caBundle": hook.ca } });
    fake.create(hook.configuration("a", &client)).await.unwrap();
    fake.set_quota("default", Some(1));
    fake.create(pod("a")).await.unwrap();
    assert_eq!(fake.create(pod("b")).await.unwrap_err().code, 403);
    assert_eq!(hook.reviews().len(), 2, "the refused pod was seen too");
}

#[tokio::test]
async fn configurations_that_cannot_work_are_refused() {
    let fake = start().await;
    let hook = Hook::start(|_| json!({ "allowed": true })).await;
    for more in [
        json!({ "sideEffects": "Some" }),
        json!({ "admissionReviewVersions": [] }),
        json!({ "timeoutSeconds": 31 }),
        json!({ "name": "short" }),
        json!({ "matchConditions": [{ "name": "a", "expression": "true" }] }),
        json!({ "clientConfig": { "url": "http://127.0.0.1/" } }),
    ] {
        let refused = fake.create(hook.configuration("a", &more)).await.unwrap_err();
        assert_eq!(refused.code, 422, "{more}: {refused}");
    }
}
