//! The queues of scheduler and webhook, for the table in `docs/queues.md`.
//!
//! The limits are the constants and options themselves; nothing is decided here.

use berth_control::queue_table::{QueueRow, QueueSection, RowLimit};

use crate::scheduler::{EVENTS_MAX, INBOX_CAPACITY};
use crate::webhook::{BODY_BYTES_MAX, REMEMBERED_MAX, WORKERS};

/// The rows of both.
pub const SECTION: QueueSection = ("In Kubernetes: scheduler and webhook", ROWS);

const ROWS: &[QueueRow] = &[
    QueueRow {
        name: "changes of the cluster and results on their way to the scheduler's core",
        limit: RowLimit::Fixed(INBOX_CAPACITY, "messages"),
        at_limit: "watches and executor wait",
        metric: "",
    },
    QueueRow {
        name: "actions of the core that are not executed yet",
        limit: RowLimit::Bounded(
            "pods that are being bound, preempted, evicted or noticed: one action each",
        ),
        at_limit: "the core begins no second one for a pod",
        metric: "",
    },
    QueueRow {
        name: "bindings sent to the API server at once",
        limit: RowLimit::Setting(&["--bind-concurrency"], "requests"),
        at_limit: "the others wait",
        metric: "",
    },
    QueueRow {
        name: "events on pods and nodes that wait to be written",
        limit: RowLimit::Fixed(EVENTS_MAX, "events"),
        at_limit: "the oldest is dropped: events inform people, and decide nothing",
        metric: "",
    },
    QueueRow {
        name: "notices that a pod is unschedulable",
        limit: RowLimit::Bounded("pending pods: one each"),
        at_limit: "a newer one replaces an older one",
        metric: "",
    },
    QueueRow {
        name: "pods that the webhook has to look at",
        limit: RowLimit::Bounded(
            "watched pods, and for each its changes since it was looked at last",
        ),
        at_limit: "watches list again after an interruption; a task whose pod is gone does nothing",
        metric: "",
    },
    QueueRow {
        name: "workers that do so",
        limit: RowLimit::Fixed(WORKERS, "workers"),
        at_limit: "tasks wait; those of one pod are done in order",
        metric: "",
    },
    QueueRow {
        name: "the body of an admission review",
        limit: RowLimit::Fixed(BODY_BYTES_MAX, "bytes"),
        at_limit: "413; the failure policy of the webhook decides about the pod",
        metric: "",
    },
    QueueRow {
        name: "events on workloads that were published of late",
        limit: RowLimit::Fixed(REMEMBERED_MAX, "events, and those of the last ten minutes"),
        at_limit: "older ones are forgotten, and may be published again",
        metric: "",
    },
];
