//! Exporting and importing a ledger: every row of every table as a line of JSON, counted and hashed.
//!
//! SQLite and PostgreSQL give the same lines, so a ledger can move between them. An import fills an
//! empty ledger in one transaction, and only if counts and hash match.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::encoding::hex;
use crate::error::{Fault, LedgerError};
use crate::ledger::Ledger;
use crate::schema::{Cell, Column, TABLES};

/// The format of the lines; a newer one is refused. Format 1 had fewer tables, up to format 2 claims
/// had no permits, up to format 3 groups were called teams, up to format 4 pools and secrets had no
/// owner, up to format 5 tenants had no mark of their removal, and up to format 6 volumes none of their
/// last copy.
const FORMAT: u32 = 7;

/// Tables that got one more column since a format that is still read.
const GROWN: [&str; 5] = ["claim", "pool", "env_secrets", "tenant", "volume"];

/// Names of tables in older formats, and what they are called now.
const RENAMED: [(&str, &str); 3] = [
    ("team", "placement_group"),
    ("team_domain", "placement_group_domain"),
    ("team_member", "placement_group_member"),
];

/// An export or import failed.
#[derive(Debug, Error)]
pub enum TransferError {
    /// The ledger.
    #[error("ledger error")]
    Ledger(#[from] LedgerError),
    /// The file.
    #[error("cannot read or write the export file")]
    File(#[from] std::io::Error),
    /// The file is not an export, or is incomplete.
    #[error("line {line} of the export: {why}")]
    Malformed {
        /// Which line.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The ledger is not empty.
    #[error(
        "the ledger is not empty: {rows} rows in table {table}; import into a new database or file"
    )]
    NotEmpty {
        /// A table that has rows.
        table: &'static str,
        /// How many.
        rows: u64,
    },
}

/// What was moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Rows in all tables.
    pub rows: u64,
    /// Rows per table, for those that have any.
    pub tables: BTreeMap<String, u64>,
    /// Hash of all lines.
    pub checksum: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    berth_export: u32,
}

impl Ledger {
    /// Writes everything, as of one moment, to `out`.
    ///
    /// # Errors
    /// When the database cannot be read or the file cannot be written.
    pub fn export(&self, out: &mut dyn Write) -> Result<Transfer, TransferError> {
        let mut lines = Lines::default();
        let mut failed: Option<std::io::Error> = None;
        let header = Header { berth_export: FORMAT };
        let header = serde_json::to_string(&header).map_err(std::io::Error::from)?;
        lines.write(out, None, &header)?;
        self.read(|tables| {
            tables.dump(&|_| true, &mut |table, cells| {
                let line = line_of(table, &cells);
                if let Err(error) = lines.write(out, Some(TABLES[table].table), &line) {
                    failed = Some(error);
                    return Err(Fault::Fatal(LedgerError::Closed));
                }
                Ok(())
            })
        })
        .or_else(|error| if failed.is_some() { Ok(0) } else { Err(error) })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let transfer = lines.transfer();
        let last = serde_json::to_string(&transfer).map_err(std::io::Error::from)?;
        writeln!(out, "{last}")?;
        out.flush()?;
        Ok(transfer)
    }

    /// Reads an export into this ledger, which must be empty. All of it, or nothing.
    ///
    /// # Errors
    /// When the export is incomplete, or the ledger is not empty.
    pub fn import(&self, input: &mut dyn BufRead) -> Result<Transfer, TransferError> {
        self.must_be_empty()?;
        let mut reader = Reader {
            input,
            lines: Lines::default(),
            line: 0,
            problem: None,
            end: None,
            second_claims: None,
        };
        reader.header()?;
        let loaded = self.read(|tables| tables.load(&mut || reader.next()));
        if let Some(problem) = reader.problem {
            return Err(problem);
        }
        loaded?;
        reader.end.ok_or_else(|| malformed(reader.line, "the export has no last line".to_owned()))
    }

