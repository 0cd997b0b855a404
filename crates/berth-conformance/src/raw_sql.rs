//! A plain SQL connection that does not know the ledger: it reads text and runs SQL.

use std::path::Path;

use anyhow::{Context, bail};
use rusqlite::types::ValueRef;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A row as text; absent is NULL.
pub(crate) type TextRow = Vec<Option<String>>;

enum Connection {
    Sqlite(rusqlite::Connection),
    // The client is dropped before the runtime that carries it.
    Postgres(Client, Runtime),
}

/// A connection of the test's own.
pub struct RawSql(Connection);

impl RawSql {
    /// Opens a SQLite file.
    pub(crate) fn sqlite(path: &Path) -> anyhow::Result<Self> {
        let connection = rusqlite::Connection::open(path)?;
        connection.busy_timeout(std::time::Duration::from_secs(30))?;
        Ok(Self(Connection::Sqlite(connection)))
    }

    /// Connects to a PostgreSQL database.
    pub(crate) fn postgres(url: &str) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        runtime.spawn(connection);
        Ok(Self(Connection::Postgres(client, runtime)))
    }

    /// Runs SQL.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn run(&self, sql: &str) -> anyhow::Result<()> {
        match &self.0 {
            Connection::Sqlite(connection) => connection.execute_batch(sql)?,
            Connection::Postgres(client, runtime) => runtime.block_on(client.batch_execute(sql))?,
        }
        Ok(())
    }

    /// The rows of a query, as text. Bytes are in hexadecimal.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn rows(&self, sql: &str) -> anyhow::Result<Vec<TextRow>> {
        match &self.0 {
            Connection::Sqlite(connection) => {
                let mut statement = connection.prepare(sql)?;
                let columns = statement.column_count();
                let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<TextRow> {
                    (0..columns).map(|place| Ok(text_of(row.get_ref(place)?))).collect()
                };
                let rows = statement.query_map([], read)?;
                rows.map(|row| row.map_err(Into::into)).collect()
            }
            Connection::Postgres(client, runtime) => {
                let messages = runtime.block_on(client.simple_query(sql))?;
                let rows = messages.into_iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row),
                    _ => None,
                });
                let bare = |text: &str| text.strip_prefix("\\x").unwrap_or(text).to_owned();
                Ok(rows.map(|row| (0..row.len()).map(|n| row.get(n).map(bare)).collect()).collect())
            }
        }
    }

    /// One number.
    ///
    /// # Errors
    /// When the query does not give exactly one.
    pub fn number(&self, sql: &str) -> anyhow::Result<i64> {
        let rows = self.rows(sql)?;
        let [row] = rows.as_slice() else { bail!("{} rows: {sql}", rows.len()) };
        let cell = row.first().and_then(Option::as_deref).context("NULL")?;
        cell.parse().with_context(|| format!("{cell:?} is not a number: {sql}"))
    }
}

fn text_of(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}
