//! Messages between the test and a worker: one line of JSON each way.
//!
//! The test sends a task, the worker sends [`READY`] when it has read it, the test sends [`GO`] to
//! all workers at once, and each answers with one report.

use berth_engine::{Amounts, InstanceId, InstanceRequest};
use berth_ledger::{ClaimState, GrantedClaim};
use serde::{Deserialize, Serialize};

/// A worker has opened its ledger, or has read its task.
pub(crate) const READY: &str = "ready";

/// Begin.
pub(crate) const GO: &str = "go";

/// What makes the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claimant {
    /// The real claim path: engine, ledger, planning again.
    Placer,
    /// The conditional INSERT of seed 001, whose faults must be found.
    Naive,
}

/// How a worker is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The database.
    pub url: String,
    /// PostgreSQL's isolation level.
    pub isolation: String,
    /// What makes the claims.
    pub claimant: Claimant,
    /// A built-in policy.
    pub policy: String,
    /// How far the planner's clock is off.
    pub clock_offset_s: i64,
    /// How often others' events are looked for.
    pub follow_every_ms: u64,
}

/// Instances to be placed together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaceTask {
    /// A retry under the same id gets the first answer.
    pub request_id: String,
    /// The instances, all of one tenant.
    pub instances: Vec<InstanceRequest>,
    /// How long the claims may stay unbound.
    pub lease_s: u32,
    /// Pools that each instance takes a value from.
    pub pools: Vec<String>,
}

impl PlaceTask {
    /// One instance, under a request id made of its own.
    #[must_use]
    pub fn one(instance: InstanceRequest) -> Self {
        Self::all(&format!("place-{}", instance.id), vec![instance])
    }

    /// Several instances together.
    #[must_use]
    pub fn all(request_id: &str, instances: Vec<InstanceRequest>) -> Self {
        Self { request_id: request_id.to_owned(), instances, lease_s: 600, pools: Vec::new() }
    }

    /// The same with another lease.
    #[must_use]
    pub fn leased(self, lease_s: u32) -> Self {
        Self { lease_s, ..self }
    }
}

/// A plan made by the test, past the planner: each instance on the node next to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedPlaceTask {
    /// What is asked for.
    pub ask: PlaceTask,
    /// A node for each instance.
    pub nodes: Vec<String>,
}

/// A move to another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MoveTask {
    /// A retry under the same id gets the first answer.
    pub request_id: String,
    /// What moves.
    pub instance: InstanceRequest,
    /// Where to.
    pub node: String,
}

/// A random life of many claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SoakTask {
    /// Replays the same choices.
    pub seed: u64,
    /// How long.
    pub millis: u64,
    /// Upper half of every instance's id, so that no two workers share one.
    pub space: u64,
    /// Nodes to move among.
    pub nodes: Vec<String>,
    /// Groups to join, now and then.
    pub groups: Vec<String>,
    /// Pools to draw from, now and then.
    pub pools: Vec<String>,
}

/// One step that is asked of the ledger itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StepTask {
    /// Held becomes binding.
    Bind {
        /// The instance.
        instance: InstanceId,
        /// The fence it was granted with.
        fence: i64,
    },
    /// Binding becomes active.
    Activate {
        /// The instance.
        instance: InstanceId,
        /// The fence it was granted with.
        fence: i64,
    },
    /// Held stays held.
    Renew {
        /// The instance.
        instance: InstanceId,
        /// The fence it was granted with.
        fence: i64,
        /// For how long from now.
        lease_s: u32,
    },
    /// The claim ends.
    Release {
        /// A retry under the same id gets the first answer.
        request_id: String,
        /// The instance.
        instance: InstanceId,
    },
    /// The instance moves.
    Move(Box<MoveTask>),
    /// The instance asks how large it may be.
    Permit {
        /// The instance.
        instance: InstanceId,
        /// The request's number; absent: the next.
        seq: Option<u64>,
        /// How much memory it wants.
        memory_mib: u32,
    },
    /// The same by reading what is left and then taking it, which must be caught.
    NaivePermit {
        /// The instance.
        instance: InstanceId,
        /// How much more memory it wants.
        more_mib: u32,
    },
    /// All leases that ran out end.
    Reap,
    /// The node takes nothing new.
    Cordon {
        /// The node.
        node: String,
        /// Milliseconds to wait first.
        after_ms: u64,
    },
    /// Counters are compared with claims, so many times.
    Reconcile {
        /// How often.
        times: u32,
    },
}

