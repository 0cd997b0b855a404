//! Many rows as a few arrays, one per column, so that one statement writes them all.
//!
//! Knows how arrays become rows in SQL and nothing of what the columns mean.

use crate::error::Fault;
use crate::schema::{Cell, Column, TABLES};

use super::pipeline::{Call, Value};

/// Values of one column.
enum Array {
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

/// Rows to be handed to one statement.
pub(super) struct Batch {
    columns: &'static [Column],
    arrays: Vec<Array>,
    rows: usize,
}

macro_rules! cells {
    ($($value:expr),* $(,)?) => { [$(crate::postgres::batch::cell($value)),*] };
}
pub(super) use cells;

/// What can be written into a column.
pub(super) trait IntoCell {
    fn into_cell(self) -> Cell;
}

impl IntoCell for i64 {
    fn into_cell(self) -> Cell {
        Cell::Int(self)
    }
}

impl IntoCell for u32 {
    fn into_cell(self) -> Cell {
        Cell::Int(self.into())
    }
}

impl IntoCell for bool {
    fn into_cell(self) -> Cell {
        Cell::Int(self.into())
    }
}

impl IntoCell for &str {
    fn into_cell(self) -> Cell {
        Cell::Text(self.to_owned())
    }
}

impl IntoCell for String {
    fn into_cell(self) -> Cell {
        Cell::Text(self)
    }
}

impl<const N: usize> IntoCell for [u8; N] {
    fn into_cell(self) -> Cell {
        Cell::Bytes(self.to_vec())
    }
}

impl<T: IntoCell> IntoCell for Option<T> {
    fn into_cell(self) -> Cell {
        self.map_or(Cell::Null, T::into_cell)
    }
}

pub(super) fn cell(value: impl IntoCell) -> Cell {
    value.into_cell()
}

/// The columns of a table, as an export names them.
pub(super) fn columns_of(table: &str) -> &'static [Column] {
    TABLES.iter().find(|shape| shape.table == table).map_or(&[], |shape| shape.columns)
}

fn type_name(column: Column) -> &'static str {
    match column {
        Column::Int(_) => "bigint",
        Column::Text(_) => "text",
        Column::Bytes(_) => "bytea",
    }
}

impl Batch {
    pub(super) fn new(columns: &'static [Column]) -> Self {
        let array = |column: &Column| match column {
            Column::Int(_) => Array::Ints(Vec::new()),
            Column::Text(_) => Array::Texts(Vec::new()),
            Column::Bytes(_) => Array::Bytes(Vec::new()),
        };
        Self { columns, arrays: columns.iter().map(array).collect(), rows: 0 }
    }

    /// Rows of a whole table.
    pub(super) fn of(table: &str) -> Self {
        Self::new(columns_of(table))
    }

    pub(super) fn len(&self) -> usize {
        self.rows
    }

    /// Adds a row, its cells in the order of the columns.
    pub(super) fn push(&mut self, cells: impl IntoIterator<Item = Cell>) -> Result<(), Fault> {
        let mut cells = cells.into_iter();
        for (array, column) in self.arrays.iter_mut().zip(self.columns) {
            let wrong = |found| {
                let name = column.name();
                Fault::corrupt(format!("column {name} holds {found}"))
            };
            match (array, cells.next().ok_or_else(|| wrong("nothing"))?) {
                (Array::Ints(ints), Cell::Int(int)) => ints.push(Some(int)),
                (Array::Ints(ints), Cell::Null) => ints.push(None),
                (Array::Texts(texts), Cell::Text(text)) => texts.push(Some(text)),
                (Array::Texts(texts), Cell::Null) => texts.push(None),
                (Array::Bytes(rows), Cell::Bytes(bytes)) => rows.push(Some(bytes)),
                (Array::Bytes(rows), Cell::Null) => rows.push(None),
                (_, Cell::Int(_)) => return Err(wrong("a number")),
                (_, Cell::Text(_)) => return Err(wrong("text")),
                (_, Cell::Bytes(_)) => return Err(wrong("bytes")),
            }
        }
        self.rows += 1;
        Ok(())
    }

    /// A statement over the rows, which it calls `{u}` and reads as `u`. None if there are none.
    pub(super) fn statement(self, what: &'static str, sql: &str) -> Option<Call> {
        if self.rows == 0 {
            return None;
        }
        let sql = sql.replace("{u}", &self.unnest());
        Some(Call::new(what, sql, self.arrays.into_iter().map(value).collect()))
    }

    /// The same, which must change exactly one row for each.
    pub(super) fn guarded(self, what: &'static str, sql: &str) -> Option<Call> {
        let rows = self.rows;
        Some(self.statement(what, sql)?.counted(rows))
    }

    /// An insert of the rows into a table; `clause` goes before the rows.
    pub(super) fn insert(self, table: &'static str, clause: &str) -> Option<Call> {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name()).collect();
        let values: Vec<String> = names.iter().map(|name| format!("u.{name}")).collect();
        let sql = format!(
            "INSERT INTO {table} ({}) {clause} SELECT {} FROM {{u}}",
            names.join(", "),
            values.join(", ")
        );
        self.statement(table, &sql)
    }

    fn unnest(&self) -> String {
        let place =
            |(place, column): (usize, &Column)| format!("${}::{}[]", place + 1, type_name(*column));
        let places: Vec<String> = self.columns.iter().enumerate().map(place).collect();
        let names: Vec<&str> = self.columns.iter().map(|column| column.name()).collect();
        format!("unnest({}) AS u({})", places.join(", "), names.join(", "))
    }
}

fn value(array: Array) -> Value {
    match array {
        Array::Ints(ints) => Box::new(ints),
        Array::Texts(texts) => Box::new(texts),
        Array::Bytes(bytes) => Box::new(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[Column::Text("id"), Column::Int("n")];

    #[test]
    fn rows_become_one_array_a_column() {
        let mut batch = Batch::new(COLUMNS);
        batch.push(cells!["a", 1i64]).unwrap();
        batch.push(cells!["b", None::<i64>]).unwrap();
        let call = batch.insert("t", "").unwrap();
        assert_eq!(
            call.sql,
            "INSERT INTO t (id, n)  SELECT u.id, u.n FROM \
             unnest($1::text[], $2::bigint[]) AS u(id, n)"
        );
        assert_eq!(format!("{:?}", call.values[1]), "[Some(1), None]");
    }

    #[test]
    fn no_rows_are_no_statement_and_a_wrong_cell_is_named() {
        assert!(Batch::new(COLUMNS).insert("t", "").is_none());
        let error = Batch::new(COLUMNS).push(cells!["a", "b"]).unwrap_err();
        assert!(format!("{error:?}").contains("column n holds text"), "{error:?}");
        assert!(Batch::new(COLUMNS).push(cells!["a"]).is_err());
    }
}
