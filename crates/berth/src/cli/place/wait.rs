//! Waiting for room: the place in the queue, until the request is granted or expires.

use std::time::Duration;

use berth_api::{Placed, Problem, Ticket, TicketState};
use berth_client::{ClientError, escape};

use crate::cmdutil::{CmdResult, Exit, Failure, RawJson, Session, age, decode};

/// Seconds of one long poll.
const POLL_S: &str = "2";

/// The pause before an unreachable server is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until a request is granted. Returns no placement after Ctrl-C; the request stays queued.
pub(crate) async fn until_granted(
    session: &Session,
    ticket: Ticket,
) -> CmdResult<(RawJson, Option<Placed>)> {
    let out = &session.out;
    let path = format!("/v1/queue/{}", escape(&ticket.id));
    if let Some(problem) = &ticket.problem {
        out.note(format!("no room yet: {}", problem.detail));
    }
    out.note(format!("waiting in the queue as {}; expires {}", ticket.id, age(ticket.deadline)));
    let bar = out.spinner(&place_in_queue(&ticket));
    let answer = loop {
        let request = session.client.get::<RawJson>(&path, &[("wait_s", POLL_S)]);
        let answer = tokio::select! {
            answer = request => answer,
            _ = tokio::signal::ctrl_c() => {
                bar.finish_and_clear();
                out.note(format!("The request stays in the queue; show it with: berth queue show {}", ticket.id));
                out.note(format!("Cancel it with: berth queue cancel {}", ticket.id));
                return Ok((session.get(&path, &[]).await?, None));
            }
        };
        let raw = match answer {
            Ok(raw) => raw,
            // The queue survives a restart of the server.
            Err(ClientError::Unreachable { .. } | ClientError::Transport(_)) => {
                bar.set_message("the server does not answer; the request stays queued");
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let now: Ticket = decode(&raw)?;
        if now.state != TicketState::Waiting {
            break (raw, now);
        }
        bar.set_message(place_in_queue(&now));
    };
    bar.finish_and_clear();
    let (raw, mut last) = answer;
    // The last try may have less detail than the first one.
    let has_refusals =
        |problem: &Option<Problem>| problem.as_ref().is_some_and(|p| !p.refusals.is_empty());
    if !has_refusals(&last.problem) && has_refusals(&ticket.problem) {
        last.problem = ticket.problem;
    }
    outcome(raw, last)
}

fn place_in_queue(ticket: &Ticket) -> String {
    let position =
        ticket.position.map_or_else(|| "far back".to_owned(), |place| format!("place {place}"));
    format!("{position} in the queue, tried {} times", ticket.tries)
}

fn outcome(raw: RawJson, ticket: Ticket) -> CmdResult<(RawJson, Option<Placed>)> {
    let id = &ticket.id;
    match (ticket.state, ticket.placed) {
        (TicketState::Granted, Some(placed)) => {
            let text = serde_json::value::to_raw_value(&placed)?;
            Ok((text, Some(placed)))
        }
        (TicketState::Cancelled, _) => {
            Err(Failure::new(Exit::Conflict, format!("the waiting request {id} was cancelled")))
        }
        (TicketState::Expired | TicketState::Refused, _) => Err(match ticket.problem {
            Some(problem) => refusal_failure(problem),
            None => Failure::new(Exit::Refused, format!("{id} found no room in time")),
        }),
        (TicketState::Granted | TicketState::Waiting, _) => Ok((raw, None)),
    }
}

fn refusal_failure(problem: Problem) -> Failure {
    let mut failure = Failure::from_problem(problem);
    failure.exit = Exit::Refused;
    failure
}
