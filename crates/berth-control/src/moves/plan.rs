//! What is to be moved and why, as a value that is never changed once it was made.

use std::fmt;
use std::sync::Arc;

use berth_api::MigrationReason;
use berth_engine::{InstanceId, NodeId};
use berth_ledger::AvailabilityGuard;

use super::evacuee::Evacuee;

/// What a step does with its instance.
#[derive(Clone, Debug)]
pub(super) enum MoveAction {
    /// Stop it and start it on the best other node. The node is chosen when the step is carried
    /// out, by the placer, so that the choice and the claim are one.
    Restart {
        evacuee: Evacuee,
        /// Which other members of its workload must run meanwhile.
        guard: Option<Arc<AvailabilityGuard>>,
    },
    /// Stop it, and start it nowhere.
    Stop(Evacuee),
    /// Move it while it runs.
    Migrate {
        /// The node that it goes to.
        to: NodeId,
        /// MiB that are expected to be copied.
        cost: u64,
        /// The reason that is stored with the migration.
        kind: MigrationReason,
    },
}

/// One instance that is to leave its node.
#[derive(Clone, Debug)]
pub(super) struct MoveStep {
    pub(super) instance: InstanceId,
    pub(super) from: NodeId,
    pub(super) action: MoveAction,
    /// Why, for operators.
    pub(super) reason: String,
}

impl MoveStep {
    pub(super) fn restart(
        evacuee: Evacuee,
        guard: Option<Arc<AvailabilityGuard>>,
        reason: impl Into<String>,
    ) -> Self {
        let (instance, from) = (evacuee.id(), evacuee.claim.node.clone());
        let action = MoveAction::Restart { evacuee, guard };
        Self { instance, from, action, reason: reason.into() }
    }

    pub(super) fn stop(evacuee: Evacuee, reason: impl Into<String>) -> Self {
        let (instance, from) = (evacuee.id(), evacuee.claim.node.clone());
        Self { instance, from, action: MoveAction::Stop(evacuee), reason: reason.into() }
    }
}

impl fmt::Display for MoveStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, from, reason, .. } = self;
        match &self.action {
            MoveAction::Restart { .. } => write!(out, "restart {instance} off {from}: {reason}"),
            MoveAction::Stop(_) => write!(out, "stop {instance} on {from}: {reason}"),
            MoveAction::Migrate { to, .. } => {
                write!(out, "migrate {instance} from {from} to {to}: {reason}")
            }
        }
    }
}

/// Steps that were planned together, in the order in which they are to be started.
#[derive(Clone, Debug, Default)]
pub(super) struct MovePlan {
    steps: Vec<MoveStep>,
    /// The last migration decision that the planner had seen, as a revision of the guard document;
    /// absent before the first one. Migrations of this plan are refused if there are later ones.
    decided_after: Option<i64>,
}

impl MovePlan {
    pub(super) fn new(steps: Vec<MoveStep>, decided_after: Option<i64>) -> Self {
        Self { steps, decided_after }
    }

    pub(super) fn steps(&self) -> &[MoveStep] {
        &self.steps
    }

    pub(super) const fn decided_after(&self) -> Option<i64> {
        self.decided_after
    }
}
