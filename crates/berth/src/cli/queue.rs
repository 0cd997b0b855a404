//! `berth queue`: requests that wait for room, and demand that was not met.

use berth_api::{Demand, PlaceRequest, Ticket, TicketState};
use clap::Subcommand;

use super::refusal::{Advice, draw_limit, draw_refusals};
use super::resource::{ListOptions, NameArg, NameArgs, Resource};
use crate::cmdutil::{
    CmdResult, Column, Output, Session, age, amounts, api_name, columns, plural, ticket_state,
};

/// Show and cancel requests that wait for room.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth queue list\n  berth queue cancel 01890a5d-ac96-774b-bcce-b302099a8057"
)]
pub(crate) enum Queue {
    /// List waiting requests in the order in which they are tried.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth queue list")]
    List(ListOptions),
    /// Show a request and why there was no room for it.
    #[command(after_help = "Example:\n  berth queue show 01890a5d-ac96-774b-bcce-b302099a8057")]
    Show(NameArg<Ticket>),
    /// Cancel requests.
    #[command(after_help = "Example:\n  berth queue cancel 01890a5d-ac96-774b-bcce-b302099a8057")]
    Cancel(NameArgs<Ticket>),
    /// List unmet demand: by what the fleet should grow.
    #[command(after_help = "Example:\n  berth queue demand")]
    Demand,
}

impl Resource for Ticket {
    const KIND: &'static str = "request";
    const KEY: &'static str = "id";
    const PATH: &'static str = "/v1/queue";
    const EMPTY: &'static str = "No requests are waiting.";
    const COLUMNS: &'static [Column<Self>] = columns![ticket;
        "ID" => ticket.id.as_str(),
        ">PLACE" => ticket.position.map(|place| place.to_string()),
        "STATE" => ticket_state(ticket.state),
        "TENANT" => ticket.tenant.as_str(),
        "REQUESTED" => request_summary(&ticket.request),
        "SINCE" => age(ticket.since),
        "UNTIL" => age(ticket.deadline),
        ">TRIES" => ticket.tries,
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        let placed = self.placed.as_ref().map(|placed| plural(placed.instances.len(), "instance"));
        vec![
            ("id", self.id.clone()),
            ("state", api_name(&self.state)),
            ("place", self.position.map(|place| place.to_string()).unwrap_or_default()),
            ("tenant", self.tenant.clone()),
            ("requested", request_summary(&self.request)),
            ("since", age(self.since)),
            ("until", age(self.deadline)),
            ("tries", self.tries.to_string()),
            ("placed", placed.unwrap_or_default()),
        ]
    }

    fn print(&self, out: &Output) {
        out.pairs(&self.fields());
        if let Some(problem) = &self.problem {
            let tenant = Some(self.tenant.clone());
            let request = PlaceRequest { tenant, ..self.request.clone() };
            let waiting = (self.state == TicketState::Waiting).then_some(self.id.as_str());
            let advice = Advice::of_ticket(&request, waiting);
            let why = match () {
                () if !problem.refusals.is_empty() => draw_refusals(&problem.refusals, &advice),
                () if !problem.fixes.is_empty() => draw_limit(problem, &advice),
                () => problem.detail.clone(),
            };
            out.line(format!("\n{why}"));
        }
    }
}

impl Resource for Demand {
    const KIND: &'static str = "demand";
    const PATH: &'static str = "/v1/demand";
    const EMPTY: &'static str = "All demand was met so far.";
    const COLUMNS: &'static [Column<Self>] = columns![demand;
        "CODE" => demand.code.as_str(),
        "TENANT" => demand.tenant.as_str(),
        ">TIMES" => demand.times.to_string(),
        "FIRST" => age(demand.first_at),
        "LAST" => age(demand.last_at),
        "REQUESTED" => {
            let size = demand.request.get("resources").cloned().unwrap_or_default();
            let size = serde_json::from_value(size).map(|size| amounts(&size));
            size.unwrap_or_else(|_| demand.request.to_string())
        },
    ];

    fn key(&self) -> String {
        format!("{} of {}: {}", self.code, self.tenant, self.request)
    }
}

impl Queue {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(options) => session.list::<Ticket>(&[], options).await,
            Self::Show(arg) => session.show::<Ticket>(&arg.name).await,
            Self::Cancel(args) => session.delete_each::<Ticket>(&args.names, "cancelled").await,
            Self::Demand => session.list::<Demand>(&[], ListOptions::default()).await,
        }
    }
}

/// What a request asks for, on one line.
pub(crate) fn request_summary(request: &PlaceRequest) -> String {
    let parts = request.instances.iter().map(|spec| {
        let count = spec.count.unwrap_or(1);
        let size = amounts(&spec.resources.amounts());
        if count == 1 { size } else { format!("{count} × ({size})") }
    });
    parts.collect::<Vec<_>>().join(" + ")
}
