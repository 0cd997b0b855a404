//! The connection for hints: tells other servers of commits through NOTIFY, and hears of theirs through
//! LISTEN.
//!
//! It is never a writer's connection: NOTIFY in a transaction that writes makes all such commits of the
//! database wait for each other. It writes nothing, and nothing waits for it.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::fault::fault;
use super::hosts::{Notified, connect_to_writable_host};
use super::session::{self, Target};
use crate::commit_hints::CommitHints;
use crate::error::Fault;

/// How these connections are found by others in `pg_stat_activity`.
const APPLICATION: &str = "berth hints";

/// Settings of the connection. A notification is a transaction: it must not wait for the disk, nor for a
/// synchronous standby.
const LISTEN: &str = "SET synchronous_commit = off; SET application_name = 'berth hints'; \
    SET statement_timeout = '5s'; LISTEN berth_log";

/// How many processes listen, this one included.
const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE application_name = 'berth hints' AND datname = current_database()";

/// The shortest time between two hints: what commits meanwhile shares the next one.
const GAP: Duration = Duration::from_millis(2);

/// Time between two looks at who listens. Also how soon a lost connection is noticed.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// How long the database may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long to wait before a lost connection is opened again: the log is read periodically meanwhile.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Exchanges hints until they are closed, whatever fails. `own` tells this process's notifications from
/// others'.
pub(crate) fn exchange_hints(url: &str, own: &str, hints: &Arc<CommitHints>) {
    while !hints.is_closed() {
        let exchange = AssertUnwindSafe(|| exchange_on_runtime(url, own, hints));
        match std::panic::catch_unwind(exchange) {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => hints.note_failure(&fault.into_error(1)),
            Err(_) => hints.note_failure(&"panic in the connection for hints"),
        }
        if !hints.is_closed() {
            std::thread::sleep(RECONNECT_AFTER);
        }
    }
}

/// Exchanges hints until they are closed.
fn exchange_on_runtime(url: &str, own: &str, hints: &Arc<CommitHints>) -> Result<(), Fault> {
    let target = session::configure(url, Some(ANSWER_WITHIN))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Fault::Disconnected(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        loop {
            tokio::select! {
                () = hints.closed() => break,
                // It only ends when the connection is lost or cannot be opened.
                Err(fault) = exchange(&target, own, hints) => {
                    hints.note_failure(&fault.into_error(1));
                }
            }
            tokio::select! {
                () = hints.closed() => break,
                () = sleep(RECONNECT_AFTER) => {}
            }
        }
    });
    // It must not wait for a connection that does not answer.
    runtime.shutdown_background();
    Ok(())
}

/// Opens a connection and exchanges hints on it, until it is lost.
async fn exchange(
    target: &Target,
    own: &str,
    hints: &Arc<CommitHints>,
) -> Result<Infallible, Fault> {
    let (heard, own_payload) = (Arc::clone(hints), own.to_owned());
    let notified: Notified = Arc::new(move |payload: &str| {
        if payload != own_payload {
            heard.receive();
        }
    });
    let (hosts, tls) = (target.hosts(), target.tls());
    let within = target.connect_within();
    let client = connect_to_writable_host(hosts, tls, within, Some(notified)).await?;
    run(&client, LISTEN).await?;
    hints.set_connected();
    // What was committed before this connection listened was not announced to it.
    hints.receive();
    let notify = format!("NOTIFY berth_log, '{own}'");
    let mut has_others = has_others(&client).await?;
    let mut count_next = tokio::time::interval(COUNT_EVERY);
    loop {
        tokio::select! {
            () = hints.next_commit() => if has_others {
                run(&client, &notify).await?;
                hints.note_sent();
                sleep(GAP).await;
            },
            _ = count_next.tick() => {
                let had_others = has_others;
                has_others = self::has_others(&client).await?;
                if has_others && !had_others {
                    // They may have missed what was committed since they were counted last.
                    hints.note_commit();
                }
            }
        }
    }
}

/// Whether another process listens.
async fn has_others(client: &Client) -> Result<bool, Fault> {
    let messages = run(client, LISTENERS).await?;
    let listeners = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).and_then(|count| count.parse::<u64>().ok()),
        _ => None,
    });
    Ok(listeners.is_some_and(|count| count > 1))
}

/// Runs statements, unprepared: a pooler may not keep what is prepared.
async fn run(client: &Client, sql: &str) -> Result<Vec<SimpleQueryMessage>, Fault> {
    match timeout(ANSWER_WITHIN, client.simple_query(sql)).await {
        Ok(answer) => answer.map_err(|error| fault(APPLICATION, &error)),
        Err(_) => Err(Fault::Disconnected("hints: no answer".to_owned())),
    }
}
