//! `berth kube`: Berth in Kubernetes. A webhook that splits pods between on-demand and spot nodes, and
//! a scheduler that binds pods.
//!
//! Turns flags into options, prints what runs, and handles signals. The implementation is in
//! `berth-kube`.

mod cluster_args;
mod scheduler;
mod webhook;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Subcommand;
use tokio_util::sync::CancellationToken;

use crate::cmdutil::{CmdResult, Exit, Failure, Global};
use crate::up::Signals;

pub(crate) use cluster_args::ClusterArgs;
pub(crate) use scheduler::{SchedulingArgs, settings};

/// Commands that run in a cluster.
#[derive(Subcommand)]
pub(crate) enum Kube {
    /// Run the scheduler for pods with its schedulerName.
    ///
    /// Example: berth kube scheduler --kubeconfig ~/.kube/config --namespace default
    Scheduler(Box<scheduler::SchedulerArgs>),
    /// Run the admission webhook, which splits the pods of a workload between on-demand and spot
    /// nodes.
    ///
    /// Example: berth kube webhook --namespace berth-system --data-dir webhook-data
    Webhook(Box<webhook::WebhookArgs>),
}

impl Kube {
    /// Runs until a signal, and returns the exit code.
    pub(crate) fn run(self, global: &Global) -> ExitCode {
        let done = match self {
            Self::Scheduler(flags) => flags.run(),
            Self::Webhook(flags) => flags.run(),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.report(&global.out());
                ExitCode::from(failure.exit as u8)
            }
        }
    }
}

/// A token that the first signal cancels. The second signal ends the process at once.
fn stop_by_signal() -> CmdResult<CancellationToken> {
    let stop = CancellationToken::new();
    let started = stop.clone();
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        let why = signals.next().await;
        tracing::info!(why, "stopping; a second signal does not wait");
        started.cancel();
        let why = signals.next().await;
        tracing::warn!(why, "stopped without waiting");
        std::process::exit(1);
    });
    Ok(stop)
}

/// A failure to bind an address, with a remedy.
fn address_failure(flag: &str, at: SocketAddr, error: &std::io::Error) -> Failure {
    let other = format!("{}:{}", at.ip(), at.port().saturating_add(1));
    let failure =
        Failure::new(Exit::Failed, format!("{flag} is {at}, which cannot be used: {error}"));
    match error.kind() {
        ErrorKind::AddrInUse => failure.remedy(format!(
            "stop the program that uses it, or choose another, such as {flag} {other}"
        )),
        ErrorKind::PermissionDenied => {
            failure.accepted("ports from 1024; those below are for root")
        }
        ErrorKind::AddrNotAvailable => failure.accepted("an address of this machine"),
        _ => failure,
    }
}
