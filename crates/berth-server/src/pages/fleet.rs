//! The first page: the fleet, the queue, and recent decisions.

use std::sync::Arc;

use askama::Template;
use axum::response::Response;
use berth_api::Decision;
use http::StatusCode;

use super::frame::{Frame, html};
use super::grid::Grid;
use super::queue::QueuePanel;
use super::recent_decisions::{Grants, Refusals};
use super::totals::Totals;
use super::workloads::Workloads;
use berth_control::ControlPlane;
use berth_control::caller::Caller;

/// How often the page reloads itself.
const REFRESH_S: u32 = 5;

/// How many recent decisions are searched for grants and refusals.
pub(crate) const RECENT_DECISIONS: usize = 300;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage {
    frame: Frame,
    grid: Grid,
    totals: Totals,
    queue: QueuePanel,
    workloads: Workloads,
    grants: Grants,
    refusals: Refusals,
    recent_decisions: usize,
}

/// The page of the fleet.
pub(crate) fn fleet_page(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    decisions: &[Decision],
) -> Response {
    let now = control.now();
    let mut frame = Frame::new("Fleet", Some(caller));
    frame.refresh_s = Some(REFRESH_S);
    let (grid, totals) = {
        let catalog = control.catalog.read();
        (Grid::of(&catalog), Totals::of(&catalog))
    };
    let page = FleetPage {
        frame,
        grid,
        totals,
        queue: QueuePanel::of(control, now),
        workloads: Workloads::of(control, now),
        grants: Grants::of(decisions, now),
        refusals: Refusals::of(decisions, now),
        recent_decisions: RECENT_DECISIONS,
    };
    html(StatusCode::OK, &page)
}
