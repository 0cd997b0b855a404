//! What the tests share: an imitation of the API server, the webhook next to it, and a client that
//! sends reviews over TLS as the API server does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_kube::webhook::{Options, SelfSignedTls, TlsSource, Webhook};
use berth_kube_fake::{FakeApi, Options as FakeOptions, Rule, samples};
use berth_ledger::{Backend, Claim, ClaimState, Ledger, Options as LedgerOptions};
pub(crate) use berth_pgtemp::free_port;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// The name that the certificate is for.
pub(crate) const HOST: &str = "berth-webhook.berth.svc";

/// How long a test waits for something that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Reviews have ids of their own.
static REVIEWS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn review_id() -> String {
    format!("review-{}", REVIEWS.fetch_add(1, Ordering::Relaxed))
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came: {what}");
}

/// A client for the imitation.
pub(crate) fn client(fake: &FakeApi) -> kube::Client {
    let mut config = kube::Config::new(fake.url().parse().unwrap());
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

/// One webhook that runs.
pub(crate) struct Running {
    pub(crate) webhook: Webhook,
    stop: CancellationToken,
}

impl Running {
    pub(crate) async fn start(fake: &FakeApi, options: Options) -> Self {
        let stop = CancellationToken::new();
        let webhook = Webhook::start(client(fake), options, stop.clone()).await.unwrap();
        let ready = tokio::time::timeout(PATIENCE, webhook.ready()).await;
        assert_eq!(ready, Ok(true), "the webhook is not ready");
        Self { webhook, stop }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let stopped = tokio::time::timeout(PATIENCE, self.webhook.wait()).await;
        stopped.expect("the webhook does not stop").unwrap();
    }
}

/// The imitation, a webhook, and where they keep things.
pub(crate) struct Fixture {
    pub(crate) fake: FakeApi,
    pub(crate) options: Options,
    pub(crate) running: Option<Running>,
    _folder: TempDir,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}, |_| {}).await
    }

    /// With a cluster that has controllers and a kubelet.
    pub(crate) async fn alive() -> Self {
        let alive = |fake: &mut FakeOptions| {
            fake.controllers = true;
            fake.kubelet = true;
            fake.audit = true;
        };
        let quick = |options: &mut Options| {
            options.rebuild.every = Duration::from_millis(200);
            options.rebuild.backoff = Duration::from_millis(100);
        };
        Self::with(alive, quick).await
    }

    pub(crate) async fn with(
        change_fake: impl FnOnce(&mut FakeOptions),
        change: impl FnOnce(&mut Options),
    ) -> Self {
        Self::prepared(change_fake, change, Vec::new()).await
    }

    /// With the rights and the registration of the manifests. Requests are recorded.
    pub(crate) async fn as_installed(change: impl FnOnce(&mut Options)) -> Self {
        let rights = |fake: &mut FakeOptions| {
            fake.rbac = Some(manifests());
            fake.audit = true;
        };
        Self::prepared(rights, change, vec![registration()]).await
    }

    /// With objects that are there before the webhook starts.
    pub(crate) async fn prepared(
        change_fake: impl FnOnce(&mut FakeOptions),
        change: impl FnOnce(&mut Options),
        objects: Vec<Value>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut fake = FakeOptions::default();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        fake.services.insert("berth/berth-webhook".to_owned(), address);
        change_fake(&mut fake);
        let fake = FakeApi::start(fake).await.unwrap();
        for namespace in ["berth", "shop"] {
            let metadata = json!({
                "name": namespace, "labels": { "kubernetes.io/metadata.name": namespace },
            });
            let namespace =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
            fake.create(namespace).await.unwrap();
        }
        for object in objects {
            fake.create(object).await.unwrap();
        }
        let mut options = options(&folder, port);
        change(&mut options);
        let running = Some(Running::start(&fake, options.clone()).await);
        Self { fake, options, running, _folder: folder }
    }

    pub(crate) fn webhook(&self) -> &Webhook {
        &self.running.as_ref().expect("the webhook runs").webhook
    }

    /// Stops the webhook.
    pub(crate) async fn halt(&mut self) {
        self.running.take().expect("the webhook runs").stop().await;
    }

    /// Starts it again.
    pub(crate) async fn resume(&mut self) {
        self.running = Some(Running::start(&self.fake, self.options.clone()).await);
    }

    /// Sends a review of a pod that is being created, and reads the answer.
    pub(crate) async fn review(&self, pod: &Value) -> Answer {
        self.send(&review(&review_id(), pod)).await
    }

    /// Sends a review as it is.
    pub(crate) async fn send(&self, review: &Value) -> Answer {
        let (status, text) = post(self.webhook(), "/mutate?timeout=5s", &review.to_string()).await;
        assert_eq!(status, 200, "{text}");
        Answer::read(&text, &review["request"])
    }

    /// A pod is reviewed, and then created as the review would have it. Returns the answer and the
    /// name.
    pub(crate) async fn create(&self, pod: &Value) -> (Answer, String) {
        let answer = self.review(pod).await;
        let created = self.fake.create(answer.patched(pod)).await.unwrap();
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        (answer, name)
    }

    /// Waits until the pods that are there have their slots for good.
    pub(crate) async fn all_bound(&self) {
        self.bound_where(|_| true).await;
    }

    /// Waits until the pod with a token has its slot for good.
    pub(crate) async fn bound(&self, token: &str) {
        let token = token.to_owned();
        self.bound_where(move |claim| claim.key.instance.0.to_string() == token).await;
    }

    async fn bound_where(&self, matters: impl Fn(&Claim) -> bool + Send + 'static) {
        let backend = self.options.ledger.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let ledger = Ledger::open(backend, LedgerOptions::default()).unwrap();
            let is_bound = |claim: &Claim| !matters(claim) || claim.state == ClaimState::Active;
            for _ in 0..9000 {
                if ledger.claims_page(None, 1000).unwrap().iter().all(is_bound) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("a pod has no slot for good");
        });
        looking.await.unwrap();
    }

    /// A Deployment with one ReplicaSet, as its controller would have made it.
    pub(crate) async fn deployment(&self, name: &str, replicas: u32, marks: &Value) -> Owned {
        let mut deployment = samples::deployment("shop", name, replicas);
        deployment["metadata"]["annotations"] = marks.clone();
        let deployment = self.fake.create(deployment).await.unwrap();
        self.replica_set(&deployment, &format!("{name}-abc"), "abc", replicas).await
    }

    /// A further ReplicaSet of a Deployment.
    pub(crate) async fn replica_set(
        &self,
        deployment: &Value,
        name: &str,
        hash: &str,
        replicas: u32,
    ) -> Owned {
        let mut set = samples::replica_set("shop", name, replicas);
        for place in ["/metadata", "/spec/template/metadata"] {
            set.pointer_mut(place).unwrap()["labels"] =
                json!({ "app": name, "pod-template-hash": hash });
        }
        set["spec"]["selector"]["matchLabels"]["pod-template-hash"] = json!(hash);
        set["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "Deployment",
            "name": deployment["metadata"]["name"], "uid": deployment["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let set = self.fake.create(set).await.unwrap();
        Owned {
            owner: set.object.clone(),
            labels: json!({ "app": name, "pod-template-hash": hash }),
        }
    }
}

fn manifest(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/");
    let text = std::fs::read_to_string(format!("{folder}{name}")).unwrap();
    // Tests have it in another namespace.
    text.replace("berth-system", "berth")
}

/// The rights of the webhook.
pub(crate) fn manifests() -> Vec<Rule> {
    Rule::from_yaml(&manifest("webhook/10-rbac.yaml"), "berth").unwrap()
}

/// The webhook's entry at the API server, as the manifests create it.
pub(crate) fn registration() -> Value {
    object(&manifest("webhook/50-configuration.yaml"))
}

/// The same for a webhook outside the cluster.
pub(crate) fn external_registration() -> Value {
    object(&manifest("webhook-external/50-configuration.yaml"))
}

fn object(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

/// A page of the probes: the status, and the text.
pub(crate) async fn probe(webhook: &Webhook, path: &str) -> (u16, String) {
    let stream = TcpStream::connect(webhook.probes().unwrap()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "x").body(Full::new(Bytes::new())).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Waits until `/readyz` has this status and a text with this part.
pub(crate) async fn until_readyz(webhook: &Webhook, status: u16, part: &str) {
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            let found = probe(webhook, "/readyz").await;
            if found.0 == status && found.1.contains(part) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let found = waited.await;
    assert!(found.is_ok(), "expected {status} {part:?}: {:?}", probe(webhook, "/readyz").await);
}

/// The value of a metric, by its name with labels.
pub(crate) async fn metric(webhook: &Webhook, name: &str) -> Option<f64> {
    let (_, text) = probe(webhook, "/metrics").await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
}

/// A controller whose pods tests create.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) owner: Value,
    pub(crate) labels: Value,
}

impl Owned {
    /// A pod as the controller creates it: without a name.
    pub(crate) fn pod(&self) -> Value {
        let owner = &self.owner;
        let name = owner["metadata"]["name"].as_str().unwrap();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "generateName": format!("{name}-"), "namespace": "shop", "labels": self.labels,
                "ownerReferences": [{
                    "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name,
                    "uid": owner["metadata"]["uid"], "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": { "containers": [{ "name": "main", "image": "example.invalid/app:1" }] },
        })
    }
}

/// The switch, and the count.
pub(crate) fn shared(max_on_demand: impl ToString) -> Value {
    json!({
        "cloudpilot.ai/webhook-scheduler": "true",
        "cloudpilot.ai/webhook-scheduler-max-on-demand-count": max_on_demand.to_string(),
    })
}

pub(crate) fn options(folder: &TempDir, port: u16) -> Options {
    let ledger = Backend::Sqlite(folder.path().join("berth.db"));
    let mut options = Options::new("berth", &format!("webhook-{port}"), ledger);
    options.listen = SocketAddr::from(([127, 0, 0, 1], port));
    options.probes = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    options.tls = TlsSource::SelfSigned(SelfSignedTls {
        check_interval: Duration::from_millis(200),
        ..SelfSignedTls::default()
    });
    options
}

/// A review of a pod that is being created.
pub(crate) fn review(uid: &str, pod: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "requestKind": { "group": "", "version": "v1", "kind": "Pod" },
            "requestResource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "shop", "operation": "CREATE",
            "userInfo": { "username": "system:serviceaccount:kube-system:replicaset-controller" },
            "object": pod, "oldObject": null, "dryRun": false,
            "options": { "apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions" },
        },
    })
}

