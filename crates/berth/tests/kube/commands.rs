//! The commands, as the manifests run them, with no more rights than the manifests give.

use std::net::{SocketAddr, TcpListener};

use berth_kube_fake::{FakeApi, Options, Rule, samples};
use serde_json::{Value, json};

use crate::stage::{Running, Stage, arguments, documents, of_kind, page, read, until};

/// An API server that allows what a part's manifests ask for, and the part's namespace in it.
pub(crate) async fn cluster(part: &str, options: Options) -> FakeApi {
    let rights = read(&format!("deploy/kubernetes/{part}/10-rbac.yaml"));
    let rbac = Some(Rule::from_yaml(&rights, "berth-system").unwrap());
    let fake = FakeApi::start(Options { rbac, audit: true, ..options }).await.unwrap();
    let namespace = of_kind(&documents("deploy/kubernetes/webhook/00-namespace.yaml"), "Namespace");
    fake.create(namespace).await.unwrap();
    fake
}

/// What the manifests run, with some arguments replaced and others added.
pub(crate) fn as_installed(part: &str, replaced: &[(&str, &str)]) -> Vec<String> {
    let mut arguments = arguments(part);
    for (flag, value) in replaced {
        let begin = format!("{flag}=");
        arguments.retain(|it| !it.starts_with(&begin));
        arguments.push(format!("{begin}{value}"));
    }
    arguments
}

/// A part that was refused something had too few rights.
pub(crate) fn assert_rights_sufficed(fake: &FakeApi) {
    let refused: Vec<_> = fake.audit().into_iter().filter(|it| it.code == 403).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

pub(crate) async fn until_ready(running: &Running) {
    let url = format!("{}/readyz", running.probes());
    until(&format!("ready\n{}", running.log()), async || {
        page(&url).await.is_some_and(|(status, _)| status == 200)
    })
    .await;
}

pub(crate) fn free_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], berth_pgtemp::free_port()))
}

#[tokio::test]
async fn the_scheduler_binds_pods_explains_others_and_stops_when_told() {
    let fake = cluster("scheduler", Options::default()).await;
    for (name, cpu) in [("n1", 4000), ("n2", 8000)] {
        fake.create(samples::node(name, cpu, 8192)).await.unwrap();
    }
    let stage = Stage::new();
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let replaced = [
        ("--kubeconfig", kubeconfig.as_str()),
        ("--namespace", "berth-system"),
        ("--identity", "one"),
        ("--probes", "127.0.0.1:0"),
        ("--wire-listen", "127.0.0.1:0"),
    ];
    let running = stage.start(&as_installed("scheduler", &replaced)).await;
    assert_eq!(running.told("pods "), "with schedulerName: berth");
    let wire = running.told("wire ").split(' ').next().unwrap().to_owned();
    until_ready(&running).await;

    fake.create(samples::pod("default", "small", "berth", 1000, 512)).await.unwrap();
    fake.create(samples::pod("default", "large", "berth", 64_000, 512)).await.unwrap();
    until("bound", async || fake.bindings().len() == 1).await;
    let binding = fake.bindings().remove(0);
    assert_eq!(binding.pod, "default/small");
    let waits = || fake.get("Pod", "default", "large").unwrap();
    until("told why", async || waits()["status"]["conditions"][0]["reason"] == "Unschedulable")
        .await;
    let events = || fake.list("Event");
    until("an event", async || events().iter().any(|it| it["reason"] == "FailedScheduling")).await;

    // The running one is asked; its rights suffice. Then an operator computes the same himself.
    let probes = running.probes();
    let ask = ["explain", "pod", "default/large", "--scheduler", &probes];
    let (code, table, said) = stage.run(&ask).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("default/large cannot be placed: 0/2 nodes are available"), "{said}");
    assert!(table.contains("2 nodes cannot") && table.contains("of 64 requested"), "{table}");
    let (code, placed, said) =
        stage.run(&["explain", "pod", "small", "--scheduler", &probes]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(placed.contains(&format!("default/small is on {}", binding.node)), "{placed}");
    let compute = ["explain", "pod", "default/large", "--kubeconfig", &kubeconfig, "-o", "json"];
    let (code, found, said) = stage.run(&compute).await;
    assert_eq!(code, Some(3), "{said}");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["refusal"]["code"], "no_capacity_cpu");
    assert_eq!(found["table"].as_array().unwrap().len(), 2);
    let nobody = ["explain", "pod", "default/nobody", "--scheduler", &probes];
    let (code, _, said) = stage.run(&nobody).await;
    assert_eq!(code, Some(4), "{said}");

    let (status, said) = page(&wire).await.unwrap();
    assert!(status == 400 && said.contains("POST"), "{status}: {said}");
    let (_, metrics) = page(&format!("{probes}/metrics")).await.unwrap();
    assert!(metrics.contains("berth_scheduler_leader 1"), "{metrics}");
    let status = running.stop().await;
    assert_eq!(status.code(), Some(0));
    let lease = fake.get("Lease", "berth-system", "berth-scheduler").unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    assert_eq!(holder, "", "the lease is given back");
    assert_rights_sufficed(&fake);
}

