//! A ledger that moves between databases, and databases that Berth must not open.

use std::collections::VecDeque;

use berth_engine::GroupKind;
use berth_engine::affinity::Topology;

use super::{TestLedger, granted, group, new_database, open, raw, request, server, volume};
use crate::backend::Backend;
use crate::database::{Database, SnapshotItem};
use crate::error::{Fault, LedgerError};
use crate::ledger::Ledger;
use crate::model::{AuditFilter, Audited, Expect, Op, Pool, Text};
use crate::postgres::{Isolation, Postgres};
use crate::schema::{Cell, TABLES};
use crate::sqlite::Sqlite;

fn dump(tables: &mut dyn Database) -> Vec<(usize, Vec<Cell>)> {
    let mut rows = Vec::new();
    let take = &mut |table, cells| {
        rows.push((table, cells));
        Ok(())
    };
    tables.dump(&|_| true, take).unwrap();
    rows
}

fn load(tables: &mut dyn Database, rows: &[(usize, Vec<Cell>)]) {
    let mut rows: VecDeque<_> = rows.iter().cloned().collect();
    tables.load(&mut || Ok(rows.pop_front())).unwrap();
}

fn populate(test: &mut TestLedger) {
    test.node("n1", "z", "r");
    test.node("N2", "z", "r");
    test.done(Op::PutGroup(group("g", GroupKind::Apart, Topology::Node)));
    test.done(Op::PutPool(Pool::parse("p", "10.0.0.0/24").unwrap()));
    test.done(Op::PutVolume(volume("v", "n1")));
    for instance in 1..=3 {
        let mut request = request(instance);
        request.name = Some(format!("name \"{instance}\" ü\n"));
        let node = if instance == 2 { "N2" } else { "n1" };
        if instance < 3 {
            request.groups.push("g".to_owned());
        }
        let mut planned = test.planned(request, node, "z", "r");
        planned.pools.push(Text::from("p"));
        granted(&test.commit(vec![planned]));
    }
    test.release(3).unwrap();
    for n in 1..=2 {
        let id = Text::from(format!("d{n}"));
        let (kind, body) = (Text::from("token"), "{\"a\":1}".to_owned());
        let op = Op::PutDocument { kind, id: Text::clone(&id), body, expect: Expect::Absent };
        let [actor, origin, action] = ["ann", "", "put"].map(Text::from);
        test.done(Op::Audited(Box::new(Audited {
            actor,
            origin,
            action,
            subject: id,
            request_id: None,
            op,
        })));
        let (name, hash, body) = (format!("p{n}"), format!("h{n}"), "{}".to_owned());
        test.done(Op::ActivatePolicy { name, hash, body, expect: None });
    }
}

#[test]
fn a_ledger_goes_to_postgres_and_back_without_losing_a_bit() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let first = Box::new(Sqlite::open(&folder.path().join("first.db")).unwrap());
    let mut first = TestLedger::new(first, Box::new(|_| ()));
    populate(&mut first);
    let original = dump(&mut *first.tables);
    let url = new_database(&server);
    let mut middle = TestLedger::postgres(&url, Isolation::ReadCommitted);
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
    middle.done(Op::ActivatePolicy {
        name: "p1".to_owned(),
        hash: "h1".to_owned(),
        body: "{}".to_owned(),
        expect: Some("h2".to_owned()),
    });
    let history = middle.tables.policy_history(8).unwrap();
    assert_eq!(history.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!(middle.tables.audit(i64::MAX, 8, &AuditFilter::default()).unwrap().len(), 2);
    middle.requests = 100;
    let planned = middle.planned(request(9), "n1", "z", "r");
    granted(&middle.commit(vec![planned]));
    assert_eq!(middle.events().len(), first.events().len() + 2);
    middle.assert_exact();
}

#[test]
fn an_export_that_cannot_be_loaded_leaves_nothing_behind() {
    let server = server();
    let mut test = TestLedger::postgres(&new_database(&server), Isolation::ReadCommitted);
    let before = dump(&mut *test.tables);
    let bad = vec![Cell::Text("not a number".to_owned()); TABLES[0].columns.len()];
    let mut rows = VecDeque::from([(0, bad)]);
    let failed = test.tables.load(&mut || Ok(rows.pop_front())).unwrap_err();
    assert!(matches!(failed, Fault::Fatal(LedgerError::Corrupt(_))), "{failed:?}");
    assert_eq!(dump(&mut *test.tables), before);
    test.node("n1", "z", "r");
}

