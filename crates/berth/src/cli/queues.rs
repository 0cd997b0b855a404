//! `docs/queues.md` is generated from the tables of queues, so that a limit in it is the one in the code.

use std::fmt::Write as _;
use std::path::Path;

use berth_control::queue_table::{QueueRow, QueueSection, RowLimit, SECTIONS};
use berth_server::config::KEYS;

const HEAD: &str = "\
# Queues and caches

This page is generated from `queue_table.rs` in `berth-control`, `berth-server` and `berth-kube`; do not edit it.

Everything that grows with load has a limit, and something that happens at it. What is acknowledged or committed is never
dropped: whoever sends more waits. Requests are turned away instead, at the door, before anything is done for them; the
same request with the same request id is served later ([overload](operations.md#overload)).

*Metric* is the label `queue` of `berth_queue_length` and `berth_queue_limit`, or a metric of its own.
";

/// The page.
fn document() -> String {
    let mut page = HEAD.to_owned();
    let server = berth_server::queue_table::SECTION;
    let kube = berth_kube::queue_table::SECTION;
    for (title, rows) in std::iter::once(&server).chain(SECTIONS).chain([&kube]) {
        let _ = write!(
            page,
            "\n## {title}\n\n| What | Limit | At the limit | Metric |\n|---|---|---|---|\n"
        );
        for row in *rows {
            let (limit, metric) =
                (limit(row), if row.metric.is_empty() { "–" } else { row.metric });
            let _ = writeln!(page, "| {} | {limit} | {} | {metric} |", row.name, row.at_limit);
        }
    }
    page
}

fn limit(row: &QueueRow) -> String {
    match row.limit {
        RowLimit::Fixed(most, unit) => format!("{} {unit}", thousands(most)),
        RowLimit::Bounded(by) => format!("no more than {by}"),
        RowLimit::Setting(names, unit) => {
            let names = names.iter().map(|name| match KEYS.iter().find(|key| key.name == *name) {
                Some(key) => format!("`{name}` ({})", key.default),
                None => format!("`{name}`"),
            });
            format!("{} {unit}", names.collect::<Vec<_>>().join(", "))
        }
    }
}

fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the variable says whether to write the file")]
fn the_document_of_queues_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/queues.md");
    let document = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == document,
        "docs/queues.md is out of date; update it with: UPDATE_DOCS=1 cargo test -p berth document"
    );
}

#[test]
fn every_setting_in_it_exists_and_every_row_says_what_happens() {
    let kube = berth_kube::queue_table::SECTION;
    let sections: [&[QueueSection]; 2] = [&[berth_server::queue_table::SECTION], SECTIONS];
    for row in sections.iter().copied().flatten().flat_map(|(_, rows)| *rows) {
        if let RowLimit::Setting(names, _) = row.limit {
            let unknown = names.iter().find(|name| !KEYS.iter().any(|key| key.name == **name));
            assert_eq!(unknown, None, "{}", row.name);
        }
    }
    let rows = sections.iter().copied().flatten().chain([&kube]).flat_map(|(_, rows)| *rows);
    assert!(rows.clone().count() > 30);
    for row in rows {
        assert!(!row.name.is_empty() && !row.at_limit.is_empty(), "{row:?}");
    }
}
