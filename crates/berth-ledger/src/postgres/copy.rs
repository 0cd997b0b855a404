//! Moving a ledger: every row of every table, out and in.

use tokio_postgres::Row;

use super::batch::Batch;
use super::pipeline::Call;
use super::rows::get;
use super::session::Session;
use crate::error::Fault;
use crate::schema::{Cell, Column, NextRow, Shape, TABLES, TakeRow};

/// Rows that are sent together.
const ROUND: usize = 1000;

/// Tables whose rows the database numbers, and the column.
const NUMBERED: [(&str, &str); 3] =
    [("event_segment", "id"), ("audit", "n"), ("policy_history", "n")];

/// Reads every row of every table that is wanted. The transaction is the caller's.
pub(super) fn dump(
    session: &mut Session,
    wanted: &dyn Fn(&str) -> bool,
    take: &mut TakeRow<'_>,
) -> Result<(), Fault> {
    for (number, shape) in TABLES.iter().enumerate().filter(|(_, shape)| wanted(shape.table)) {
        let call = Call::new(shape.table, select_all(shape), Vec::new());
        session.each(&call, &mut |row| take(number, cells(shape, row)?))?;
    }
    Ok(())
}

fn select_all(shape: &Shape) -> String {
    let names: Vec<&str> = shape.columns.iter().map(|column| column.name()).collect();
    let order = shape.columns.iter().take(2).map(|column| match column {
        // As every other database orders text.
        Column::Text(name) => format!("{name} COLLATE \"C\""),
        Column::Int(name) | Column::Bytes(name) => (*name).to_owned(),
    });
    let order: Vec<String> = order.collect();
    format!("SELECT {} FROM {} ORDER BY {}", names.join(", "), shape.table, order.join(", "))
}

fn cells(shape: &Shape, row: &Row) -> Result<Vec<Cell>, Fault> {
    let cell = |(place, column): (usize, &Column)| {
        Ok(match column {
            Column::Int(_) => get::<Option<i64>>(row, place)?.map_or(Cell::Null, Cell::Int),
            Column::Text(_) => get::<Option<String>>(row, place)?.map_or(Cell::Null, Cell::Text),
            Column::Bytes(_) => get::<Option<Vec<u8>>>(row, place)?.map_or(Cell::Null, Cell::Bytes),
        })
    };
    shape.columns.iter().enumerate().map(cell).collect()
}

/// Puts rows in place of an empty ledger's. The transaction is the caller's.
pub(super) fn load(session: &mut Session, next: &mut NextRow<'_>) -> Result<(), Fault> {
    session.rows(Call::bare("ledger", "DELETE FROM ledger"))?;
    let mut current: Option<(&'static Shape, Batch)> = None;
    while let Some((table, cells)) = next()? {
        let shape = TABLES.get(table).ok_or_else(|| Fault::corrupt("a table that is not known"))?;
        let full =
            |(held, batch): &(&Shape, Batch)| held.table != shape.table || batch.len() >= ROUND;
        if current.as_ref().is_some_and(full)
            && let Some((shape, batch)) = current.take()
        {
            insert(session, shape, batch)?;
        }
        let (_, batch) = current.get_or_insert_with(|| (shape, Batch::new(shape.columns)));
        batch.push(cells)?;
    }
    if let Some((shape, batch)) = current {
        insert(session, shape, batch)?;
    }
    // Rows were written with their own numbers; new ones go on after them.
    for (table, column) in NUMBERED {
        let sequence = format!(
            "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), \
             (SELECT coalesce(max({column}), 0) + 1 FROM {table}), false)"
        );
        session.rows(Call::new(table, sequence, Vec::new()))?;
    }
    Ok(())
}

fn insert(session: &mut Session, shape: &Shape, batch: Batch) -> Result<(), Fault> {
    let numbered = NUMBERED.iter().any(|(table, _)| *table == shape.table);
    let clause = if numbered { "OVERRIDING SYSTEM VALUE" } else { "" };
    match batch.insert(shape.table, clause) {
        Some(call) => session.rows(call).map(drop),
        None => Ok(()),
    }
}
