//! Rows as they are stored, as of one moment: for whoever compares copies of the ledger with it.
//!
//! It only reads. Which tables are read is the caller's choice: the log and the receipts are long,
//! and nobody who compares counters needs them.

use serde_json::{Map, Value};

use crate::error::{Fault, LedgerError};
use crate::export::TABLES;
use crate::ledger::Ledger;

impl Ledger {
    /// Hands out every row of some tables, as of one moment: the table, and its columns by name.
    /// Bytes are in hexadecimal. Returns the number of the last event that is in them.
    ///
    /// # Errors
    /// When the database cannot be read, or `take` refuses.
    pub fn rows(
        &self,
        tables: &[&str],
        mut take: impl FnMut(&'static str, Map<String, Value>) -> Result<(), LedgerError>,
    ) -> Result<i64, LedgerError> {
        // Not by way of the readers that are kept: what was handed out cannot be read once more.
        let mut open = self.open_tables()?;
        let wanted = |table: &str| tables.contains(&table);
        let read = open.dump(&wanted, &mut |table, cells| {
            let shape = &TABLES[table];
            let names = shape.columns.iter().map(|column| column.name().to_owned());
            let row = names.zip(cells.iter().map(crate::export::Cell::value)).collect();
            take(shape.table, row).map_err(Fault::Fatal)
        });
        read.map_err(|fault| fault.into_error(1))
    }
}