/// What a worker is to do in a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Nothing.
    Idle,
    /// Places one request after the other.
    Place(Vec<PlaceTask>),
    /// Commits plans as they are.
    Commit(Vec<PlannedPlaceTask>),
    /// Takes steps one after the other.
    Steps(Vec<StepTask>),
    /// Moves an instance between two nodes until it is killed, or for ten seconds.
    MoveBackAndForth {
        /// What moves.
        instance: InstanceRequest,
        /// Between.
        nodes: [String; 2],
    },
    /// Moves an instance between two nodes while it runs, until it is killed, or for ten seconds.
    MigrateBackAndForth {
        /// What moves.
        instance: InstanceRequest,
        /// Between.
        nodes: [String; 2],
    },
    /// Places and releases for a while.
    Churn {
        /// What is placed, under ids of its own.
        like: InstanceRequest,
        /// Upper half of the ids.
        space: u64,
        /// How long.
        millis: u64,
    },
    /// Lives a random life.
    Soak(SoakTask),
    /// Tells the time.
    Clock,
    /// Tells what the worker's planner knows of these nodes, once it has seen that event.
    Mirror {
        /// The nodes.
        nodes: Vec<String>,
        /// The event.
        cursor: i64,
    },
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Claimed.
    Granted {
        /// The claims.
        claims: Vec<GrantedClaim>,
        /// The receipt.
        decision: String,
    },
    /// No room; the refusals as JSON.
    NoRoom(serde_json::Value),
    /// Refused for a reason that another node would not change.
    Refused(String),
    /// A guard failed on a node, with its code and all it said.
    Contended {
        /// The node.
        node: String,
        /// The code.
        code: String,
        /// The guard.
        text: String,
    },
    /// The request is invalid.
    Invalid(String),
    /// The outcome is unknown.
    Unknown(String),
}

impl Outcome {
    /// Whether it was claimed.
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted { .. })
    }

    /// Whether it is a clear no, and not an error.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::NoRoom(_) | Self::Refused(_) | Self::Contended { .. })
    }

    /// The claims, if there are any.
    #[must_use]
    pub fn claims(&self) -> &[GrantedClaim] {
        match self {
            Self::Granted { claims, .. } => claims,
            Self::NoRoom(_)
            | Self::Refused(_)
            | Self::Contended { .. }
            | Self::Invalid(_)
            | Self::Unknown(_) => &[],
        }
    }

    /// The first refusal, if it was refused for want of room.
    #[must_use]
    pub fn refusal(&self) -> Option<&serde_json::Value> {
        match self {
            Self::NoRoom(refusals) => refusals.get(0),
            Self::Granted { .. }
            | Self::Refused(_)
            | Self::Contended { .. }
            | Self::Invalid(_)
            | Self::Unknown(_) => None,
        }
    }
}

/// A request's outcome and how long it took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaceResult {
    /// The outcome.
    pub outcome: Outcome,
    /// Microseconds until it was known.
    pub micros: u64,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// The claim stands so.
    Status {
        /// Its node.
        node: String,
        /// Its state; absent when it is gone.
        state: Option<ClaimState>,
        /// Its fence.
        fence: i64,
    },
    /// It was refused.
    Rejected {
        /// The code.
        code: String,
        /// All that was said.
        text: String,
    },
    /// It may be so large.
    Permitted {
        /// The number of the request that was answered.
        seq: u64,
        /// The memory it may use.
        memory_mib: u32,
        /// Whether it was answered before.
        repeated: bool,
    },
    /// So many claims or counters were concerned.
    Count(usize),
    /// Counters that were out of step, as JSON.
    Drifts(Vec<berth_ledger::Drift>),
    /// Done, or done before.
    Done,
    /// The outcome is unknown.
    Unknown(String),
}

/// A claim as a worker believes it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelClaim {
    /// The instance.
    pub instance: InstanceId,
    /// Its node.
    pub node: String,
    /// Its state.
    pub state: ClaimState,
    /// Its fence.
    pub fence: i64,
    /// What it is charged.
    pub amounts: Amounts,
    /// Whether its lease may have ended since.
    pub may_expire: bool,
}

/// What a soak came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SoakReport {
    /// Claims as they should stand.
    pub held: Vec<ModelClaim>,
    /// Steps taken.
    pub steps: u64,
    /// Claims granted.
    pub grants: u64,
    /// Answers that contradict the model.
    pub wrong: Vec<String>,
}

/// What a worker did in a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// Nothing was asked.
    Idle,
    /// Outcomes, in order; and how often transactions began again.
    PlaceResult {
        /// The outcomes.
        placed: Vec<PlaceResult>,
        /// Retries of the worker's ledger since it started.
        retries: u64,
    },
    /// Answers to orders, in order.
    StepOutcome(Vec<StepOutcome>),
    /// How many were placed and released.
    Churned(u64),
    /// How the soak went.
    Soaked(Box<SoakReport>),
    /// The planner's clock, in whole seconds since the Unix epoch.
    Clock(i64),
    /// Instances and used memory per node, and the last event taken in.
    Mirror {
        /// Per node: name, instances, memory.
        nodes: Vec<(String, i64, i64)>,
        /// The last event.
        cursor: i64,
    },
}
