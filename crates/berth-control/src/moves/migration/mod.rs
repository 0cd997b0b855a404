//! Live migration: moving an instance to another node while it runs. Agents do the copying and
//! report their progress.
//!
//! A migration is a document of the ledger. Every step that changes claims changes the document in
//! the same commit, so a server that is killed at any point leaves the instance either on its source
//! or on its target, and any other server continues from there. Only the documents say which
//! migrations are under way, so a failed one leaves nothing to be cleaned up in memory.

mod driver;
mod record;
mod report;
mod start;

pub(crate) use driver::MigrationDriver;
pub use record::view;
pub use report::{ObservationEffect, apply_observation, report};
pub use start::{Destination, MigrationRequest, cancel, find_destination, preview, start};

pub use crate::state::migrations::{GUARD, KIND, MigrationRecord, Migrations, StoredMigration};
