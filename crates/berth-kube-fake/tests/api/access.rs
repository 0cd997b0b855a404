//! Sign-in, rights, TLS, faults and the record of requests.

use berth_kube_fake::{Account, FakeApi, Faults, Options, Rule, samples};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

use crate::support::{code, get, plain, post, start, start_with};

const ROLES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: berth }
rules:
- { apiGroups: [''], resources: [pods, nodes], verbs: [get, list, watch] }
- { apiGroups: [''], resources: [pods/binding], verbs: [create] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: berth, namespace: berth }
rules:
- { apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update], resourceNames: [leader] }
- { apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create] }
---
apiVersion: v1
kind: ConfigMap
metadata: { name: other }
";

#[tokio::test]
async fn what_no_rule_allows_is_forbidden() {
    let rules = Rule::from_yaml(ROLES, "berth").unwrap();
    assert_eq!(rules.len(), 4);
    let (fake, _client) = start_with(Options { rbac: Some(rules), ..Options::default() }).await;
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "berth" } });
    fake.create(namespace).await.unwrap();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/berth/leases";
    let table = [
        ("GET", "/api/v1/pods", 200),
        ("GET", "/api/v1/namespaces/default/pods", 200),
        ("GET", "/api/v1/nodes", 200),
        ("POST", "/api/v1/nodes", 403),
        ("GET", "/api/v1/secrets", 403),
        ("DELETE", "/api/v1/namespaces/default/pods/a", 403),
        ("POST", "/api/v1/namespaces/default/pods/a/eviction", 403),
        ("POST", "/api/v1/namespaces/default/pods/a/binding", 404),
        ("GET", leases, 403),
        ("GET", &format!("{leases}/leader"), 404),
        ("GET", &format!("{leases}/other"), 403),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader", 403),
        ("GET", "/version", 200),
        ("GET", "/readyz", 200),
    ];
    let body = json!({ "target": { "name": "n" } }).to_string();
    for (method, path, expected) in table {
        let json_body = [("content-type", "application/json")];
        let answer = plain(&fake, method, path, &json_body, &body).await;
        assert_eq!(answer.code, expected, "{method} {path}: {}", answer.text);
    }
    let refused = get(&fake, "/api/v1/secrets").await.json();
    assert_eq!(refused["reason"], "Forbidden");
    assert!(refused["message"].as_str().unwrap().contains(
        r#"User "system:serviceaccount:berth:berth" cannot list resource "secrets" in API group """#
    ));
}

#[tokio::test]
async fn every_account_has_rights_of_its_own() {
    let account = Account {
        token: "reader".into(),
        user: "system:serviceaccount:berth:reader".into(),
        rbac: Some(Rule::from_yaml(ROLES, "berth").unwrap()),
    };
    let options =
        Options { token: Some("all".into()), accounts: vec![account], ..Options::default() };
    let (fake, _client) = start_with(options).await;
    for (token, path, expected) in [
        ("reader", "/api/v1/pods", 200),
        ("reader", "/api/v1/secrets", 403),
        ("all", "/api/v1/secrets", 200),
        ("none", "/api/v1/pods", 401),
    ] {
        let bearer = format!("Bearer {token}");
        let answer = plain(&fake, "GET", path, &[("authorization", &bearer)], "").await;
        assert_eq!(answer.code, expected, "{token} {path}");
    }
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let options = Options { token: Some("secret".into()), tls: true, ..Options::default() };
    let fake = FakeApi::start(options).await.unwrap();
    fake.create(samples::node("n", 1, 1)).await.unwrap();
    let file: kube::config::Kubeconfig = serde_json::from_str(&fake.kubeconfig()).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
    let trusted = kube::Client::try_from(config.clone()).unwrap();
    let nodes: Api<Node> = Api::all(trusted);
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 1);
    config.auth_info = kube::config::AuthInfo::default();
    config.default_retry = false;
    let stranger: Api<Node> = Api::all(kube::Client::try_from(config.clone()).unwrap());
    assert_eq!(code(&stranger.list(&ListParams::default()).await.unwrap_err()), 401);
    config.root_cert = None;
    let distrustful: Api<Node> = Api::all(kube::Client::try_from(config).unwrap());
    let error = distrustful.list(&ListParams::default()).await.unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "the certificate is not trusted: {error:?}");
}

