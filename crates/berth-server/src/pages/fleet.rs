//! The first page: the fleet, what waits, and what was decided of late.

use std::sync::Arc;

use askama::Template;
use axum::response::Response;
use berth_api::Decision;
use http::StatusCode;

use super::frame::{Frame, html};
use super::grid::Grid;
use super::recent::{Grants, Refusals};
use super::totals::Totals;
use super::waiting::Waiting;
use super::workloads::Workloads;
use berth_control::ControlPlane;
use berth_control::caller::Caller;

/// How often the page is asked for anew.
const REFRESH_S: u32 = 5;

/// Decisions among which grants and refusals are looked for.
pub(crate) const LOOKED_AT: usize = 300;

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
pub(crate) fn fleet_page(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    decisions: &[Decision],
) -> Response {
    let now = control.now();
    let tickets = control.queue.list(&control.settings.load(), now);
    let mut frame = Frame::new("Fleet", Some(caller));
    frame.refresh_s = Some(REFRESH_S);
    let (grid, totals) = {
        let books = control.catalog.books();
        (Grid::of(&books), Totals::of(&books))
    };
    let page = FleetPage {
        frame,
        grid,
        totals,
        waiting: Waiting::of(&tickets, now),
        workloads: Workloads::of(control, now),
        grants: Grants::of(decisions, now),
        refusals: Refusals::of(decisions, now),
        looked_at: LOOKED_AT,
    };
    html(StatusCode::OK, &page)
}
