//! Rows of a CSV file, plain or compressed, by the names of their columns. A bad cell is reported with
//! file, line and column; it never becomes a default.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use csv::StringRecord;
use flate2::read::MultiGzDecoder;
use thiserror::Error;

/// The first bytes of a file compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file that cannot be replayed.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A column is missing.
    #[error("{}: column {column} is missing; present are: {present}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// The columns of the file.
        present: String,
    },
    /// A line is malformed.
    #[error("{}: {damage}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The file has no rows.
    #[error("{}: no {what} in the file", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What its rows would be.
        what: &'static str,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {column}: {value:?}: expected {expected}")]
pub struct Damage {
    /// The line, the header being the first.
    pub line: u64,
    /// The column.
    pub column: &'static str,
    /// What is in it.
    pub value: String,
    /// What would be accepted.
    pub expected: String,
}

/// Opens a file; whether it is compressed is read from its first bytes, not from its name.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut first = Vec::new();
    Read::by_ref(&mut file).take(2).read_to_end(&mut first).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let file = BufReader::new(file);
    Ok(if first == GZIP { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// A file with a header.
pub(super) struct Table {
    path: PathBuf,
    reader: csv::Reader<Box<dyn Read>>,
    header: StringRecord,
}

impl Table {
    /// Opens a file and reads its header.
    pub(super) fn open(path: &Path) -> Result<Self, ReadError> {
        let failed = |source| ReadError::File { path: path.to_owned(), source };
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(open(path)?);
        let header = reader.headers().map_err(|error| failed(into_io(error)))?.clone();
        Ok(Self { path: path.to_owned(), reader, header })
    }

    /// Where a column is that must be there.
    pub(super) fn required(&self, column: &'static str) -> Result<Column, ReadError> {
        self.optional(column).ok_or_else(|| ReadError::Column {
            path: self.path.clone(),
            column,
            present: self.header.iter().collect::<Vec<_>>().join(", "),
        })
    }

    /// Where a column is, if it is there.
    pub(super) fn optional(&self, name: &'static str) -> Option<Column> {
        let index = self.header.iter().position(|present| present.trim() == name)?;
        Some(Column { name, index })
    }

    /// Reads the next row into `row`; `false` at the end of the file.
    pub(super) fn read(&mut self, row: &mut Row) -> Result<bool, ReadError> {
        let more = self.reader.read_record(&mut row.cells);
        row.line = row.cells.position().map_or(0, csv::Position::line);
        more.map_err(|error| ReadError::File { path: self.path.clone(), source: into_io(error) })
    }

    pub(super) fn damaged(&self, damage: Damage) -> ReadError {
        ReadError::Line { path: self.path.clone(), damage }
    }

    pub(super) fn empty(&self, what: &'static str) -> ReadError {
        ReadError::Empty { path: self.path.clone(), what }
    }
}

fn into_io(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        kind => std::io::Error::other(format!("{kind:?}")),
    }
}

/// A column of a file.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    index: usize,
}

/// A row of a file.
#[derive(Default)]
pub(super) struct Row {
    cells: StringRecord,
    line: u64,
}

impl Row {
    /// A cell without the space around it; a row may end early.
    pub(super) fn text(&self, column: Column) -> &str {
        self.cells.get(column.index).unwrap_or_default().trim()
    }

    /// A cell that must not be empty.
    pub(super) fn name(&self, column: Column) -> Result<&str, Damage> {
        let text = self.text(column);
        if text.is_empty() { Err(self.damage(column, "a name")) } else { Ok(text) }
    }

    /// A whole number from `least` on.
    pub(super) fn number(&self, column: Column, least: u32) -> Result<u32, Damage> {
        let number = self.text(column).parse().ok().filter(|number| *number >= least);
        number.ok_or_else(|| {
            self.damage(column, &format!("a whole number from {least} to {}", u32::MAX))
        })
    }

    /// A whole number of seconds.
    pub(super) fn seconds(&self, column: Column) -> Result<u64, Damage> {
        let number = self.text(column).parse();
        number.map_err(|_| self.damage(column, "a whole number of seconds"))
    }

    /// A whole number, if the column is there and not empty.
    pub(super) fn optional_number(&self, column: Option<Column>) -> Result<Option<u32>, Damage> {
        match column {
            Some(column) if !self.text(column).is_empty() => self.number(column, 0).map(Some),
            _ => Ok(None),
        }
    }

    pub(super) fn damage(&self, column: Column, expected: &str) -> Damage {
        Damage {
            line: self.line,
            column: column.name,
            value: self.text(column).to_owned(),
            expected: expected.to_owned(),
        }
    }
}
