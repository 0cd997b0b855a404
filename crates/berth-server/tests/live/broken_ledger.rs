//! A ledger that somebody changed by hand: the check names the rules that this breaks, and no others.

use std::collections::BTreeSet;

use berth_control::debug::{Invariant, check};
use serde_json::{Value, json};

use crate::stage::{Stage, elastic};

/// Rows that are tampered with, how, and the rules that are broken then.
struct Tampering {
    rules: &'static [Invariant],
    /// A table, and which of its rows are put back afterwards.
    rows: &'static str,
    sql: &'static str,
}

const fn tampering(
    rules: &'static [Invariant],
    rows: &'static str,
    sql: &'static str,
) -> Tampering {
    Tampering { rules, rows, sql }
}

/// What only one claim may have, and records that are documents.
const OF_RECORDS: [Tampering; 17] = [
    tampering(&[Invariant::SlotTaken], "slot", "DELETE FROM slot WHERE slot = 0"),
    tampering(
        &[Invariant::SlotHolder],
        "slot",
        "UPDATE slot SET instance = zeroblob(16) WHERE slot = 0",
    ),
    // An instance of no workload says that it has a slot, too.
    tampering(
        &[Invariant::SlotHandover],
        "claim",
        "UPDATE claim SET ties = (SELECT json_object('slot', json_extract(ties, '$.slot')) \
         FROM claim WHERE workload = 'web' LIMIT 1) WHERE name = 'plain'",
    ),
    tampering(&[Invariant::PoolValues], "pool_value", "DELETE FROM pool_value"),
    tampering(
        &[Invariant::PoolValues],
        "pool_value",
        "UPDATE pool_value SET instance = (SELECT instance FROM claim WHERE name = 'plain')",
    ),
    tampering(
        &[Invariant::PoolValues],
        "claim",
        "UPDATE claim SET ties = json_remove(ties, '$.values') WHERE name = 'numbered'",
    ),
    tampering(
        &[Invariant::TicketRecord],
        "document WHERE kind = 'ticket'",
        "UPDATE document SET body = json_set(body, '$.ticket.state', 'granted') \
         WHERE kind = 'ticket'",
    ),
    tampering(
        &[Invariant::TicketRecord],
        "document WHERE kind = 'ticket'",
        "UPDATE document SET id = 'another' WHERE kind = 'ticket'",
    ),
    tampering(
        &[Invariant::DrainRecord],
        "document WHERE kind = 'drain'",
        "DELETE FROM document WHERE kind = 'drain'",
    ),
    tampering(
        &[Invariant::DrainRecord],
        "document WHERE kind = 'drain'",
        "INSERT INTO document SELECT kind, 'n1', rev, body, at FROM document WHERE kind = 'drain'",
    ),
    tampering(
        &[Invariant::VolumeMoveRecord],
        "volume",
        "UPDATE volume SET home = 'n3' WHERE id = 'data'",
    ),
    tampering(&[Invariant::VolumeMoveRecord], "volume", "DELETE FROM volume WHERE id = 'data'"),
    tampering(
        &[Invariant::VolumeMark],
        "volume",
        "UPDATE volume SET moving_to = 'n1' WHERE id = 'data'",
    ),
    // Of a volume that does not move.
    tampering(
        &[Invariant::VolumeMark],
        "volume",
        "UPDATE volume SET moving_to = 'n2' WHERE id = 'used'",
    ),
    tampering(
        &[Invariant::VolumeHolder],
        "volume",
        "UPDATE volume SET attached_to = zeroblob(16) WHERE id = 'data'",
    ),
    tampering(
        &[Invariant::VolumeAttached],
        "volume",
        "UPDATE volume SET attached_to = NULL WHERE id = 'used'",
    ),
    tampering(
        &[Invariant::MigrationRecord, Invariant::MigrationClaims],
        "document WHERE kind = 'migration'",
        "UPDATE document SET body = json_set(body, '$.target', 'n3') \
         WHERE kind = 'migration' AND json_extract(body, '$.target') = 'n2'",
    ),
];