#[test]
fn a_database_of_a_newer_berth_is_refused() {
    let server = server();
    let url = new_database(&server);
    drop(open(&url, Isolation::ReadCommitted));
    let newer = "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) \
         VALUES (99, 'later', '2030-01-01T00:00:00Z', '1')";
    raw(&url).script("test", newer).unwrap();
    let Err(Fault::Fatal(error)) = Postgres::open(&url, Isolation::ReadCommitted, None) else {
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
    let Err(Fault::Fatal(error)) = Postgres::open(url, Isolation::ReadCommitted, None) else {
        panic!("it was opened");
    };
    let text = error.to_string();
    assert!(text.contains("host:port") && !text.contains("secret"), "{text}");
    let closed = Postgres::open("postgres://me@127.0.0.1:1/x", Isolation::ReadCommitted, None);
    assert!(matches!(closed, Err(Fault::Disconnected(_))));
    let missing = server.url().replace("/postgres", "/nothing");
    assert!(matches!(
        Postgres::open(&missing, Isolation::ReadCommitted, None),
        Err(Fault::Fatal(_))
    ));
}

#[test]
fn an_export_of_the_first_format_still_loads_and_a_newer_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let backend = Backend::Sqlite(folder.path().join(name));
        Ledger::open(backend, crate::backend::Options::default()).unwrap()
    };
    // The first format had no documents, no audit log and no history of policies.
    let rows = ["[\"ledger\",1,\"id\",1,1]", "[\"env_secrets\",\"prod\",\"v1\"]"];
    let export = |format: u32| {
        let mut text = format!("{{\"berth_export\":{format}}}\n");
        rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
        let checksum = blake3::hash(text.as_bytes()).to_hex();
        let tables = "{\"env_secrets\":1,\"ledger\":1}";
        text.push_str(&format!("{{\"rows\":2,\"tables\":{tables},\"checksum\":\"{checksum}\"}}\n"));
        text
    };
    let newer = open("newer.db").import(&mut export(8).as_bytes()).unwrap_err();
    assert!(
        newer.to_string().contains("unsupported format 8; this Berth reads formats 1 to 7"),
        "{newer}"
    );
    let ledger = open("old.db");
    assert_eq!(ledger.import(&mut export(1).as_bytes()).unwrap().rows, 2);
    let mut secrets = 0;
    let take = |item| {
        secrets += i32::from(matches!(item, SnapshotItem::Secrets(..)));
        Ok(())
    };
    ledger.snapshot(take).unwrap();
    assert_eq!(secrets, 1);
    let mut out = Vec::new();
    ledger.export(&mut out).unwrap();
    assert!(out.starts_with(b"{\"berth_export\":7}\n"));
}

#[test]
fn a_ledger_of_the_first_schema_is_migrated_with_the_policy_in_force() {
    let policies = "INSERT INTO policy (hash, name, body, at, active) VALUES \
         ('old', 'a', '{}', 5, 0), ('new', 'b', '{}', 7, 1)";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("first.db");
    Sqlite::make_first(&path);
    rusqlite::Connection::open(&path).unwrap().execute_batch(policies).unwrap();
    let server = server();
    let url = new_database(&server);
    let mut run_sql = raw(&url);
    crate::postgres::testing::make_first(&mut run_sql);
    run_sql.script("test", policies).unwrap();
    let sqlite: Box<dyn Database> = Box::new(Sqlite::open(&path).unwrap());
    let postgres: Box<dyn Database> = Box::new(open(&url, Isolation::ReadCommitted));
    for mut tables in [sqlite, postgres] {
        let history = tables.policy_history(8).unwrap();
        assert_eq!(history, [(1, "new".to_owned(), crate::model::Micros(7))]);
        assert_eq!(tables.policies().unwrap().len(), 2);
    }
}