#[tokio::test]
async fn a_wire_port_that_others_can_reach_needs_tokens() {
    let fake = cluster("scheduler", Options::default()).await;
    let stage = Stage::new();
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let common = ["kube", "scheduler", "--kubeconfig", &kubeconfig, "--probes", "127.0.0.1:0"];
    let open = [&common[..], &["--wire-listen", "0.0.0.0:0"]].concat();
    let (code, _, said) = stage.run(&open).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("others can reach") && said.contains("--wire-token-file"), "{said}");
    let empty = stage.write("empty", "short\n");
    let (code, _, said) = stage.run(&[&open[..], &["--wire-token-file", &empty]].concat()).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no token"), "{said}");
}

#[tokio::test]
async fn the_webhook_shares_out_pods_and_stops_when_told() {
    let (listen, probes) = (free_port(), free_port());
    let services = [("berth-system/berth-webhook".to_owned(), listen)].into();
    let options =
        Options { services, tls: true, controllers: true, kubelet: true, ..Options::default() };
    let fake = cluster("webhook", options).await;
    let entry = "deploy/kubernetes/webhook/50-configuration.yaml";
    let entry = of_kind(&documents(entry), "MutatingWebhookConfiguration");
    fake.create(entry).await.unwrap();
    let stage = Stage::new();
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let (listen, probes) = (listen.to_string(), probes.to_string());
    let folder = stage.path("data");
    let replaced = [
        ("--kubeconfig", kubeconfig.as_str()),
        ("--namespace", "berth-system"),
        ("--identity", "one"),
        ("--listen", &listen),
        ("--probes", &probes),
        ("--data-dir", &folder),
    ];
    let running = stage.start(&as_installed("webhook", &replaced)).await;
    assert!(running.told("register ").contains("berth-webhook, managed by the webhook"));
    until_ready(&running).await;

    let mut deployment = samples::deployment("default", "web", 5);
    deployment["metadata"]["annotations"] = json!({
        "cloudpilot.ai/webhook-scheduler": "true",
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": "3",
    });
    fake.create(deployment).await.unwrap();
    until("five pods", async || fake.list("Pod").len() == 5).await;
    let kinds = || -> Vec<String> {
        let pods = fake.list("Pod").into_iter();
        let kind = |pod: Value| pod["metadata"]["labels"]["berth.dev/capacity"].clone();
        let mut kinds: Vec<String> =
            pods.map(kind).map(|it| it.as_str().unwrap_or("none").to_owned()).collect();
        kinds.sort();
        kinds
    };
    assert_eq!(kinds(), ["on-demand", "on-demand", "on-demand", "spot", "spot"]);

    // A second one on the same file would count apart.
    let (code, _, said) = stage.run(&["kube", "webhook", "--data-dir", &folder]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is in use by another"), "{said}");

    // Fewer on-demand: misplaced pods are evicted, which needs rights of its own.
    let fewer = json!({ "metadata": { "annotations": {
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": "2",
    } } });
    fake.merge("Deployment", "default", "web", fewer).await.unwrap();
    until("two on-demand", async || {
        // Nobody is evicted while others are not ready, and no scheduler is here to start them.
        for pod in fake.list("Pod") {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let _ = fake.set_ready("default", name, true).await;
        }
        kinds() == ["on-demand", "on-demand", "spot", "spot", "spot"]
    })
    .await;
    let status = running.stop().await;
    assert_eq!(status.code(), Some(0));
    assert_rights_sufficed(&fake);
}

#[tokio::test]
async fn what_cannot_run_says_which_flag_which_value_and_what_would_do() {
    let stage = Stage::new();
    let folder = stage.path("data");
    let data = ["--data-dir", folder.as_str()];
    let webhook = |more: &[&'static str]| [&["kube", "webhook"], &data[..], more].concat();
    let cases: Vec<(Vec<&str>, i32, &[&str])> = vec![
        (webhook(&["--timeout", "60s"]), 2, &["--timeout", "1 to 30"]),
        (webhook(&["--prefix", "Not/A/Name"]), 2, &["--prefix", "Not/A/Name", "cloudpilot.ai"]),
        (
            webhook(&["--spot-value", "on-demand"]),
            2,
            &["--spot-value", "another value than --on-demand-value"],
        ),
        (webhook(&["--capacity-label", "a b"]), 2, &["--capacity-label", "a b", "PREFIX/NAME"]),
        (webhook(&["--exclude-namespace", "Shop"]), 2, &["--exclude-namespace", "Shop"]),
        (webhook(&["--external-url", "https://"]), 2, &["--external-url", "https://HOST:PORT"]),
        (webhook(&["--reserve-for", "1500ms"]), 2, &["--reserve-for", "whole seconds"]),
        (webhook(&["--tls-dir", "/no/such"]), 2, &["--tls-dir", "tls.crt and tls.key"]),
        (webhook(&["--on-invalid", "maybe"]), 2, &["--on-invalid", "maybe", "admit, refuse"]),
        (webhook(&["--database-url", "mysql://x"]), 2, &["--database-url", "postgres://"]),
        (webhook(&["--log-level", "="]), 2, &["--log-level", "debug"]),
        (webhook(&["--kubeconfig", "/no/such/file"]), 2, &["/no/such/file", "--kubeconfig"]),
        (webhook(&["--ca-file", "ca.pem"]), 2, &["--tls-dir"]),
        (vec!["kube", "scheduler", "--policy", "packk"], 2, &["--policy", "packk", "balanced"]),
        (vec!["kube", "scheduler", "--bind-concurrency", "0"], 2, &["--bind-concurrency", "0"]),
        (vec!["kube", "scheduler", "--probes", "8081"], 2, &["--probes", "8081"]),
        (vec!["kube", "scheduler", "--lease-name", "A"], 2, &["--lease-name", "lower-case"]),
        (
            vec!["kube", "scheduler", "--ignore-pod-fields", "spec.placement"],
            2,
            &["--ignore-pod-fields", "without a leading spec."],
        ),
        (vec!["kube", "scheduler"], 7, &["no API server configured", "--kubeconfig"]),
        (vec!["explain", "pod", "a/b/c"], 2, &["NAMESPACE/NAME"]),
        (vec!["explain", "pod", "a/b", "--scheduler", "localhost"], 2, &["--scheduler", "http://"]),
    ];
    for (arguments, code, words) in cases {
        let (found, _, said) = stage.run(&arguments).await;
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?} says no {word}: {said}");
        }
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named_with_its_flag() {
    let fake = FakeApi::start(Options::default()).await.unwrap();
    let stage = Stage::new();
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let (code, _, said) =
        stage.run(&["kube", "scheduler", "--kubeconfig", &kubeconfig, "--probes", &at]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains(&format!("--probes is {at}")) && said.contains("choose another"),
        "{said}"
    );
    let folder = stage.path("data");
    let webhook =
        ["kube", "webhook", "--kubeconfig", &kubeconfig, "--data-dir", &folder, "--listen", &at];
    let (code, _, said) = stage.run(&webhook).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("--listen is {at}")), "{said}");
}

