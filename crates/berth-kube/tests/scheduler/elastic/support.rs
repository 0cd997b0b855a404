//! Virtual machines, and agents that speak the wire protocol.

use berth_engine::Policy;
use berth_kube::scheduler::Options;
use berth_kube::wire::WireListener;
use berth_kube_fake::{FakeApi, samples};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Replica, add, bound, start_with};

/// A cluster that has virtual machines, migrations and kubelets.
pub(crate) async fn cluster() -> FakeApi {
    let fake = start_with(berth_kube_fake::Options { kubelet: true, ..Default::default() }).await;
    fake.create(samples::virtual_machine_definition()).await.unwrap();
    fake.create(samples::virtual_machine_migration_definition()).await.unwrap();
    fake
}

/// A scheduler with a port for agents.
pub(crate) struct ElasticReplica {
    pub(crate) replica: Replica,
    wire: String,
}

/// A port for agents, and its address.
pub(crate) async fn wire(options: &mut Option<WireListener>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    *options = Some(WireListener { listener, tokens: None });
    address
}

impl ElasticReplica {
    pub(crate) async fn start(fake: &FakeApi, change: impl FnOnce(&mut Options)) -> Self {
        let mut listener = None;
        let address = wire(&mut listener).await;
        let replica = Replica::start(fake, |options| {
            options.wire = listener;
            change(options);
        })
        .await;
        Self { replica, wire: address }
    }

    /// One request of an agent.
    pub(crate) async fn ask(&self, pod: &str, size: u32) -> (u16, Value) {
        self.ask_with(pod, size, json!({})).await
    }

    /// The same with further fields.
    pub(crate) async fn ask_with(&self, pod: &str, size: u32, more: Value) -> (u16, Value) {
        ask(&self.wire, pod, size, more).await
    }

    /// Asks until the answer is this permit.
    pub(crate) async fn granted(&self, pod: &str, size: u32, granted: u32) {
        for _ in 0..600 {
            let (code, answer) = self.ask(pod, size).await;
            if code == 200 && answer["permit"]["vCPUs"] == json!(granted) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("{pod} never had {granted} of {size}: {:?}", self.ask(pod, size).await);
    }

    pub(crate) async fn state(&self) -> Value {
        let (code, text) = self.replica.get("/debug/state", "*/*").await;
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until the state is as expected.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..600 {
            let state = self.state().await;
            if is_so(&state) {
                return state;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("never came: {what}: {:#}", self.state().await);
    }
}

/// One request: so many CPUs, and GiB of memory.
pub(crate) async fn ask(address: &str, pod: &str, size: u32, more: Value) -> (u16, Value) {
    let mut body = json!({
        "protoVersion": 7, "pod": {"name": pod, "namespace": "default"},
        "computeUnit": {"vCPUs": 1, "mem": "1Gi"},
        "resources": {"vCPUs": size, "mem": format!("{size}Gi")},
        "metrics": {"loadAvg1M": 0.5},
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::builder().method("POST").uri("/").header("host", "berth");
    let body = Full::new(hyper::body::Bytes::from(body.to_string()));
    let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (code, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A policy that relieves nodes at 90 % and lets nothing rest.
pub(crate) fn policy(more: &str) -> Policy {
    let text = format!("name = \"test\"\n[elastic.migration]\ncooldown_s = 0\n{more}");
    Policy::from_toml(&text).unwrap()
}

/// A virtual machine of so many CPUs and GiB, up to eight times as many.
pub(crate) async fn add_vm(fake: &FakeApi, name: &str, size: u32, labels: Value) {
    let mut all = json!({"autoscaling.neon.tech/enabled": "true"});
    for (key, value) in labels.as_object().unwrap() {
        all[key] = value.clone();
    }
    let amounts = json!({"min": 1, "use": size, "max": 8});
    let vm = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default", "labels": all},
        "spec": {"guest": {"cpus": amounts, "memorySlotSize": "1Gi", "memorySlots": amounts}},
    });
    add(fake, vm).await;
}

/// The pod of a machine, named after it.
pub(crate) fn runner(vm: &str, pod: &str) -> Value {
    let mut runner = samples::pod("default", pod, "berth", 100, 64);
    runner["metadata"]["labels"] = json!({"vm.neon.tech/name": vm});
    runner["spec"]["terminationGracePeriodSeconds"] = json!(1);
    runner
}

/// A machine whose pod, of the same name, is on a node.
pub(crate) async fn run_vm(fake: &FakeApi, name: &str, size: u32, labels: Value) {
    add_vm(fake, name, size, labels).await;
    // The watches of machines and pods are independent.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    add(fake, runner(name, name)).await;
    bound(fake, name).await;
}

/// What is stored of a machine's permit.
pub(crate) fn stored(fake: &FakeApi, vm: &str) -> Value {
    let vm = fake.get("virtualmachines.vm.neon.tech", "default", vm).unwrap();
    let text = vm["metadata"]["annotations"]["berth.dev/permit"].as_str();
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}
