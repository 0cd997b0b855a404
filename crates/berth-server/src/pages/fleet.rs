//! The first page: the fleet, what waits, and what was decided of late.

use std::sync::Arc;

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::frame::{Frame, html};
use super::grid::Grid;
use super::recent::{Grants, Refusals};
use super::totals::Totals;
use super::waiting::Waiting;
use super::workloads::Workloads;
use crate::access::Caller;
use crate::http::{Answer, recent_decisions};
use crate::service::Service;

/// How often the page is asked for anew.
const REFRESH_S: u32 = 5;

/// Decisions among which grants and refusals are looked for.
const LOOKED_AT: usize = 300;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage {
    frame: Frame,
    grid: Grid,
    totals: Totals,
    waiting: Waiting,
    workloads: Workloads,
    grants: Grants,
    refusals: Refusals,
    looked_at: usize,
}

/// The page of the fleet.
pub(crate) async fn fleet_page(service: &Arc<Service>, caller: &Caller) -> Answer<Response> {
    service.settled().await;
    let decisions = recent_decisions(service, caller, LOOKED_AT).await?;
    let now = service.now();
    let tickets = service.queue.list(&service.settings.load(), now);
    let mut frame = Frame::new("Fleet", Some(caller));
    frame.refresh_s = Some(REFRESH_S);
    let (grid, totals) = {
        let books = service.catalog.books();
        (Grid::of(&books), Totals::of(&books))
    };
    let page = FleetPage {
        frame,
        grid,
        totals,
        waiting: Waiting::of(&tickets, now),
        workloads: Workloads::of(service, now),
        grants: Grants::of(&decisions, now),
        refusals: Refusals::of(&decisions, now),
        looked_at: LOOKED_AT,
    };
    Ok(html(StatusCode::OK, &page))
}
