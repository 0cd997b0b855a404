//! A ledger that somebody changed by hand: the check names the rule that it breaks, and no other.

use std::collections::BTreeSet;

use berth_control::debug::{Invariant, check};
use serde_json::{Value, json};

use crate::stage::Stage;

/// Rows that are tampered with, how, and the rule that is broken then.
struct Tampering {
    rule: Invariant,
    /// A table, and which of its rows are put back afterwards.
    rows: &'static str,
    sql: &'static str,
}

const fn tampering(rule: Invariant, rows: &'static str, sql: &'static str) -> Tampering {
    Tampering { rule, rows, sql }
}

const TAMPERINGS: [Tampering; 13] = [
    tampering(Invariant::SlotTaken, "slot", "DELETE FROM slot WHERE slot = 0"),
    tampering(
        Invariant::SlotHolder,
        "slot",
        "UPDATE slot SET instance = zeroblob(16) WHERE slot = 0",
    ),
    // An instance of no workload says that it has a slot, too.
    tampering(
        Invariant::SlotHandover,
        "claim",
        "UPDATE claim SET ties = (SELECT json_object('slot', json_extract(ties, '$.slot')) \
         FROM claim WHERE workload = 'web' LIMIT 1) WHERE name = 'plain'",
    ),
    tampering(Invariant::PoolValues, "pool_value", "DELETE FROM pool_value"),
    tampering(
        Invariant::PoolValues,
        "pool_value",
        "UPDATE pool_value SET instance = (SELECT instance FROM claim WHERE name = 'plain')",
    ),
    tampering(
        Invariant::PoolValues,
        "claim",
        "UPDATE claim SET ties = json_remove(ties, '$.values') WHERE name = 'numbered'",
    ),
    tampering(
        Invariant::TicketRecord,
        "document WHERE kind = 'ticket'",
        "UPDATE document SET body = json_set(body, '$.ticket.state', 'granted') \
         WHERE kind = 'ticket'",
    ),
    tampering(
        Invariant::TicketRecord,
        "document WHERE kind = 'ticket'",
        "UPDATE document SET id = 'another' WHERE kind = 'ticket'",
    ),
    tampering(
        Invariant::DrainRecord,
        "document WHERE kind = 'drain'",
        "DELETE FROM document WHERE kind = 'drain'",
    ),
    tampering(
        Invariant::DrainRecord,
        "document WHERE kind = 'drain'",
        "INSERT INTO document SELECT kind, 'n1', rev, body, at FROM document WHERE kind = 'drain'",
    ),
    tampering(Invariant::VolumeMoveRecord, "volume", "UPDATE volume SET home = 'n3'"),
    tampering(Invariant::VolumeMoveRecord, "volume", "DELETE FROM volume"),
    tampering(Invariant::QuotaUsed, "tenant", "UPDATE tenant SET used_disk = used_disk + 1"),
];

/// A server with members of a workload, a value of a pool, a request that waits, a node that is being
/// emptied, and a volume that moves.
async fn busy() -> Stage {
    let stage = Stage::new(&["n1", "n2", "n3"]).await;
    let (server, operator) = (&stage.server, &stage.operator);
    let put = async |path: &str, body: Value| {
        let reply = server.put(operator, path, &body).await;
        assert!(reply.status.is_success(), "{path}: {}", reply.text);
    };
    let size = json!({"cpu_milli": 1000, "memory_mib": 1024, "disk_mib": 64});
    put("/v1/quotas/acme", json!({"instances": 100})).await;
    put("/v1/workloads/acme/web", json!({"template": {"resources": size}})).await;
    put("/v1/pools/ports", json!({"range": "1000-1999"})).await;
    put("/v1/volumes/data", json!({"home": "n1"})).await;
    // While it is empty: no agent is here to confirm that an instance has left it.
    server.post(operator, "/v1/nodes/n3/drain", &json!({})).await.expect(200);
    for instance in [
        json!({"resources": size, "workload": "web"}),
        json!({"resources": size, "workload": "web"}),
        json!({"resources": size, "name": "plain"}),
    ] {
        stage.run(instance).await;
    }
    let numbered = json!({
        "tenant": "acme", "pools": ["ports"], "instances": [{"resources": size, "name": "numbered"}],
    });
    server.post(operator, "/v1/placements", &numbered).await.expect(201);
    let waits = json!({
        "tenant": "acme", "request_id": "waits", "mode": "wait", "wait_s": 600,
        "instances": [{"resources": {"memory_mib": 10_000_000}}],
    });
    server.post(operator, "/v1/placements", &waits).await.expect(202);
    server.post(operator, "/v1/volumes/data/move", &json!({"to": "n2"})).await.expect(200);
    stage
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_is_reported_by_its_name_when_rows_were_changed_by_hand() {
    let stage = busy().await;
    let sql = rusqlite::Connection::open(stage.server.ledger_path()).unwrap();
    let broken = async || {
        let found = check(&stage.dump().await).violations;
        let rules: BTreeSet<Invariant> =
            found.iter().map(|violation| violation.invariant).collect();
        (rules, found)
    };
    assert_eq!(broken().await.1, []);
    for Tampering { rule, rows, sql: tampered } in TAMPERINGS {
        let table = rows.split(' ').next().unwrap();
        sql.execute_batch(&format!("CREATE TEMP TABLE saved AS SELECT * FROM {rows}")).unwrap();
        let changed = sql.execute(tampered, ()).unwrap();
        assert!(changed > 0, "{tampered}");
        let (rules, found) = broken().await;
        assert_eq!(rules, BTreeSet::from([rule]), "{tampered}: {found:?}");
        let put_back = format!(
            "BEGIN; DELETE FROM {rows}; INSERT INTO {table} SELECT * FROM saved; COMMIT; \
             DROP TABLE saved"
        );
        sql.execute_batch(&put_back).unwrap();
    }
    assert_eq!(broken().await.1, []);
    stage.server.stop().await;
}