/// A migration that ends between its statements and its entry in the history, as by a kill, must leave
/// nothing behind: the next start would fail on what is there already, for ever.
#[test]
fn a_migration_that_was_interrupted_is_done_by_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("interrupted.db");
    Sqlite::make_first(&path);
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    let interrupt = "CREATE TRIGGER interrupt BEFORE INSERT ON refinery_schema_history \
         WHEN NEW.version = 2 BEGIN SELECT RAISE(ABORT, 'interrupted'); END";
    sqlite.execute_batch(interrupt).unwrap();
    let interrupted = Sqlite::open(&path).err().unwrap();
    assert!(format!("{interrupted:?}").contains("interrupted"), "{interrupted:?}");
    sqlite.execute_batch("DROP TRIGGER interrupt").unwrap();
    Sqlite::open(&path).unwrap();

    let server = server();
    let url = new_database(&server);
    let mut run_sql = raw(&url);
    crate::postgres::testing::make_first(&mut run_sql);
    let interrupt = "CREATE FUNCTION interrupt() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'interrupted'; END $$; \
         CREATE TRIGGER interrupt BEFORE INSERT ON refinery_schema_history \
         FOR EACH ROW WHEN (NEW.version = 2) EXECUTE FUNCTION interrupt()";
    run_sql.script("test", interrupt).unwrap();
    let interrupted = Postgres::open(&url, Isolation::ReadCommitted, None).err().unwrap();
    assert!(format!("{interrupted:?}").contains("interrupted"), "{interrupted:?}");
    run_sql.script("test", "DROP TRIGGER interrupt ON refinery_schema_history").unwrap();
    Postgres::open(&url, Isolation::ReadCommitted, None).unwrap();
}

#[test]
fn servers_of_the_release_before_still_find_groups_by_their_old_names() {
    let server = server();
    let url = new_database(&server);
    let mut test = TestLedger::postgres(&url, Isolation::ReadCommitted);
    test.done(Op::PutGroup(group("g", GroupKind::Apart, Topology::Node)));
    // What schema 3 was read and written with, in the forms in which it was.
    let statements = "\
        SELECT 1 FROM team WHERE id = ANY(ARRAY['g']) ORDER BY id COLLATE \"C\" FOR UPDATE; \
        WITH done AS (UPDATE team AS t SET home = u.home FROM \
            unnest(ARRAY['g'], ARRAY['n1']) AS u(id, home) WHERE t.id = u.id RETURNING 1) \
            SELECT 1 / (count(*) = 1)::int FROM done; \
        INSERT INTO team (id, kind, strength, topology) VALUES ('h', 'apart', 'soft', 'rack'); \
        INSERT INTO team_domain (team, domain, members) SELECT u.team, u.domain, u.members FROM \
            unnest(ARRAY['g'], ARRAY['n1'], ARRAY[1::bigint]) AS u(team, domain, members); \
        WITH done AS (UPDATE team_domain AS t SET members = u.members FROM \
            unnest(ARRAY['g'], ARRAY['n1'], ARRAY[2::bigint]) AS u(team, domain, members) \
            WHERE t.team = u.team AND t.domain = u.domain RETURNING 1) \
            SELECT 1 / (count(*) = 1)::int FROM done; \
        INSERT INTO team_member (team, instance, role) VALUES ('g', '\\x01', 0); \
        WITH done AS (DELETE FROM team_member AS t USING \
            unnest(ARRAY['g'], ARRAY['\\x01'::bytea]) AS u(team, instance) \
            WHERE t.team = u.team AND t.instance = u.instance RETURNING 1) \
            SELECT 1 / (count(*) = 1)::int FROM done";
    raw(&url).script("test", statements).unwrap();
    let check = "SELECT 1 / (count(*) = 1)::int FROM placement_group AS g \
        JOIN placement_group_domain AS d ON d.placement_group = g.id \
        WHERE g.home = 'n1' AND d.members = 2";
    raw(&url).script("test", check).unwrap();
    let items = test.snapshot().1;
    let groups = items.iter().filter(|item| matches!(item, SnapshotItem::Group(_)));
    assert_eq!(groups.count(), 2);
}
