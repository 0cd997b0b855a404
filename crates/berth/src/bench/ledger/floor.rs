//! The floor: the speed of the bare database, where a claim is only a guarded update and an insert,
//! durable, without engine, events, receipts or stored answers.

use std::time::{Duration, Instant};

use anyhow::Context;
use berth_ledger::Backend;
use rusqlite::Connection;
use tokio_postgres::NoTls;

#[derive(Clone, Copy)]
pub(super) struct Floor {
    pub(super) nodes: u64,
    pub(super) clients: usize,
    pub(super) seconds: u32,
    pub(super) writers: usize,
    /// Claims in a transaction, as Berth had them.
    pub(super) group: u64,
}

/// Claims per second.
pub(super) struct Floors {
    pub(super) grouped_per_s: u64,
    pub(super) single_per_s: u64,
}

pub(super) fn measure(backend: &Backend, floor: &Floor) -> anyhow::Result<Floors> {
    match backend {
        Backend::Sqlite(path) => {
            let connection = Connection::open(path)?;
            prepare_sqlite(&connection, floor.nodes)?;
            Ok(Floors {
                grouped_per_s: sqlite(&connection, floor, floor.group)?,
                single_per_s: sqlite(&connection, floor, 1)?,
            })
        }
        Backend::Postgres(url) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(postgres(url, floor))
        }
    }
}

const TABLES: [&str; 2] = [
    "CREATE TABLE floor_node (id BIGINT PRIMARY KEY, used_cpu BIGINT, limit_cpu BIGINT, \
     used_memory BIGINT, limit_memory BIGINT, used_disk BIGINT, limit_disk BIGINT)",
    "CREATE TABLE floor_claim (id BIGINT PRIMARY KEY, node BIGINT, cpu BIGINT, memory BIGINT, \
     disk BIGINT)",
];

const MOST: i64 = i64::MAX / 2;

fn prepare_sqlite(connection: &Connection, nodes: u64) -> anyhow::Result<()> {
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "cache_size", -65_536)?;
    for table in TABLES {
        connection.execute(table, [])?;
    }
    connection.execute_batch("BEGIN")?;
    for node in 0..nodes {
        connection
            .prepare_cached("INSERT INTO floor_node VALUES (?1, 0, ?2, 0, ?2, 0, ?2)")?
            .execute((i64::try_from(node)?, MOST))?;
    }
    connection.execute_batch("COMMIT")?;
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn sqlite(connection: &Connection, floor: &Floor, group: u64) -> anyhow::Result<u64> {
    let first: i64 =
        connection
            .query_row("SELECT coalesce(max(id), 0) + 1 FROM floor_claim", [], |r| r.get(0))?;
    let mut claims = 0;
    let started = Instant::now();
    let until = Duration::from_secs(floor.seconds.into());
    let mut update = connection.prepare(
        "UPDATE floor_node SET used_cpu = used_cpu + 1000, used_memory = used_memory + 1024, \
         used_disk = used_disk + 4096 WHERE id = ?1 AND used_cpu + 1000 <= limit_cpu \
         AND used_memory + 1024 <= limit_memory AND used_disk + 4096 <= limit_disk",
    )?;
    let mut insert =
        connection.prepare("INSERT INTO floor_claim VALUES (?1, ?2, 1000, 1024, 4096)")?;
    while started.elapsed() < until {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for _ in 0..group {
            let node = i64::try_from(scatter(claims) % floor.nodes)?;
            if update.execute([node])? == 1 {
                insert.execute((first + i64::try_from(claims)?, node))?;
            }
            claims += 1;
        }
        connection.execute_batch("COMMIT")?;
    }
    per_second(claims, started.elapsed())
}

/// A fixed pseudo-random order of nodes.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

fn per_second(claims: u64, elapsed: Duration) -> anyhow::Result<u64> {
    Ok(u64::try_from(u128::from(claims) * 1_000_000 / elapsed.as_micros().max(1))?)
}

async fn connect(url: &str) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connecting")?;
    tokio::spawn(connection);
    Ok(client)
}

async fn postgres(url: &str, floor: &Floor) -> anyhow::Result<Floors> {
    let client = connect(url).await?;
    client.batch_execute("DROP TABLE IF EXISTS floor_claim, floor_node").await?;
    for table in TABLES {
        client.batch_execute(table).await?;
    }
    let fill = "INSERT INTO floor_node SELECT n, 0, $2::bigint, 0, $2, 0, $2 FROM generate_series(0::bigint, $1::bigint) n";
    client.execute(fill, &[&i64::try_from(floor.nodes.saturating_sub(1))?, &MOST]).await?;
    client.batch_execute("ALTER TABLE floor_node SET (fillfactor = 50)").await?;
    client.batch_execute("VACUUM FULL ANALYZE floor_node").await?;
    let grouped_per_s = clients(url, floor, floor.writers, floor.group).await?;
    let single_per_s = clients(url, floor, floor.clients, 1).await?;
    Ok(Floors { grouped_per_s, single_per_s })
}

/// One statement is one transaction: the update's rows drive the insert.
const GUARDED: &str = "WITH wanted AS (SELECT unnest($1::bigint[]) AS id, unnest($2::bigint[]) AS node), \
     summed AS (SELECT node, count(*) AS n FROM wanted GROUP BY node ORDER BY node), \
     fits AS (UPDATE floor_node f SET used_cpu = used_cpu + 1000 * n, \
     used_memory = used_memory + 1024 * n, used_disk = used_disk + 4096 * n FROM summed s \
     WHERE f.id = s.node AND used_cpu + 1000 * n <= limit_cpu \
     AND used_memory + 1024 * n <= limit_memory AND used_disk + 4096 * n <= limit_disk \
     RETURNING f.id) \
     INSERT INTO floor_claim SELECT w.id, w.node, 1000, 1024, 4096 FROM wanted w \
     JOIN fits ON fits.id = w.node";

async fn clients(url: &str, floor: &Floor, clients: usize, group: u64) -> anyhow::Result<u64> {
    let mut tasks = Vec::new();
    for number in 0..clients {
        let client = connect(url).await?;
        let (floor, number) = (*floor, u64::try_from(number)?);
        tasks.push(tokio::spawn(async move { one_client(&client, &floor, number, group).await }));
    }
    let mut total = 0;
    for task in tasks {
        total += task.await??;
    }
    Ok(total)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn one_client(
    client: &tokio_postgres::Client,
    floor: &Floor,
    number: u64,
    group: u64,
) -> anyhow::Result<u64> {
    let statement = client.prepare(GUARDED).await?;
    let phase = if group == 1 { 1 << 20 } else { 0 };
    let first = i64::try_from((number + phase) << 36)?;
    let mut claims = 0;
    let started = Instant::now();
    let until = Duration::from_secs(floor.seconds.into());
    while started.elapsed() < until {
        let mut ids = Vec::new();
        let mut nodes = Vec::new();
        for _ in 0..group {
            ids.push(first + i64::try_from(claims)?);
            nodes.push(i64::try_from(scatter(claims * 31 + number) % floor.nodes)?);
            claims += 1;
        }
        // Two clients may lock the same nodes in different orders; the server aborts one of them.
        let mut tries = 0;
        while let Err(error) = client.execute(&statement, &[&ids, &nodes]).await {
            let again =
                error.code() == Some(&tokio_postgres::error::SqlState::T_R_DEADLOCK_DETECTED);
            tries += 1;
            if !again || tries > 20 {
                return Err(error.into());
            }
        }
    }
    per_second(claims, started.elapsed())
}
