//! Databases that earlier versions left behind are opened, migrated and read by this one.
//!
//! `tests/fixtures` has, for each schema version that was released, a SQLite file and a PostgreSQL
//! database as SQL, and an export. A change of the schema adds a set, made by
//! `cargo nextest run -p berth-conformance --run-ignored only make_fixtures` on the commit before it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod api;
mod dump;
mod populate;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use berth_api::ReplayOutcome;
use berth_conformance::{Database, Fixture};
use berth_control::replay;
use berth_engine::{Amounts, InstanceId, InstanceRequest};
use berth_ledger::{
    AuditFilter, Backend, ClaimKey, ClaimState, Decision, DecisionOutcome, EventBody, Isolation,
    Ledger, Options, Role, SnapshotItem,
};
use serde_json::Value;

use api::Api;

const POSTGRES: Database = Database::Postgres(Isolation::ReadCommitted);

/// Fixtures whose name ends like this.
fn fixtures(ending: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dump::folder()).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
    files.sort();
    assert!(!files.is_empty(), "no fixture ends with {ending}");
    files
}

/// Every database that an earlier version left behind, opened by this one.
fn restored(database: Database) -> Vec<Fixture> {
    let ending = match database {
        Database::Sqlite => ".sqlite.sql.gz",
        Database::Postgres(_) => ".postgres.sql.gz",
    };
    let fixtures = fixtures(ending).into_iter();
    fixtures.map(|path| Fixture::restored(database, &dump::read(&path)).unwrap()).collect()
}

fn each_database(check: impl Fn(&Fixture)) {
    for database in [Database::Sqlite, POSTGRES] {
        restored(database).iter().for_each(&check);
    }
}

fn decisions(ledger: &Ledger) -> Vec<Decision> {
    ledger.decisions(None, 10_000).unwrap()
}

#[test]
fn every_row_of_an_older_database_is_readable_and_every_counter_exact() {
    each_database(|fixture| {
        let ledger = fixture.ledger().unwrap();
        assert_eq!(fixture.violations().unwrap(), [], "{fixture}");
        assert_eq!(fixture.log_violations().unwrap(), [], "{fixture}");
        let mut items: BTreeMap<&str, usize> = BTreeMap::new();
        let count = |item| {
            *items.entry(name_of(&item)).or_default() += 1;
            Ok(())
        };
        ledger.snapshot(count).unwrap();
        assert_eq!(items.len(), 9, "{fixture}: {items:?}");
        let claims = ledger.claims_page(None, 10_000).unwrap();
        assert_eq!(claims.len(), items["claim"], "{fixture}");
        let states: BTreeSet<ClaimState> = claims.iter().map(|claim| claim.state).collect();
        assert_eq!(states.len(), 4, "{fixture}: {states:?}");
        let roles: BTreeSet<Role> = claims.iter().map(|claim| claim.key.role).collect();
        assert_eq!(roles.len(), 3, "{fixture}: {roles:?}");
        for claim in &claims {
            claim.request().unwrap();
        }
        assert!(claims.iter().any(|claim| claim.permit.is_some()), "{fixture}");
        let held = claims.iter().filter_map(|claim| claim.holdings.as_deref());
        let held: Vec<_> = held.collect();
        assert!(held.iter().any(|held| held.slot.is_some()), "{fixture}");
        assert!(held.iter().any(|held| !held.groups.is_empty()), "{fixture}");
        assert!(held.iter().any(|held| !held.volumes.is_empty()), "{fixture}");
        assert!(held.iter().any(|held| !held.classes.is_empty()), "{fixture}");
        assert!(held.iter().any(|held| held.values.len() == 3), "{fixture}");
        assert_eq!(ledger.pools().unwrap().len(), 3, "{fixture}");
        assert_eq!(ledger.quotas().unwrap().len(), 2, "{fixture}");
        assert_eq!(ledger.workloads().unwrap().len(), 2, "{fixture}");
        assert!(ledger.policies().unwrap().len() >= 2, "{fixture}");
        assert!(ledger.policy_history(100).unwrap().len() >= 3, "{fixture}");
        assert!(
            !ledger.audit(None, 1000, &AuditFilter::default()).unwrap().is_empty(),
            "{fixture}"
        );
        assert!(!ledger.demand().unwrap().is_empty(), "{fixture}");
        assert!(!ledger.heartbeats_since(0).unwrap().is_empty(), "{fixture}");
        assert!(ledger.answer("acme", "addressed").unwrap().is_some(), "{fixture}");
        for kind in ["token", "ticket", "migration", "volume_move", "attachment", "scheduling"] {
            assert!(!ledger.documents(kind, None, 100).unwrap().is_empty(), "{fixture}: {kind}");
        }
    });
}

