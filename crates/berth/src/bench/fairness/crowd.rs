//! A crowd: thousands of clients whose requests are mostly refused, next to one tenant that places.
//!
//! Each client has a connection and one request at a time, nine of ten of which no node can take. When it
//! is turned away it comes again as it was asked to, or at once. The tenant that is measured has a thread of
//! its own, so that it waits for the server and not for the crowd.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::load::{Flood, Load, TENANTS_OF_TOKEN};
use crate::bench::connection::HttpConnection;

/// Of so many requests of a client, one can be granted.
const ONE_CAN_BE_GRANTED_OF: u32 = 10;

/// Who sends.
#[derive(Clone, Copy)]
pub(super) struct Crowd {
    pub(super) clients: u16,
    /// Tenants that they belong to.
    pub(super) tenants: u16,
    /// Whether they come again at once when they are turned away.
    pub(super) is_impatient: bool,
}

/// What was measured while a crowd sent requests.
#[derive(Default)]
pub(super) struct CrowdMeasurements {
    /// Latencies of the other tenant's placements, sorted.
    pub(super) placed_us: Vec<u32>,
    pub(super) answers: CrowdAnswers,
}

/// What the crowd was answered.
#[derive(Clone, Copy, Default)]
pub(super) struct CrowdAnswers {
    pub(super) granted: u64,
    pub(super) refused: u64,
    /// 429.
    pub(super) limited: u64,
    /// 503.
    pub(super) overloaded: u64,
}

impl CrowdAnswers {
    fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.limited += other.limited;
        self.overloaded += other.overloaded;
    }
}

impl Crowd {
    /// Lets a crowd and the tenant that is measured send requests for a while.
    pub(super) fn run(self, load: &Load, clients: u16) -> anyhow::Result<CrowdMeasurements> {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        std::thread::scope(|scope| {
            let placing = scope.spawn(|| {
                let placed = load.run(clients, 0, Flood::Singles);
                anyhow::Ok(runtime()?.block_on(placed)?.placed_us)
            });
            let answers = scope.spawn(|| runtime()?.block_on(self.send(load)));
            let ended = |_| anyhow::anyhow!("a thread of the load panicked");
            let placed_us = placing.join().map_err(ended)??;
            Ok(CrowdMeasurements { placed_us, answers: answers.join().map_err(ended)?? })
        })
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn send(self, load: &Load) -> anyhow::Result<CrowdAnswers> {
        let until = Instant::now() + load.seconds;
        let clients = (0..self.clients).map(|number| self.client(load, number, until));
        let mut answers = CrowdAnswers::default();
        for client in futures_util::future::try_join_all(clients).await? {
            answers.add(client);
        }
        Ok(answers)
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn client(
        self,
        load: &Load,
        number: u16,
        until: Instant,
    ) -> anyhow::Result<CrowdAnswers> {
        let mut connection = HttpConnection::connect(&load.address).await?;
        let place = usize::from(self.tenant(number) / TENANTS_OF_TOKEN);
        let token = load.tokens.crowd.get(place).context("a tenant of the crowd has no token")?;
        let mut answers = CrowdAnswers::default();
        let mut sent: u32 = number.into();
        while Instant::now() < until {
            sent = sent.wrapping_add(1);
            let body = self.body(number, sent.is_multiple_of(ONE_CAN_BE_GRANTED_OF));
            let request = load.request(token, &body);
            let (status, answer) = connection.send(request.as_bytes()).await?;
            match status {
                201 => answers.granted += 1,
                409 => answers.refused += 1,
                429 => answers.limited += 1,
                503 => answers.overloaded += 1,
                _ => bail!("{status}: {}", String::from_utf8_lossy(answer)),
            }
            if matches!(status, 429 | 503) && !self.is_impatient {
                let wait = Duration::from_secs(connection.retry_after_s.into());
                tokio::time::sleep(wait.min(until.saturating_duration_since(Instant::now()))).await;
            }
        }
        Ok(answers)
    }

    fn tenant(self, client: u16) -> u16 {
        client % self.tenants.max(1)
    }

    /// One instance, which a node can take or which is larger than any.
    fn body(self, client: u16, can_be_granted: bool) -> String {
        let (id, tenant) = (uuid::Uuid::now_v7(), self.tenant(client));
        // No two clients ask for the same, so that their refusals are explained one by one.
        let memory = if can_be_granted { 1024 } else { 2_097_152 + u32::from(client) };
        format!(
            r#"{{"request_id":"{id}","tenant":"crowd-{tenant}","instances":[{{"resources":{{"cpu_milli":1000,"memory_mib":{memory},"disk_mib":1024}}}}]}}"#
        )
    }
}
