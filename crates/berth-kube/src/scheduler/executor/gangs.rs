//! Binds all pods of a gang or none, as far as the API server can tell in advance.
//!
//! Their volumes and claims are prepared first; then every binding is tried as a dry run; only if none is refused
//! are the pods bound. A binding cannot be undone, so from then on all of them are retried until they
//! succeed.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::binder::BindOutcome;
use super::{ApiExecutor, ApiFailure};
use crate::client::backoff_delay;
use crate::cluster::outcome::Reservation;
use crate::cluster::pod::Key;
use crate::cluster::pod_groups::describe_gang;

/// How often an unanswered dry run is retried.
const TRIES: u32 = 8;

impl ApiExecutor {
    pub(super) async fn bind_gang(&self, gang: &Key, members: Vec<Reservation>) {
        let began = Instant::now();
        // All volumes and claims before the first dry run: they may take minutes, and a dry run only tells
        // what is true now.
        let volumes = members.iter().map(|member| async { self.prepare(member).await.err() });
        let mut prepared = join_all(volumes).await;
        if prepared.iter().all(Option::is_none) {
            prepared = join_all(members.iter().map(|member| self.dry_run_binding(member))).await;
        }
        let failed = prepared.iter().zip(&members).find(|(outcome, _)| outcome.is_some());
        if let Some((_, first)) = failed {
            let reason = format!(
                "{}: {} could not be bound, so none is",
                describe_gang(&gang.name),
                first.pod
            );
            for (member, outcome) in members.iter().zip(prepared) {
                let outcome = outcome.unwrap_or_else(|| BindOutcome::Failed(reason.clone()));
                self.report_binding(member, outcome, began).await;
            }
            return;
        }
        let binds = members.iter().map(|member| async move {
            let outcome = self.bind(member).await;
            self.report_binding(member, outcome, began).await;
        });
        join_all(binds).await;
    }

    /// Tries a member's binding without effect; returns an outcome if it would fail.
    async fn dry_run_binding(&self, member: &Reservation) -> Option<BindOutcome> {
        let mut last = String::new();
        for failures in 1..=TRIES {
            let Some(answer) = self.try_binding(member, true).await else {
                return Some(BindOutcome::NotLeader);
            };
            match answer {
                Ok(()) => return None,
                Err(ApiFailure::NotFound(_)) => return Some(BindOutcome::Deleted),
                Err(ApiFailure::Conflict(reason) | ApiFailure::Rejected(reason)) => {
                    return Some(BindOutcome::Failed(format!(
                        "binding to {} was refused: {reason}",
                        member.node
                    )));
                }
                Err(
                    ApiFailure::RetryLater { reason, .. }
                    | ApiFailure::Forbidden(reason)
                    | ApiFailure::Unknown(reason),
                ) => {
                    last = reason;
                }
            }
            tokio::time::sleep(backoff_delay(failures)).await;
        }
        let message = format!("dry run of binding to {} failed: {last}", member.node);
        Some(BindOutcome::Failed(message))
    }
}
