//! Every queue, cache and pool that grows with load, with its limit and what happens at it: one table, from
//! which `docs/queues.md` is written.
//!
//! The limits are the constants and settings themselves; nothing is decided here.

use berth_engine::Engine;
use berth_ledger::{READERS_MAX, READS_MAX, SQLITE_ROWS_MAX, UNDELIVERED_MAX, WAITING_MAX};

use crate::backlog::{FLEET_CHANGES_MAX, REPORTED_EVENTS_MAX};
use crate::documents::CHANGES_MAX;
use crate::explanation_queue::{EXPLANATIONS_MAX, OF_TENANT_MAX};
use crate::placer::{LEAST_EXPLAINED, LEAST_PLANNED, LOG_PAGE};
use crate::supervision::UNREADABLE_MAX;
use crate::tenant_requests::{CHANGES_OF_TENANT_MAX, READS_OF_TENANT_MAX};
use crate::{
    applied_from_log, catalog, feed, fleet_replica, queue, state, tenant_limits, workloads,
};

/// One queue, cache or pool.
#[derive(Clone, Copy, Debug)]
pub struct QueueRow {
    /// What it holds.
    pub name: &'static str,
    /// How much at most.
    pub limit: RowLimit,
    /// What happens at the limit.
    pub at_limit: &'static str,
    /// The metric or label that shows it; empty: none.
    pub metric: &'static str,
}

