//! Free values of pools, offered to the transaction that wants them.
//!
//! Only small pools are searched, and only while their row is locked: two searches of one pool
//! would find the same value.

use super::pipeline::Call;
use super::rows::get;
use super::session::Session;
use crate::error::Fault;
use crate::model::Text;
use crate::stored;
use crate::values::{Runs, Search};
use crate::work::{Keys, PoolRow, Rows};

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
        let mut values = if row.pool.is_searched() {
            search(session, row, wanted, rows.now.0)?
        } else {
            runs.draw(&row.pool, wanted)
        };
        // Given out from the end.
        values.reverse();
        rows.free_values.insert(Text::clone(id), values);
    }
    Ok(())
}

fn search(
    session: &mut Session,
    row: &PoolRow,
    wanted: usize,
    now: i64,
) -> Result<Vec<u128>, Fault> {
    let sql = "SELECT value, released_at FROM pool_value \
         WHERE pool = $1 AND value >= $2 AND value <= $3 ORDER BY value LIMIT $4";
    let mut search = Search::new(&row.pool, row.next, wanted, now);
    while let Some((from, to)) = search.range() {
        let call = Call::new(
            "pool_value",
            sql,
            vec![
                Box::new(row.pool.id.to_string()),
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