/// What a review was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) response: Value,
    pub(crate) patch: Value,
}

impl Answer {
    pub(crate) fn read(text: &str, request: &Value) -> Self {
        let review: Value = serde_json::from_str(text).unwrap();
        assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(review["kind"], "AdmissionReview");
        let response = review["response"].clone();
        assert_eq!(response["uid"], request["uid"], "the answer is for this call");
        let patch = match &response["patch"] {
            Value::Null => json!([]),
            patch => {
                assert_eq!(response["patchType"], "JSONPatch");
                let bytes: ByteString = serde_json::from_value(patch.clone()).unwrap();
                serde_json::from_slice(&bytes.0).unwrap()
            }
        };
        Self { response, patch }
    }

    pub(crate) fn allowed(&self) -> bool {
        self.response["allowed"] == true
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.allowed() && self.patch == json!([])
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        serde_json::from_value(self.response["warnings"].clone()).unwrap_or_default()
    }

    /// The pod as the patch makes it. Only additions are known, as the webhook makes no other.
    pub(crate) fn patched(&self, pod: &Value) -> Value {
        let mut pod = pod.clone();
        for step in self.patch.as_array().unwrap() {
            assert_eq!(step["op"], "add");
            let path = step["path"].as_str().unwrap();
            let (parent, last) = path.rsplit_once('/').unwrap();
            let last = last.replace("~1", "/").replace("~0", "~");
            let parent = pod.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
            match parent {
                Value::Array(list) => list.push(step["value"].clone()),
                Value::Object(map) => drop(map.insert(last, step["value"].clone())),
                other => panic!("{path}: {other}"),
            }
        }
        pod
    }

