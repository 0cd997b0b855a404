//! The rows of a pool's values, for the search in `crate::pool_search`.

use rusqlite::Connection;

use crate::encoding;
use crate::error::Fault;
use crate::model::Pool;
use crate::pool_search::{STEP, TakenValues};

pub(super) fn read_taken(
    connection: &Connection,
    pool: &Pool,
    from: u128,
    to: u128,
) -> Result<TakenValues, Fault> {
    let sql = "SELECT value, released_at FROM pool_value \
         WHERE pool = ?1 AND value >= ?2 AND value <= ?3 ORDER BY value LIMIT ?4";
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query((&*pool.id, from.to_be_bytes(), to.to_be_bytes(), STEP))?;
    let mut taken = Vec::new();
    while let Some(row) = found.next()? {
        let value = encoding::parse_value(row.get_ref(0)?.as_blob().map_err(Fault::corrupt)?)?;
        taken.push((value, row.get(1)?));
    }
    Ok(taken)
}
