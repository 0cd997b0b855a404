//! The whole inside of a server as one document, what must hold of it, and a fleet made from it.
//!
//! A dump has the ledger's rows as of one moment, and what the two copies in memory (the planner's
//! and the readers') make of each node, so that all three can be compared. Checking it needs no
//! server: a dump from production is a fixture for a test. Nothing here changes anything.

mod check;
mod dump;
mod load;
mod rows;
mod take;

pub use check::{CheckReport, Invariant, Violation, check};
pub use dump::{
    CatalogueNode, ClaimDump, ClassDump, Copies, Cursors, Dump, GroupDump, InFlight, NodeDump,
    PolicyDump, PoolValueDump, QuotaDump, SCHEMA, SlotDump, StoredRecord, TenantUseDump,
    TicketDump, WorkloadDump,
};
pub use load::LoadError;
pub use take::take;
