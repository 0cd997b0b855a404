//! The load: agents that send one request after the other, also while the server restarts.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::agent::{Agent, PermitOutcome, PermitRequest};
use super::wire::HttpConnection;
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
pub(super) struct Measured {
    /// Latencies of answers, sorted.
    pub(super) latencies_us: Vec<u32>,
    pub(super) grown: u64,
    pub(super) held_back: u64,
    /// Failed requests and implausible answers.
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) gap: Option<Gap>,
}

/// A restart, as agents saw it.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    killed_at: Instant,
    /// When the first agent could connect again.
    listening_at: Option<Instant>,
    /// When the first agent was granted more.
    grown_at: Option<Instant>,
    /// Answers after the kill that were neither a permit nor a lost connection.
    pub(super) refused: u64,
}

impl Gap {
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
type SharedMeasurements = RefCell<Measured>;

impl Load {
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(super) async fn run(
        &self,
        server: &mut Server,
        agents: Vec<Agent>,
    ) -> anyhow::Result<Measured> {
        let address = server.address.clone();
        let from = Instant::now() + self.warmup;
        let times = Times { from, until: from + self.measure };
        let notes = SharedMeasurements::default();
        let asking = agents.into_iter().map(|agent| ask(agent, &address, times, &notes));
        let asking = futures_util::future::try_join_all(asking);
        let restart = async {
            if self.restart {
                tokio::time::sleep(self.warmup + self.measure / 2).await;
                server.kill()?;
                let killed_at = Instant::now();
                notes.borrow_mut().gap =
                    Some(Gap { killed_at, listening_at: None, grown_at: None, refused: 0 });
                server.restart()?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(asking, restart)?;
        let mut measured = notes.into_inner();
        measured.latencies_us.sort_unstable();
        if measured.latencies_us.is_empty() {
            bail!("nothing was answered: {}", measured.first_error.unwrap_or_default());
        }
        Ok(measured)
    }
}

/// One agent. A request that could not be sent is repeated with the same sequence number.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn ask(
    mut agent: Agent,
    address: &str,
    times: Times,
    notes: &SharedMeasurements,
) -> anyhow::Result<()> {
    let mut wire = Some(HttpConnection::connect(address).await?);
    loop {
        let asked_at = Instant::now();
        if asked_at >= times.until {
            return Ok(());
        }
        let asked = agent.next()?;
        let said = loop {
            match send(&mut agent, &mut wire, address, asked, notes).await {
                Some(said) => break said,
                None if Instant::now() >= times.until => return Ok(()),
                None => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        };
        let done_at = Instant::now();
        let mut notes = notes.borrow_mut();
        match said {
            Ok(outcome) => notes.record(outcome, asked_at, done_at, times),
            Err(error) => notes.record_error(&error),
        }
    }
}

/// Sends a request; none if there is no connection.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn send(
    agent: &mut Agent,
    wire: &mut Option<HttpConnection>,
    address: &str,
    asked: PermitRequest,
    notes: &SharedMeasurements,
) -> Option<anyhow::Result<PermitOutcome>> {
    let connected = match wire {
        Some(connected) => connected,
        None => {
            let connected = HttpConnection::connect(address).await.ok()?;
            if let Some(gap) = &mut notes.borrow_mut().gap {
                gap.listening_at.get_or_insert(connected.since);
            }
            wire.insert(connected)
        }
    };
    let since = connected.since;
    let request = std::mem::take(&mut agent.request);
    let answer = connected.ask(&request).await;
    agent.request = request;
    match answer {
        Ok((status, answer)) => {
            let outcome = agent.check_answer(asked, status, answer);
            if let (Ok(PermitOutcome::Grown), Some(gap)) = (&outcome, &mut notes.borrow_mut().gap)
                && since > gap.killed_at
            {
                // Only connections that were made after the restart count.
                gap.grown_at.get_or_insert_with(Instant::now);
            }
            Some(outcome)
        }
        Err(error) => {
            *wire = None;
            // Without a restart, a lost connection is an error.
            notes.borrow().gap.is_none().then_some(Err(error))
        }
    }
}

impl Measured {
    fn record(
        &mut self,
        outcome: PermitOutcome,
        asked_at: Instant,
        done_at: Instant,
        times: Times,
    ) {
        if done_at < times.from || done_at >= times.until {
            return;
        }
        let micros = done_at.duration_since(asked_at).as_micros();
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
        if let Some(gap) = &mut self.gap {
            gap.refused += 1;
        }
    }
}