fn name_of(item: &SnapshotItem) -> &'static str {
    match item {
        SnapshotItem::Policy(..) => "policy",
        SnapshotItem::Secrets(..) => "secrets",
        SnapshotItem::Group(_) => "group",
        SnapshotItem::Node(..) => "node",
        SnapshotItem::Volume(_) => "volume",
        SnapshotItem::Pool(_) => "pool",
        SnapshotItem::Quota(..) => "quota",
        SnapshotItem::Workload(_) => "workload",
        SnapshotItem::Claim(_) => "claim",
    }
}

#[test]
fn every_event_and_receipt_of_an_older_database_is_readable() {
    each_database(|fixture| {
        let kinds = fixture.events().unwrap().into_iter().map(|event| kind_of(&event.body));
        let kinds: BTreeSet<String> = kinds.collect();
        for kind in [
            "instance.allocated",
            "instance.state",
            "instance.permit",
            "instance.bounds",
            "instance.released",
            "node.changed",
            "node.state",
            "node.removed",
            "group.changed",
            "group.removed",
            "volume.changed",
            "pool.changed",
            "quota.changed",
            "workload.changed",
            "env.scheduling_failed",
            "secrets.changed",
            "policy.changed",
            "document.changed",
        ] {
            assert!(kinds.contains(kind), "{fixture}: {kind} is not among {kinds:?}");
        }
        let ledger = fixture.ledger().unwrap();
        let verified = ledger.verify().unwrap();
        assert_eq!(verified.faults, [], "{fixture}");
        let decisions = decisions(ledger);
        assert_eq!(verified.decisions, u64::try_from(decisions.len()).unwrap(), "{fixture}");
        let refused = |decision: &&Decision| {
            matches!(decision.record.outcome, DecisionOutcome::Refused { .. })
        };
        assert!(decisions.iter().filter(refused).count() > 0, "{fixture}");
    });
}

fn kind_of(body: &EventBody) -> String {
    let body = serde_json::to_value(body).unwrap();
    body["kind"].as_str().unwrap().to_owned()
}

/// Whether the engine decided. What went to the ledger without a planner names no policy, and a quota
/// is refused by the ledger, without an explanation.
fn is_planned(decision: &Decision) -> bool {
    let by_ledger =
        matches!(decision.record.outcome, DecisionOutcome::Refused { detail: None, .. });
    !decision.record.basis.policy.is_empty() && !by_ledger
}

#[test]
fn decisions_of_an_older_database_are_decided_identically_today() {
    each_database(|fixture| {
        let ledger = fixture.ledger().unwrap();
        let decisions = decisions(ledger);
        let planned = decisions.iter().filter(|it| is_planned(it));
        let mut replayed = 0;
        for decision in planned {
            let answer = replay(ledger, decision).unwrap();
            assert_eq!(answer.outcome, ReplayOutcome::Identical, "{fixture}: {answer:#?}");
            replayed += 1;
        }
        assert!(replayed > 20, "{fixture}: {replayed} decisions");
    });
}

#[test]
fn a_claim_is_made_and_released_in_an_older_database() {
    each_database(|fixture| {
        let ledger = fixture.ledger().unwrap();
        let id = InstanceId::from_u128(0xfeed);
        let mut request = InstanceRequest::new(id, "acme", Amounts::new(100, 128));
        request.groups.push("zones".to_owned());
        let planned = populate::planned(ledger, request, "n5");
        let fence = populate::commit(ledger, "after", planned);
        let claim = ledger.claim(ClaimKey::primary(id)).unwrap().unwrap();
        assert_eq!(claim.fence, fence, "{fixture}");
        assert!(ledger.force_release(claim.key, "test").unwrap(), "{fixture}");
        for claim in ledger.claims_page(None, 10_000).unwrap() {
            assert!(ledger.force_release(claim.key, "test").unwrap(), "{fixture}: {}", claim.key);
        }
        assert_eq!(fixture.violations().unwrap(), [], "{fixture}");
        assert_eq!(fixture.log_violations().unwrap(), [], "{fixture}");
        let used: i64 = ledger.quotas().unwrap().iter().map(|quota| quota.used.instances).sum();
        assert_eq!(used, 0, "{fixture}");
        assert_eq!(ledger.verify().unwrap().faults, [], "{fixture}");
    });
}

