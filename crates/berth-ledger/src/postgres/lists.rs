//! Lookups outside the claim path.
//!
//! How many rows are wanted stands in the statement itself: a plan that did not know it would read
//! and sort far more than a page.

use berth_engine::{NodeFacts, NodeId};
use tokio_postgres::Row;

use super::Postgres;
use super::lock::tenant_from;
use super::log::{NODES, node_version_from};
use super::pipeline::{Call, Value};
use super::read::{RECEIPT, list, receipt_from};
use super::rows::{
    CLAIM, POOL, WORKLOAD, claim_from, get, optional_text, pool_from, text, workload_from,
};
use crate::database::ReceiptRow;
use crate::database::{Queries, ReceiptPlace};
use crate::error::Fault;
use crate::model::{
    AuditEntry, AuditFilter, Claim, ClaimKey, Document, Micros, NodeVersion, Pool, QuotaUse,
    StoredPolicy, Workload,
};
use crate::unit_of_work::RequestRow;

/// Receipts read by one statement.
const RECEIPTS: usize = 1024;

fn owned(text: &str) -> Value {
    Box::new(text.to_owned())
}

fn document_from(row: &Row) -> Result<Document, Fault> {
    Ok(Document {
        kind: text(row, 0)?,
        id: text(row, 1)?,
        rev: get(row, 2)?,
        body: get(row, 3)?,
        at: Micros(get(row, 4)?),
    })
}

fn entry_from(row: &Row) -> Result<AuditEntry, Fault> {
    Ok(AuditEntry {
        n: get(row, 0)?,
        at: Micros(get(row, 1)?),
        actor: text(row, 2)?,
        origin: text(row, 3)?,
        action: text(row, 4)?,
        subject: text(row, 5)?,
        request_id: optional_text(row, 6)?,
    })
}

impl Queries for Postgres {
    fn document(&mut self, kind: &str, id: &str) -> Result<Option<Document>, Fault> {
        let sql = "SELECT kind, id, rev, body, at FROM document WHERE kind = $1 AND id = $2";
        let call = Call::new("document", sql, vec![owned(kind), owned(id)]);
        Ok(self.with(|session| list(session, call, document_from))?.pop())
    }

    fn documents(&mut self, kind: &str, after: &str, limit: usize) -> Result<Vec<Document>, Fault> {
        let sql = format!(
            "SELECT kind, id, rev, body, at FROM document WHERE kind = $1 AND id > $2 \
             ORDER BY id LIMIT {limit}"
        );
        let call = Call::new("document", sql, vec![owned(kind), owned(after)]);
        self.with(|session| list(session, call, document_from))
    }

