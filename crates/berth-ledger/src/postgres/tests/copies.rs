//! A ledger that moves between databases, and databases that Berth must not open.

use std::collections::VecDeque;

use berth_engine::GroupKind;
use berth_engine::affinity::Topology;

use super::{World, granted, group, new_database, open, raw, request, server, volume};
use crate::error::{Fault, LedgerError};
use crate::export::{Cell, TABLES};
use crate::model::{Op, Pool, Text};
use crate::postgres::{Isolation, Postgres};
use crate::sqlite::Sqlite;
use crate::tables::Tables;

fn dump(tables: &mut dyn Tables) -> Vec<(usize, Vec<Cell>)> {
    let mut rows = Vec::new();
    let take = &mut |table, cells| {
        rows.push((table, cells));
        Ok(())
    };
    tables.dump(take).unwrap();
    rows
}

fn load(tables: &mut dyn Tables, rows: &[(usize, Vec<Cell>)]) {
    let mut rows: VecDeque<_> = rows.iter().cloned().collect();
    tables.load(&mut || Ok(rows.pop_front())).unwrap();
}

fn busy(world: &mut World) {
    world.node("n1", "z", "r");
    world.node("N2", "z", "r");
    world.done(Op::PutGroup(group("g", GroupKind::Apart, Topology::Node)));
    world.done(Op::PutPool(Pool::parse("p", "10.0.0.0/24").unwrap()));
    world.done(Op::PutVolume(volume("v", "n1")));
    for instance in 1..=3 {
        let mut request = request(instance);
        request.name = Some(format!("name \"{instance}\" ü\n"));
        let node = if instance == 2 { "N2" } else { "n1" };
        if instance < 3 {
            request.groups.push("g".to_owned());
        }
        let mut planned = world.planned(request, node, "z", "r");
        planned.pools.push(Text::from("p"));
        granted(&world.commit(vec![planned]));
    }
    world.release(3).unwrap();
}

#[test]
fn a_ledger_goes_to_postgres_and_back_without_losing_a_bit() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let first = Box::new(Sqlite::open(&folder.path().join("first.db")).unwrap());
    let mut first = World::new(first, Box::new(|_| ()));
    busy(&mut first);
    let original = dump(&mut *first.tables);
    let url = new_database(&server);
    let mut middle = World::postgres(&url, Isolation::ReadCommitted);
    load(&mut *middle.tables, &original);
    let copied = dump(&mut *middle.tables);
    for (left, right) in original.iter().zip(&copied) {
        assert_eq!(left, right, "{}", TABLES[left.0].table);
    }
    assert_eq!(original.len(), copied.len());
    let mut last = Sqlite::open(&folder.path().join("last.db")).unwrap();
    load(&mut last, &copied);
    assert_eq!(dump(&mut last), original);
    // It goes on where the other ended.
    assert_eq!(middle.events().len(), first.events().len());
    middle.requests = 100;
    let planned = middle.planned(request(9), "n1", "z", "r");
    granted(&middle.commit(vec![planned]));
    assert_eq!(middle.events().len(), first.events().len() + 1);
    middle.assert_exact();
}

#[test]
fn an_export_that_cannot_be_loaded_leaves_nothing_behind() {
    let server = server();
    let mut world = World::postgres(&new_database(&server), Isolation::ReadCommitted);
    let before = dump(&mut *world.tables);
    let bad = vec![Cell::Text("not a number".to_owned()); TABLES[0].columns.len()];
    let mut rows = VecDeque::from([(0, bad)]);
    let failed = world.tables.load(&mut || Ok(rows.pop_front())).unwrap_err();
    assert!(matches!(failed, Fault::Fatal(LedgerError::Corrupt(_))), "{failed:?}");
    assert_eq!(dump(&mut *world.tables), before);
    world.node("n1", "z", "r");
}

#[test]
fn a_database_of_a_newer_berth_is_refused() {
    let server = server();
    let url = new_database(&server);
    drop(open(&url, Isolation::ReadCommitted));
    let newer = "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) \
         VALUES (99, 'later', '2030-01-01T00:00:00Z', '1')";
    raw(&url).script("test", newer).unwrap();
    let Err(Fault::Fatal(error)) = Postgres::open(&url, Isolation::ReadCommitted) else {
        panic!("it was opened");
    };
    assert!(matches!(error, LedgerError::NewerSchema { found: 99, .. }), "{error}");
}

#[test]
fn many_servers_may_start_on_an_empty_database_at_once() {
    let server = server();
    let url = new_database(&server);
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || {
                let mut tables = open(&url, Isolation::ReadCommitted);
                tables.number_events().unwrap()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap().next, 1);
    }
}

#[test]
fn a_socket_url_works_and_a_wrong_one_is_named_without_its_password() {
    let server = server();
    let mut tables = open(&server.socket_url(), Isolation::ReadCommitted);
    assert!(tables.clock().unwrap().0 > 1_700_000_000_000_000);
    let url = "postgres://me:secret@host:port/x";
    let Err(Fault::Fatal(error)) = Postgres::open(url, Isolation::ReadCommitted) else {
        panic!("it was opened");
    };
    let text = error.to_string();
    assert!(text.contains("host:port") && !text.contains("secret"), "{text}");
    let closed = Postgres::open("postgres://me@127.0.0.1:1/x", Isolation::ReadCommitted);
    assert!(matches!(closed, Err(Fault::Lost(_))));
    let missing = server.url().replace("/postgres", "/nothing");
    assert!(matches!(Postgres::open(&missing, Isolation::ReadCommitted), Err(Fault::Fatal(_))));
}