fn export(ledger: &Ledger) -> String {
    let mut out = Vec::new();
    ledger.export(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A new ledger with what an export holds.
fn imported(text: &str) -> (tempfile::TempDir, Ledger) {
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::Sqlite(folder.path().join("ledger.db"));
    let ledger = Ledger::open(backend, Options::default()).unwrap();
    ledger.import(&mut text.as_bytes()).unwrap();
    (folder, ledger)
}

#[test]
fn an_older_export_gives_the_database_that_migrating_gives() {
    let migrated = restored(Database::Sqlite);
    for (path, fixture) in fixtures(".export.gz").into_iter().zip(&migrated) {
        let (_folder, ledger) = imported(&dump::read(&path));
        assert!(export(&ledger) == export(fixture.ledger().unwrap()), "{}", path.display());
    }
    for fixture in restored(POSTGRES) {
        let moved = export(fixture.ledger().unwrap());
        let (_folder, ledger) = imported(&moved);
        assert!(export(&ledger) == moved, "{fixture}");
    }
}

#[test]
fn a_server_starts_on_an_older_database_and_shows_what_is_in_it() {
    each_database(|fixture| {
        let (kind, id) = populate::TOKEN;
        let secret = fixture.ledger().unwrap().document(kind, id).unwrap().unwrap().body;
        let backend = Backend::parse(&fixture.settings().url).unwrap();
        api::block_on(show(fixture, backend, secret));
    });
}

async fn show(fixture: &Fixture, backend: Backend, secret: String) {
    let api = Api::start(backend, Some(secret)).await;
    for path in [
        "/v1/nodes",
        "/v1/claims",
        "/v1/instances",
        "/v1/groups",
        "/v1/volumes",
        "/v1/attachments",
        "/v1/pools",
        "/v1/quotas",
        "/v1/workloads",
        "/v1/environments",
        "/v1/policies",
        "/v1/decisions",
        "/v1/events",
        "/v1/tokens",
        "/v1/queue",
        "/v1/drains",
        "/v1/migrations",
        "/v1/demand",
        "/v1/audit",
    ] {
        let found = api.get(path).await;
        let items = found["items"].as_array().map_or(0, Vec::len);
        assert!(items > 0, "{fixture}: {path}: {found:#}");
    }
    let whoami = api.get("/v1/whoami").await;
    assert_eq!(whoami["role"], Value::from("admin"), "{fixture}: {whoami}");
    api.get("/v1/volumes/data/move").await;
    api.stop().await;
}

/// The newest schema version of a database.
fn schema_version(fixture: &Fixture) -> i64 {
    fixture.sql_connection().number("SELECT max(version) FROM refinery_schema_history").unwrap()
}

#[test]
#[ignore = "writes the fixtures of the present schema version"]
fn make_fixtures() {
    for database in [Database::Sqlite, POSTGRES] {
        let fixture = Fixture::new(database).unwrap();
        let backend = Backend::parse(&fixture.settings().url).unwrap();
        populate::populate(&backend);
        let folder = dump::folder();
        let name = format!("schema-{}", schema_version(&fixture));
        match backend {
            Backend::Sqlite(path) => {
                let sql = dump::sqlite(&path);
                dump::write(&folder.join(format!("{name}.sqlite.sql.gz")), &sql);
                let text = export(fixture.ledger().unwrap());
                dump::write(&folder.join(format!("{name}.export.gz")), &text);
            }
            Backend::Postgres(url) => {
                let sql = dump::postgres(&url);
                dump::write(&folder.join(format!("{name}.postgres.sql.gz")), &sql);
            }
        }
    }
}