#[tokio::test]
async fn a_lost_reply_was_still_a_deed() {
    let options = Options { audit: true, ..Options::default() };
    let (fake, client) = start_with(options).await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    fake.set_faults(Faults { lost_reply_permille: 1000, ..Faults::default() });
    let mut failed = 0;
    for at in 0..10 {
        let pod = samples::pod("default", &format!("p{at}"), "berth", 1, 1);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        failed += usize::from(pods.create(&PostParams::default(), &pod).await.is_err());
    }
    assert_eq!((failed, fake.count("pods")), (10, 10));
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 10, "reads are well");
    let audit = fake.audit();
    assert!(audit.iter().filter(|entry| entry.verb == "create").all(|entry| entry.done));
    fake.set_faults(Faults {
        error_rate_permille: 1000,
        only: Some("pods/binding".into()),
        ..Faults::default()
    });
    pods.list(&ListParams::default()).await.unwrap();
    let bound: Result<Value, _> = pods
        .create_subresource(
            "binding",
            "p0",
            &PostParams::default(),
            &json!({ "target": { "name": "n" } }),
        )
        .await;
    assert!(bound.is_err());
    assert!(fake.bindings().is_empty());
}

#[tokio::test]
async fn nobody_reaches_a_server_that_is_down() {
    let (fake, client) = start().await;
    let pods: Api<Pod> = Api::all(client);
    let mut stream = pods.watch(&Default::default(), "0").await.unwrap().boxed();
    fake.set_faults(Faults { down: true, ..Faults::default() });
    let end = stream.next().await;
    assert!(end.is_none_or(|event| event.is_err()), "the watch is cut");
    let error = pods.list(&ListParams::default()).await.unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "{error:?}");
    fake.clear_faults();
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn requests_are_written_down() {
    let (fake, _client) = start_with(Options { audit: true, ..Options::default() }).await;
    let agent = [("user-agent", "berth/1"), ("content-type", "application/json")];
    let pod = samples::pod("default", "a", "berth", 1, 1).to_string();
    plain(&fake, "POST", "/api/v1/namespaces/default/pods?dryRun=All", &agent, &pod).await;
    get(&fake, "/api/v1/namespaces/default/pods/a/status").await;
    let audit = fake.audit();
    let first = &audit[0];
    assert_eq!(
        (first.verb.as_str(), first.resource.as_str(), first.user_agent.as_str(), first.code),
        ("create", "pods", "berth/1", 201)
    );
    assert!(first.dry_run);
    let second = &audit[1];
    assert_eq!(
        (second.verb.as_str(), second.subresource.as_str(), second.name.as_str(), second.code),
        ("get", "status", "a", 404)
    );
}

#[tokio::test]
async fn the_server_tells_what_it_serves() {
    let (fake, client) = start().await;
    assert_eq!(client.apiserver_version().await.unwrap().minor, "33");
    let discovered = kube::discovery::Discovery::new(client).run().await.unwrap();
    assert!(discovered.has_group("apps"));
    assert!(!discovered.has_group("vm.neon.tech"));
    fake.create(samples::virtual_machine_definition()).await.unwrap();
    let again = kube::discovery::Discovery::new(crate::support::client(&fake)).run().await.unwrap();
    assert!(again.has_group("vm.neon.tech"));
    assert_eq!(get(&fake, "/api/v1/nothing").await.code, 404);
    assert_eq!(
        post(&fake, "/api/v1/namespaces/default/pods/a/nothing", &json!({})).await.code,
        404
    );
}
