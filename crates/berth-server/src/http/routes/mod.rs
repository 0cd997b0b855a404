//! Every route, by what it is about.

mod audit;
mod claims;
mod console;
mod decisions;
mod evacuations;
mod events;
mod health;
mod instances;
mod migrations;
mod nodes;
mod pages;
mod permits;
pub(super) mod placements;
mod policies;
mod preemptions;
pub(super) mod queue;
mod rebalance;
mod resources;
mod state;
mod tenants;
mod tokens;
mod workloads;

pub(super) use state::WAITING as PIECES_WAITING;

use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;

use super::HttpLimits;
use crate::state::AppState;

/// Routes and what describes them.
pub(super) type Routes = OpenApiRouter<AppState>;

/// All routes. The table of permissions lists the same; a test compares them.
pub(super) fn all(limits: HttpLimits) -> Routes {
    OpenApiRouter::new()
        .merge(health::routes())
        .merge(placements::routes())
        .merge(preemptions::routes())
        .merge(queue::routes())
        .merge(claims::routes())
        .merge(instances::routes())
        .merge(permits::routes())
        .merge(migrations::routes())
        .merge(rebalance::routes())
        .merge(nodes::routes(limits))
        .merge(evacuations::routes())
        .merge(decisions::routes())
        .merge(events::routes())
        .merge(resources::routes())
        .merge(workloads::routes())
        .merge(policies::routes())
        .merge(tenants::routes())
        .merge(tokens::routes())
        .merge(audit::routes())
        .merge(state::routes())
        .merge(pages::routes())
        .merge(console::routes())
}

/// Whose object, where names are unique only within a tenant.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TenantQuery {
    /// The tenant. A token that is bound to one tenant may leave it out.
    #[serde(alias = "owner")]
    tenant: Option<String>,
}
