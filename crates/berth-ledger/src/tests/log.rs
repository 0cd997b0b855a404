//! The event log: complete, dense, and never missing a late commit.

use std::collections::BTreeSet;

use super::{World, everywhere, granted, new_database, raw, request, server};
use crate::database::SnapshotItem;
use crate::model::EventBody;
use crate::postgres::Isolation;
use crate::retention::Forget;

fn commit(world: &mut World, instances: impl Iterator<Item = u128>) {
    let claims = instances.map(|n| world.planned(request(n), "n1", "z", "r")).collect();
    granted(&world.commit(claims));
}

#[test]
fn events_are_dense_and_complete() {
    everywhere(|world| {
        world.node("n1", "z", "r");
        for first in [1, 4, 7] {
            commit(world, first..first + 3);
        }
        world.release(5).unwrap();
        let events = world.events();
        assert_eq!(events.len(), 1 + 9 + 1);
        let allocated: BTreeSet<String> = events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::Allocated(allocated) => Some(allocated.instance_id.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(allocated.len(), 9);
        assert!(events.iter().all(|event| event.origin == world.chain.id));
    });
}

#[test]
fn a_snapshot_holds_everything_up_to_its_cursor() {
    everywhere(|world| {
        world.node("n1", "z", "r");
        commit(world, 1..6);
        world.release(2).unwrap();
        let (cursor, items) = world.snapshot();
        assert_eq!(cursor, i64::try_from(world.events().len()).unwrap());
        let mut claims = 0;
        for item in items {
            match item {
                SnapshotItem::Node(facts, seen) => {
                    assert_eq!((facts.id.as_str(), seen.constraint_gen), ("n1", 1));
                }
                SnapshotItem::Claim(claim) => {
                    assert_eq!(world.tables.claim(claim.key).unwrap(), Some(*claim));
                    claims += 1;
                }
                _ => panic!("something nobody put there"),
            }
        }
        assert_eq!(claims, 4);
        commit(world, 6..7);
        world.tables.number_events().unwrap();
        assert_eq!(world.tables.segments_after(cursor, 100).unwrap().len(), 1);
    });
}

#[test]
fn a_follower_gets_a_late_commit_exactly_once() {
    let server = server();
    let url = new_database(&server);
    let mut world = World::postgres(&url, Isolation::ReadCommitted);
    world.node("n1", "z", "r");
    assert_eq!(world.events().len(), 1);
    // It draws a lower id than the writer after it, and commits later.
    let mut late = raw(&url);
    let insert = "BEGIN; INSERT INTO event_segment (first, count, at, origin, body) \
         VALUES (NULL, 1, 0, 'late', '{\"specs\":[],\"events\":[{\"kind\":\"node.removed\",\"node_id\":\"x\"}]}')";
    late.script("test", insert).unwrap();
    commit(&mut world, 1..3);
    let seen = world.events();
    assert_eq!(seen.len(), 3, "what has not committed is not there");
    late.script("test", "COMMIT").unwrap();
    let all = world.events();
    assert_eq!(all.len(), 4);
    assert_eq!((all[3].seq, &*all[3].origin), (4, "late"));
    assert_eq!(world.events().len(), 4);
}

#[test]
fn numbering_by_many_at_once_gives_every_event_one_number() {
    let server = server();
    let url = new_database(&server);
    let mut first = World::postgres(&url, Isolation::ReadCommitted);
    first.node("n1", "z", "r");
    let threads: Vec<_> = (0..4u128)
        .map(|writer| {
            let url = url.clone();
            std::thread::spawn(move || {
                let mut world = World::postgres(&url, Isolation::ReadCommitted);
                world.requests = u32::try_from(writer).unwrap() * 1000;
                for n in 0..4 {
                    commit(&mut world, std::iter::once(1 + writer * 100 + n));
                    // Whoever has committed finds what they wrote.
                    let own = world.chain.id.clone();
                    let events = world.events();
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
    everywhere(|world| {
        world.node("n1", "z", "r");
        for n in 1..=4 {
            commit(world, std::iter::once(n));
        }
        world.events();
        let now = world.tables.clock().unwrap();
        let forget = Forget {
            events_before: 3,
            answers_before: now,
            receipts_before: Some(now.plus_seconds(1)),
            audit_before: None,
            now,
        };
        let gone = world.tables.forget(&forget).unwrap();
        // Two segments, four answers, and all receipts but the newest: a first one and three.
        assert_eq!(gone, 2 + 4 + 4);
        let ends = world.tables.number_events().unwrap();
        assert_eq!((ends.first, ends.next), (3, 6));
        let chain = world.tables.chains().unwrap().remove(0);
        assert_eq!((chain.base, chain.length), (4, 5));
        let receipts = world.tables.receipts(&chain.id, 0, 100).unwrap();
        assert_eq!(receipts.iter().map(|receipt| receipt.n).collect::<Vec<_>>(), [4]);
        assert_eq!(receipts[0].hash, chain.head);
        assert_eq!(world.tables.segments_after(2, 1).unwrap()[0].first, 3);
        commit(world, std::iter::once(9));
        assert_eq!(world.tables.number_events().unwrap().next, 7);
    });
}
