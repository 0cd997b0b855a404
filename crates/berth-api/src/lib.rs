//! The types of Berth's API: requests and responses, shared by server and clients.
//!
//! Types only. Unknown fields are refused, so that a misspelt one is never silently ignored; times are RFC 3339 in UTC unless a field says otherwise; amounts are whole numbers of
//! the unit in their name.

mod access;
mod claim;
pub mod data_error;
mod decision;
mod drain;
mod elastic;
mod event;
pub mod limits;
pub mod name_hints;
mod node;
mod place;
mod policy;
mod preemption;
mod problem;
mod queue;
mod rebalance;
mod resource;
pub mod select;
mod tenant;
pub mod units;
pub mod wire;
mod workload;

pub use access::{
    AuditEntry, CreatedToken, NewToken, Role, ServerStatus, ServerWarning, Token, WhoAmI,
};
pub use berth_engine::workload::{CapacityMode, CapacityRule, OnChange, Rolling, Share, Strategy};
pub use claim::{
    Claim, ClaimRole, ClaimState, ClaimStatus, FencedRequest, Instance, InstanceSlot,
    LocalityIndex, ReleaseClaim, RenewClaim,
};
pub use decision::{
    Decision, DecisionExplanation, DecisionOutcome, InstanceExplanation, PlacedAt, PlacementReason,
    Replay, ReplayOutcome,
};
pub use drain::{
    Drain, DrainMove, DrainNode, DrainState, Evacuation, EvacuationQuery, MoveState, MoveVolume,
    ReclaimNotice, VolumeMove, VolumeMoveAction, VolumeMoveReport, VolumeMoveState, VolumeMoveStep,
    VolumeMoveTask,
};
pub use elastic::{
    AskPermit, Headroom, Migration, MigrationAction, MigrationReason, MigrationReport,
    MigrationState, MigrationStep, MigrationTask, NodePressure, Permit, PermitKey, Pressure,
    ResourcePressure, SetBounds, StartMigration,
};
pub use event::Event;
pub use node::{
    Assignment, AssignmentList, FailureCause, FoundInstance, Heartbeat, HeartbeatResponse,
    ImportLine, ImportReport, Node, NodeEvacuation, NodeExplanation, NodeInstance, NodeStateChange,
    ReportedInstance, RunState, RunningInstance, UnsetFacts,
};
pub use place::{
    ExplainLevel, HeldValue, InstanceSpec, Mode, PlaceRequest, Placed, PlacedInstance, PlacedSlot,
    Resources,
};
pub use policy::{
    LiveClass, LiveCounts, LiveDecision, LiveDiff, LiveNode, LiveStanding, LiveTerms, PolicyChange,
    PolicyDiff, PolicyDiffQuery, PolicyRef, PolicyText, StoredPolicy,
};
pub use preemption::{
    ApplyPreemption, PreemptedInstance, Preemption, PreemptionApplied, PreemptionVictim,
};
pub use problem::{FieldError, Problem};
pub use queue::{Demand, Ticket, TicketState};
pub use rebalance::{
    ApplyRebalance, NotBegun, PlanRebalance, Rebalance, RebalanceApplied, RebalanceStep,
};
pub use resource::{
    Attachment, Group, NewAttachment, NewGroup, NewPool, NewVolume, Page, Pool, Quota, QuotaUse,
    Secrets, Volume,
};
pub use tenant::{HoldingKind, TenantHolding, TenantHoldings, TenantRemovalStatus};
pub use workload::{
    ChangeRollout, Degraded, Env, EnvWorkload, Member, NewWorkload, PastRevision, RolloutAction,
    RolloutStatus, ScaleWorkload, Workload, WorkloadState, WorkloadStatus,
};

pub use berth_engine as engine;

/// The header that carries a request id, as an alternative to the body.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    /// Checks that a request with the old name of a field is the same request, and is written with the
    /// new name.
    fn check<T>(mut request: Value, name: &str, old_name: &str)
    where
        T: DeserializeOwned + Serialize + PartialEq + Debug,
    {
        let read = |request: &Value| serde_json::from_value::<T>(request.clone()).unwrap();
        let new = read(&request);
        let value = request.as_object_mut().and_then(|fields| fields.remove(name)).unwrap();
        request[old_name] = value.clone();
        assert_eq!(read(&request), new);
        let written = serde_json::to_value(&new).unwrap();
        assert_eq!(written[name], value);
        assert_eq!(written.get(old_name), None);
    }

    #[test]
    fn requests_of_version_0_1_are_accepted() {
        let instances = json!([{"resources": {"memory_mib": 64}}]);
        check::<PlaceRequest>(json!({"tenant": "a", "instances": instances}), "tenant", "owner");
        let group = json!({"tenant": "a", "kind": "apart", "strength": "hard", "topology": "rack"});
        check::<NewGroup>(group, "tenant", "owner");
        check::<NewVolume>(json!({"tenant": "a", "home": "n1"}), "tenant", "owner");
        check::<NewAttachment>(json!({"tenant": "a", "volumes": ["v"]}), "tenant", "owner");
        let token = json!({"tenants": ["a", "b"], "name": "t", "role": "tenant"});
        check::<NewToken>(token, "tenants", "namespaces");
    }
}
