//! The vocabulary: claims, plans, operations, answers, events and receipts.
//!
//! Plain data. Nothing here decides and nothing here knows a database.

mod answer;
mod claim;
mod elastic;
mod event;
mod json;
mod op;
mod plan;
mod pool;
mod receipt;
mod refusal_detail;
mod service;
mod tenant;

pub use answer::{
    Answer, ClaimRejection, ClaimStatus, Conflict, Grant, GrantedClaim, Guard, NodeSnapshot,
    Outcome, RefusalReason, Verdict,
};
pub use claim::{
    Claim, ClaimHoldings, ClaimKey, ClaimState, GroupPlace, HeldValue, Micros, Role, Slot, SlotKey,
    Spec, Text, slot_id,
};
pub use elastic::{
    Bounds, DocumentWrite, Hold, PermitAnswer, PermitBasis, PermitOperation, Switch, WithDocuments,
};
pub(crate) use event::pack as pack_events;
pub use event::{Allocation, Event, EventBody, EventPage, Segment};
pub(crate) use json::granted_answer;
pub use op::{
    Adopt, Advance, Assumptions, AvailabilityGuard, Drift, Move, Op, Preempt, PreemptVictim, Quota,
    Release, Resize, Scheduling, SchedulingFailure, Step, StopMember, UnmetDemand, Workload,
};
pub(crate) use plan::half_hash_of;
pub use plan::{Basis, DEFAULT_LEASE_S, NodeVersion, Plan, PlannedClaim, hash_of_asked};
pub use pool::{InvalidPool, Pool, PoolKind};
pub use receipt::{DecisionOutcome, DecisionRecord, PlacedInstance, writer_of_chain};
pub(crate) use receipt::{REFUSALS, link, pack as pack_decisions, unpack as unpack_decisions};
pub use refusal_detail::RefusalDetail;
pub use service::{
    AuditEntry, AuditFilter, Audited, Document, Expect, IfUnanswered, QuarantinedTicket, QuotaUse,
    StoredPolicy, TenantUse, TicketAnswer,
};
pub use tenant::{ForTenants, StartTenantRemoval, TenantClaim, TenantHoldings, TenantRemoval};
