//! Moving a ledger: every row of every table as a line of JSON, counted and hashed.
//!
//! The same lines come out of SQLite and PostgreSQL, so a ledger can move between them. An import
//! goes into an empty ledger, as one transaction, and only if counts and hash are right.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::error::{Fault, LedgerError};
use crate::ledger::Ledger;

/// The form of the lines; a newer one would be refused. Format 1 had fewer tables, and up to format 2
/// claims had no permits.
const FORMAT: u32 = 3;

/// What went wrong with an export or import.
#[derive(Debug, Error)]
pub enum TransferError {
    /// The ledger.
    #[error("the ledger")]
    Ledger(#[from] LedgerError),
    /// The file.
    #[error("the file")]
    File(#[from] std::io::Error),
    /// The file is not an export, or not a whole one.
    #[error("line {line} of the export: {why}")]
    Malformed {
        /// Which line.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The ledger already holds something.
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
    pub tables: std::collections::BTreeMap<String, u64>,
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
    /// When the database cannot be read or the file not be written.
    pub fn export(&self, out: &mut dyn Write) -> Result<Transfer, TransferError> {
        let mut lines = Lines::default();
        let mut failed: Option<std::io::Error> = None;
        let header = serde_json::to_string(&Header { berth_export: FORMAT }).unwrap_or_default();
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
        writeln!(out, "{}", serde_json::to_string(&transfer).unwrap_or_default())?;
        out.flush()?;
        Ok(transfer)
    }

    /// Reads an export into this ledger, which must be empty. All of it, or nothing.
    ///
    /// # Errors
    /// When the export is not whole, or the ledger is not empty.
    pub fn import(&self, input: &mut dyn BufRead) -> Result<Transfer, TransferError> {
        self.must_be_empty()?;
        let mut reader =
            Reader { input, lines: Lines::default(), line: 0, problem: None, end: None };
        reader.header()?;
        let loaded = self.read(|tables| tables.load(&mut || reader.next()));
        if let Some(problem) = reader.problem {
            return Err(problem);
        }
        loaded?;
        reader.end.ok_or_else(|| malformed(reader.line, "the export has no end".to_owned()))
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
    tables: std::collections::BTreeMap<String, u64>,
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
            .map_err(|_| malformed(1, "this is not an export of Berth".to_owned()))?;
        if !(1..=FORMAT).contains(&header.berth_export) {
            let found = header.berth_export;
            return Err(malformed(1, format!("format {found}, this Berth reads 1 to {FORMAT}")));
        }
        self.lines.note(None, &line);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(usize, Vec<Cell>)>, Fault> {
        self.row().map_err(|problem| {
            self.problem = Some(problem);
            Fault::Fatal(LedgerError::Closed)
        })
    }

    /// The next row; absent once the end was read and found right.
    fn row(&mut self) -> Result<Option<(usize, Vec<Cell>)>, TransferError> {
        let number = self.line + 1;
        let Some(line) = self.line()? else {
            return Err(malformed(number, "the export is cut off".to_owned()));
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
        let (table, cells) =
            read_line(&line).ok_or_else(|| malformed(number, "not a row".to_owned()))?;
        self.lines.note(Some(TABLES[table].table), &line);
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

fn read_line(line: &str) -> Option<(usize, Vec<Cell>)> {
    let Value::Array(values) = serde_json::from_str(line).ok()? else { return None };
    let (name, values) = values.split_first()?;
    let table = TABLES.iter().position(|shape| Some(shape.table) == name.as_str())?;
    // Columns that came later are at the end, and empty in older exports.
    let columns = TABLES[table].columns;
    let missing = columns.len().checked_sub(values.len())?;
    if missing > 0 && !(missing == 1 && TABLES[table].table == "claim") {
        return None;
    }
    let absent = std::iter::repeat_n(&Value::Null, missing);
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
    Some((table, cells.collect::<Option<Vec<Cell>>>()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Int(&'static str),
    Text(&'static str),
    Bytes(&'static str),
}

impl Column {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Int(name) | Self::Text(name) | Self::Bytes(name) => name,
        }
    }
}

/// A table, the same in every database.
pub(crate) struct Shape {
    pub(crate) table: &'static str,
    pub(crate) columns: &'static [Column],
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Cell {
    /// The value in JSON; bytes in hexadecimal.
    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Int(number) => Value::from(*number),
            Self::Text(text) => Value::from(text.as_str()),
            Self::Bytes(bytes) => Value::from(hex(bytes)),
        }
    }
}

/// Takes rows as they are read: which table, and its cells in the order of its columns.
pub(crate) type TakeRow<'a> = dyn FnMut(usize, Vec<Cell>) -> Result<(), Fault> + 'a;

/// Hands out rows to be stored.
pub(crate) type NextRow<'a> = dyn FnMut() -> Result<Option<(usize, Vec<Cell>)>, Fault> + 'a;

/// Every table and column, in the order of the schema.
pub(crate) static TABLES: &[Shape] = &[
    Shape {
        table: "ledger",
        columns: &[
            Column::Int("one"),
            Column::Text("id"),
            Column::Int("next_event"),
            Column::Int("first_event"),
        ],
    },
    Shape {
        table: "node",
        columns: &[Column::Text("id"), Column::Text("facts"), Column::Int("heartbeat_at")],
    },
    Shape {
        table: "node_room",
        columns: &[
            Column::Text("node"),
            Column::Text("state"),
            Column::Int("known"),
            Column::Text("zone"),
            Column::Text("rack"),
            Column::Int("constraint_gen"),
            Column::Int("rules_gen"),
            Column::Int("fence"),
            Column::Int("limit_cpu"),
            Column::Int("limit_memory"),
            Column::Int("limit_disk"),
            Column::Int("limit_bandwidth"),
            Column::Int("limit_instances"),
            Column::Int("overhead_mib"),
            Column::Text("cap_mode"),
            Column::Int("used_cpu"),
            Column::Int("used_memory"),
            Column::Int("used_disk"),
            Column::Int("used_bandwidth"),
            Column::Int("used_instances"),
            Column::Int("used_capped"),
        ],
    },
    Shape {
        table: "node_class",
        columns: &[
            Column::Text("node"),
            Column::Text("class"),
            Column::Int("lim"),
            Column::Int("used"),
        ],
    },
    Shape {
        table: "claim",
        columns: &[
            Column::Bytes("instance"),
            Column::Int("role"),
            Column::Text("node"),
            Column::Text("owner"),
            Column::Text("workload"),
            Column::Int("state"),
            Column::Int("cpu"),
            Column::Int("memory"),
            Column::Int("disk"),
            Column::Int("bandwidth"),
            Column::Int("capped"),
            Column::Int("lease_until"),
            Column::Int("fence"),
            Column::Text("request_id"),
            Column::Bytes("batch"),
            Column::Text("name"),
            Column::Text("spec"),
            Column::Text("ties"),
            Column::Text("release_id"),
            Column::Text("secrets_version"),
            Column::Int("created_at"),
            Column::Text("permit"),
        ],
    },
    Shape {
        table: "request",
        columns: &[
            Column::Text("request_id"),
            Column::Text("owner"),
            Column::Bytes("body_hash"),
            Column::Text("answer"),
            Column::Int("at"),
        ],
    },
    Shape {
        table: "team",
        columns: &[
            Column::Text("id"),
            Column::Text("owner"),
            Column::Text("kind"),
            Column::Text("strength"),
            Column::Text("topology"),
            Column::Int("max_per_domain"),
            Column::Text("home"),
        ],
    },
    Shape {
        table: "team_domain",
        columns: &[Column::Text("team"), Column::Text("domain"), Column::Int("members")],
    },
    Shape {
        table: "team_member",
        columns: &[Column::Text("team"), Column::Bytes("instance"), Column::Int("role")],
    },
    Shape {
        table: "volume",
        columns: &[
            Column::Text("id"),
            Column::Text("owner"),
            Column::Text("home"),
            Column::Bytes("attached_to"),
        ],
    },
    Shape {
        table: "pool",
        columns: &[
            Column::Text("id"),
            Column::Text("kind"),
            Column::Bytes("first"),
            Column::Bytes("last"),
            Column::Bytes("next"),
            Column::Int("quarantine_s"),
        ],
    },
    Shape {
        table: "pool_value",
        columns: &[
            Column::Text("pool"),
            Column::Bytes("value"),
            Column::Bytes("instance"),
            Column::Int("role"),
            Column::Int("released_at"),
        ],
    },
    Shape {
        table: "tenant",
        columns: &[
            Column::Text("owner"),
            Column::Int("limit_cpu"),
            Column::Int("limit_memory"),
            Column::Int("limit_disk"),
            Column::Int("limit_instances"),
            Column::Int("used_cpu"),
            Column::Int("used_memory"),
            Column::Int("used_disk"),
            Column::Int("used_instances"),
        ],
    },
    Shape {
        table: "workload",
        columns: &[
            Column::Text("owner"),
            Column::Text("name"),
            Column::Int("revision"),
            Column::Int("replicas"),
            Column::Text("body"),
        ],
    },
    Shape {
        table: "slot",
        columns: &[
            Column::Text("owner"),
            Column::Text("workload"),
            Column::Int("revision"),
            Column::Int("slot"),
            Column::Bytes("instance"),
            Column::Int("role"),
        ],
    },
    Shape { table: "env_secrets", columns: &[Column::Text("env"), Column::Text("version")] },
    Shape {
        table: "policy",
        columns: &[
            Column::Text("hash"),
            Column::Text("name"),
            Column::Text("body"),
            Column::Int("at"),
            Column::Int("active"),
        ],
    },
    Shape {
        table: "demand",
        columns: &[
            Column::Text("shape"),
            Column::Text("owner"),
            Column::Text("code"),
            Column::Text("spec"),
            Column::Int("times"),
            Column::Int("first_at"),
            Column::Int("last_at"),
        ],
    },
    Shape {
        table: "event_segment",
        columns: &[
            Column::Int("id"),
            Column::Int("first"),
            Column::Int("count"),
            Column::Int("at"),
            Column::Text("origin"),
            Column::Text("body"),
        ],
    },
    Shape {
        table: "chain",
        columns: &[
            Column::Text("id"),
            Column::Int("length"),
            Column::Bytes("head"),
            Column::Int("base"),
            Column::Bytes("base_hash"),
            Column::Int("started_at"),
        ],
    },
    Shape {
        table: "receipt",
        columns: &[
            Column::Text("chain"),
            Column::Int("n"),
            Column::Int("at"),
            Column::Bytes("hash"),
            Column::Int("count"),
            Column::Text("body"),
        ],
    },
    Shape {
        table: "document",
        columns: &[
            Column::Text("kind"),
            Column::Text("id"),
            Column::Int("rev"),
            Column::Text("body"),
            Column::Int("at"),
        ],
    },
    Shape {
        table: "audit",
        columns: &[
            Column::Int("n"),
            Column::Int("at"),
            Column::Text("actor"),
            Column::Text("origin"),
            Column::Text("action"),
            Column::Text("subject"),
            Column::Text("request_id"),
        ],
    },
    Shape {
        table: "policy_history",
        columns: &[Column::Int("n"), Column::Text("hash"), Column::Int("at")],
    },
];
