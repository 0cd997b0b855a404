//! Waiting until the roll-out of a workload is complete, or the workload is gone.

use std::time::Duration;

use berth_api::{Workload, WorkloadState, units};
use berth_client::ClientError;
use clap::Args;

use super::print;
use crate::cmdutil::style::{BAD, paint};
use crate::cmdutil::{CmdResult, Exit, Failure, RawJson, Session, args, decode};

/// How often the workload is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Whether to wait for the roll-out, and how long.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    /// Wait until exactly the wanted members run; 5m if no duration is given.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    pub(crate) wait: Option<u32>,
}

/// How a wait ended.
pub(crate) struct WaitResult {
    /// The workload as last polled.
    pub(crate) raw: RawJson,
    /// Why it is not complete.
    pub(crate) failure: Option<Failure>,
}

/// Whether the roll-out is complete and no old member is left. If the caller creates the members, only
/// whether they run.
fn is_done(workload: &Workload) -> bool {
    let status = &workload.status;
    let settled = status.state == WorkloadState::Ready && status.leaving == 0;
    status.rollout.complete && (settled || workload.spec.replicas.is_none())
}

/// Waits until the roll-out of this version or a later one is complete; without a limit, indefinitely.
pub(crate) async fn until_complete(
    session: &Session,
    which: &super::Key,
    version: i64,
    limit_s: Option<u32>,
) -> CmdResult<WaitResult> {
    let path = which.path();
    let mut progress = session.out.progress(&format!("{which}: waiting"));
    let started = tokio::time::Instant::now();
    loop {
        let over =
            limit_s.is_some_and(|limit| started.elapsed() >= Duration::from_secs(u64::from(limit)));
        let raw: RawJson = match session.client.get(&path, &[]).await {
            Ok(raw) => raw,
            // Roll-outs continue after a restart of the server.
            Err(ClientError::Unreachable { .. } | ClientError::Transport(_)) if !over => {
                progress.interrupt("the server does not answer");
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let workload: Workload = decode(&raw)?;
        let line = format!("{which}: {}", workload.status.message);
        progress.update(&line, &line);
        let failure = if workload.version >= version && is_done(&workload) {
            None
        } else {
            match permanent_failure(which, &workload)
                .or_else(|| over.then(|| timed_out(&workload, limit_s)))
            {
                None => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
                some => some,
            }
        };
        progress.finish();
        return Ok(WaitResult { raw, failure });
    }
}

/// A state that waiting does not change.
fn permanent_failure(which: &super::Key, workload: &Workload) -> Option<Failure> {
    match workload.status.state {
        WorkloadState::Deleting => {
            Some(Failure::new(Exit::Conflict, format!("{which} is being removed")))
        }
        WorkloadState::Paused => {
            let line = format!("the roll-out of {which} is paused");
            let failure = Failure::new(Exit::Conflict, line);
            Some(failure.remedy(format!("resume it with: berth workloads rollout resume {which}")))
        }
        WorkloadState::Ready | WorkloadState::Progressing | WorkloadState::Degraded => None,
    }
}

/// Why a workload is not complete in time.
fn timed_out(workload: &Workload, limit_s: Option<u32>) -> Failure {
    let which = super::Key::of(workload);
    let after = units::duration(i64::from(limit_s.unwrap_or(0)));
    let Some(reason) = &workload.status.reason else {
        let line = format!("{which} is not complete after {after}: {}", workload.status.message);
        return Failure::new(Exit::Failed, line)
            .remedy(format!("show details with: berth workloads status {which}"));
    };
    let line =
        format!("{which} is degraded after {after}: {}: {}", reason.code, print::why(reason));
    let failure = Failure::new(Exit::Refused, line.clone());
    match print::refusal(workload, reason) {
        Some(drawing) => {
            failure.with_drawing(format!("{} {line}\n\n{drawing}", paint(BAD, "error:")))
        }
        None => failure.remedy(format!("show details with: berth workloads status {which}")),
    }
}

/// Waits until a workload is gone.
pub(crate) async fn until_gone(session: &Session, which: &super::Key, limit_s: u32) -> CmdResult {
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
            return Err(
                failure.remedy(format!("list its members with: berth workloads members {which}"))
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
