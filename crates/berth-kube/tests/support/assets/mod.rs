//! The programs of a real control plane, found by `KUBEBUILDER_ASSETS` as envtest finds them, and a control
//! plane of them: on loopback, on free ports, with RBAC, in a folder of its own.
//!
//! Every program is a child of the test and is killed with it. Nothing outside the folder is written.

mod pki;
mod process;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use pki::Pki;
pub(crate) use process::{Process, Usage};

/// The variable that names the folder with the programs.
pub(crate) const VARIABLE: &str = "KUBEBUILDER_ASSETS";
/// What is off by default in 1.36: PodGroups, tolerations that compare, features that nodes declare, and rules that
/// taint devices.
const FEATURE_GATES: &str = "GenericWorkload=true,TaintTolerationComparisonOperators=true,\
    UserNamespacesHostNetworkSupport=true,DRADeviceTaintRules=true";
/// How long a program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How long an API server takes at most to know the roles after its start.
const RECOVERY_S: i64 = 20;

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    etcd: PathBuf,
    api_server: PathBuf,
    controller_manager: PathBuf,
    /// For comparison only.
    pub(crate) scheduler: Option<PathBuf>,
}

impl Programs {
    /// The programs; `None` if the variable is not set.
    ///
    /// # Errors
    /// When the variable names a folder without one of them.
    #[allow(clippy::disallowed_methods, reason = "the convention is a variable")]
    pub(crate) fn find() -> Result<Option<Self>, String> {
        let Some(folder) = std::env::var_os(VARIABLE).filter(|it| !it.is_empty()) else {
            return Ok(None);
        };
        let folder = PathBuf::from(folder);
        let program = |name: &str| {
            let path = folder.join(name);
            path.is_file().then_some(path).ok_or_else(|| {
                format!("{VARIABLE} is {}, where there is no {name}", folder.display())
            })
        };
        Ok(Some(Self {
            etcd: program("etcd")?,
            api_server: program("kube-apiserver")?,
            controller_manager: program("kube-controller-manager")?,
            scheduler: program("kube-scheduler").ok(),
        }))
    }
}

/// What a control plane is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Whether controllers run, and service accounts are required.
    pub(crate) controllers: bool,
    /// Whether requests of Berth's service accounts are logged.
    pub(crate) audit: bool,
}

