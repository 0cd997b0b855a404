//! One connection: its runtime, its settings and the statements it has prepared.
//!
//! Knows no table and never retries: a connection that fails is thrown away by its owner.

use std::time::Duration;

use futures_util::TryStreamExt;
use rustc_hash::FxHashMap;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Config, Row, SimpleQueryMessage, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::fault;
use super::hosts::{connect_to_writable_host, split_by_host};
use super::pipeline::{Call, Request, in_order};
use super::tls::{self, Mode};
use crate::error::{Fault, LedgerError};

/// How long a host may take to accept a connection and to answer on it, unless the URL sets it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// TCP keepalive: idle time, interval and retries.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;

/// What is sent and not acknowledged for this long means that the peer is gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// How many times longer than any other answer the first row of a whole table may take: it may have to be sorted.
const FIRST_ROW_FACTOR: u32 = 3;

/// Settings of every connection.
///
/// A commit is durable even where the server's default is not. No one waits forever, and a
/// client that stopped in mid-transaction loses its locks. All statements look rows up by key, so
/// one plan serves forever and must not be made again from the statistics of an empty table.
const SETTINGS: &str = "\
    SELECT CASE current_setting('synchronous_commit') WHEN 'off' \
        THEN set_config('synchronous_commit', 'on', false) END; \
    SET statement_timeout = '30s'; \
    SET lock_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = '60s'; \
    SET default_transaction_isolation = 'read committed'; \
    SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; \
    SET enable_hashjoin = off; \
    SET enable_mergejoin = off; \
    SET jit = off; \
    SET client_min_messages = 'warning'";

/// One connection.
pub(crate) struct Session {
    // Dropped before the runtime that carries it.
    client: Client,
    statements: FxHashMap<String, Statement>,
    runtime: ConnectionRuntime,
    answer_within: Option<Duration>,
    /// Round trips to the server.
    #[cfg(test)]
    pub(crate) round_trips: u32,
    /// Statements that were run.
    #[cfg(test)]
    pub(crate) statements_run: u32,
}

/// The runtime that drives a connection.
///
/// It ends without waiting: the last handle of a ledger may be dropped in an async task, where a
/// runtime that waits for its threads panics.
struct ConnectionRuntime(Option<Runtime>);

impl ConnectionRuntime {
    fn start() -> std::io::Result<Self> {
        Ok(Self(Some(Builder::new_current_thread().enable_all().build()?)))
    }

    fn get(&self) -> &Runtime {
        let Some(runtime) = &self.0 else { unreachable!("only drop takes it") };
        runtime
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.get().block_on(future)
    }
}

impl Drop for ConnectionRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where to connect to, and how.
pub(crate) struct Target {
    /// The hosts of the URL, in its order.
    hosts: Vec<Config>,
    /// How long each may take.
    connect_within: Duration,
    /// What encrypts; none if nothing is to be.
    tls: Option<MakeRustlsConnect>,
    /// How long the server may take to answer before the connection counts as lost.
    answer_within: Option<Duration>,
}

/// The settings of a connection, from its URL.
pub(crate) fn configure(url: &str, answer_within: Option<Duration>) -> Result<Target, Fault> {
    let (plain, mut wanted) = tls::split_tls_settings(url).map_err(Fault::Fatal)?;
    let mut config: Config = plain
        .parse()
        .map_err(|_| Fault::Fatal(LedgerError::InvalidUrl { url: without_password(url) }))?;
    let connect_within = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
    config.connect_timeout(connect_within);
    if config.get_application_name().is_none() {
        config.application_name("berth");
    }
    if config.get_target_session_attrs() == TargetSessionAttrs::Any {
        // Of several hosts, the one that can be written to.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED);
    }
    config.keepalives(true).keepalives_idle(KEEPALIVE_IDLE);
    config.keepalives_interval(KEEPALIVE_INTERVAL).keepalives_retries(KEEPALIVE_RETRIES);
    // No one else can listen on a socket of this machine, and the server would not encrypt there.
    if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) {
        wanted.mode = Mode::Disable;
    }
    config.ssl_mode(match wanted.mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyFull => SslMode::Require,
    });
    let tls = wanted.connector().map_err(Fault::Fatal)?;
    Ok(Target { hosts: split_by_host(&config), connect_within, tls, answer_within })
}

impl Target {
    /// How many hosts the URL names.
    pub(super) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn hosts(&self) -> &[Config] {
        &self.hosts
    }

    pub(super) fn tls(&self) -> Option<&MakeRustlsConnect> {
        self.tls.as_ref()
    }

    pub(super) fn connect_within(&self) -> Duration {
        self.connect_within
    }
}

/// A URL that may be shown.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

/// What an error of a migration means. Its text has no details; those are in what caused it.
fn migration_fault(error: &refinery::Error) -> Fault {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(inner) = inner.downcast_ref() {
            return fault("migration", inner);
        }
        cause = inner.source();
    }
    Fault::Fatal(LedgerError::Database(format!("migration: {error}")))
}

/// Waits for an answer or for a part of it, as long as it may take.
async fn within<F: Future>(
    limit: Option<Duration>,
    what: &str,
    answer: F,
) -> Result<F::Output, Fault> {
    let Some(limit) = limit else { return Ok(answer.await) };
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| Fault::Disconnected(format!("{what}: no answer within {} s", limit.as_secs())))
}

