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
mod service;

pub use answer::{
    Conflict, Grant, GrantedClaim, Guard, NodeNow, RefusedBy, Rejected, Standing, Verdict,
};
pub use claim::{
    Claim, ClaimKey, ClaimState, GroupPlace, HeldValue, Micros, Role, Seat, SlotKey, Spec, Text,
    Ties,
};
pub use elastic::{Bounds, DocumentWrite, Hold, PermitAnswer, PermitAsk, Switch, With};
pub(crate) use event::pack as pack_events;
pub use event::{Allocated, Event, EventBody, Page, Segment};
pub(crate) use json::granted_answer;
pub use op::{
    Adopt, Advance, Answer, Drift, Failing, Move, Op, Outcome, Quota, Release, Resize, Scheduling,
    Step, UnmetDemand, Workload,
};
pub(crate) use plan::first_half;
pub use plan::{Basis, DEFAULT_LEASE_S, Plan, PlannedClaim, Seen, hash_of_asked};
pub use pool::{InvalidPool, Pool, PoolKind};
pub use receipt::{DecisionOutcome, DecisionRecord, PlacedAt};
pub(crate) use receipt::{link, pack as pack_decisions, unpack as unpack_decisions};
pub use service::{
    AuditEntry, AuditFilter, By, Document, Expect, QuotaUse, StoredPolicy, TenantUse,
};
