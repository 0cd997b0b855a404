//! `/v1/queue` and `/v1/demand`: requests that wait for room, and demand that found none.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{Demand, Page, Ticket};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, placements};
use crate::http::extract::{Path, Query, RequestContext};
use crate::http::list::{PageQuery, first_page, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::instance_spec::{read_stored_request, shown_request};
use berth_control::state::TicketPage;
use berth_control::{ControlPlane, clock::moment};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, cancel)).routes(routes!(demand))
}

/// List waiting requests
///
/// In the order in which they are tried, each with its position; then those that were closed in
/// the last hour.
#[utoipa::path(get, path = "/v1/queue", tag = "queue", params(PageQuery),
    responses((status = 200, description = "Waiting requests.", body = Page<Ticket>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<PageQuery>,
) -> ApiResult<axum::Json<Page<Ticket>>> {
    let limit = page_limit(query.limit)?;
    let page = TicketPage {
        after: query.cursor.as_deref(),
        // One more tells whether there is a next page.
        most: limit + 1,
        is_wanted: &|ticket: &Ticket| caller.sees(&ticket.tenant),
    };
    let tickets = control.queue.list(&page, &control.lifecycle.settings(), control.now());
    let tickets = tickets.into_iter().map(|ticket| (ticket.id.clone(), ticket));
    Ok(axum::Json(first_page(tickets, limit)))
}

/// How long to wait.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// Answer when it is closed, or after so many seconds.
    #[param(maximum = 300)]
    wait_s: Option<u64>,
}

/// Seconds for which the caller of [`get`] would have its answer held back, from the query.
pub(in crate::http) fn held_s(query: &str) -> u64 {
    let wait = query.split('&').find_map(|part| part.strip_prefix("wait_s=")?.parse().ok());
    wait.unwrap_or(0).min(placements::LONGEST_HOLD_S)
}

/// Read a waiting request
#[utoipa::path(get, path = "/v1/queue/{id}", tag = "queue",
    params(("id" = String, Path, description = "The ticket."), WaitQuery),
    responses((status = 200, description = "The request and its state.", body = Ticket)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> ApiResult<axum::Json<Ticket>> {
    check_tenant(&control, &caller, &id).await?;
    let held_s = query.wait_s.unwrap_or(0).min(placements::LONGEST_HOLD_S);
    let ticket = placements::hold(&control, &id, held_s).await;
    ticket.map(axum::Json).ok_or_else(|| ApiError::not_found("waiting request", &id))
}

/// Cancel a waiting request
#[utoipa::path(delete, path = "/v1/queue/{id}", tag = "queue",
    params(("id" = String, Path, description = "The ticket.")),
    responses((status = 204, description = "Cancelled.")))]
async fn cancel(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    check_tenant(&control, &caller, &id).await?;
    berth_control::queue::cancel(&control, &caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn check_tenant(control: &ControlPlane, caller: &Caller, id: &str) -> ApiResult<()> {
    berth_control::queue::find(control, id).await?;
    let known = control.queue.tickets.get(id);
    match known.filter(|known| caller.sees(&known.value.ticket.tenant)) {
        Some(_) => Ok(()),
        None => Err(ApiError::not_found("waiting request", id)),
    }
}

/// List unmet demand
///
/// Shapes that found no room, most recent first: the signal to scale out by.
#[utoipa::path(get, path = "/v1/demand", tag = "queue",
    responses((status = 200, description = "Unmet demand.", body = Page<Demand>)))]
async fn demand(State(control): State<Arc<ControlPlane>>) -> ApiResult<axum::Json<Page<Demand>>> {
    let found = control.read(berth_ledger::Ledger::demand).await?;
    let items = found.into_iter().map(|demand| Demand {
        tenant: demand.tenant,
        code: demand.code,
        request: shown_request(read_stored_request(&demand.spec)),
        times: demand.times,
        first_at: moment(berth_ledger::Micros(demand.first_at)),
        last_at: moment(berth_ledger::Micros(demand.last_at)),
    });
    Ok(axum::Json(Page { items: items.take(1000).collect(), next: None }))
}