/// How much something holds at most.
#[derive(Clone, Copy, Debug)]
pub enum RowLimit {
    /// As much as settings say, and what of.
    Setting(&'static [&'static str], &'static str),
    /// A fixed number, and what of.
    Fixed(usize, &'static str),
    /// No more than something else that is bounded.
    Bounded(&'static str),
}

/// A part of the service, and its rows.
pub type QueueSection = (&'static str, &'static [QueueRow]);

/// The rows of the control plane and the ledger.
pub const SECTIONS: &[QueueSection] = &[
    ("The claim path", CLAIM_PATH),
    ("The ledger", LEDGER),
    ("Copies in memory, and their followers", COPIES),
    ("Requests that wait, and reconcilers", WAITING),
];

const CLAIM_PATH: &[QueueRow] = &[
    QueueRow {
        name: "placements of tenants that are under way: in front of the planner, or in the ledger",
        limit: RowLimit::Setting(&["limits.in_flight", "limits.queue_delay"], "instances"),
        at_limit: "429 `tenant_busy` or 503 `overloaded`, both with `Retry-After`, before anything is done",
        metric: "`placements`",
    },
    QueueRow {
        name: "of those, what is always let in, however long it takes",
        limit: RowLimit::Fixed(LEAST_PLANNED, "instances"),
        at_limit: "`limits.queue_delay` decides",
        metric: "",
    },
    QueueRow {
        name: "requests of one tenant that the planner has not begun with, and those that wait for the explainer",
        limit: RowLimit::Setting(&["limits.planner_queue"], "requests"),
        at_limit: "429 `tenant_busy`",
        metric: "`planner`",
    },
    QueueRow {
        name: "placements that wait for the explainer",
        limit: RowLimit::Setting(&["limits.in_flight", "limits.queue_delay"], "instances"),
        at_limit: "429 `tenant_busy` or 503 `overloaded`; the tenant's further requests at once",
        metric: "`explainer`",
    },
    QueueRow {
        name: "of those, what is always let in",
        limit: RowLimit::Fixed(LEAST_EXPLAINED, "instances"),
        at_limit: "`limits.queue_delay` decides",
        metric: "",
    },
    QueueRow {
        name: "the server's own placements and moves, in a line of their own",
        limit: RowLimit::Bounded("members and tickets of one pass of each reconciler (below)"),
        at_limit: "the reconciler waits for its answers",
        metric: "",
    },
    QueueRow {
        name: "requests that wait for the log to be read (after a conflict, before a refusal)",
        limit: RowLimit::Bounded("what is under way"),
        at_limit: "as above; all share one pass of the log reader",
        metric: "",
    },
    QueueRow {
        name: "claims that the planner has looked up in the ledger, since an event of them was missed",
        limit: RowLimit::Bounded("what is under way"),
        at_limit: "all are read in the next pass of the log reader",
        metric: "",
    },
    QueueRow {
        name: "rankings of nodes, by class of request, of each copy of the engine",
        limit: RowLimit::Fixed(Engine::RANKINGS_KEPT, "classes"),
        at_limit: "the least recently used goes; its class is scanned when it comes again",
        metric: "",
    },
    QueueRow {
        name: "nodes that meet requirements on their facts, of each copy of the engine",
        limit: RowLimit::Fixed(Engine::MASKS_KEPT, "sets of requirements"),
        at_limit: "the least recently used goes, and is made again",
        metric: "",
    },
    QueueRow {
        name: "reports of own commits that the planner has not applied",
        limit: RowLimit::Fixed(REPORTED_EVENTS_MAX, "events"),
        at_limit: "the writers wait; none is dropped",
        metric: "`planner_events`",
    },
    QueueRow {
        name: "the log of other servers on its way to the planner",
        limit: RowLimit::Fixed(LOG_PAGE, "segments, one page"),
        at_limit: "the log reader waits until the planner has taken it in",
        metric: "",
    },
    QueueRow {
        name: "changes of the fleet that the explainer has not applied",
        limit: RowLimit::Fixed(FLEET_CHANGES_MAX, "changes"),
        at_limit: "the planner waits; none is dropped",
        metric: "`explainer_changes`",
    },
];

const LEDGER: &[QueueRow] = &[
    QueueRow {
        name: "operations that wait for one writer",
        limit: RowLimit::Fixed(WAITING_MAX, "operations"),
        at_limit: "503 `overloaded`; nothing of them was written",
        metric: "`ledger_operations` (all writers)",
    },
    QueueRow {
        name: "operations in one transaction",
        limit: RowLimit::Setting(&["ledger.group"], "operations"),
        at_limit: "the rest goes into the next one",
        metric: "",
    },
    QueueRow {
        name: "groups that are committed and whose answers are not delivered",
        limit: RowLimit::Fixed(UNDELIVERED_MAX, "groups per writer"),
        at_limit: "the writer waits",
        metric: "",
    },
    QueueRow {
        name: "connections for writes",
        limit: RowLimit::Setting(&["ledger.lanes"], "connections; one on SQLite"),
        at_limit: "operations wait for their writer",
        metric: "",
    },
    QueueRow {
        name: "connections for reads",
        limit: RowLimit::Fixed(READERS_MAX, "connections"),
        at_limit: "a read waits for one, within `ledger.patience`; then 503 `overloaded`",
        metric: "`ledger_readers`",
    },
    QueueRow {
        name: "reads for callers that are under way or wait",
        limit: RowLimit::Fixed(READS_MAX, "reads"),
        at_limit: "503 `overloaded`",
        metric: "`ledger_reads`",
    },
    QueueRow {
        name: "counters of nodes that the writer remembers, on SQLite",
        limit: RowLimit::Fixed(SQLITE_ROWS_MAX, "nodes"),
        at_limit: "all are forgotten, and read again",
        metric: "",
    },
];

const COPIES: &[QueueRow] = &[
    QueueRow {
        name: "reports of own commits that the catalogue has not applied",
        limit: RowLimit::Fixed(REPORTED_EVENTS_MAX, "events"),
        at_limit: "the writers wait; none is dropped",
        metric: "`catalog_events`",
    },
    QueueRow {
        name: "changed documents that have not been read again",
        limit: RowLimit::Fixed(CHANGES_MAX, "documents, each once"),
        at_limit: "all documents are read again instead",
        metric: "",
    },
    QueueRow {
        name: "own segments that came by the log before they were reported, or the other way round",
        limit: RowLimit::Fixed(applied_from_log::APPLIED, "segments"),
        at_limit: "all are forgotten; they may be applied twice, which has no effect",
        metric: "",
    },
    QueueRow {
        name: "events kept for streams",
        limit: RowLimit::Fixed(feed::KEPT, "events, and 8 MiB"),
        at_limit: "the oldest goes; a stream that fell behind reads from the ledger",
        metric: "`berth_event_streams`",
    },
    QueueRow {
        name: "events that one stream holds",
        limit: RowLimit::Fixed(feed::WINDOW, "events"),
        at_limit: "it reads the next when these are sent",
        metric: "",
    },
    QueueRow {
        name: "nodes whose assignments an agent waits for",
        limit: RowLimit::Bounded("nodes, and open connections"),
        at_limit: "one number for each node; those that nobody waits for go with the next that is added",
        metric: "",
    },
    QueueRow {
        name: "answers to permits",
        limit: RowLimit::Fixed(state::PERMITS_CACHED, "instances"),
        at_limit: "all are forgotten; a repeated request is decided again",
        metric: "",
    },
    QueueRow {
        name: "requests as decoded, by their stored text: in the catalogue",
        limit: RowLimit::Fixed(catalog::SPECS, "requests"),
        at_limit: "all are forgotten, and decoded again",
        metric: "",
    },
    QueueRow {
        name: "the same in the planner's copy of the fleet, and in the explainer's",
        limit: RowLimit::Fixed(fleet_replica::SPECS, "requests"),
        at_limit: "all are forgotten, and decoded again",
        metric: "",
    },
    QueueRow {
        name: "quotas, pools and policies as they were read last",
        limit: RowLimit::Bounded("what the ledger stores"),
        at_limit: "shown with their age while the database does not answer",
        metric: "",
    },
    QueueRow {
        name: "refused reports of a node's agent, in an hour",
        limit: RowLimit::Fixed(state::REFUSED_REPORTS_LOGGED, "reports per node"),
        at_limit: "further ones are refused and not logged",
        metric: "",
    },
    QueueRow {
        name: "parts of the log that cannot be read",
        limit: RowLimit::Fixed(UNREADABLE_MAX, "parts"),
        at_limit: "further ones are skipped and not shown",
        metric: "`berth_unreadable_events`",
    },
    QueueRow {
        name: "token buckets of tenants",
        limit: RowLimit::Fixed(
            tenant_limits::KEPT,
            "tenants, and those with a bucket that is not full",
        ),
        at_limit: "full buckets are dropped",
        metric: "",
    },
    QueueRow {
        name: "nodes, claims, workloads and documents in memory",
        limit: RowLimit::Bounded("what the ledger stores"),
        at_limit: "see [sizing](operations.md#sizing)",
        metric: "`berth_claims`, `berth_nodes`",
    },
];

const WAITING: &[QueueRow] = &[
    QueueRow {
        name: "changes of one tenant that are under way, other than placements",
        limit: RowLimit::Fixed(CHANGES_OF_TENANT_MAX, "requests"),
        at_limit: "429 `tenant_busy` with `Retry-After`, before anything is done",
        metric: "",
    },
    QueueRow {
        name: "reads of one tenant that are under way",
        limit: RowLimit::Fixed(READS_OF_TENANT_MAX, "requests"),
        at_limit: "429 `tenant_busy` with `Retry-After`",
        metric: "",
    },
    QueueRow {
        name: "requests that wait for room",
        limit: RowLimit::Setting(
            &["queue.limit", "queue.total"],
            "tickets of one tenant, and of all",
        ),
        at_limit: "429 `queue_full`, 503 `total_queue_full`",
        metric: "`tickets`",
    },
    QueueRow {
        name: "tickets tried in one pass, one at a time",
        limit: RowLimit::Fixed(queue::TICKETS_PER_PASS, "tickets"),
        at_limit: "the next pass goes on",
        metric: "",
    },
    QueueRow {
        name: "instances of draining nodes that found no room, with their refusals",
        limit: RowLimit::Bounded("instances on draining nodes"),
        at_limit: "forgotten when they are moved, or their node no longer drains; after a restart they are tried again",
        metric: "",
    },
    QueueRow {
        name: "members placed in one pass",
        limit: RowLimit::Fixed(workloads::MEMBERS_PER_PASS, "members, in turns between tenants"),
        at_limit: "the next pass goes on",
        metric: "",
    },
    QueueRow {
        name: "explanations on request that are derived or wait: of requests, and of decisions",
        limit: RowLimit::Fixed(EXPLANATIONS_MAX, "of each kind"),
        at_limit: "429 `tenant_busy`",
        metric: "`explanations_of_requests`, `explanations_of_decisions`",
    },
    QueueRow {
        name: "of those, of one tenant",
        limit: RowLimit::Fixed(OF_TENANT_MAX, "of each kind"),
        at_limit: "429 `tenant_busy`",
        metric: "",
    },
];
