//! The rows of a pool's values, for the search in `crate::pool_search`.

use super::pipeline::Call;
use super::rows::get;
use super::session::Session;
use crate::encoding;
use crate::error::Fault;
use crate::model::Pool;
use crate::pool_search::{STEP, TakenValues};

pub(super) fn read_taken(
    session: &mut Session,
    pool: &Pool,
    from: u128,
    to: u128,
) -> Result<TakenValues, Fault> {
    let sql = "SELECT value, released_at FROM pool_value \
         WHERE pool = $1 AND value >= $2 AND value <= $3 ORDER BY value LIMIT $4";
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
    let rows = session.rows(call)?;
    rows.iter().map(|row| Ok((encoding::parse_value(get(row, 0)?)?, get(row, 1)?))).collect()
}
