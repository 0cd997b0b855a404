//! Every route, by what it is about.

mod audit;
mod claims;
mod decisions;
mod evacuations;
mod events;
mod health;
mod instances;
mod migrations;
mod nodes;
mod pages;
mod permits;
mod placements;
mod policies;
mod queue;
mod rebalance;
mod state;
mod things;
mod tokens;
mod workloads;

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
        .merge(things::routes())
        .merge(workloads::routes())
        .merge(policies::routes())
        .merge(tokens::routes())
        .merge(audit::routes())
        .merge(state::routes())
        .merge(pages::routes())
}
