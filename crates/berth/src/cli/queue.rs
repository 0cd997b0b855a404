//! `berth queue`: requests that wait for room, and demand that found none.

use berth_api::{Demand, PlaceRequest, Ticket};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::Done;
use super::picture::{self, Advice};
use super::session::Session;
use super::table::{Cell, Table, Tone, pairs};
use super::words::{age, amounts, many, ticket_state};

/// See requests that wait for room, and call them off.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth queue list\n  berth queue cancel 01890a5d-ac96-774b-bcce-b302099a8057"
)]
pub(crate) enum Queue {
    /// List waiting requests, in the order in which they are tried.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth queue list")]
    List(List),
    /// Show one request and why there was no room for it.
    #[command(after_help = "Example:\n  berth queue show 01890a5d-ac96-774b-bcce-b302099a8057")]
    Show(One),
    /// Call requests off.
    #[command(after_help = "Example:\n  berth queue cancel 01890a5d-ac96-774b-bcce-b302099a8057")]
    Cancel(Some),
    /// List what was asked for and found no room: what to grow the fleet by.
    #[command(after_help = "Example:\n  berth queue demand")]
    Demand,
}

/// How many.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// How many at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// One request.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its id in the queue.
    id: String,
}

/// Some requests.
#[derive(Args, Debug)]
pub(crate) struct Some {
    /// Their ids in the queue.
    #[arg(required = true)]
    ids: Vec<String>,
}

impl Queue {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List(list) => {
                let limit = list.limit.and_then(|limit| usize::try_from(limit).ok());
                let human = |tickets: Vec<Ticket>| {
                    out.table(&table(&tickets), "Nothing waits.");
                };
                session.show_list("/v1/queue", &[], limit, human).await
            }
            Self::Show(one) => {
                let path = format!("/v1/queue/{}", escape(&one.id));
                session
                    .show(&path, |ticket: Ticket| {
                        out.line(text(&ticket));
                        Ok(())
                    })
                    .await
            }
            Self::Cancel(some) => {
                for id in &some.ids {
                    session.client.delete(&format!("/v1/queue/{}", escape(id))).await?;
                    out.note(format!("called off {id}"));
                }
                Ok(())
            }
            Self::Demand => {
                let human = |demand: Vec<Demand>| {
                    out.table(&demand_table(&demand), "Everything found room so far.");
                };
                session.show_list("/v1/demand", &[], None, human).await
            }
        }
    }
}

/// What a request asks for, on one line.
pub(crate) fn asked(request: &PlaceRequest) -> String {
    let parts = request.instances.iter().map(|spec| {
        let count = spec.count.unwrap_or(1);
        let size = amounts(&spec.resources.amounts());
        if count == 1 { size } else { format!("{count} × ({size})") }
    });
    parts.collect::<Vec<_>>().join(" + ")
}

fn table(tickets: &[Ticket]) -> Table {
    let columns = ["ID", ">PLACE", "STATE", "OWNER", "ASKED FOR", "SINCE", "UNTIL", ">TRIES"];
    let mut table = Table::new(&columns);
    for ticket in tickets {
        let place = ticket.position.map(|place| place.to_string());
        table.row([
            ticket.id.as_str().into(),
            place.map_or_else(|| Cell::toned("-", Tone::Dim), Cell::from),
            ticket_state(ticket.state),
            ticket.owner.as_str().into(),
            asked(&ticket.request).into(),
            age(ticket.since).into(),
            age(ticket.deadline).into(),
            ticket.tries.to_string().into(),
        ]);
    }
    table
}

fn text(ticket: &Ticket) -> String {
    let state = serde_json::to_value(ticket.state).ok();
    let state = state.and_then(|state| state.as_str().map(str::to_owned)).unwrap_or_default();
    let placed = ticket.placed.as_ref().map(|placed| many(placed.instances.len(), "instance"));
    let mut text = pairs(&[
        ("id", ticket.id.clone()),
        ("state", state),
        ("place", ticket.position.map(|place| place.to_string()).unwrap_or_default()),
        ("owner", ticket.owner.clone()),
        ("asked for", asked(&ticket.request)),
        ("since", age(ticket.since)),
        ("until", age(ticket.deadline)),
        ("tries", ticket.tries.to_string()),
        ("placed", placed.unwrap_or_default()),
    ]);
    if let Option::Some(problem) = &ticket.problem {
        text.push_str("\n\n");
        if problem.refusals.is_empty() {
            text.push_str(&problem.detail);
        } else {
            text.push_str(&picture::picture(&problem.refusals, &Advice::none()));
        }
    }
    text
}

fn demand_table(demand: &[Demand]) -> Table {
    let mut table = Table::new(&["CODE", "OWNER", ">TIMES", "FIRST", "LAST", "ASKED FOR"]);
    for one in demand {
        let shape = one.request.get("resources").cloned().unwrap_or_default();
        let shape = serde_json::from_value(shape).map(|shape| amounts(&shape));
        table.row([
            one.code.as_str().into(),
            one.owner.as_str().into(),
            one.times.to_string().into(),
            age(one.first_at).into(),
            age(one.last_at).into(),
            shape.unwrap_or_else(|_| one.request.to_string()).into(),
        ]);
    }
    table
}