    /// Slot and kind, such as `3 spot`; of a pod that was not touched, `-`.
    pub(crate) fn slot(&self, pod: &Value) -> String {
        if self.is_untouched() {
            return "-".to_owned();
        }
        let pod = self.patched(pod);
        let slot = pod["metadata"]["annotations"]["berth.dev/slot"].as_str().unwrap().to_owned();
        format!("{slot} {}", kind(&pod))
    }

    pub(crate) fn token(&self, pod: &Value) -> String {
        let pod = self.patched(pod);
        pod["metadata"]["annotations"]["berth.dev/slot-token"].as_str().unwrap().to_owned()
    }
}

/// The kind of capacity that a pod must be on, by its affinity alone.
pub(crate) fn kind(pod: &Value) -> String {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let terms = required.as_array().cloned().unwrap_or_default();
    let expressions = terms
        .iter()
        .flat_map(|term| term["matchExpressions"].as_array().cloned().unwrap_or_default());
    let found: Vec<String> = expressions
        .filter(|it| it["key"] == "node.kubernetes.io/capacity" && it["operator"] == "In")
        .map(|it| it["values"][0].as_str().unwrap().to_owned())
        .collect();
    let cost = &pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
    match found.first() {
        None => "-".to_owned(),
        Some(kind) => {
            assert!(found.iter().all(|it| it == kind), "{pod}");
            let expected = if kind == "on-demand" { "100" } else { "1" };
            assert_eq!(cost, expected, "the deletion cost");
            assert_eq!(pod["metadata"]["labels"]["berth.dev/capacity"], json!(kind));
            kind.clone()
        }
    }
}

/// A connection to the webhook that trusts whom the webhook says vouches for it.
pub(crate) async fn connect(
    webhook: &Webhook,
    protocol: &[u8],
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, std::io::Error> {
    let mut roots = RootCertStore::empty();
    let authority = webhook.authority().expect("an authority");
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(webhook.address()).await?;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from(HOST).unwrap(), stream).await
}

/// Posts over HTTP/1.1; returns the status and the text.
pub(crate) async fn post(webhook: &Webhook, path: &str, body: &str) -> (u16, String) {
    request(webhook, "POST", path, body).await
}

pub(crate) async fn request(
    webhook: &Webhook,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String) {
    let stream = connect(webhook, b"http/1.1").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", HOST);
    let request = request.header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Posts over HTTP/2.
pub(crate) async fn post_http2(webhook: &Webhook, path: &str, body: &str) -> (u16, String) {
    let stream = connect(webhook, b"h2").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method("POST").uri(format!("https://{HOST}{path}"));
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}
