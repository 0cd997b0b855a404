//! Steps that a worker asks of the ledger itself, past any planner.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::{InstanceId, InstanceRequest, NodeId, NodeState};
use berth_ledger::{
    Advance, ClaimKey, LedgerError, Move, Op, Outcome, Rejected, Release, Standing, Step, Text,
};

use super::Server;
use crate::protocol::{MoveAsk, Order, Report, Stood};
use crate::timing::stopwatch;

/// Moves that this process has asked for.
static MOVES: AtomicU64 = AtomicU64::new(0);

/// The longest that an instance is moved to and fro.
pub(super) const TO_AND_FRO: Duration = Duration::from_secs(10);

fn stood(answer: Result<Result<Standing, Rejected>, LedgerError>) -> Stood {
    match answer {
        Ok(Ok(standing)) => Stood::Stands {
            node: standing.node.to_string(),
            state: standing.state,
            fence: standing.fence,
        },
        Ok(Err(rejected)) => {
            Stood::Rejected { code: rejected.code().to_owned(), text: format!("{rejected:?}") }
        }
        Err(error) => Stood::Unknown(error.to_string()),
    }
}

fn known<T>(answer: Result<T, LedgerError>, say: impl FnOnce(T) -> Stood) -> Stood {
    match answer {
        Ok(found) => say(found),
        Err(error) => Stood::Unknown(error.to_string()),
    }
}

impl Server {
    pub(super) fn obey(&self, order: &Order) -> Stood {
        match order {
            Order::Bind { instance, fence } => self.step(*instance, *fence, Step::Bind),
            Order::Activate { instance, fence } => self.step(*instance, *fence, Step::Activate),
            Order::Renew { instance, fence, lease_s } => {
                self.step(*instance, *fence, Step::Renew { lease_s: *lease_s })
            }
            Order::Release { request_id, instance } => self.release(request_id, *instance),
            Order::Move(ask) => self.relocate(ask),
            Order::Permit { instance, seq, memory_mib } => {
                self.permit(*instance, *seq, *memory_mib)
            }
            Order::NaivePermit { instance, more_mib } => self.naive_permit(*instance, *more_mib),
            Order::Reap => known(self.ledger().reap(), |reaped| Stood::Count(reaped.len())),
            Order::Cordon { node, after_ms } => {
                std::thread::sleep(Duration::from_millis(*after_ms));
                let (node, state) = (NodeId::new(node), NodeState::Cordoned);
                let cordon = Op::SetNodeState { node, state, expect: None };
                known(self.ledger().administer(cordon), |outcome| match outcome {
                    Outcome::Done | Outcome::Unchanged => Stood::Done,
                    Outcome::Impossible(why) => Stood::Unknown(why),
                    Outcome::Stale { current } => Stood::Unknown(format!("at {current:?}")),
                })
            }
            Order::Reconcile { times } => {
                let mut found = Vec::new();
                for _ in 0..*times {
                    match self.ledger().reconcile() {
                        Ok(drifts) => found.extend(drifts),
                        Err(error) => return Stood::Unknown(error.to_string()),
                    }
                }
                Stood::Drifts(found)
            }
        }
    }

    fn step(&self, instance: InstanceId, fence: i64, step: Step) -> Stood {
        let key = ClaimKey::primary(instance);
        stood(self.ledger().advance(Advance { key, owner: None, fence, step }))
    }

    fn release(&self, request_id: &str, instance: InstanceId) -> Stood {
        stood(self.ledger().release(Release {
            request_id: Text::from(request_id),
            key: ClaimKey::primary(instance),
            owner: None,
            fence: None,
            confirmed: true,
            reason: Text::from("asked"),
        }))
    }

    fn relocate(&self, ask: &MoveAsk) -> Stood {
        let to = self.planned(&ask.instance, &ask.node);
        let request_id = Text::from(ask.request_id.as_str());
        stood(self.ledger().relocate(Move { request_id, fence: None, to, restart: false }))
    }

    /// Moves an instance to and fro, to be killed in the middle of it.
    pub(super) fn move_to_and_fro(
        &self,
        instance: &InstanceRequest,
        nodes: &[String; 2],
    ) -> Report {
        let (started, mut answers) = (stopwatch(), Vec::new());
        for node in nodes.iter().cycle() {
            if started.elapsed() > TO_AND_FRO {
                break;
            }
            let number = MOVES.fetch_add(1, Ordering::Relaxed);
            let request_id = format!("move-{}-{}-{number}", std::process::id(), instance.id);
            let (instance, node) = (instance.clone(), node.clone());
            answers.push(self.relocate(&MoveAsk { request_id, instance, node }));
        }
        Report::Stood(answers)
    }
}
