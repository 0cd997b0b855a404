//! `berth kube`: Berth in Kubernetes. A webhook that shares pods between on-demand and spot nodes, and
//! a scheduler that binds pods.
//!
//! Here flags become options, a person is told what runs, and signals end it. What runs is in
//! `berth-kube`.

mod scheduler;
mod way;
mod webhook;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Subcommand;
use tokio_util::sync::CancellationToken;

use crate::cmdutil::{CmdResult, Exit, Failure, Global};
use crate::up::Signals;

pub(crate) use scheduler::{How, settings};
pub(crate) use way::Way;

/// What runs in a cluster.
#[derive(Subcommand)]
pub(crate) enum Kube {
    /// Run the scheduler: it gives a node to every pod with its schedulerName.
    ///
    /// Example: berth kube scheduler --kubeconfig ~/.kube/config --namespace default
    Scheduler(Box<scheduler::SchedulerFlags>),
    /// Run the admission webhook: it shares the pods of a workload between on-demand and spot nodes.
    ///
    /// Example: berth kube webhook --namespace berth-system --data-dir webhook-data
    Webhook(Box<webhook::WebhookFlags>),
}

impl Kube {
    /// Runs until a signal ends it, and says how it ended.
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

/// A token that the first signal cancels. The second ends the process at once: whoever sends it does
/// not want to wait.
fn stop_by_signal() -> CmdResult<CancellationToken> {
    let stop = CancellationToken::new();
    let told = stop.clone();
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        let why = signals.next().await;
        tracing::info!(why, "stopping; a second signal does not wait");
        told.cancel();
        let why = signals.next().await;
        tracing::warn!(why, "stopped without waiting");
        std::process::exit(1);
    });
    Ok(stop)
}

/// An address that cannot be had, and what to do about it.
fn not_had(flag: &str, at: SocketAddr, error: &std::io::Error) -> Failure {
    let other = format!("{}:{}", at.ip(), at.port().saturating_add(1));
    let failure =
        Failure::new(Exit::Failed, format!("{flag} is {at}, which cannot be had: {error}"));
    match error.kind() {
        ErrorKind::AddrInUse => failure
            .remedy(format!("stop the program that has it, or name another, as in {flag} {other}")),
        ErrorKind::PermissionDenied => {
            failure.accepted("ports from 1024; those below are for root")
        }
        ErrorKind::AddrNotAvailable => failure.accepted("an address of this machine"),
        _ => failure,
    }
}
