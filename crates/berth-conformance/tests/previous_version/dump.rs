//! Databases as text: SQL that makes them again, compressed.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// The folder of the fixtures.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A fixture as text.
pub(crate) fn read(path: &Path) -> String {
    let mut text = String::new();
    let file = File::open(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

/// Writes a fixture. One that is there is part of a release and stays as it is.
pub(crate) fn write(path: &Path, text: &str) {
    let file = File::create_new(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let mut encoder = GzEncoder::new(file, Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap();
}

/// A SQLite file as SQL.
pub(crate) fn sqlite(path: &Path) -> String {
    let connection = rusqlite::Connection::open(path).unwrap();
    let schema = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid";
    let mut statement = connection.prepare(schema).unwrap();
    let read = |row: &rusqlite::Row<'_>| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    };
    let objects: Vec<_> = statement.query_map([], read).unwrap().map(Result::unwrap).collect();
    let mut text = String::from("BEGIN;\n");
    for (kind, name, sql) in &objects {
        writeln!(text, "{sql};").unwrap();
        if kind == "table" {
            rows(&connection, name, &mut text);
        }
    }
    text.push_str("COMMIT;\n");
    text
}

fn rows(connection: &rusqlite::Connection, table: &str, text: &mut String) {
    let named = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
    let mut statement = connection.prepare(&named).unwrap();
    let names = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let quoted: Vec<String> = names.map(|name| format!("quote(\"{}\")", name.unwrap())).collect();
    let values = format!("SELECT {} FROM \"{table}\"", quoted.join(" || ', ' || "));
    let mut statement = connection.prepare(&values).unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    for row in rows {
        writeln!(text, "INSERT INTO \"{table}\" VALUES ({});", row.unwrap()).unwrap();
    }
}

/// A PostgreSQL database as SQL that any client can run.
pub(crate) fn postgres(url: &str) -> String {
    let mut command = Command::new("pg_dump");
    command.args(["--inserts", "--no-owner", "--no-privileges", "--no-comments", url]);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    // Commands of psql, and settings that older servers do not know.
    let foreign = |line: &&str| {
        !line.starts_with('\\') && !line.starts_with("SET ") && !line.starts_with("--")
    };
    let lines: Vec<&str> = text.lines().filter(foreign).filter(|line| !line.is_empty()).collect();
    lines.join("\n") + "\n"
}
