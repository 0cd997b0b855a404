//! Documents, the audit log and the history of policies.

use rusqlite::{Connection, OptionalExtension};

use super::flush::execute_one;
use crate::error::Fault;
use crate::model::Micros;
use crate::unit_of_work::{DocumentRow, Keys, Rows};

pub(super) fn load(connection: &Connection, keys: &Keys, rows: &mut Rows) -> Result<(), Fault> {
    for key in &keys.documents {
        let mut statement = connection
            .prepare_cached("SELECT rev, body, at FROM document WHERE kind = ?1 AND id = ?2")?;
        let row = |row: &rusqlite::Row<'_>| {
            Ok(DocumentRow { rev: row.get(0)?, body: row.get(1)?, at: Micros(row.get(2)?) })
        };
        if let Some(row) = statement.query_row((&*key.0, &*key.1), row).optional()? {
            rows.documents.load(key.clone(), row);
        }
    }
    Ok(())
}

pub(super) fn write(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    documents(connection, rows)?;
    let at = rows.now.0;
    for hash in &rows.activated {
        let sql = "INSERT INTO policy_history (hash, at) VALUES (?1, ?2)";
        connection.prepare_cached(sql)?.execute((&**hash, at))?;
    }
    for row in &rows.audit {
        let sql = "INSERT INTO audit (at, actor, origin, action, subject, request_id) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let request = row.request_id.as_deref();
        let values = (at, &*row.actor, &*row.origin, &*row.action, &*row.subject, request);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

fn documents(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.documents.changes() {
        let (kind, id) = (&*change.key.0, &*change.key.1);
        let what = || format!("document {kind} {id}");
        let before = change.before.map(|row| row.rev);
        match change.now {
            Some(row) => {
                let sql = "INSERT INTO document (kind, id, rev, body, at) \
                     VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (kind, id) DO UPDATE SET \
                     rev = ?3, body = ?4, at = ?5 WHERE document.rev = ?6";
                execute_one(
                    connection,
                    sql,
                    (kind, id, row.rev, &row.body, row.at.0, before),
                    what,
                )?;
            }
            None => {
                let sql = "DELETE FROM document WHERE kind = ?1 AND id = ?2 AND rev = ?3";
                execute_one(connection, sql, (kind, id, before), what)?;
            }
        }
    }
    Ok(())
}

/// Drops old entries of the audit log: from the oldest on, so that what stays need not be read. The
/// newest stays, since its number is what the next one follows.
pub(super) fn forget(connection: &Connection, before: Micros) -> Result<usize, Fault> {
    let sql = "DELETE FROM audit WHERE n < coalesce(\
         (SELECT n FROM audit WHERE at >= ?1 ORDER BY n LIMIT 1), (SELECT max(n) FROM audit))";
    Ok(connection.execute(sql, [before.0])?)
}