/// Nodes, claims, counters and the policy.
const OF_COUNTERS: [Tampering; 15] = [
    tampering(&[Invariant::QuotaUsed], "tenant", "UPDATE tenant SET used_disk = used_disk + 1"),
    tampering(
        &[Invariant::GroupCounts],
        "placement_group_domain",
        "UPDATE placement_group_domain SET members = members + 1",
    ),
    tampering(
        &[Invariant::NodeUsed],
        "node_room",
        "UPDATE node_room SET used_bandwidth = used_bandwidth + 1 WHERE node = 'n1'",
    ),
    tampering(
        &[Invariant::NodeLimits, Invariant::AccountFrame, Invariant::Watermark],
        "node",
        "UPDATE node SET facts = json_set(facts, '$.capacity.memory_mib', 66560) WHERE id = 'n1'",
    ),
    tampering(
        &[Invariant::NodeLimits],
        "node_room",
        "UPDATE node_room SET limit_disk = limit_disk - 1 WHERE node = 'n1'",
    ),
    tampering(
        &[Invariant::NodeClasses],
        "node_class",
        "INSERT INTO node_class (node, class, lim, used) VALUES ('n1', 'gpu', 1, 1)",
    ),
    // What readers and planner have is the sum of other claims then.
    tampering(
        &[Invariant::NodeUsed, Invariant::CatalogueUsed, Invariant::ReplicaUsed],
        "claim",
        "UPDATE claim SET bandwidth = bandwidth + 1 WHERE name = 'plain'",
    ),
    tampering(
        &[
            Invariant::KnownNode,
            Invariant::NodeUsed,
            Invariant::CatalogueUsed,
            Invariant::ReplicaUsed,
        ],
        "claim",
        "UPDATE claim SET node = 'ghost' WHERE name = 'plain'",
    ),
    tampering(
        &[Invariant::Fence],
        "claim",
        "UPDATE claim SET fence = fence + 1000000000 WHERE name = 'plain'",
    ),
    // A second claim that nothing is charged for, of an instance that does not move.
    tampering(
        &[
            Invariant::MigrationRecord,
            Invariant::NodeUsed,
            Invariant::CatalogueUsed,
            Invariant::ReplicaUsed,
        ],
        "claim",
        "INSERT INTO claim (instance, role, node, owner, state, cpu, memory, disk, bandwidth, capped, \
         fence, request_id, spec, created_at) SELECT instance, 1, 'n2', owner, state, 0, 0, 0, 0, \
         capped, 1, 'by hand', spec, created_at FROM claim WHERE name = 'plain'",
    ),
    tampering(
        &[Invariant::PermitWithin],
        "claim",
        "UPDATE claim SET permit = json_set(permit, '$.wanted.cpu_milli', 1) WHERE permit NOT NULL",
    ),
    tampering(
        &[Invariant::Charge],
        "claim",
        "UPDATE claim SET permit = json_set(permit, '$.granted.cpu_milli', 1250, \
         '$.wanted.cpu_milli', 1250) WHERE permit NOT NULL",
    ),
    tampering(
        &[Invariant::AccountSums],
        "claim",
        "UPDATE claim SET permit = json_set(permit, '$.wanted.memory_mib', 8192, \
         '$.pressure', json_object('cpu_milli', 0, 'memory_mib', 1024), \
         '$.pressure_at', CAST(strftime('%s', 'now') AS INTEGER)) WHERE permit NOT NULL",
    ),
    tampering(
        &[Invariant::PolicyReadable],
        "policy",
        "UPDATE policy SET body = '{\"scores\":1}' WHERE active = 1",
    ),
    tampering(
        &[Invariant::PolicyReadable, Invariant::Watermark],
        "policy",
        "UPDATE policy SET body = json_set(body, '$.elastic.watermark', \
         json_object('cpu_permille', 500, 'memory_permille', 500)) WHERE active = 1",
    ),
];

/// Rules that no change of rows can break while the server runs: the key of the table says that no claim is
/// there twice, and accounts are made of what the server has in memory. They are tried on edited dumps.
const NOT_OF_ROWS: [Invariant; 2] = [Invariant::OneClaimPerRole, Invariant::ReservedWithin];

/// A server with members of a workload, a value of a pool, a request that waits, a node that is being
/// emptied, a volume that is used and one that moves, a group, and an elastic instance that moves.
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
    put("/v1/volumes/used", json!({"home": "n1"})).await;
    put("/v1/groups/apart", json!({"kind": "apart", "strength": "soft", "topology": "node"})).await;
    stage.activate("name = \"tested\"\n[scores]\nmemory-pack = 1\n").await;
    // While it is empty: no agent is here to confirm that an instance has left it.
    server.post(operator, "/v1/nodes/n3/drain", &json!({})).await.expect(200);
    for instance in [
        json!({"resources": size, "workload": "web"}),
        json!({"resources": size, "workload": "web"}),
        json!({"resources": size, "name": "plain"}),
        json!({"resources": size, "name": "grouped", "groups": ["apart"], "volumes": ["used"]}),
    ] {
        stage.run(instance).await;
    }
    let (elastic, node) = stage.run(elastic((1000, 2048), (8000, 8192))).await;
    assert_eq!(node, "n1");
    let path = format!("/v1/instances/{elastic}/migrate");
    server.post(operator, &path, &json!({"to": "n2"})).await.expect(200);
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
    let mut tried = BTreeSet::from(NOT_OF_ROWS);
    let mut wrong = Vec::new();
    for Tampering { rules, rows, sql: tampered } in OF_RECORDS.into_iter().chain(OF_COUNTERS) {
        let table = rows.split(' ').next().unwrap();
        sql.execute_batch(&format!("CREATE TEMP TABLE saved AS SELECT * FROM {rows}")).unwrap();
        let changed = sql.execute(tampered, ()).unwrap();
        assert!(changed > 0, "{tampered}");
        let (found, violations) = broken().await;
        tried.extend(rules);
        if found != rules.iter().copied().collect() {
            wrong.push(format!("{tampered}: {found:?}, not {rules:?}: {violations:#?}"));
        }
        let put_back = format!(
            "BEGIN; DELETE FROM {rows}; INSERT INTO {table} SELECT * FROM saved; COMMIT; \
             DROP TABLE saved"
        );
        sql.execute_batch(&put_back).unwrap();
    }
    assert_eq!(broken().await.1, []);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(tried, BTreeSet::from(Invariant::ALL), "a rule without a tampering");
    stage.server.stop().await;
}
