//! Waiting until a workload is as it should be, or gone.

use std::time::Duration;

use berth_api::{Workload, WorkloadState, units};
use berth_client::ClientError;
use clap::Args;

use super::print;
use crate::cli::args;
use crate::cli::failure::{Done, Exit, Failure};
use crate::cli::output::style::{BAD, paint};
use crate::cli::session::{Raw, Session, read_as};

/// After what time a server is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// Whether to wait, and how long.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// Wait until all wanted members run and no other is left; 5m when no duration is given.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub(crate) wait: Option<u32>,
}

/// How a wait ended: the workload as it was last seen, and what is wrong with it.
pub(crate) struct Ended {
    /// The workload.
    pub(crate) raw: Raw,
    /// Why it is not as it should be.
    pub(crate) failure: Option<Failure>,
}

/// Whether everything runs as it should, and nobody is on the way out. Of a workload whose caller
/// creates the members, only that they run.
fn is_done(workload: &Workload) -> bool {
    let status = &workload.status;
    let settled = status.state == WorkloadState::Ready && status.leaving == 0;
    status.rollout.complete && (settled || workload.spec.replicas.is_none())
}

/// Waits until a workload's roll-out is complete in this version of it or a later one. Without a
/// limit it waits for ever.
pub(crate) async fn until_complete(
    session: &Session,
    which: &super::Key,
    version: i64,
    limit_s: Option<u32>,
) -> Done<Ended> {
    let (path, out) = (which.path(), &session.out);
    let bar = out.spinner(&format!("{which}: waiting"));
    let (began, mut said) = (tokio::time::Instant::now(), String::new());
    loop {
        let over =
            limit_s.is_some_and(|limit| began.elapsed() >= Duration::from_secs(u64::from(limit)));
        let raw: Raw = match session.client.get(&path, &[]).await {
            Ok(raw) => raw,
            // A server that restarts goes on where it was.
            Err(ClientError::Unreachable { .. } | ClientError::Transport(_)) if !over => {
                bar.set_message("the server does not answer");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let workload: Workload = read_as(&raw)?;
        let status = &workload.status;
        let line = format!("{which}: {}", status.message);
        if line != said {
            // Where no bar is drawn, each step is a line.
            if bar.is_hidden() {
                out.note(&line);
            } else {
                bar.set_message(line.clone());
            }
            said = line;
        }
        let failure = if workload.version >= version && is_done(&workload) {
            None
        } else {
            match hopeless(which, &workload).or_else(|| over.then(|| late(&workload, limit_s))) {
                None => {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                some => some,
            }
        };
        bar.finish_and_clear();
        return Ok(Ended { raw, failure });
    }
}

/// What no waiting will change.
fn hopeless(which: &super::Key, workload: &Workload) -> Option<Failure> {
    match workload.status.state {
        WorkloadState::Deleting => {
            Some(Failure::new(Exit::Conflict, format!("{which} is being removed")))
        }
        WorkloadState::Paused => {
            let line = format!("the roll-out of {which} is paused");
            let failure = Failure::new(Exit::Conflict, line);
            Some(
                failure
                    .remedy(format!("let it go on with: berth workloads rollout resume {which}")),
            )
        }
        WorkloadState::Ready | WorkloadState::Progressing | WorkloadState::Degraded => None,
    }
}

/// Why a workload is not as it should be when the time is over.
fn late(workload: &Workload, limit_s: Option<u32>) -> Failure {
    let which = super::Key::of(workload);
    let after = units::duration(i64::from(limit_s.unwrap_or(0)));
    let Some(reason) = &workload.status.reason else {
        let line = format!("{which} is not complete after {after}: {}", workload.status.message);
        return Failure::new(Exit::Failed, line)
            .remedy(format!("look at it with: berth workloads status {which}"));
    };
    let line =
        format!("{which} is degraded after {after}: {}: {}", reason.code, print::why(reason));
    let failure = Failure::new(Exit::Refused, line.clone());
    match print::refusal(reason) {
        Some(picture) => failure.picture(format!("{} {line}\n\n{picture}", paint(BAD, "error:"))),
        None => failure.remedy(format!("look at it with: berth workloads status {which}")),
    }
}

/// Waits until a workload is gone.
pub(crate) async fn until_gone(session: &Session, which: &super::Key, limit_s: u32) -> Done {
    let (path, out) = (which.path(), &session.out);
    let bar = out.spinner(&format!("{which}: being removed"));
    let began = tokio::time::Instant::now();
    loop {
        let left: Workload = match session.client.get(&path, &[]).await {
            Ok(left) => left,
            Err(error) => {
                let failure = Failure::from(error);
                bar.finish_and_clear();
                return if failure.is_not_found() { Ok(()) } else { Err(failure) };
            }
        };
        bar.set_message(format!("{which}: {}", left.status.message));
        if began.elapsed() >= Duration::from_secs(u64::from(limit_s)) {
            bar.finish_and_clear();
            let after = units::duration(i64::from(limit_s));
            let line = format!("{which} is not gone after {after}: {}", left.status.message);
            let failure = Failure::new(Exit::Failed, line);
            return Err(failure.remedy(format!("see who is left: berth workloads members {which}")));
        }
        tokio::time::sleep(AGAIN).await;
    }
}