    /// Passes every row of some tables, as of one moment, to `take`: the table, and its columns by name.
    /// Bytes are in hexadecimal. Returns the number of the last event that is in them.
    ///
    /// # Errors
    /// When the database cannot be read, or `take` refuses.
    pub fn rows(
        &self,
        tables: &[&str],
        mut take: impl FnMut(&'static str, Map<String, Value>) -> Result<(), LedgerError>,
    ) -> Result<i64, LedgerError> {
        // Not on a pooled connection: rows that were passed on cannot be read again after an error.
        let mut open = self.open_database()?;
        let wanted = |table: &str| tables.contains(&table);
        let read = open.dump(&wanted, &mut |table, cells| {
            let shape = &TABLES[table];
            let names = shape.columns.iter().map(|column| column.name().to_owned());
            let row = names.zip(cells.iter().map(Cell::value)).collect();
            take(shape.table, row).map_err(Fault::Fatal)
        });
        read.map_err(|fault| fault.into_error(1))
    }

    fn must_be_empty(&self) -> Result<(), TransferError> {
        let mut rows = vec![0u64; TABLES.len()];
        self.read(|tables| {
            rows.fill(0);
            tables.dump(&|_| true, &mut |table, _| {
                rows[table] += 1;
                Ok(())
            })
        })?;
        let mut full = TABLES.iter().zip(&rows).filter(|(shape, rows)| {
            // The one row of the ledger itself is replaced.
            **rows > 0 && shape.table != "ledger"
        });
        match full.next() {
            Some((shape, rows)) => Err(TransferError::NotEmpty { table: shape.table, rows: *rows }),
            None => Ok(()),
        }
    }
}

fn malformed(line: u64, why: String) -> TransferError {
    TransferError::Malformed { line, why }
}

#[derive(Default)]
struct Lines {
    hasher: blake3::Hasher,
    rows: u64,
    tables: BTreeMap<String, u64>,
}

impl Lines {
    fn note(&mut self, table: Option<&str>, line: &str) {
        self.hasher.update(line.as_bytes());
        self.hasher.update(b"\n");
        if let Some(table) = table {
            self.rows += 1;
            *self.tables.entry(table.to_owned()).or_default() += 1;
        }
    }

    fn write(
        &mut self,
        out: &mut dyn Write,
        table: Option<&str>,
        line: &str,
    ) -> std::io::Result<()> {
        self.note(table, line);
        writeln!(out, "{line}")
    }

    fn transfer(&self) -> Transfer {
        let checksum = self.hasher.finalize().to_hex().to_string();
        Transfer { rows: self.rows, tables: self.tables.clone(), checksum }
    }
}

struct Reader<'a> {
    input: &'a mut dyn BufRead,
    lines: Lines,
    line: u64,
    problem: Option<TransferError>,
    end: Option<Transfer>,
    /// In formats up to 6, which count all claims of an instance for its tenant's quota: what those count
    /// that are not primary, by tenant. Claims come before tenants.
    second_claims: Option<BTreeMap<String, [i64; 4]>>,
}

/// Counters of a tenant, and the columns of a claim that they are the sums of.
const TENANT_SUMS: [(&str, &str); 3] =
    [("used_cpu", "cpu"), ("used_memory", "memory"), ("used_disk", "disk")];

/// The number in a column of a row.
fn number<'a>(table: usize, cells: &'a mut [Cell], name: &str) -> Option<&'a mut i64> {
    let at = TABLES[table].columns.iter().position(|column| column.name() == name)?;
    match cells.get_mut(at)? {
        Cell::Int(number) => Some(number),
        Cell::Null | Cell::Text(_) | Cell::Bytes(_) => None,
    }
}

/// Takes claims that are not primary off the counters of their tenant.
fn count_instances_once(
    second_claims: &mut BTreeMap<String, [i64; 4]>,
    table: usize,
    cells: &mut [Cell],
) {
    let columns = TABLES[table].columns;
    let owner = columns.iter().position(|column| column.name() == "owner");
    let Some(Cell::Text(owner)) = owner.and_then(|at| cells.get(at)).cloned() else { return };
    match TABLES[table].table {
        "claim" if number(table, cells, "role").is_some_and(|role| *role != 0) => {
            let sums = second_claims.entry(owner).or_default();
            for (sum, (_, column)) in sums.iter_mut().zip(TENANT_SUMS) {
                *sum += number(table, cells, column).map_or(0, |amount| *amount);
            }
            sums[3] += 1;
        }
        "tenant" => {
            let Some(sums) = second_claims.get(&owner) else { return };
            let names =
                TENANT_SUMS.map(|(counter, _)| counter).into_iter().chain(["used_instances"]);
            for (sum, name) in sums.iter().zip(names) {
                if let Some(used) = number(table, cells, name) {
                    *used -= sum;
                }
            }
        }
        _ => {}
    }
}

