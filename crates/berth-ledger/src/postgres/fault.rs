//! What an error of the database means for the transaction. Never reads it as "full": see
//! [`Fault`].

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::error::{Fault, LedgerError};

/// What an error means, and in which statement it came up.
pub(super) fn fault(what: &str, error: &Error) -> Fault {
    match error.as_db_error() {
        Some(refusal) => from_server_error(what, refusal),
        None => from_driver_error(what, error),
    }
}

/// The database answered with an error.
fn from_server_error(what: &str, refusal: &DbError) -> Fault {
    let code = refusal.code().code();
    let text = format!("{what}: {} ({code})", refusal.message());
    match code {
        // The count of rows that a guarded statement insists on; see `counted`.
        "22012" => Fault::Guard(format!("{what} was not as it was read")),
        // Serialization failure, deadlock, lock timeout, statement timeout.
        "40001" | "40P01" | "55P03" | "57014" => Fault::Retry(text),
        "23505" => Fault::Duplicate(text),
        "23514" => Fault::Guard(text),
        "53100" => Fault::StorageFull(text),
        // A server that is stopping or starting, that has no connection or memory left, that
        // has become a standby, that does not know whether it committed, or that ended an idle
        // transaction. Another connection, or another server, may know better.
        "40003" | "25006" | "25P03" | "57P01" | "57P02" | "57P03" | "57P05" | "58030" => {
            Fault::Disconnected(text)
        }
        // A statement that was prepared and is not known any more, or means something else now.
        "26000" => Fault::Disconnected(text),
        "0A000" if refusal.message().contains("cached plan") => Fault::Disconnected(text),
        class if class.starts_with("08") || class.starts_with("53") => Fault::Disconnected(text),
        _ => Fault::Fatal(LedgerError::Database(text)),
    }
}

/// The database did not answer, or the driver could not make sense of the answer.
fn from_driver_error(what: &str, error: &Error) -> Fault {
    let mut text = format!("{what}: {error}");
    let mut cause = error.source();
    let mut on_the_wire = error.is_closed();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        on_the_wire |= inner.is::<std::io::Error>();
        cause = inner.source();
    }
    // The driver's error for a failed connection has no source to inspect.
    if on_the_wire || text.contains("error connecting") {
        return Fault::Disconnected(text);
    }
    Fault::Fatal(LedgerError::Database(text))
}
