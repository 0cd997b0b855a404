//! The account of a node, from the catalogue.

use berth_engine::elastic::{Account, ElasticSettings, Holding, Size, Sums};
use berth_ledger::Role;

use crate::catalog::{CatalogState, NodeEntry};
use crate::state::migrations::Migrations;

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
