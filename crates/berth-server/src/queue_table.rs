//! The queues of the HTTP layer, for the table in `docs/queues.md`.
//!
//! The limits are the constants and settings themselves; nothing is decided here.

use berth_control::queue_table::{QueueRow, QueueSection, RowLimit};

use crate::http::PIECES_WAITING;
use crate::pacing::HELD_MAX;
use crate::serve::{BACKLOG, STREAMS_MAX};
use crate::telemetry::SPANS_MAX;

/// The rows of the server.
pub const SECTION: QueueSection = ("Connections", ROWS);

const ROWS: &[QueueRow] = &[
    QueueRow {
        name: "connections that the system has made and the server has not taken yet",
        limit: RowLimit::Fixed(BACKLOG as usize, "connections per address"),
        at_limit: "the system lets clients wait",
        metric: "",
    },
    QueueRow {
        name: "open connections, event streams among them",
        limit: RowLimit::Setting(&["http.max_connections"], "connections, and open files"),
        at_limit: "503 `too_many_connections` with `Retry-After`; over TLS they are closed",
        metric: "",
    },
    QueueRow {
        name: "requests under way on one connection: one with HTTP/1.1, with HTTP/2",
        limit: RowLimit::Fixed(STREAMS_MAX as usize, "requests"),
        at_limit: "further ones wait at the client",
        metric: "",
    },
    QueueRow {
        name: "the body of a request",
        limit: RowLimit::Setting(&["http.body_limit", "http.import_limit"], "bytes"),
        at_limit: "413 `body_too_large`; while `limits.in_flight` is reached, a placement is refused before its body is read",
        metric: "",
    },
    QueueRow {
        name: "answers 429 to a tenant that asks for a placement again and again though it is turned away, each of which waits 100 ms",
        limit: RowLimit::Fixed(HELD_MAX, "answers"),
        at_limit: "further ones are given at once",
        metric: "",
    },
    QueueRow {
        name: "spans of requests that wait for the collector, with `telemetry.otlp_endpoint`",
        limit: RowLimit::Fixed(SPANS_MAX, "spans"),
        at_limit: "further ones are dropped; a request never waits for the collector",
        metric: "",
    },
    QueueRow {
        name: "pieces of an export or a dump that wait for a slow reader",
        limit: RowLimit::Fixed(PIECES_WAITING, "pieces of 64 KiB"),
        at_limit: "the export waits; after `http.stall_timeout` it is cut off",
        metric: "",
    },
];
