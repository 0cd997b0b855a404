//! `berth kube scheduler`: arguments, output and shutdown.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_engine::Policy;
use berth_kube::cluster::{self, Settings};
use berth_kube::leader_election::Candidate;
use berth_kube::names;
use berth_kube::probes::Probes;
use berth_kube::scheduler::{self, Options};
use berth_kube::wire::{TokenFile, WireListener};
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;

use super::cluster_args::{ClusterArgs, IdentityArgs, LogArgs};
use super::{address_failure, stop_by_signal};
use crate::cmdutil::{CmdResult, Exit, Failure, chain};

/// Arguments of `berth kube scheduler`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SchedulerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    scheduling: SchedulingArgs,
    /// Lease for leader election, in the namespace of this process.
    #[arg(
        long,
        env = "BERTH_KUBE_LEASE_NAME",
        value_name = "NAME",
        default_value = "berth-scheduler"
    )]
    lease_name: String,
    /// Schedule without leader election; there must be only this replica.
    #[arg(long, env = "BERTH_KUBE_NO_LEADER_ELECTION")]
    no_leader_election: bool,
    /// Address of /livez, /readyz, /metrics and explanations of pods.
    #[arg(
        long,
        env = "BERTH_KUBE_PROBES",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8081"
    )]
    probes: SocketAddr,
    /// Address where agents of autoscaled virtual machines request permits, such as 0.0.0.0:10299;
    /// default: none.
    #[arg(long, env = "BERTH_KUBE_WIRE_LISTEN", value_name = "ADDRESS:PORT")]
    wire_listen: Option<SocketAddr>,
    /// File with the tokens that those agents send as `Authorization: Bearer TOKEN`, one per line;
    /// read again for each request. Required unless --wire-listen is a loopback address.
    #[arg(long, env = "BERTH_KUBE_WIRE_TOKEN_FILE", value_name = "FILE", requires = "wire_listen")]
    wire_token_file: Option<PathBuf>,
    /// ConfigMap with the policy, in the namespace of this process: `policy.toml`, or `policy` with the
    /// name of a built-in one. A change is applied at once, and an invalid policy is kept out with an
    /// event; --policy counts until the first valid one. Default: none.
    #[arg(long, env = "BERTH_KUBE_POLICY_CONFIG_MAP", value_name = "NAME")]
    policy_config_map: Option<String>,
    /// Maximum number of pods bound concurrently.
    #[arg(long, env = "BERTH_KUBE_BIND_CONCURRENCY", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bind_concurrency: u32,
    /// Maximum number of pods evicted concurrently from draining nodes.
    #[arg(long, env = "BERTH_KUBE_EVICT_CONCURRENCY", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    evict_concurrency: u32,
    /// Evict pods of lower priority from nodes that another scheduler and this one filled beyond what they
    /// have.
    #[arg(long, env = "BERTH_KUBE_EVICT_OVERFULL")]
    evict_overfull: bool,
    /// When to check a binding to a nearly full node against the API server's list of its pods before it is sent.
    #[arg(long, env = "BERTH_KUBE_NODE_CHECKS", value_enum, default_value_t, value_name = "WHEN")]
    node_checks: NodeChecks,
    #[command(flatten)]
    log: LogArgs,
}

/// How pods are scheduled.
#[derive(Args, Clone, Debug)]
pub(crate) struct SchedulingArgs {
    /// The schedulerName of the pods to schedule.
    #[arg(long, env = "BERTH_KUBE_NAME", value_name = "NAME", default_value = "berth")]
    pub(crate) name: String,
    /// Scoring policy: the name of a built-in one, or a TOML or JSON file.
    #[arg(long, env = "BERTH_KUBE_POLICY", value_name = "NAME|FILE", default_value = "balanced")]
    pub(crate) policy: String,
    /// How to treat pods without requests and limits.
    #[arg(
        long,
        env = "BERTH_KUBE_MISSING_REQUESTS",
        value_enum,
        default_value_t,
        value_name = "WHAT"
    )]
    pub(crate) missing_requests: MissingRequests,
    /// Fields of a pod's spec to ignore although this version of Berth does not know them, such as
    /// `placement` or `affinity.rackAffinity`. Without it, pods that have them are refused.
    #[arg(
        long,
        env = "BERTH_KUBE_IGNORE_POD_FIELDS",
        value_name = "FIELD,…",
        value_delimiter = ','
    )]
    pub(crate) ignore_pod_fields: Vec<String>,
}