    fn audit(
        &mut self,
        before: i64,
        limit: usize,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditEntry>, Fault> {
        let sql = format!(
            "SELECT n, at, actor, origin, action, subject, request_id FROM audit WHERE n < $1 \
             AND ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR action = $3) \
             AND ($4::text IS NULL OR strpos(subject, $4) > 0) ORDER BY n DESC LIMIT {limit}"
        );
        let values: Vec<Value> = vec![
            Box::new(before),
            Box::new(filter.actor.clone()),
            Box::new(filter.action.clone()),
            Box::new(filter.subject_contains.clone()),
        ];
        self.with(|session| list(session, Call::new("audit", sql, values), entry_from))
    }

    fn policies(&mut self) -> Result<Vec<StoredPolicy>, Fault> {
        let sql = "SELECT name, hash, body, at, active FROM policy \
             ORDER BY name COLLATE \"C\", hash COLLATE \"C\"";
        let policy = |row: &Row| {
            Ok(StoredPolicy {
                name: get(row, 0)?,
                hash: get(row, 1)?,
                body: get(row, 2)?,
                at: Micros(get(row, 3)?),
                active: get::<i64>(row, 4)? != 0,
            })
        };
        self.with(|session| list(session, Call::bare("policy", sql), policy))
    }

    fn policy_history(&mut self, limit: usize) -> Result<Vec<(i64, String, Micros)>, Fault> {
        let sql = format!("SELECT n, hash, at FROM policy_history ORDER BY n DESC LIMIT {limit}");
        let call = Call::new("policy_history", sql, Vec::new());
        let entry = |row: &Row| Ok((get(row, 0)?, get(row, 1)?, Micros(get(row, 2)?)));
        self.with(|session| list(session, call, entry))
    }

    fn node(&mut self, id: &NodeId) -> Result<Option<(NodeFacts, NodeVersion)>, Fault> {
        let call = Call::new("node", format!("{NODES} WHERE n.id = $1"), vec![owned(id.as_str())]);
        Ok(self.with(|session| list(session, call, node_version_from))?.pop())
    }

    fn pools(&mut self) -> Result<Vec<(Pool, i64)>, Fault> {
        let sql = format!(
            "SELECT {POOL}, (SELECT count(*) FROM pool_value AS v WHERE v.pool = pool.id \
             AND v.released_at IS NULL) FROM pool ORDER BY id COLLATE \"C\""
        );
        let call = Call::new("pool", sql, Vec::new());
        // Counts every value that is in use, and may take its time.
        self.in_read_transaction(|session| {
            list(session, call, |row| Ok((pool_from(row)?.pool, get(row, 7)?)))
        })
    }

    fn quotas(&mut self) -> Result<Vec<QuotaUse>, Fault> {
        let sql = "SELECT owner, limit_cpu, limit_memory, limit_disk, limit_instances, used_cpu, \
             used_memory, used_disk, used_instances, removal FROM tenant \
             WHERE removal IS NULL ORDER BY owner COLLATE \"C\"";
        let used = |row: &Row| Ok(tenant_from(row)?.used_by(text(row, 0)?));
        self.with(|session| list(session, Call::bare("tenant", sql), used))
    }

    fn workloads(&mut self) -> Result<Vec<Workload>, Fault> {
        let sql = format!(
            "SELECT {WORKLOAD} FROM workload ORDER BY owner COLLATE \"C\", name COLLATE \"C\""
        );
        let call = Call::new("workload", sql, Vec::new());
        self.with(|session| list(session, call, workload_from))
    }

    fn claims_page(&mut self, after: Option<ClaimKey>, limit: usize) -> Result<Vec<Claim>, Fault> {
        // No key sorts before nothing at all.
        let (instance, role) = after.map_or((Vec::new(), -1), |key| {
            (key.instance.0.as_bytes().to_vec(), key.role.number())
        });
        let sql = format!(
            "SELECT {CLAIM} FROM claim AS c WHERE (c.instance, c.role) > ($1, $2) \
             ORDER BY c.instance, c.role LIMIT {limit}"
        );
        let call = Call::new("claim", sql, vec![Box::new(instance), Box::new(role)]);
        self.with(|session| list(session, call, claim_from))
    }

    fn receipts_until(
        &mut self,
        place: &ReceiptPlace,
        decisions: usize,
    ) -> Result<Vec<ReceiptRow>, Fault> {
        // Bodies are large and stay where they are until it is known which of them are wanted.
        let sql = format!(
            "SELECT {RECEIPT} FROM (SELECT {RECEIPT}, (sum(count) OVER \
             (ORDER BY at DESC, chain COLLATE \"C\" DESC, n DESC) - count)::bigint AS before FROM \
             (SELECT {RECEIPT} FROM receipt WHERE at <= $1 \
             AND (at, chain COLLATE \"C\", n) <= ($1, $2, $3) AND count > 0 \
             ORDER BY at DESC, chain COLLATE \"C\" DESC, n DESC LIMIT {RECEIPTS}) AS newest) AS r \
             WHERE before < $4 ORDER BY at DESC, chain COLLATE \"C\" DESC, n DESC"
        );
        let decisions = i64::try_from(decisions).unwrap_or(i64::MAX);
        let values: Vec<Value> = vec![
            Box::new(place.at),
            Box::new(place.chain.clone()),
            Box::new(place.n),
            Box::new(decisions),
        ];
        self.with(|session| list(session, Call::new("receipt", sql, values), receipt_from))
    }

    fn answer(&mut self, request_id: &str, tenant: &str) -> Result<Option<RequestRow>, Fault> {
        let sql = "SELECT body_hash, answer, at FROM request WHERE request_id = $1 AND owner = $2";
        let call = Call::new("request", sql, vec![owned(request_id), owned(tenant)]);
        let answer = |row: &Row| {
            Ok(RequestRow {
                body_hash: crate::encoding::parse_half_hash(get(row, 0)?)?,
                answer: serde_json::from_str(get(row, 1)?)?,
                at: Micros(get(row, 2)?),
            })
        };
        Ok(self.with(|session| list(session, call, answer))?.pop())
    }
}
