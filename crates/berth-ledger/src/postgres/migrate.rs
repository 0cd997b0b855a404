//! Migrating the schema, one server at a time, however many start at once.

use super::pipeline::Call;
use super::rows::get;
use super::session::Session;
use crate::error::{Fault, LedgerError};
use crate::schema::newest_version;

mod embedded {
    refinery::embed_migrations!("migrations/postgres");
}

/// The newest version of the schema.
pub(crate) fn schema_version() -> i64 {
    newest_version(embedded::migrations::runner().get_migrations())
}

/// The lock that a migration holds: "berth" and a number.
const MIGRATION: i64 = 0x62_6572_7468_0003;

/// Brings the schema up to date. Refuses a database that a newer Berth has made.
pub(super) fn run(session: &mut Session) -> Result<(), Fault> {
    let known = schema_version();
    // Most starts find the schema as it should be, and need no lock.
    if version(session)? == Some(known) {
        return Ok(());
    }
    session.rows(lock("SELECT pg_advisory_lock($1)"))?;
    let migrated = locked(session, known);
    // A connection that fails here is thrown away, and its lock with it.
    session.rows(lock("SELECT pg_advisory_unlock($1)")).and(migrated)
}

/// A database as the first Berth made it.
#[cfg(test)]
pub(crate) fn make_first(session: &mut Session) {
    let first = embedded::migrations::runner().set_target(refinery::Target::Version(1));
    session.migrate(&first).unwrap();
}

fn lock(sql: &'static str) -> Call {
    Call::new("the migration lock", sql, vec![Box::new(MIGRATION)])
}

fn locked(session: &mut Session, known: i64) -> Result<(), Fault> {
    if let Some(found) = version(session)?.filter(|found| *found > known) {
        return Err(Fault::Fatal(LedgerError::NewerSchema { found, known }));
    }
    // In one transaction: a process that is killed between a migration and its entry in the history would
    // leave a database that no server can open.
    session.migrate(&embedded::migrations::runner().set_grouped(true))
}

/// The newest version that was applied; none in a new database.
fn version(session: &mut Session) -> Result<Option<i64>, Fault> {
    let table = "SELECT to_regclass('refinery_schema_history') IS NOT NULL";
    let there = session.rows(Call::bare("schema history", table))?;
    if !there.first().map_or(Ok(false), |row| get(row, 0))? {
        return Ok(None);
    }
    let newest = "SELECT max(version)::bigint FROM refinery_schema_history";
    let rows = session.rows(Call::bare("schema history", newest))?;
    rows.first().map_or(Ok(None), |row| get(row, 0))
}