impl Session {
    /// Opens a connection.
    pub(crate) fn connect(target: &Target) -> Result<Self, Fault> {
        let runtime = ConnectionRuntime::start();
        let runtime =
            runtime.map_err(|error| Fault::Disconnected(format!("no runtime: {error}")))?;
        let connecting = connect_to_writable_host(
            &target.hosts,
            target.tls.as_ref(),
            target.connect_within,
            None,
        );
        let client = runtime.block_on(connecting)?;
        Ok(Self {
            client,
            statements: FxHashMap::default(),
            runtime,
            answer_within: target.answer_within,
            #[cfg(test)]
            round_trips: 0,
            #[cfg(test)]
            statements_run: 0,
        })
    }

    /// Applies the settings that every connection has.
    pub(super) fn apply_settings(&mut self) -> Result<(), Fault> {
        self.script("settings", SETTINGS)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Counts a round trip with so many statements, in tests.
    #[cfg_attr(
        not(test),
        allow(clippy::unused_self, unused_variables, reason = "counted in tests only")
    )]
    fn count(&mut self, statements: usize) {
        #[cfg(test)]
        {
            self.round_trips += 1;
            self.statements_run += u32::try_from(statements).unwrap();
        }
    }

    /// Waits for an answer of the server, but not for ever: one that is stopped or cut off keeps its
    /// connections open and never answers.
    fn wait<F: Future>(&self, what: &str, answer: F) -> Result<F::Output, Fault> {
        self.runtime.block_on(within(self.answer_within, what, answer))
    }

    /// Runs statements without values, as one script.
    pub(crate) fn script(&mut self, what: &'static str, sql: &str) -> Result<(), Fault> {
        self.count(1);
        let done = self.wait(what, self.client.batch_execute(sql))?;
        done.map_err(|error| fault(what, &error))
    }

    /// Runs one statement that returns one text, without preparing it: a pooler may not keep what is
    /// prepared.
    pub(super) fn unprepared_text(
        &mut self,
        what: &'static str,
        sql: &str,
    ) -> Result<Option<String>, Fault> {
        self.count(1);
        let answer = self.wait(what, self.client.simple_query(sql))?;
        let messages = answer.map_err(|error| fault(what, &error))?;
        let text = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(text)
    }

    /// Runs an embedded set of migrations.
    pub(super) fn migrate(&mut self, runner: &refinery::Runner) -> Result<(), Fault> {
        let migrated = self.runtime.block_on(runner.run_async(&mut self.client));
        migrated.map(drop).map_err(|error| migration_fault(&error))
    }

    /// Runs statements in one round trip and returns the rows of each.
    pub(super) fn all(&mut self, calls: &[Call]) -> Result<Vec<Vec<Row>>, Fault> {
        self.prepare(calls)?;
        self.count(calls.len());
        let parameters: Vec<_> = calls.iter().map(Call::parameters).collect();
        let mut requests: Vec<Request<'_, _>> = Vec::with_capacity(calls.len());
        for (call, parameters) in calls.iter().zip(&parameters) {
            let Some(statement) = self.statements.get(&*call.sql) else {
                return Err(Fault::corrupt("a statement that was not prepared"));
            };
            requests.push(Box::pin(self.client.query(statement, parameters)));
        }
        let what = calls.first().map_or("statements", |call| call.what);
        let answers = self.wait(what, in_order(requests))?;
        let named = calls.iter().zip(answers);
        named.map(|(call, rows)| rows.map_err(|error| fault(call.what, &error))).collect()
    }

    /// Runs one statement and returns its rows.
    pub(super) fn rows(&mut self, call: Call) -> Result<Vec<Row>, Fault> {
        Ok(self.all(&[call])?.into_iter().flatten().collect())
    }

    /// Runs one statement and hands over its rows one by one, as they arrive.
    pub(super) fn each(
        &mut self,
        call: &Call,
        take: &mut dyn FnMut(&Row) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.prepare(std::slice::from_ref(call))?;
        self.count(1);
        let Some(statement) = self.statements.get(&*call.sql) else {
            return Err(Fault::corrupt("a statement that was not prepared"));
        };
        // All rows may take long; the next one may not.
        let (limit, what) = (self.answer_within, call.what);
        let read = async {
            let rows = self.client.query_raw(statement, call.parameters());
            // The server may send nothing at all before it has some rows.
            let mut limit_of_next = limit.map(|limit| limit * FIRST_ROW_FACTOR);
            let rows = within(limit_of_next, what, rows).await?;
            let mut rows = std::pin::pin!(rows.map_err(|error| fault(what, &error))?);
            loop {
                let next = within(limit_of_next, what, rows.try_next()).await?;
                limit_of_next = limit;
                let Some(row) = next.map_err(|error| fault(what, &error))? else { return Ok(()) };
                take(&row)?;
            }
        };
        self.runtime.block_on(read)
    }

    /// Prepares what is not prepared yet, in one round trip.
    fn prepare(&mut self, calls: &[Call]) -> Result<(), Fault> {
        let mut missing: Vec<&Call> = Vec::new();
        for call in calls {
            let known = self.statements.contains_key(&*call.sql);
            if !known && !missing.iter().any(|other| other.sql == call.sql) {
                missing.push(call);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.count(0);
        let mut requests: Vec<Request<'_, _>> = Vec::with_capacity(missing.len());
        for call in &missing {
            requests.push(Box::pin(self.client.prepare(&call.sql)));
        }
        let prepared = self.wait("preparing statements", in_order(requests))?;
        for (call, statement) in missing.into_iter().zip(prepared) {
            let statement = statement.map_err(|error| fault(call.what, &error))?;
            self.statements.insert(call.sql.clone().into_owned(), statement);
        }
        Ok(())
    }
}