impl Reader<'_> {
    fn line(&mut self) -> Result<Option<String>, TransferError> {
        let mut line = String::new();
        self.line += 1;
        if self.input.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        line.truncate(line.trim_end_matches(['\n', '\r']).len());
        Ok(Some(line))
    }

    fn header(&mut self) -> Result<(), TransferError> {
        let line = self.line()?.unwrap_or_default();
        let header: Header = serde_json::from_str(&line)
            .map_err(|_| malformed(1, "not a Berth export".to_owned()))?;
        if !(1..=FORMAT).contains(&header.berth_export) {
            let found = header.berth_export;
            return Err(malformed(
                1,
                format!("unsupported format {found}; this Berth reads formats 1 to {FORMAT}"),
            ));
        }
        self.second_claims = (header.berth_export <= 6).then(BTreeMap::new);
        self.lines.note(None, &line);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(usize, Vec<Cell>)>, Fault> {
        self.row().map_err(|problem| {
            self.problem = Some(problem);
            Fault::Fatal(LedgerError::Closed)
        })
    }

    /// The next row; absent once the last line was read and matched.
    fn row(&mut self) -> Result<Option<(usize, Vec<Cell>)>, TransferError> {
        let number = self.line + 1;
        let Some(line) = self.line()? else {
            return Err(malformed(number, "the export is truncated".to_owned()));
        };
        if let Ok(end) = serde_json::from_str::<Transfer>(&line) {
            let found = self.lines.transfer();
            if found != end {
                let why = format!("{} rows do not match the checksum", found.rows);
                return Err(malformed(number, why));
            }
            self.end = Some(end);
            return Ok(None);
        }
        let (name, table, mut cells) =
            read_line(&line).ok_or_else(|| malformed(number, "not a valid row".to_owned()))?;
        // Counted under the name it has in the export, which its last line repeats.
        self.lines.note(Some(&name), &line);
        if let Some(second_claims) = &mut self.second_claims {
            count_instances_once(second_claims, table, &mut cells);
        }
        Ok(Some((table, cells)))
    }
}

/// A row as a line: the table's name, then its cells. Bytes are `{"hex": …}`.
fn line_of(table: usize, cells: &[Cell]) -> String {
    let value = |cell: &Cell| match cell {
        Cell::Bytes(bytes) => serde_json::json!({ "hex": hex(bytes) }),
        other => other.value(),
    };
    let name = std::iter::once(Value::from(TABLES[table].table));
    Value::Array(name.chain(cells.iter().map(value)).collect()).to_string()
}

/// A row: the table's name in the export, which table that is, and the cells.
fn read_line(line: &str) -> Option<(String, usize, Vec<Cell>)> {
    let Value::Array(values) = serde_json::from_str(line).ok()? else { return None };
    let (Value::String(name), values) = values.split_first()? else { return None };
    let renamed = RENAMED.iter().find(|(old, _)| *old == name.as_str());
    let current = renamed.map_or(name.as_str(), |(_, new)| *new);
    let table = TABLES.iter().position(|shape| shape.table == current)?;
    // Columns that came later are at the end, and empty in older exports.
    let columns = TABLES[table].columns;
    let missing = columns.len().checked_sub(values.len())?;
    if missing > 0 && !(missing == 1 && GROWN.contains(&TABLES[table].table)) {
        return None;
    }
    // Secrets without a tenant have an empty one, which can be part of a key.
    let filler = match TABLES[table].table {
        "env_secrets" => Value::from(""),
        _ => Value::Null,
    };
    let absent = std::iter::repeat_n(&filler, missing);
    let cells = values.iter().chain(absent).zip(columns).map(|(value, column)| {
        Some(match (value, column) {
            (Value::Null, _) => Cell::Null,
            (Value::Number(number), Column::Int(_)) => Cell::Int(number.as_i64()?),
            (Value::String(text), Column::Text(_)) => Cell::Text(text.clone()),
            (Value::Object(object), Column::Bytes(_)) => {
                Cell::Bytes(unhex(object.get("hex")?.as_str()?)?)
            }
            _ => return None,
        })
    });
    Some((name.clone(), table, cells.collect::<Option<Vec<Cell>>>()?))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}