/// When bindings are checked against the API server's list of a node's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeChecks {
    /// While another scheduler is active: it bound a pod, or got one, in the last minute.
    #[default]
    Auto,
    /// Never; bindings go by the watch alone.
    Never,
}

/// How to treat pods without requests and limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissingRequests {
    /// Count missing requests as zero.
    #[default]
    Zero,
    /// Reject them.
    Refuse,
}

/// The settings for these arguments.
pub(crate) fn settings(args: &SchedulingArgs) -> CmdResult<Settings> {
    if args.name.is_empty() {
        return Err(Failure::usage("--name is empty").accepted("a name such as berth"));
    }
    // It becomes a part of an annotation, and of messages.
    let is_fine = |it: char| it.is_ascii_alphanumeric() || "-._".contains(it);
    let ends = args.name.starts_with(|it: char| it.is_ascii_alphanumeric())
        && args.name.ends_with(|it: char| it.is_ascii_alphanumeric());
    if args.name.len() > scheduler::drain::SCHEDULER_NAME_MAX
        || !args.name.chars().all(is_fine)
        || !ends
    {
        let accepted = format!(
            "at most {} letters, digits, '-', '_' and '.', with a letter or digit at both ends",
            scheduler::drain::SCHEDULER_NAME_MAX
        );
        return Err(Failure::usage(format!("--name is {:?}", args.name)).accepted(accepted));
    }
    for field in &args.ignore_pod_fields {
        if !is_field_path(field) {
            let accepted = "a field of a pod's spec, as the refusal names it, such as placement or \
                            affinity.rackAffinity, without a leading spec.";
            return Err(
                Failure::usage(format!("--ignore-pod-fields is {field:?}")).accepted(accepted)
            );
        }
    }
    Ok(Settings {
        scheduler: args.name.clone(),
        policy: policy(&args.policy)?,
        missing_requests: match args.missing_requests {
            MissingRequests::Zero => cluster::MissingRequests::Zero,
            MissingRequests::Refuse => cluster::MissingRequests::Refuse,
        },
        ignored_pod_fields: args.ignore_pod_fields.clone(),
    })
}

/// Whether this is the path of a field within a spec: names and numbers, with dots between them.
fn is_field_path(text: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|it| it.is_ascii_alphanumeric());
    let mut parts = text.split('.');
    let starts = parts.next().is_some_and(|first| is_part(first) && first != "spec");
    starts && text.starts_with(|it: char| it.is_ascii_lowercase()) && parts.all(is_part)
}

