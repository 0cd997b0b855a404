//! A replica of the scheduler in a process of its own, which is killed without warning.
//!
//! The process is this test's own program, told to run the one test that is a scheduler.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_kube::client;
use berth_kube::cluster::{MissingRequests, Settings, policies};
use berth_kube::leader_election::Candidate;
use berth_kube::scheduler::{self, Options};
use tokio_util::sync::CancellationToken;

/// Where the lease is.
pub(crate) const NAMESPACE: &str = "berth-system";
/// Its name.
pub(crate) const LEASE: &str = "berth-scheduler";

const KUBECONFIG: &str = "BERTH_SOAK_KUBECONFIG";
const IDENTITY: &str = "BERTH_SOAK_IDENTITY";
const LEASE_S: &str = "BERTH_SOAK_LEASE_S";
/// What the replicas log, to standard error.
const LOG: &str = "BERTH_SOAK_LOG";

/// A running replica. Killed when dropped.
pub(crate) struct Replica {
    pub(crate) identity: String,
    child: Child,
}

impl Replica {
    pub(crate) fn start(kubeconfig: &Path, identity: &str, lease: Option<Duration>) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_replica_of_the_scheduler", "--ignored", "--nocapture"])
            .env(KUBECONFIG, kubeconfig)
            .env(IDENTITY, identity)
            .env(LEASE_S, lease.map_or(0, |it| it.as_secs()).to_string())
            // It ends when this end is closed, whatever becomes of us.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { identity: identity.to_owned(), child }
    }

    /// Kills it with no chance to tidy up.
    pub(crate) fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "{} has ended by itself", self.identity);
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The most memory that it has had, in MiB, where that can be told.
    pub(crate) fn peak_mib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib / 1024)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(clippy::disallowed_methods, reason = "how a test tells its other process what to do")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What the other process does: schedules as `berth kube scheduler` does, until it is killed. Does
/// nothing where nobody has told it what to do.
pub(crate) fn schedule() {
    let Some(kubeconfig) = told(KUBECONFIG) else { return };
    let identity = told(IDENTITY).unwrap();
    let lease = Duration::from_secs(told(LEASE_S).unwrap().parse().unwrap());
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let level = told(LOG).unwrap_or_else(|| "error".to_owned());
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
    let settings = Settings {
        scheduler: "berth".to_owned(),
        policy: policies::builtin("balanced").unwrap(),
        missing_requests: MissingRequests::Zero,
        ignored_pod_fields: Vec::new(),
    };
    // The same proportions as Kubernetes' 15, 10 and 2 seconds.
    let candidate = Candidate {
        duration: lease,
        renew_deadline: lease * 2 / 3,
        retry_period: lease * 2 / 15,
        ..Candidate::new(NAMESPACE, LEASE, &identity)
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = client::connect(Some(Path::new(&kubeconfig)), None).await.unwrap();
        let mut options = Options::new(client, settings, &identity);
        options.lease = (!lease.is_zero()).then_some(candidate);
        scheduler::run(options, CancellationToken::new()).await.unwrap();
    });
}
