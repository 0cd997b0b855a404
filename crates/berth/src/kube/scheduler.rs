//! `berth kube scheduler`: flags, what a person reads when it has started, and its end.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use berth_engine::Policy;
use berth_kube::cluster::{Missing, Settings};
use berth_kube::lease::Candidate;
use berth_kube::probes::Probes;
use berth_kube::scheduler::{self, Options};
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;

use super::way::{Log, Way, Who};
use super::{not_had, stop_by_signal};
use crate::cmdutil::{CmdResult, Exit, Failure, chain};

/// Flags of `berth kube scheduler`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SchedulerFlags {
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    how: How,
    /// The Lease in our namespace by which replicas agree on who schedules.
    #[arg(
        long,
        env = "BERTH_KUBE_LEASE_NAME",
        value_name = "NAME",
        default_value = "berth-scheduler"
    )]
    lease_name: String,
    /// There is only this one: schedule without asking for a Lease.
    #[arg(long, env = "BERTH_KUBE_NO_LEADER_ELECTION")]
    no_leader_election: bool,
    /// Where /livez, /readyz, /metrics and explanations of pods are answered.
    #[arg(
        long,
        env = "BERTH_KUBE_PROBES",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8081"
    )]
    probes: SocketAddr,
    /// Where agents of autoscaled virtual machines ask for permits, as in 0.0.0.0:10299. Nowhere when
    /// not given.
    #[arg(long, env = "BERTH_KUBE_WIRE_LISTEN", value_name = "ADDRESS:PORT")]
    wire_listen: Option<SocketAddr>,
    /// Pods that are bound at once.
    #[arg(long, env = "BERTH_KUBE_BIND_CONCURRENCY", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bind_concurrency: u32,
    /// Pods that are evicted at once from nodes that are being emptied.
    #[arg(long, env = "BERTH_KUBE_EVICT_CONCURRENCY", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    evict_concurrency: u32,
    #[command(flatten)]
    log: Log,
}

/// How pods are placed.
#[derive(Args, Clone, Debug)]
pub(crate) struct How {
    /// The schedulerName by which pods ask for it.
    #[arg(long, env = "BERTH_KUBE_NAME", value_name = "NAME", default_value = "berth")]
    pub(crate) name: String,
    /// How nodes are scored: the name of a built-in policy, or a file in TOML or JSON.
    #[arg(long, env = "BERTH_KUBE_POLICY", value_name = "NAME|FILE", default_value = "balanced")]
    pub(crate) policy: String,
    /// What becomes of pods that state neither requests nor limits.
    #[arg(
        long,
        env = "BERTH_KUBE_MISSING_REQUESTS",
        value_enum,
        default_value_t,
        value_name = "WHAT"
    )]
    pub(crate) missing_requests: MissingRequests,
}

/// What becomes of pods that do not say what they need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissingRequests {
    /// What is not stated counts as zero.
    #[default]
    Zero,
    /// They are refused.
    Refuse,
}

/// How a cluster is scheduled by these flags.
pub(crate) fn settings(how: &How) -> CmdResult<Settings> {
    if how.name.is_empty() {
        return Err(Failure::usage("--name is empty").accepted("a name such as berth"));
    }
    Ok(Settings {
        scheduler: how.name.clone(),
        policy: policy(&how.policy)?,
        missing: match how.missing_requests {
            MissingRequests::Zero => Missing::Zero,
            MissingRequests::Refuse => Missing::Refuse,
        },
    })
}

fn policy(name: &str) -> CmdResult<Policy> {
    let builtin = match Policy::builtin(name) {
        Ok(policy) => return Ok(policy),
        Err(error) => error,
    };
    let path = Path::new(name);
    if !path.exists() {
        let line = format!("--policy is {name:?}, which is neither a file nor a built-in policy");
        return Err(Failure::usage(line).accepted(builtin.to_string()));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("--policy is {name}, unreadable: {error}")))?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let read = if is_json { Policy::from_json(&text) } else { Policy::from_toml(&text) };
    read.map_err(|error| Failure::usage(format!("--policy is {name}: {}", chain(&error))))
}

impl SchedulerFlags {
    pub(super) fn run(self) -> CmdResult {
        let settings = settings(&self.how)?;
        let telemetry = self.log.start()?;
        let runtime = tokio::runtime::Runtime::new()?;
        let outcome = runtime.block_on(self.schedule(settings));
        runtime.shutdown_timeout(Duration::from_secs(2));
        drop(telemetry);
        outcome
    }

    async fn schedule(self, settings: Settings) -> CmdResult {
        let stop = stop_by_signal()?;
        let client = self.way.client().await?;
        let (namespace, identity) = (self.who.namespace(), self.who.identity());
        let probes = Probes::bind(self.probes).await;
        let probes = probes.map_err(|error| not_had("--probes", self.probes, &error))?;
        let wire = match self.wire_listen {
            Some(at) => {
                let bound = TcpListener::bind(at).await;
                Some(bound.map_err(|error| not_had("--wire-listen", at, &error))?)
            }
            None => None,
        };
        let lease = (!self.no_leader_election)
            .then(|| Candidate::new(&namespace, &self.lease_name, &identity));
        let told = Told {
            probes: probes.local_addr()?,
            wire: wire.as_ref().and_then(|wire| wire.local_addr().ok()),
            policy: settings.policy.name().to_owned(),
            namespace,
            identity: identity.clone(),
        };
        for line in self.greeting(&told) {
            println!("{line}");
        }
        let mut options = Options::new(client, settings, &identity);
        (options.lease, options.probes, options.wire) = (lease, Some(probes), wire);
        options.binds_at_once = usize::try_from(self.bind_concurrency).unwrap_or(64);
        options.evictions_at_once = usize::try_from(self.evict_concurrency).unwrap_or(16);
        scheduler::run(options, stop)
            .await
            .map_err(|error| Failure::new(Exit::Failed, chain(&error)))
    }

    /// What it is, where it is, and what to do next.
    fn greeting(&self, told: &Told) -> Vec<String> {
        let name = &self.how.name;
        let replicas = match self.no_leader_election {
            true => "none beside this one (--no-leader-election)".to_owned(),
            false => format!(
                "one leads, by Lease {}/{}; this is {}",
                told.namespace, self.lease_name, told.identity
            ),
        };
        let mut lines =
            vec![format!("Berth {} scheduler for Kubernetes", env!("CARGO_PKG_VERSION"))];
        lines.push(format!("  pods      with schedulerName: {name}"));
        lines.push(format!("  policy    {}", told.policy));
        lines.push(format!("  replicas  {replicas}"));
        lines.push(format!("  probes    http://{}/readyz and /metrics", told.probes));
        if let Some(wire) = told.wire {
            lines.push(format!("  wire      http://{wire}/ for agents of virtual machines"));
        }
        let overrides = format!(r#"'{{"spec":{{"schedulerName":"{name}"}}}}'"#);
        lines.push(String::new());
        lines.push("Try next, in another shell:".to_owned());
        lines.push(format!(
            "  kubectl run hello --image=registry.k8s.io/pause:3.10 --overrides={overrides}"
        ));
        lines.push("  berth explain pod default/hello".to_owned());
        lines.push(String::new());
        lines.push("Ctrl-C stops it; bindings that were begun are finished first.".to_owned());
        lines
    }
}

/// What is known once it has started.
struct Told {
    probes: SocketAddr,
    wire: Option<SocketAddr>,
    policy: String,
    namespace: String,
    identity: String,
}