fn policy(name: &str) -> CmdResult<Policy> {
    let builtin = match cluster::policies::builtin(name) {
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

impl SchedulerArgs {
    pub(super) fn run(self) -> CmdResult {
        let settings = settings(&self.scheduling)?;
        self.check_names()?;
        let telemetry = self.log.start()?;
        let runtime = tokio::runtime::Runtime::new()?;
        let outcome = runtime.block_on(self.schedule(settings));
        runtime.shutdown_timeout(Duration::from_secs(2));
        drop(telemetry);
        outcome
    }

    /// Rejects names that the API server would not accept.
    fn check_names(&self) -> CmdResult {
        let namespace = self.identity.namespace();
        if !names::is_label(&namespace) {
            let line = format!("--namespace is {namespace:?}");
            return Err(Failure::usage(line)
                .accepted("a name of lower-case letters, digits and -, of at most 63 characters"));
        }
        if !names::is_subdomain(&self.lease_name) {
            let line = format!("--lease-name is {:?}", self.lease_name);
            return Err(Failure::usage(line).accepted(
                "a name of lower-case letters, digits, - and ., of at most 253 characters",
            ));
        }
        Ok(())
    }

    async fn schedule(self, settings: Settings) -> CmdResult {
        let stop = stop_by_signal()?;
        let client = self.cluster.client().await?;
        let (namespace, identity) = (self.identity.namespace(), self.identity.identity());
        let probes = Probes::bind(self.probes).await;
        let probes = probes.map_err(|error| address_failure("--probes", self.probes, &error))?;
        let wire = match self.wire_listen {
            Some(at) => Some(self.listen_for_permits(at).await?),
            None => None,
        };
        let lease = (!self.no_leader_election)
            .then(|| Candidate::new(&namespace, &self.lease_name, &identity));
        let policy_config_map =
            self.policy_config_map.as_ref().map(|name| (namespace.clone(), name.clone()));
        let started = StartupInfo {
            probes: probes.local_addr()?,
            wire: wire.as_ref().and_then(|wire| wire.listener.local_addr().ok()),
            policy: settings.policy.name().to_owned(),
            namespace,
            identity: identity.clone(),
        };
        for line in self.startup_lines(&started) {
            println!("{line}");
        }
        let mut options = Options::new(client, settings, &identity);
        (options.lease, options.probes, options.wire) = (lease, Some(probes), wire);
        options.policy_config_map = policy_config_map;
        options.bind_concurrency = usize::try_from(self.bind_concurrency).unwrap_or(64);
        options.evict_overfull = self.evict_overfull;
        options.check_shared_nodes = self.node_checks == NodeChecks::Auto;
        options.eviction_concurrency = usize::try_from(self.evict_concurrency).unwrap_or(16);
        scheduler::run(options, stop)
            .await
            .map_err(|error| Failure::new(Exit::Failed, chain(&error)))
    }

    /// Binds the address of the wire protocol. What other hosts can reach needs tokens.
    async fn listen_for_permits(&self, at: SocketAddr) -> CmdResult<WireListener> {
        if self.wire_token_file.is_none() && !at.ip().to_canonical().is_loopback() {
            let line = format!("--wire-listen is {at}, which others can reach, and has no tokens");
            return Err(Failure::usage(line).accepted(
                "--wire-token-file FILE, or a loopback address such as 127.0.0.1:10299",
            ));
        }
        let tokens = self.wire_token_file.as_deref().map(|path| {
            TokenFile::open(path).map_err(|error| {
                Failure::usage(format!("--wire-token-file is {}: {error}", path.display()))
            })
        });
        let tokens = tokens.transpose()?;
        let bound = TcpListener::bind(at).await;
        let listener = bound.map_err(|error| address_failure("--wire-listen", at, &error))?;
        Ok(WireListener { listener, tokens })
    }

    /// What is printed at the start: what runs, where, and what to try next.
    fn startup_lines(&self, started: &StartupInfo) -> Vec<String> {
        let name = &self.scheduling.name;
        let replicas = match self.no_leader_election {
            true => "only this one (--no-leader-election)".to_owned(),
            false => format!(
                "one leads, by Lease {}/{}; this is {}",
                started.namespace, self.lease_name, started.identity
            ),
        };
        let mut lines =
            vec![format!("Berth {} scheduler for Kubernetes", env!("CARGO_PKG_VERSION"))];
        lines.push(format!("  pods      with schedulerName: {name}"));
        let changes = self
            .policy_config_map
            .as_ref()
            .map(|name| format!(", until ConfigMap {}/{name} has another", started.namespace));
        lines.push(format!("  policy    {}{}", started.policy, changes.unwrap_or_default()));
        lines.push(format!("  replicas  {replicas}"));
        lines.push(format!("  probes    http://{}/readyz and /metrics", started.probes));
        if let Some(wire) = started.wire {
            let sign_in = match &self.wire_token_file {
                Some(file) => format!("with a token of {}", file.display()),
                None => "on this machine".to_owned(),
            };
            lines.push(format!(
                "  wire      http://{wire}/ for agents of virtual machines {sign_in}"
            ));
        }
        let overrides = format!(r#"'{{"spec":{{"schedulerName":"{name}"}}}}'"#);
        lines.push(String::new());
        lines.push("Try next, in another shell:".to_owned());
        lines.push(format!(
            "  kubectl run hello --image=registry.k8s.io/pause:3.10 --overrides={overrides}"
        ));
        lines.push("  berth explain pod default/hello".to_owned());
        lines.push(String::new());
        lines.push("Ctrl-C stops it; bindings in progress are finished first.".to_owned());
        lines
    }
}

/// What is known after the start.
struct StartupInfo {
    probes: SocketAddr,
    wire: Option<SocketAddr>,
    policy: String,
    namespace: String,
    identity: String,
}
