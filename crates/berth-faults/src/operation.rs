//! What a load does: one operation is one request to the ledger, and the messages that report it to
//! the history.

use berth_engine::{Amounts, InstanceId};
use berth_ledger::{
    Advance, Answer, ClaimKey, Ledger, LedgerError, Move, Op, Plan, Release, Resize, Step, Text,
    Verdict,
};
use serde::{Deserialize, Serialize};

use crate::fleet::{self, Nodes};

/// Longer than any test, so that no lease ends by itself.
const LEASE_S: u32 = 30 * 86_400;

/// One claim of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSpec {
    /// The instance.
    pub instance: InstanceId,
    /// The number of the node.
    pub node: usize,
    /// Thousandths of a core.
    pub cpu_milli: u32,
    /// Mebibytes.
    pub memory_mib: u32,
}

/// One request to the ledger. Repeating it must not do it twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Claims a plan.
    Commit {
        /// Its id.
        request: String,
        /// Its claims.
        claims: Vec<ClaimSpec>,
    },
    /// Ends a claim.
    Release {
        /// Its id.
        request: String,
        /// The instance.
        instance: InstanceId,
        /// The claim's fence.
        fence: i64,
    },
    /// Moves an instance.
    Move {
        /// Its id.
        request: String,
        /// The claim's fence.
        fence: i64,
        /// Where to, and what it is charged.
        to: ClaimSpec,
    },
    /// Changes what a claim is charged.
    Resize {
        /// Its id.
        request: String,
        /// The claim's fence.
        fence: i64,
        /// What it is to be charged; it stays where it is.
        to: ClaimSpec,
    },
    /// An agent takes a claim up.
    Bind {
        /// The instance.
        instance: InstanceId,
        /// The claim's fence.
        fence: i64,
    },
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done; the fences of its claims, in order.
    Done(Vec<i64>),
    /// The ledger refused it, which is always wrong on this fleet.
    Refused(String),
    /// The ledger does not know.
    Failed {
        /// The kind of error.
        kind: String,
        /// Its text.
        why: String,
    },
}

/// One line of a load: what it is about to do, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// A request is about to be sent.
    Started {
        /// The thread; it waits for the answer before it asks again.
        thread: u32,
        /// The request.
        operation: Operation,
    },
    /// It was acknowledged.
    Done {
        /// The thread.
        thread: u32,
    },
    /// It was refused.
    Refused {
        /// The thread.
        thread: u32,
        /// Why.
        why: String,
    },
    /// The ledger does not know what became of it; it will be sent again.
    Failed {
        /// The thread.
        thread: u32,
        /// The kind of error.
        kind: String,
        /// Its text.
        why: String,
    },
}

impl Operation {
    fn op(&self, nodes: &Nodes) -> Op {
        match self {
            Self::Commit { request, claims } => {
                let tenant = claims.first().map(|claim| fleet::tenant(claim.instance));
                let planned = claims.iter().map(|spec| spec.planned(nodes)).collect();
                let mut plan = Plan::new(request, &tenant.unwrap_or_default(), planned);
                plan.lease_s = LEASE_S;
                Op::Commit(plan)
            }
            Self::Release { request, instance, fence } => Op::Release(Release {
                request_id: Text::from(request.as_str()),
                key: ClaimKey::primary(*instance),
                tenant: None,
                fence: Some(*fence),
                confirmed: true,
                reason: Text::from("done"),
            }),
            Self::Move { request, fence, to } => Op::Move(Box::new(Move {
                request_id: Text::from(request.as_str()),
                fence: Some(*fence),
                to: to.planned(nodes),
                restart: false,
                guard: None,
            })),
            Self::Resize { request, fence, to } => Op::Resize(Resize {
                request_id: Text::from(request.as_str()),
                key: ClaimKey::primary(to.instance),
                tenant: None,
                fence: Some(*fence),
                amounts: to.amounts(),
                cpu_hard: false,
                host_cpu_milli: None,
            }),
            Self::Bind { instance, fence } => Op::Advance(Advance {
                key: ClaimKey::primary(*instance),
                tenant: None,
                fence: *fence,
                step: Step::Bind,
            }),
        }
    }

    /// Does it, and waits for the answer.
    #[must_use]
    pub fn perform(&self, ledger: &Ledger, nodes: &Nodes) -> Reply {
        match ledger.call(self.op(nodes)) {
            Ok(Answer::Plan(Verdict::Granted(grant)) | Answer::Repeated(grant)) => {
                Reply::Done(grant.claims.iter().map(|claim| claim.fence).collect())
            }
            Ok(Answer::Claim(Ok(standing))) => Reply::Done(vec![standing.fence]),
            Ok(other) => Reply::Refused(format!("{self:?}: {other:?}")),
            Err(error) => Reply::Failed { kind: kind(&error).to_owned(), why: error.to_string() },
        }
    }
}

impl ClaimSpec {
    fn planned(&self, nodes: &Nodes) -> berth_ledger::PlannedClaim {
        let request = fleet::request(self.instance, self.cpu_milli, self.memory_mib);
        nodes.plan(request, self.node)
    }

    fn amounts(&self) -> Amounts {
        fleet::request(self.instance, self.cpu_milli, self.memory_mib).resources
    }
}

fn kind(error: &LedgerError) -> &'static str {
    match error {
        LedgerError::Unreachable(_) => "unreachable",
        LedgerError::StorageFull(_) => "storage_full",
        LedgerError::Contention { .. } => "contention",
        LedgerError::Database(_) => "database",
        LedgerError::Corrupt(_) => "corrupt",
        LedgerError::Closed => "closed",
        LedgerError::Overloaded { .. } => "overloaded",
        LedgerError::NewerSchema { .. }
        | LedgerError::InvalidUrl { .. }
        | LedgerError::TransactionPooling
        | LedgerError::InvalidUrlSetting { .. }
        | LedgerError::InvalidCursor { .. }
        | LedgerError::CursorTooOld { .. }
        | LedgerError::CursorInFuture { .. } => "other",
    }
}
