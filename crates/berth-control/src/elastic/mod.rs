//! Elastic instances: what the policy says of each, permits, and reserves of hosts.
//!
//! The arithmetic is the engine's and the decision the ledger's; here is only what applies to an
//! instance at the moment of its request, and how the answer is written.

mod bounds;
mod classify;
mod permit;
mod reserve;

use berth_engine::elastic::{Account, ElasticSettings, Holding, Size, Sums};
use berth_ledger::Role;

use crate::catalog::{CatalogState, NodeEntry};
use crate::state::migrations::Migrations;

pub use bounds::set_bounds;
pub use classify::classify;
pub use permit::{PermitCaller, read_permit, request_permit};
pub(crate) use reserve::{ReserveReconciler, facts_under};

/// What of a node is reserved, uncertain and lacking, as of now.
#[must_use]
pub fn node_account(
    catalog: &CatalogState,
    migrations: &Migrations,
    settings: &ElasticSettings,
    entry: &NodeEntry,
    now: i64,
) -> Account {
    let claims = entry.claims.iter().filter_map(|key| catalog.claims.get(key));
    let holdings = claims.map(|claim| Holding {
        charge: Size::of(&claim.amounts),
        permit: claim.permit,
        leaving: match claim.key.role {
            Role::Primary => migrations.is_leaving(claim.key.instance, &entry.facts.id),
            Role::MigrationTarget => false,
            Role::MigrationSource => true,
        },
    });
    let sums = Sums::of(holdings, now, settings.pressure_half_life_s);
    let watermark = settings.on(&entry.facts).watermark;
    Account::of(&entry.facts, &entry.room.used, watermark, &sums)
}
