//! Free values of pools, offered to the transaction that wants them.

use rusqlite::Connection;

use crate::error::Fault;
use crate::model::{Pool, Text};
use crate::stored;
pub(super) use crate::values::Runs;
use crate::values::Search;
use crate::work::{Keys, Rows};

/// Rows looked at per step of a search.
const STEP: i64 = 512;

/// Finds as many free values as the transaction may need, pool by pool.
pub(super) fn offer(
    connection: &Connection,
    keys: &Keys,
    rows: &mut Rows,
    runs: &mut Runs,
) -> Result<(), Fault> {
    for (id, &wanted) in keys.pools.iter().filter(|(_, wanted)| **wanted > 0) {
        let Some(row) = rows.pools.get(id) else { continue };
        let searched = row.pool.is_searched();
        let start = if searched { row.next } else { runs.start(&row.pool) };
        let mut values = search(connection, &row.pool, start, wanted, rows.now.0)?;
        if !searched {
            runs.advance(&row.pool, &values);
        }
        // Given out from the end.
        values.reverse();
        rows.free_values.insert(Text::clone(id), values);
    }
    Ok(())
}

fn search(
    connection: &Connection,
    pool: &Pool,
    start: u128,
    wanted: usize,
    now: i64,
) -> Result<Vec<u128>, Fault> {
    let sql = "SELECT value, released_at FROM pool_value \
         WHERE pool = ?1 AND value >= ?2 AND value <= ?3 ORDER BY value LIMIT ?4";
    let mut statement = connection.prepare_cached(sql)?;
    let mut search = Search::new(pool, start, wanted, now);
    while let Some((from, to)) = search.range() {
        let parameters = (&*pool.id, from.to_be_bytes(), to.to_be_bytes(), STEP);
        let mut found = statement.query(parameters)?;
        let mut taken = Vec::new();
        while let Some(row) = found.next()? {
            let value = stored::number(row.get_ref(0)?.as_blob().map_err(Fault::corrupt)?)?;
            taken.push((value, row.get(1)?));
        }
        let all = i64::try_from(taken.len()).unwrap_or(i64::MAX) < STEP;
        search.step(&taken, all);
    }
    Ok(search.found)
}
