//! Steps that a worker asks of the ledger itself, past any planner.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::{InstanceId, InstanceRequest, NodeId, NodeState};
use berth_ledger::{
    Advance, ClaimKey, ClaimRejection, ClaimStatus, LedgerError, Move, Op, Outcome, Release, Step,
    Text,
};

use super::Server;
use crate::protocol::{MoveTask, Report, StepOutcome, StepTask};
use crate::timing::stopwatch;

/// Moves that this process has asked for.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// The longest that an instance is moved to and fro.
pub(super) const MOVING_TIME: Duration = Duration::from_secs(10);

fn step_outcome(answer: Result<Result<ClaimStatus, ClaimRejection>, LedgerError>) -> StepOutcome {
    match answer {
        Ok(Ok(standing)) => StepOutcome::Status {
            node: standing.node.to_string(),
            state: standing.state,
            fence: standing.fence,
        },
        Ok(Err(rejected)) => StepOutcome::Rejected {
            code: rejected.code().to_owned(),
            text: format!("{rejected:?}"),
        },
        Err(error) => StepOutcome::Unknown(error.to_string()),
    }
}

fn known<T>(
    answer: Result<T, LedgerError>,
    send_line: impl FnOnce(T) -> StepOutcome,
) -> StepOutcome {
    match answer {
        Ok(found) => send_line(found),
        Err(error) => StepOutcome::Unknown(error.to_string()),
    }
}

impl Server {
    pub(super) fn take_step(&self, order: &StepTask) -> StepOutcome {
        match order {
            StepTask::Bind { instance, fence } => self.step(*instance, *fence, Step::Bind),
            StepTask::Activate { instance, fence } => self.step(*instance, *fence, Step::Activate),
            StepTask::Renew { instance, fence, lease_s } => {
                self.step(*instance, *fence, Step::Renew { lease_s: *lease_s })
            }
            StepTask::Release { request_id, instance } => self.release(request_id, *instance),
            StepTask::Move(ask) => self.relocate(ask),
            StepTask::Permit { instance, seq, memory_mib } => {
                self.permit(*instance, *seq, *memory_mib)
            }
            StepTask::NaivePermit { instance, more_mib } => self.naive_permit(*instance, *more_mib),
            StepTask::Reap => {
                known(self.ledger().reap(), |reaped| StepOutcome::Count(reaped.len()))
            }
            StepTask::Cordon { node, after_ms } => {
                std::thread::sleep(Duration::from_millis(*after_ms));
                let (node, state) = (NodeId::new(node), NodeState::Cordoned);
                let cordon = Op::SetNodeState { node, state, expect: None };
                known(self.ledger().administer(cordon), |outcome| match outcome {
                    Outcome::Done | Outcome::Unchanged => StepOutcome::Done,
                    Outcome::Impossible(why) => StepOutcome::Unknown(why),
                    Outcome::TenantRemoving(tenant) => StepOutcome::Unknown(tenant.to_string()),
                    Outcome::Stale { current } => StepOutcome::Unknown(format!("at {current:?}")),
                })
            }
            StepTask::Reconcile { times } => {
                let mut found = Vec::new();
                for _ in 0..*times {
                    match self.ledger().reconcile() {
                        Ok(drifts) => found.extend(drifts),
                        Err(error) => return StepOutcome::Unknown(error.to_string()),
                    }
                }
                StepOutcome::Drifts(found)
            }
        }
    }

    fn step(&self, instance: InstanceId, fence: i64, step: Step) -> StepOutcome {
        let key = ClaimKey::primary(instance);
        step_outcome(self.ledger().advance(Advance { key, tenant: None, fence, step }))
    }

    fn release(&self, request_id: &str, instance: InstanceId) -> StepOutcome {
        step_outcome(self.ledger().release(Release {
            request_id: Text::from(request_id),
            key: ClaimKey::primary(instance),
            tenant: None,
            fence: None,
            confirmed: true,
            reason: Text::from("asked"),
        }))
    }

    fn relocate(&self, ask: &MoveTask) -> StepOutcome {
        let to = self.planned(&ask.instance, &ask.node);
        let request_id = Text::from(ask.request_id.as_str());
        step_outcome(self.ledger().relocate(Move {
            request_id,
            fence: None,
            to,
            restart: false,
            guard: None,
        }))
    }

    /// Moves an instance to and fro, to be killed in the middle of it.
    pub(super) fn move_back_and_forth(
        &self,
        instance: &InstanceRequest,
        nodes: &[String; 2],
    ) -> Report {
        let (started, mut answers) = (stopwatch(), Vec::new());
        for node in nodes.iter().cycle() {
            if started.elapsed() > MOVING_TIME {
                break;
            }
            let number = MOVES.fetch_add(1, Ordering::Relaxed);
            let request_id = format!("move-{}-{}-{number}", std::process::id(), instance.id);
            let (instance, node) = (instance.clone(), node.clone());
            answers.push(self.relocate(&MoveTask { request_id, instance, node }));
        }
        Report::StepOutcome(answers)
    }
}
