//! The load: agents that send one request after the other, also while the server restarts.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::agent::{Agent, PermitOutcome, PermitRequest};
use crate::bench::connection::HttpConnection;
use crate::bench::server::Server;

/// The pause before an agent tries to connect again.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

pub(super) struct Load {
    pub(super) warmup: Duration,
    pub(super) measure: Duration,
    pub(super) restart: bool,
}

/// What was measured.
#[derive(Default)]
pub(super) struct Measurements {
    /// Latencies of answers, sorted.
    pub(super) latencies_us: Vec<u32>,
    pub(super) grown: u64,
    pub(super) held_back: u64,
    /// Failed requests and implausible answers.
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) restart: Option<RestartTimes>,
}

/// A restart, as agents saw it.
#[derive(Clone, Copy)]
pub(super) struct RestartTimes {
    killed_at: Instant,
    /// When the first agent could connect again.
    listening_at: Option<Instant>,
    /// When the first agent was granted more.
    grown_at: Option<Instant>,
    /// Answers after the kill that were neither a permit nor a lost connection.
    pub(super) refused: u64,
}

impl RestartTimes {
    fn between(from: Option<Instant>, until: Option<Instant>) -> Option<Duration> {
        Some(until?.saturating_duration_since(from?))
    }

    pub(super) fn kill_to_listening(&self) -> Option<Duration> {
        Self::between(Some(self.killed_at), self.listening_at)
    }

    pub(super) fn kill_to_permit(&self) -> Option<Duration> {
        Self::between(Some(self.killed_at), self.grown_at)
    }

    pub(super) fn listening_to_permit(&self) -> Option<Duration> {
        Self::between(self.listening_at, self.grown_at)
    }
}

#[derive(Clone, Copy)]
struct Times {
    from: Instant,
    until: Instant,
}

/// The measurements of all agents, which share a thread.
type SharedMeasurements = RefCell<Measurements>;

impl Load {
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(super) async fn run(
        &self,
        server: &mut Server,
        agents: Vec<Agent>,
    ) -> anyhow::Result<Measurements> {
        let address = server.address.clone();
        let from = Instant::now() + self.warmup;
        let times = Times { from, until: from + self.measure };
        let measurements = SharedMeasurements::default();
        let running =
            agents.into_iter().map(|agent| run_agent(agent, &address, times, &measurements));
        let running = futures_util::future::try_join_all(running);
        let restart = async {
            if self.restart {
                tokio::time::sleep(self.warmup + self.measure / 2).await;
                server.kill()?;
                let killed_at = Instant::now();
                measurements.borrow_mut().restart = Some(RestartTimes {
                    killed_at,
                    listening_at: None,
                    grown_at: None,
                    refused: 0,
                });
                server.restart()?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(running, restart)?;
        let mut measured = measurements.into_inner();
        measured.latencies_us.sort_unstable();
        if measured.latencies_us.is_empty() {
            bail!("nothing was answered: {}", measured.first_error.unwrap_or_default());
        }
        Ok(measured)
    }
}

/// One agent. A request that could not be sent is repeated with the same sequence number.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn run_agent(
    mut agent: Agent,
    address: &str,
    times: Times,
    measurements: &SharedMeasurements,
) -> anyhow::Result<()> {
    let mut connection = Some(HttpConnection::connect(address).await?);
    loop {
        let sent_at = Instant::now();
        if sent_at >= times.until {
            return Ok(());
        }
        let request = agent.next()?;
        let outcome = loop {
            match send(&mut agent, &mut connection, address, request, measurements).await {
                Some(outcome) => break outcome,
                None if Instant::now() >= times.until => return Ok(()),
                None => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        };
        let done_at = Instant::now();
        let mut measurements = measurements.borrow_mut();
        match outcome {
            Ok(outcome) => measurements.record(outcome, sent_at, done_at, times),
            Err(error) => measurements.record_error(&error),
        }
    }
}

/// Sends a request; none if there is no connection.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn send(
    agent: &mut Agent,
    connection: &mut Option<HttpConnection>,
    address: &str,
    request: PermitRequest,
    measurements: &SharedMeasurements,
) -> Option<anyhow::Result<PermitOutcome>> {
    let connected = match connection {
        Some(connected) => connected,
        None => {
            let connected = HttpConnection::connect(address).await.ok()?;
            if let Some(restart) = &mut measurements.borrow_mut().restart {
                restart.listening_at.get_or_insert(connected.since);
            }
            connection.insert(connected)
        }
    };
    let since = connected.since;
    let bytes = std::mem::take(&mut agent.request);
    let answer = connected.send(&bytes).await;
    agent.request = bytes;
    match answer {
        Ok((status, answer)) => {
            let outcome = agent.check_answer(request, status, answer);
            if let (Ok(PermitOutcome::Grown), Some(restart)) =
                (&outcome, &mut measurements.borrow_mut().restart)
                && since > restart.killed_at
            {
                // Only connections that were made after the restart count.
                restart.grown_at.get_or_insert_with(Instant::now);
            }
            Some(outcome)
        }
        Err(error) => {
            *connection = None;
            // Without a restart, a lost connection is an error.
            measurements.borrow().restart.is_none().then_some(Err(error))
        }
    }
}

impl Measurements {
    fn record(&mut self, outcome: PermitOutcome, sent_at: Instant, done_at: Instant, times: Times) {
        if done_at < times.from || done_at >= times.until {
            return;
        }
        let micros = done_at.duration_since(sent_at).as_micros();
        self.latencies_us.push(u32::try_from(micros).unwrap_or(u32::MAX));
        match outcome {
            PermitOutcome::Grown => self.grown += 1,
            PermitOutcome::Limited => self.held_back += 1,
            PermitOutcome::NotGrown => {}
        }
    }

    fn record_error(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
        if let Some(restart) = &mut self.restart {
            restart.refused += 1;
        }
    }
}