#[tokio::test]
async fn a_database_that_is_away_is_told_without_its_password() {
    let fake = FakeApi::start(Options::default()).await.unwrap();
    let stage = Stage::new();
    let kubeconfig = stage.write("kubeconfig", &fake.kubeconfig());
    let url = format!("postgres://berth:secret@{}/berth", free_port());
    let webhook = [
        "kube",
        "webhook",
        "--kubeconfig",
        &kubeconfig,
        "--database-url",
        &url,
        "--listen",
        "127.0.0.1:0",
        "--probes",
        "127.0.0.1:0",
    ];
    let (code, printed, said) = stage.run(&webhook).await;
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("database unreachable") && said.contains("--database-url"), "{said}");
    assert!(!said.contains("secret@") && !printed.contains("secret@"), "{printed}{said}");
}

#[tokio::test]
async fn the_measurement_says_how_many_pods_a_second() {
    let stage = Stage::new();
    for mix in ["plain", "full"] {
        let (code, printed, said) = stage
            .run(&["bench", "kube", "--nodes", "50", "--pods", "500", "--mix", mix, "--json"])
            .await;
        assert_eq!(code, Some(0), "{said}");
        let report: Value = serde_json::from_str(&printed).unwrap();
        assert!(report["pods_per_s"].as_u64().is_some_and(|it| it > 0), "{report}");
        let (placed, refused) =
            (report["placed"].as_u64().unwrap(), report["refused"].as_u64().unwrap());
        assert_eq!(placed + refused, 500, "{report}");
        assert_eq!(report["mix"], mix);
        assert!(mix != "plain" || refused == 0, "{report}");
    }
}