/// A running control plane.
pub(crate) struct ControlPlane {
    /// Where everything is.
    pub(crate) folder: PathBuf,
    /// `127.0.0.1:PORT` of the API server.
    pub(crate) address: String,
    pki: Pki,
    etcd: Mutex<Process>,
    api_server: Mutex<Process>,
    controller_manager: Mutex<Option<Process>>,
    /// When the API server or its database was killed.
    faults: Mutex<Vec<Timestamp>>,
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl ControlPlane {
    /// The socket of the proxy through which the API server reaches Services.
    pub(crate) fn service_socket(folder: &Path) -> PathBuf {
        folder.join("services.sock")
    }

    /// The requests that were logged.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// Starts etcd, the API server and the controllers. They may not answer yet.
    pub(crate) fn start(programs: &Programs, folder: &Path, setup: Setup) -> Self {
        let pki = Pki::create(folder);
        let (etcd, database) = start_etcd(programs, folder);
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let api_server = start_api_server(programs, folder, &database, port, setup);
        let plane = Self {
            folder: folder.to_owned(),
            address: address.clone(),
            pki,
            etcd: Mutex::new(etcd),
            api_server: Mutex::new(api_server),
            controller_manager: Mutex::new(None),
            faults: Mutex::default(),
        };
        if setup.controllers {
            let user = "system:kube-controller-manager";
            let kubeconfig = plane.kubeconfig_of("controllers", user, &[]);
            let process = start_controllers(programs, folder, &kubeconfig);
            *lock(&plane.controller_manager) = Some(process);
        }
        plane
    }

    /// A kubeconfig for a user, by a client certificate.
    pub(crate) fn kubeconfig_of(&self, name: &str, user: &str, groups: &[&str]) -> PathBuf {
        let (certificate, key) = self.pki.write_client(name, user, groups);
        let user = json!({ "client-certificate": certificate, "client-key": key });
        self.write_kubeconfig(name, &self.address, &user)
    }

    /// A kubeconfig with these credentials, for the API server at an address.
    pub(crate) fn write_kubeconfig(
        &self,
        name: &str,
        address: &str,
        user: &serde_json::Value,
    ) -> PathBuf {
        let cluster = json!({
            "server": format!("https://{address}"), "certificate-authority": self.pki.authority(),
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "real",
            "clusters": [{ "name": "real", "cluster": cluster }],
            "users": [{ "name": name, "user": user }],
            "contexts": [{ "name": "real", "context": { "cluster": "real", "user": name } }],
        });
        let path = self.folder.join(format!("{name}.kubeconfig"));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Kills the API server without warning and starts it again.
    pub(crate) fn restart_api_server(&self) {
        lock(&self.faults).push(Timestamp::now());
        lock(&self.api_server).restart();
    }

    /// Kills etcd without warning and starts it again.
    pub(crate) fn restart_etcd(&self) {
        lock(&self.faults).push(Timestamp::now());
        lock(&self.etcd).restart();
    }

    /// Whether a moment is in the first seconds after a fault: an API server that starts forbids everything until
    /// it has read the roles.
    pub(crate) fn is_recovering(&self, at: Timestamp) -> bool {
        let recovering = |fault: &Timestamp| {
            at >= *fault && at.duration_since(*fault) < SignedDuration::from_secs(RECOVERY_S)
        };
        lock(&self.faults).iter().any(recovering)
    }

    /// What has ended by itself, with the end of its log.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut found: Vec<String> = [&self.etcd, &self.api_server]
            .into_iter()
            .filter_map(|it| lock(it).failure())
            .collect();
        found.extend(lock(&self.controller_manager).as_mut().and_then(Process::failure));
        found
    }

    /// How long to wait for it.
    pub(crate) const fn start_timeout() -> Duration {
        START_TIMEOUT
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn start_etcd(programs: &Programs, folder: &Path) -> (Process, String) {
    let (clients, peers) = (free_port(), free_port());
    let (url, peer) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let args = [
        format!("--data-dir={}", shown(&folder.join("etcd"))),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // What a killed process has written stays: only the machine may not fail.
        "--unsafe-no-fsync=true".to_owned(),
        "--quota-backend-bytes=4294967296".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    (Process::start("etcd", &programs.etcd, args.to_vec(), folder), url)
}

/// Services are reached through a proxy, since nothing here routes their addresses.
fn write_egress(folder: &Path) -> PathBuf {
    let config = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [{ "name": "cluster", "connection": {
            "proxyProtocol": "HTTPConnect",
            "transport": { "uds": { "udsName": ControlPlane::service_socket(folder) } },
        } }],
    });
    let path = folder.join("egress.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// The policy of the audit log: what Berth's service accounts ask for, and what they are answered.
fn write_audit_policy(folder: &Path) -> PathBuf {
    let users =
        ["scheduler", "webhook"].map(|it| format!("system:serviceaccount:berth-system:berth-{it}"));
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [{ "level": "Metadata", "users": users }, { "level": "None" }],
    });
    let path = folder.join("audit-policy.json");
    std::fs::write(&path, policy.to_string()).unwrap();
    path
}

fn start_api_server(
    programs: &Programs,
    folder: &Path,
    database: &str,
    port: u16,
    setup: Setup,
) -> Process {
    let file = |name: &str| shown(&folder.join(name));
    let mut args = vec![
        format!("--etcd-servers={database}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file("api-server.pem")),
        format!("--tls-private-key-file={}", file("api-server.key")),
        format!("--client-ca-file={}", file("authority.pem")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("accounts.pub")),
        format!("--service-account-signing-key-file={}", file("accounts.key")),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--profiling=false".to_owned(),
        format!("--egress-selector-config-file={}", shown(&write_egress(folder))),
        format!("--feature-gates={FEATURE_GATES}"),
        "--runtime-config=scheduling.k8s.io/v1alpha2=true,resource.k8s.io/v1beta2=true".to_owned(),
    ];
    if setup.audit {
        args.push(format!("--audit-policy-file={}", shown(&write_audit_policy(folder))));
        args.push(format!("--audit-log-path={}", file("audit.log")));
    }
    if !setup.controllers {
        // Nothing would create the accounts.
        args.push("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".to_owned());
    }
    Process::start("kube-apiserver", &programs.api_server, args, folder)
}

fn start_controllers(programs: &Programs, folder: &Path, kubeconfig: &Path) -> Process {
    let file = |name: &str| shown(&folder.join(name));
    let args = vec![
        format!("--kubeconfig={}", shown(kubeconfig)),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", free_port()),
        format!("--cert-dir={}", file("controllers")),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        format!("--service-account-private-key-file={}", file("accounts.key")),
        format!("--root-ca-file={}", file("authority.pem")),
        // A restart of the API server is no reason to declare nodes lost.
        "--node-monitor-grace-period=10m".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        format!("--feature-gates={FEATURE_GATES}"),
    ];
    Process::start("kube-controller-manager", &programs.controller_manager, args, folder)
}
