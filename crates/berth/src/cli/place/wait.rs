//! Waiting for room: where the request stands, until it is granted or given up.

use std::time::Duration;

use berth_api::{Placed, Problem, Ticket, TicketState};
use berth_client::{ClientError, escape};

use crate::cli::failure::{Done, Exit, Failure};
use crate::cli::session::{Raw, Session, read_as};
use crate::cli::words::age;

/// Seconds for which the server holds its answer back while nothing is decided.
const HOLD_S: &str = "2";

/// After what time a server that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits until a request is granted. Nothing, when somebody pressed Ctrl-C: it stays queued.
pub(crate) async fn until_granted(
    session: &Session,
    ticket: Ticket,
) -> Done<(Raw, Option<Placed>)> {
    let out = &session.out;
    let path = format!("/v1/queue/{}", escape(&ticket.id));
    if let Some(problem) = &ticket.problem {
        out.note(format!("no room yet: {}", problem.detail));
    }
    out.note(format!("waiting in the queue as {}; gives up {}", ticket.id, age(ticket.deadline)));
    let bar = out.spinner(&place_in_queue(&ticket));
    let answer = loop {
        let asked = session.client.get::<Raw>(&path, &[("wait_s", HOLD_S)]);
        let answer = tokio::select! {
            answer = asked => answer,
            _ = tokio::signal::ctrl_c() => {
                bar.finish_and_clear();
                out.note(format!("It stays in the queue; see: berth queue show {}", ticket.id));
                out.note(format!("Call it off with: berth queue cancel {}", ticket.id));
                return Ok((session.get(&path, &[]).await?, None));
            }
        };
        let raw = match answer {
            Ok(raw) => raw,
            // A server that restarts knows its queue again afterwards.
            Err(ClientError::Unreachable { .. } | ClientError::Transport(_)) => {
                bar.set_message("the server does not answer; the request waits there all the same");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let now: Ticket = read_as(&raw)?;
        if now.state != TicketState::Waiting {
            break (raw, now);
        }
        bar.set_message(place_in_queue(&now));
    };
    bar.finish_and_clear();
    let (raw, mut last) = answer;
    // The last try may say less than the first did.
    let says_why =
        |problem: &Option<Problem>| problem.as_ref().is_some_and(|p| !p.refusals.is_empty());
    if !says_why(&last.problem) && says_why(&ticket.problem) {
        last.problem = ticket.problem;
    }
    ended(raw, last)
}

fn place_in_queue(ticket: &Ticket) -> String {
    let position = ticket.position.map_or_else(|| "?".to_owned(), |place| place.to_string());
    format!("place {position} in the queue, tried {} times", ticket.tries)
}

fn ended(raw: Raw, ticket: Ticket) -> Done<(Raw, Option<Placed>)> {
    let id = &ticket.id;
    match (ticket.state, ticket.placed) {
        (TicketState::Granted, Some(placed)) => {
            let text = serde_json::value::to_raw_value(&placed)?;
            Ok((text, Some(placed)))
        }
        (TicketState::Cancelled, _) => {
            Err(Failure::new(Exit::Conflict, format!("the waiting request {id} was called off")))
        }
        (TicketState::Expired | TicketState::Refused, _) => Err(match ticket.problem {
            Some(problem) => refused(problem),
            None => Failure::new(Exit::Refused, format!("{id} found no room in time")),
        }),
        (TicketState::Granted | TicketState::Waiting, _) => Ok((raw, None)),
    }
}

fn refused(problem: Problem) -> Failure {
    let mut failure = Failure::from_problem(problem);
    failure.exit = Exit::Refused;
    failure
}
