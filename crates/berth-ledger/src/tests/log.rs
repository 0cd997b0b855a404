//! The event log: complete, dense, and never missing a late commit.

use std::collections::BTreeSet;

use super::{TestLedger, granted, new_database, on_every_database, raw, request, server};
use crate::database::SnapshotItem;
use crate::model::EventBody;
use crate::postgres::Isolation;
use crate::retention::RetentionCutoffs;

fn commit(test: &mut TestLedger, instances: impl Iterator<Item = u128>) {
    let claims = instances.map(|n| test.planned(request(n), "n1", "z", "r")).collect();
    granted(&test.commit(claims));
}

#[test]
fn events_are_dense_and_complete() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        for first in [1, 4, 7] {
            commit(test, first..first + 3);
        }
        test.release(5).unwrap();
        let events = test.events();
        assert_eq!(events.len(), 1 + 9 + 1);
        let allocated: BTreeSet<String> = events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::Allocated(allocated) => Some(allocated.instance_id.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(allocated.len(), 9);
        assert!(events.iter().all(|event| &event.origin == test.chain.origin()));
    });
}

#[test]
fn a_snapshot_holds_everything_up_to_its_cursor() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        commit(test, 1..6);
        test.release(2).unwrap();
        let (cursor, items) = test.snapshot();
        assert_eq!(cursor, i64::try_from(test.events().len()).unwrap());
        let mut claims = 0;
        for item in items {
            match item {
                SnapshotItem::Node(facts, node_version) => {
                    assert_eq!((facts.id.as_str(), node_version.constraint_gen), ("n1", 1));
                }
                SnapshotItem::Claim(claim) => {
                    assert_eq!(test.tables.claim(claim.key).unwrap(), Some(*claim));
                    claims += 1;
                }
                _ => panic!("something nobody put there"),
            }
        }
        assert_eq!(claims, 4);
        commit(test, 6..7);
        test.tables.number_events().unwrap();
        assert_eq!(test.tables.segments_after(cursor, 100).unwrap().len(), 1);
    });
}

#[test]
fn a_follower_gets_a_late_commit_exactly_once() {
    let server = server();
    let url = new_database(&server);
    let mut test = TestLedger::postgres(&url, Isolation::ReadCommitted);
    test.node("n1", "z", "r");
    assert_eq!(test.events().len(), 1);
    // It draws a lower id than the writer after it, and commits later.
    let mut late = raw(&url);
    let insert = "BEGIN; INSERT INTO event_segment (first, count, at, origin, body) \
         VALUES (NULL, 1, 0, 'late', '{\"specs\":[],\"events\":[{\"kind\":\"node.removed\",\"node_id\":\"x\"}]}')";
    late.script("test", insert).unwrap();
    commit(&mut test, 1..3);
    let node_version = test.events();
    assert_eq!(node_version.len(), 3, "what has not committed is not there");
    late.script("test", "COMMIT").unwrap();
    let all = test.events();
    assert_eq!(all.len(), 4);
    assert_eq!((all[3].seq, &*all[3].origin), (4, "late"));
    assert_eq!(test.events().len(), 4);
}

#[test]
fn numbering_by_many_at_once_gives_every_event_one_number() {
    let server = server();
    let url = new_database(&server);
    let mut first = TestLedger::postgres(&url, Isolation::ReadCommitted);
    first.node("n1", "z", "r");
    let threads: Vec<_> = (0..4u128)
        .map(|writer| {
            let url = url.clone();
            std::thread::spawn(move || {
                let mut test = TestLedger::postgres(&url, Isolation::ReadCommitted);
                test.requests = u32::try_from(writer).unwrap() * 1000;
                for n in 0..4 {
                    commit(&mut test, std::iter::once(1 + writer * 100 + n));
                    // A writer that has committed finds its own events.
                    let own = test.chain.origin().clone();
                    let events = test.events();
                    let own = events.iter().filter(|event| event.origin == own).count();
                    assert_eq!(own, usize::try_from(n).unwrap() + 1);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(first.events().len(), 17);
}

#[test]
fn forgetting_drops_whole_segments_and_keeps_chains_verifiable() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        for n in 1..=4 {
            commit(test, std::iter::once(n));
        }
        test.events();
        let now = test.tables.clock().unwrap();
        let forget = RetentionCutoffs {
            events_before: 3,
            answers_before: now,
            receipts_before: Some(now.plus_seconds(1)),
            refusals_before: None,
            audit_before: None,
            now,
        };
        let gone = test.tables.forget(&forget).unwrap();
        // Two segments, four answers, and all receipts but the newest: a first one and three.
        assert_eq!(gone, 2 + 4 + 4);
        let ends = test.tables.number_events().unwrap();
        assert_eq!((ends.first, ends.next), (3, 6));
        let chain = test.tables.chains().unwrap().remove(0);
        assert_eq!((chain.base, chain.length), (4, 5));
        let receipts = test.tables.receipts(&chain.id, 0, 100).unwrap();
        assert_eq!(receipts.iter().map(|receipt| receipt.n).collect::<Vec<_>>(), [4]);
        assert_eq!(receipts[0].hash, chain.head);
        assert_eq!(test.tables.segments_after(2, 1).unwrap()[0].first, 3);
        commit(test, std::iter::once(9));
        assert_eq!(test.tables.number_events().unwrap().next, 7);
    });
}
