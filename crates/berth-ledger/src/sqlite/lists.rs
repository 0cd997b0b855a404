//! Lookups outside the claim path.

use berth_engine::{NodeFacts, NodeId};
use rusqlite::{Connection, Params, Row};

use super::Sqlite;
use super::lock::{tenant_from, workload_from};
use super::read::{NODES, RECEIPT, node_version_from, receipt_from};
use super::rows::{CLAIM, POOL, claim_from, optional_text, pool_from, text};
use crate::database::ReceiptRow;
use crate::database::{Queries, ReceiptPlace};
use crate::error::Fault;
use crate::model::{
    AuditEntry, AuditFilter, Claim, ClaimKey, Document, Micros, NodeVersion, Pool, QuotaUse,
    StoredPolicy, Workload,
};
use crate::unit_of_work::RequestRow;

/// All rows of a query.
fn list<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl Fn(&Row<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut found = Vec::new();
    super::read::for_each_row(connection, sql, parameters, |row| {
        found.push(read(row)?);
        Ok(())
    })?;
    Ok(found)
}

/// A number of rows as SQLite counts.
fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn document_from(row: &Row<'_>) -> Result<Document, Fault> {
    Ok(Document {
        kind: text(row, 0)?,
        id: text(row, 1)?,
        rev: row.get(2)?,
        body: row.get(3)?,
        at: Micros(row.get(4)?),
    })
}

impl Queries for Sqlite {
    fn document(&mut self, kind: &str, id: &str) -> Result<Option<Document>, Fault> {
        let sql = "SELECT kind, id, rev, body, at FROM document WHERE kind = ?1 AND id = ?2";
        Ok(list(&self.connection, sql, (kind, id), document_from)?.pop())
    }

    fn documents(&mut self, kind: &str, after: &str, limit: usize) -> Result<Vec<Document>, Fault> {
        let sql = "SELECT kind, id, rev, body, at FROM document WHERE kind = ?1 AND id > ?2 \
             ORDER BY id LIMIT ?3";
        list(&self.connection, sql, (kind, after, rows(limit)), document_from)
    }

    fn audit(
        &mut self,
        before: i64,
        limit: usize,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditEntry>, Fault> {
        let sql = "SELECT n, at, actor, origin, action, subject, request_id FROM audit \
             WHERE n < ?1 AND (?3 IS NULL OR actor = ?3) AND (?4 IS NULL OR action = ?4) \
             AND (?5 IS NULL OR instr(subject, ?5) > 0) ORDER BY n DESC LIMIT ?2";
        let (actor, action) = (filter.actor.as_deref(), filter.action.as_deref());
        let contains = filter.subject_contains.as_deref();
        let values = (before, rows(limit), actor, action, contains);
        list(&self.connection, sql, values, |row| {
            Ok(AuditEntry {
                n: row.get(0)?,
                at: Micros(row.get(1)?),
                actor: text(row, 2)?,
                origin: text(row, 3)?,
                action: text(row, 4)?,
                subject: text(row, 5)?,
                request_id: optional_text(row, 6)?,
            })
        })
    }

    fn policies(&mut self) -> Result<Vec<StoredPolicy>, Fault> {
        let sql = "SELECT name, hash, body, at, active FROM policy ORDER BY name, hash";
        list(&self.connection, sql, [], |row| {
            Ok(StoredPolicy {
                name: row.get(0)?,
                hash: row.get(1)?,
                body: row.get(2)?,
                at: Micros(row.get(3)?),
                active: row.get(4)?,
            })
        })
    }

    fn policy_history(&mut self, limit: usize) -> Result<Vec<(i64, String, Micros)>, Fault> {
        let sql = "SELECT n, hash, at FROM policy_history ORDER BY n DESC LIMIT ?1";
        list(&self.connection, sql, [rows(limit)], |row| {
            Ok((row.get(0)?, row.get(1)?, Micros(row.get(2)?)))
        })
    }

    fn node(&mut self, id: &NodeId) -> Result<Option<(NodeFacts, NodeVersion)>, Fault> {
        let sql = format!("{NODES} WHERE n.id = ?1");
        Ok(list(&self.connection, &sql, [id.as_str()], node_version_from)?.pop())
    }

    fn pools(&mut self) -> Result<Vec<(Pool, i64)>, Fault> {
        let sql = format!(
            "SELECT {POOL}, (SELECT count(*) FROM pool_value AS v \
             WHERE v.pool = pool.id AND v.released_at IS NULL) FROM pool ORDER BY id"
        );
        list(&self.connection, &sql, [], |row| Ok((pool_from(row)?.pool, row.get(7)?)))
    }

    fn quotas(&mut self) -> Result<Vec<QuotaUse>, Fault> {
        let sql = "SELECT limit_cpu, limit_memory, limit_disk, limit_instances, used_cpu, \
             used_memory, used_disk, used_instances, removal, owner FROM tenant \
             WHERE removal IS NULL ORDER BY owner";
        list(&self.connection, sql, [], |row| {
            let tenant = text(row, 9)?;
            Ok(tenant_from(row)?.used_by(tenant))
        })
    }

    fn workloads(&mut self) -> Result<Vec<Workload>, Fault> {
        let sql = "SELECT owner, name, revision, replicas, body FROM workload ORDER BY owner, name";
        list(&self.connection, sql, [], |row| Ok(workload_from(row)?))
    }

    fn claims_page(&mut self, after: Option<ClaimKey>, limit: usize) -> Result<Vec<Claim>, Fault> {
        // No key sorts before nothing at all.
        let (instance, role) = after.map_or((Vec::new(), -1), |key| {
            (key.instance.0.as_bytes().to_vec(), key.role.number())
        });
        let sql = format!(
            "SELECT {CLAIM} FROM claim WHERE (instance, role) > (?1, ?2) \
             ORDER BY instance, role LIMIT ?3"
        );
        list(&self.connection, &sql, (instance, role, rows(limit)), claim_from)
    }

    fn receipts_until(
        &mut self,
        place: &ReceiptPlace,
        decisions: usize,
    ) -> Result<Vec<ReceiptRow>, Fault> {
        let sql = format!(
            "SELECT {RECEIPT} FROM receipt WHERE at <= ?1 AND (at, chain, n) <= (?1, ?2, ?3) \
             AND count > 0 ORDER BY at DESC, chain DESC, n DESC"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut found = statement.query((place.at, &place.chain, place.n))?;
        let (mut receipts, mut read) = (Vec::new(), 0);
        // Row by row, since a receipt may have many decisions and only so many are wanted.
        while read < rows(decisions)
            && let Some(row) = found.next()?
        {
            let receipt = receipt_from(row)?;
            read += receipt.count;
            receipts.push(receipt);
        }
        Ok(receipts)
    }

    fn answer(&mut self, request_id: &str, tenant: &str) -> Result<Option<RequestRow>, Fault> {
        let sql = "SELECT body_hash, answer, at FROM request WHERE request_id = ?1 AND owner = ?2";
        let answer = |row: &Row<'_>| {
            let hash = row.get_ref(0)?.as_blob().map_err(Fault::corrupt)?;
            let answer = row.get_ref(1)?.as_str().map_err(Fault::corrupt)?;
            Ok(RequestRow {
                body_hash: crate::encoding::parse_half_hash(hash)?,
                answer: serde_json::from_str(answer)?,
                at: Micros(row.get(2)?),
            })
        };
        Ok(list(&self.connection, sql, (request_id, tenant), answer)?.pop())
    }
}
