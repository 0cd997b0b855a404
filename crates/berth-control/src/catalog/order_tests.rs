//! The catalogue's order: reports of own commits, the log, snapshots, and who waits for which.

use std::sync::Arc;

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{Group, GroupKind};
use berth_ledger::{CommitRecord, EventBody, Micros, Text};
use tokio::sync::oneshot;

use super::{Catalog, CatalogState, CatalogUpdate, CatalogUpdateSender, LogSegment};
use crate::supervision::Supervisor;

fn group(kind: GroupKind) -> Vec<EventBody> {
    let group = Group {
        id: "g".to_owned(),
        tenant: None,
        kind,
        strength: Strength::Hard,
        topology: Topology::Rack,
        max_per_domain: None,
    };
    vec![EventBody::GroupChanged { group }]
}

fn report(at: i64, events: Vec<EventBody>) -> CatalogUpdate {
    let origin = Text::from("own");
    CatalogUpdate::Committed(Arc::new(CommitRecord { origin, at: Micros(at), events }))
}

fn segment(at: i64, is_own: bool, events: Vec<EventBody>) -> LogSegment {
    let origin = Text::from(if is_own { "own" } else { "other" });
    LogSegment { at: Micros(at), origin, is_own, events }
}

fn kind_of_group(catalog: &Catalog) -> Option<GroupKind> {
    catalog.read().groups.get("g").map(|group| group.kind)
}

fn barrier(updates: &CatalogUpdateSender) -> oneshot::Receiver<()> {
    let (reached, waits) = oneshot::channel();
    updates.send(CatalogUpdate::Barrier(reached)).unwrap();
    waits
}

/// A catalogue that has been loaded.
fn start() -> (Arc<Catalog>, CatalogUpdateSender) {
    let (catalog, updates, _) = Catalog::start(&Arc::<Supervisor>::default(), None).unwrap();
    updates.send(CatalogUpdate::Replace(Box::default())).unwrap();
    (catalog, updates)
}

#[test]
fn a_report_that_comes_after_the_log_does_not_undo_what_others_wrote() {
    let (catalog, updates) = start();
    let log = vec![
        segment(1, true, group(GroupKind::Apart)),
        segment(2, false, group(GroupKind::Together)),
    ];
    updates.send(CatalogUpdate::Log(log)).unwrap();
    updates.send(report(1, group(GroupKind::Apart))).unwrap();
    barrier(&updates).blocking_recv().unwrap();
    assert_eq!(kind_of_group(&catalog), Some(GroupKind::Together));
    // One that the log has not delivered yet is applied at once.
    updates.send(report(3, group(GroupKind::Apart))).unwrap();
    barrier(&updates).blocking_recv().unwrap();
    assert_eq!(kind_of_group(&catalog), Some(GroupKind::Apart));
}

#[test]
fn after_a_reload_nobody_reads_before_the_log_has_brought_own_commits_back() {
    let (catalog, updates) = start();
    updates.send(report(1, group(GroupKind::Apart))).unwrap();
    barrier(&updates).blocking_recv().unwrap();
    assert_eq!(kind_of_group(&catalog), Some(GroupKind::Apart));

    // The snapshot was taken before the commit.
    updates.send(CatalogUpdate::Replace(Box::<CatalogState>::default())).unwrap();
    let mut held = barrier(&updates);
    while kind_of_group(&catalog).is_some() {
        std::thread::yield_now();
    }
    assert!(held.try_recv().is_err());
    let log = vec![segment(1, true, group(GroupKind::Apart))];
    updates.send(CatalogUpdate::Log(log)).unwrap();
    updates.send(CatalogUpdate::PassEnded).unwrap();
    held.blocking_recv().unwrap();
    assert_eq!(kind_of_group(&catalog), Some(GroupKind::Apart));
    barrier(&updates).blocking_recv().unwrap();
}

#[test]
fn the_log_does_not_undo_an_own_change_that_it_has_yet_to_come_to() {
    let (catalog, updates) = start();
    let expect = |kind: GroupKind, what: &str| {
        barrier(&updates).blocking_recv().unwrap();
        assert_eq!(kind_of_group(&catalog), Some(kind), "{what}");
    };
    updates.send(CatalogUpdate::Log(Vec::new())).unwrap();
    updates.send(CatalogUpdate::Log(vec![segment(1, false, Vec::new())])).unwrap();
    updates.send(report(3, group(GroupKind::Apart))).unwrap();
    expect(GroupKind::Apart, "reported");
    let older = vec![segment(2, false, group(GroupKind::Together))];
    updates.send(CatalogUpdate::Log(older)).unwrap();
    expect(GroupKind::Apart, "what another server wrote before");
    let newer = vec![
        segment(3, true, group(GroupKind::Apart)),
        segment(4, false, group(GroupKind::Together)),
    ];
    updates.send(CatalogUpdate::Log(newer)).unwrap();
    expect(GroupKind::Together, "what another server wrote after");
}
