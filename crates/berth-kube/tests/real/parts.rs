//! The node that Berth's own pods run on: each pod of the manifests' Deployments is the real program, with the
//! arguments, the variables and the service account that its pod says, and it is ready when its probe says so.
//!
//! Only addresses and folders differ from a pod's: all processes share this machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::api::{ApiServer, text};
use crate::assets::{ControlPlane, Process, free_port};
use crate::cluster::{CONTROL_NODE, NAMESPACE};
use crate::kubelets::running_since_restarts;
use crate::network::ServiceAddresses;

/// How often probes are asked.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// The name of the port for agents.
const WIRE: &str = "wire";

/// A process of a pod.
struct Part {
    process: Process,
    /// Addresses of its ports, by name.
    ports: BTreeMap<String, SocketAddr>,
}

/// What the processes share.
pub(crate) struct Parts {
    pub(crate) api: ApiServer,
    pub(crate) plane: Arc<ControlPlane>,
    /// The program.
    pub(crate) program: PathBuf,
    /// Where they reach the API server.
    pub(crate) server: String,
    pub(crate) services: ServiceAddresses,
    running: Mutex<BTreeMap<String, Part>>,
}

impl Parts {
    /// None yet.
    pub(crate) fn new(
        api: &ApiServer,
        plane: &Arc<ControlPlane>,
        program: &Path,
        server: &str,
        services: &ServiceAddresses,
    ) -> Arc<Self> {
        Arc::new(Self {
            api: api.clone(),
            plane: Arc::clone(plane),
            program: program.to_owned(),
            server: server.to_owned(),
            services: services.clone(),
            running: Mutex::default(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Part>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the pods of the node, until the runtime ends.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut begun = std::collections::BTreeSet::new();
        loop {
            for pod in self.api.list("Pod", NAMESPACE).await {
                let is_here = text(&pod, "/spec/nodeName") == CONTROL_NODE;
                if is_here && begun.insert(text(&pod, "/metadata/uid").to_owned()) {
                    tokio::spawn(Arc::clone(&self).run_pod(pod));
                }
            }
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// Kills the process of a pod without warning. It is started again a second later.
    pub(crate) fn kill(&self, pod: &str) {
        self.lock().get_mut(pod).unwrap_or_else(|| panic!("{pod} does not run")).process.kill();
    }

    /// The answer of a process to `GET` of a path on its port `probes`.
    pub(crate) async fn ask(&self, pod: &str, path: &str) -> Option<String> {
        let at = *self.lock().get(pod)?.ports.get("probes")?;
        let answer = get(at, path).await.ok()?;
        Some(answer.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// The answer of a process to an agent: the code, and JSON or the text of an error.
    pub(crate) async fn post_wire(&self, pod: &str, body: &str) -> Option<(u16, Value)> {
        let at = *self.lock().get(pod)?.ports.get(WIRE)?;
        let head = format!(
            "POST / HTTP/1.1\r\nhost: berth\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answer = exchange(at, &format!("{head}{body}")).await.ok()?;
        let code = answer.split_whitespace().nth(1)?.parse().ok()?;
        let text = answer.split_once("\r\n\r\n")?.1;
        Some((code, serde_json::from_str(text).unwrap_or_else(|_| text.into())))
    }

    /// Ends of the logs of all processes.
    pub(crate) fn logs(&self) -> String {
        let all = self.lock();
        all.iter().map(|(pod, it)| format!("--- {pod}\n{}\n", it.process.log_tail())).collect()
    }

    async fn run_pod(self: Arc<Self>, pod: Value) {
        let name = text(&pod, "/metadata/name").to_owned();
        let part = self.start(&pod).await;
        let probe = part.ports["probes"];
        self.lock().insert(name.clone(), part);
        let (mut restarts, mut reported) = (0, None);
        loop {
            let current = self.api.get("Pod", NAMESPACE, &name).await;
            let same = |it: &Value| it["metadata"]["uid"] == pod["metadata"]["uid"];
            let Some(current) = current.filter(same) else { break };
            if !current["metadata"]["deletionTimestamp"].is_null() {
                self.stop(&pod, &name).await;
                break;
            }
            let ended = self.lock().get_mut(&name).is_some_and(|it| !it.process.is_running());
            if ended {
                restarts += 1;
                self.report(&pod, &name, false, restarts).await;
                sleep(Duration::from_secs(1)).await;
                if let Some(part) = self.lock().get_mut(&name) {
                    part.process.restart();
                }
            }
            let is_ready = probe_answers(probe).await;
            if reported != Some(is_ready) || ended {
                self.report(&pod, &name, is_ready, restarts).await;
                reported = Some(is_ready);
            }
            sleep(PROBE_INTERVAL).await;
        }
        self.lock().remove(&name);
    }

    async fn stop(&self, pod: &Value, name: &str) {
        let Some(mut part) = self.lock().remove(name) else { return };
        part.process.terminate();
        part.process.wait_until_ended(Duration::from_secs(30)).await;
        self.set_services(pod, None).await;
        let options = json!({
            "gracePeriodSeconds": 0, "preconditions": { "uid": pod["metadata"]["uid"] },
        });
        self.api.delete("Pod", NAMESPACE, name, &options).await;
    }

    async fn report(&self, pod: &Value, name: &str, is_ready: bool, restarts: u32) {
        let status = json!({ "status": running_since_restarts(pod, is_ready, restarts) });
        // It may be gone.
        let _ = self.api.merge("Pod", (NAMESPACE, name), "/status", &status).await;
        let https = self.lock().get(name).and_then(|it| it.ports.get("https").copied());
        if let Some(https) = https {
            self.set_services(pod, is_ready.then_some(https)).await;
        }
    }

    /// Tells the proxy of the API server where the Services of a pod are.
    async fn set_services(&self, pod: &Value, address: Option<SocketAddr>) {
        for service in self.api.list("Service", NAMESPACE).await {
            let selector = service["spec"]["selector"].as_object().cloned().unwrap_or_default();
            let labels = &pod["metadata"]["labels"];
            let selects = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
            let ports = service["spec"]["ports"].as_array().into_iter().flatten();
            for port in ports.filter(|it| selects && it["targetPort"] == "https") {
                let ip = text(&service, "/spec/clusterIP");
                self.services.set(&format!("{ip}:{}", port["port"]), address);
            }
        }
    }

    async fn start(&self, pod: &Value) -> Part {
        let name = text(pod, "/metadata/name");
        let container = &pod["spec"]["containers"][0];
        let folder = self.plane.folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut ports = BTreeMap::new();
        let mut args = Vec::new();
        for arg in container["args"].as_array().into_iter().flatten() {
            args.push(local_arg(arg.as_str().unwrap(), &folder, container, &mut ports));
        }
        let kubeconfig = self.write_kubeconfig(pod, name).await;
        let mut variables = BTreeMap::from([
            ("BERTH_KUBE_KUBECONFIG".to_owned(), kubeconfig.display().to_string()),
            ("BERTH_KUBE_LOG_LEVEL".to_owned(), "info".to_owned()),
        ]);
        for it in container["env"].as_array().into_iter().flatten() {
            let value = match text(it, "/valueFrom/fieldRef/fieldPath") {
                "metadata.namespace" => NAMESPACE,
                "metadata.name" => name,
                _ => continue,
            };
            variables.insert(text(it, "/name").to_owned(), value.to_owned());
        }
        if name.starts_with("berth-scheduler") {
            // The manifests leave it out, since most clusters have no agents.
            let address: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
            variables.insert("BERTH_KUBE_WIRE_LISTEN".to_owned(), address.to_string());
            ports.insert(WIRE.to_owned(), address);
        }
        let folder = &self.plane.folder;
        Part { process: Process::start_with(name, &self.program, args, variables, folder), ports }
    }

    /// Signs in as the pod's service account, by a token that is bound to the pod.
    async fn write_kubeconfig(&self, pod: &Value, name: &str) -> PathBuf {
        let account = text(pod, "/spec/serviceAccountName");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "expirationSeconds": 7200, "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"],
            } },
        });
        let made = self.api.post("ServiceAccount", (NAMESPACE, account), "token", &request).await;
        let made = made.unwrap();
        let file = self.plane.folder.join(format!("{name}.token"));
        std::fs::write(&file, text(&made, "/status/token")).unwrap();
        self.plane.write_kubeconfig(name, &self.server, &json!({ "tokenFile": file }))
    }
}

/// An argument of a pod as its process on this machine takes it: a port that is free, a folder that exists.
fn local_arg(
    arg: &str,
    folder: &Path,
    container: &Value,
    ports: &mut BTreeMap<String, SocketAddr>,
) -> String {
    let (flag, value) = arg.split_once('=').unwrap_or((arg, ""));
    if flag == "--data-dir" {
        return format!("{flag}={}", folder.display());
    }
    let Some(port) = value.strip_prefix("0.0.0.0:") else { return arg.to_owned() };
    let address: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
    let mut named = container["ports"].as_array().into_iter().flatten();
    let named = named.find(|it| it["containerPort"].as_u64() == port.parse().ok());
    let name = named.unwrap_or_else(|| panic!("{arg} is not among the ports of the container"));
    ports.insert(text(name, "/name").to_owned(), address);
    format!("{flag}={address}")
}

/// Whether `/readyz` says yes.
async fn probe_answers(at: SocketAddr) -> bool {
    let asked = tokio::time::timeout(Duration::from_secs(2), get(at, "/readyz")).await;
    asked.is_ok_and(|it| it.is_ok_and(|it| it.starts_with("HTTP/1.1 200")))
}

async fn get(at: SocketAddr, path: &str) -> std::io::Result<String> {
    exchange(at, &format!("GET {path} HTTP/1.1\r\nhost: berth\r\nconnection: close\r\n\r\n")).await
}

async fn exchange(at: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
