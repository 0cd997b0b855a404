//! Free values of pools, offered to the transaction that wants them.
//!
//! Small pools are searched while their row is locked, since two searches would find the same value.
//! Large ones are searched from a place of the writer's own, and need no lock.

use super::pipeline::Call;
use super::rows::get;
use super::session::Session;
use crate::error::Fault;
use crate::model::{Pool, Text};
use crate::stored;
use crate::values::{Runs, Search};
use crate::work::{Keys, Rows};

/// Rows looked at per step of a search.
const STEP: i64 = 512;

/// Finds as many free values as the transaction may need, pool by pool.
pub(super) fn offer(
    session: &mut Session,
    keys: &Keys,
    rows: &mut Rows,
    runs: &mut Runs,
) -> Result<(), Fault> {
    for (id, &wanted) in keys.pools.iter().filter(|(_, wanted)| **wanted > 0) {
        let Some(row) = rows.pools.get(id) else { continue };
        let searched = row.pool.is_searched();
        let start = if searched { row.next } else { runs.start(&row.pool) };
        let mut values = search(session, &row.pool, start, wanted, rows.now.0)?;
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
    session: &mut Session,
    pool: &Pool,
    start: u128,
    wanted: usize,
    now: i64,
) -> Result<Vec<u128>, Fault> {
    let sql = "SELECT value, released_at FROM pool_value \
         WHERE pool = $1 AND value >= $2 AND value <= $3 ORDER BY value LIMIT $4";
    let mut search = Search::new(pool, start, wanted, now);
    while let Some((from, to)) = search.range() {
        let call = Call::new(
            "pool_value",
            sql,
            vec![
                Box::new(pool.id.to_string()),
                Box::new(from.to_be_bytes().to_vec()),
                Box::new(to.to_be_bytes().to_vec()),
                Box::new(STEP),
            ],
        );
        let mut taken = Vec::new();
        for row in session.rows(call)? {
            taken.push((stored::number(get(&row, 0)?)?, get(&row, 1)?));
        }
        let all = i64::try_from(taken.len()).unwrap_or(i64::MAX) < STEP;
        search.step(&taken, all);
    }
    Ok(search.found)
}
