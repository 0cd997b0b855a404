//! Clients of two tenants, each with a connection of its own and one request at a time.

use std::time::{Duration, Instant};

use anyhow::bail;

use crate::bench::connection::HttpConnection;

/// What the second tenant asks for.
#[derive(Clone, Copy)]
pub(super) enum Flood {
    /// One instance that is larger than any node.
    Singles,
    /// A batch whose instances must all be in different racks, of which there are fewer.
    Batches { count: u32 },
}

#[derive(Clone)]
pub(super) struct Load {
    pub(super) address: String,
    pub(super) tokens: Tokens,
    pub(super) seconds: Duration,
}

/// The token of each tenant: an operator's would have neither its limits nor its line.
#[derive(Clone)]
pub(super) struct Tokens {
    /// Of who fills the fleet.
    pub(super) operator: String,
    pub(super) quiet: String,
    pub(super) loud: String,
    /// Of the crowd's tenants: so many of them share one.
    pub(super) crowd: Vec<String>,
}

/// Tenants of the crowd that share a token.
pub(super) const TENANTS_OF_TOKEN: u16 = 250;

impl Tokens {
    /// The tenants of each token but the operator's, in the order in which [`Tokens::new`] wants them.
    pub(super) fn tenants(crowd: u16) -> Vec<Vec<String>> {
        let crowd = |start: u16| {
            let end = start.saturating_add(TENANTS_OF_TOKEN).min(crowd);
            (start..end).map(|number| format!("crowd-{number}")).collect()
        };
        let starts = (0..u16::MAX).step_by(TENANTS_OF_TOKEN.into());
        let crowds = starts.map(crowd).take_while(|tenants: &Vec<String>| !tenants.is_empty());
        [vec!["quiet".to_owned()], vec!["loud".to_owned()]].into_iter().chain(crowds).collect()
    }

    pub(super) fn new(operator: &str, tokens: Vec<String>) -> anyhow::Result<Self> {
        let mut tokens = tokens.into_iter();
        let (Some(quiet), Some(loud)) = (tokens.next(), tokens.next()) else {
            bail!("there is no token for each tenant");
        };
        Ok(Self { operator: operator.to_owned(), quiet, loud, crowd: tokens.collect() })
    }
}

/// What was measured while both tenants sent requests.
#[derive(Default)]
pub(super) struct Measurements {
    /// Latencies of the first tenant's placements, sorted.
    pub(super) placed_us: Vec<u32>,
    /// Latencies of the second tenant's refusals, sorted.
    pub(super) refused_us: Vec<u32>,
    /// Requests of the second tenant that were turned away because it sent too many.
    pub(super) limited: u64,
}

/// Whether a request ended as it should.
enum Ended {
    Well,
    Limited,
}

impl Load {
    /// Places instances in batches until there are this many.
    pub(super) async fn fill(&self, instances: u32) -> anyhow::Result<()> {
        let mut connection = HttpConnection::connect(&self.address).await?;
        for number in 0..instances.div_ceil(100) {
            let memory = 8192 << (number % 3);
            let body = format!(
                r#"{{"request_id":"{}","tenant":"resident-{}","instances":[{{"count":100,"resources":{{"cpu_milli":2000,"memory_mib":{memory},"disk_mib":8192}}}}]}}"#,
                uuid::Uuid::now_v7(),
                number % 16,
            );
            let (status, answer) =
                connection.send(self.request(&self.tokens.operator, &body).as_bytes()).await?;
            if status != 201 {
                bail!("{status}: {}", String::from_utf8_lossy(answer));
            }
        }
        Ok(())
    }

    /// Lets both tenants send requests for a while.
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(super) async fn run(
        &self,
        clients: u16,
        flooders: u16,
        flood: Flood,
    ) -> anyhow::Result<Measurements> {
        let until = Instant::now() + self.seconds;
        let placing = (0..clients).map(|_| self.place(until));
        let flooding = (0..flooders).map(|client| self.flood(flood, client, until));
        let placing = futures_util::future::try_join_all(placing);
        let flooding = futures_util::future::try_join_all(flooding);
        let (placing, flooding) = futures_util::future::try_join(placing, flooding).await?;
        let placed_us = placing.into_iter().flatten().collect();
        let mut measured = Measurements { placed_us, ..Measurements::default() };
        for (refused, limited) in flooding {
            measured.refused_us.extend(refused);
            measured.limited += limited;
        }
        measured.placed_us.sort_unstable();
        measured.refused_us.sort_unstable();
        Ok(measured)
    }

    async fn place(&self, until: Instant) -> anyhow::Result<Vec<u32>> {
        let mut connection = HttpConnection::connect(&self.address).await?;
        let mut latencies = Vec::new();
        while let Some((took, _)) =
            self.timed(&mut connection, until, (201, &self.tokens.quiet), &single()).await?
        {
            latencies.push(took);
        }
        Ok(latencies)
    }

    async fn flood(
        &self,
        flood: Flood,
        client: u16,
        until: Instant,
    ) -> anyhow::Result<(Vec<u32>, u64)> {
        let mut connection = HttpConnection::connect(&self.address).await?;
        let (mut latencies, mut limited) = (Vec::new(), 0);
        let of_loud = (409, self.tokens.loud.as_str());
        for sent in 0.. {
            let variant = variant(client, sent);
            let body = match flood {
                Flood::Singles => impossible_single(variant),
                Flood::Batches { count } => impossible_batch(count, variant),
            };
            let timed = self.timed(&mut connection, until, of_loud, &body).await?;
            let Some((took, ended)) = timed else { break };
            match ended {
                Ended::Well => latencies.push(took),
                Ended::Limited => limited += 1,
            }
        }
        Ok((latencies, limited))
    }

    /// Sends one request and waits for the answer; absent when the time is over.
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn timed(
        &self,
        connection: &mut HttpConnection,
        until: Instant,
        (expected, token): (u16, &str),
        body: &str,
    ) -> anyhow::Result<Option<(u32, Ended)>> {
        let request = self.request(token, body);
        let sent_at = Instant::now();
        if sent_at >= until {
            return Ok(None);
        }
        let (status, answer) = connection.send(request.as_bytes()).await?;
        let took = u32::try_from(sent_at.elapsed().as_micros()).unwrap_or(u32::MAX);
        match status {
            429 => Ok(Some((took, Ended::Limited))),
            _ if status == expected => Ok(Some((took, Ended::Well))),
            _ => bail!("{status}, not {expected}: {}", String::from_utf8_lossy(answer)),
        }
    }

    pub(super) fn request(&self, token: &str, body: &str) -> String {
        format!(
            "POST /v1/placements HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            token,
            body.len(),
        )
    }
}

fn single() -> String {
    let id = uuid::Uuid::now_v7();
    format!(
        r#"{{"request_id":"{id}","tenant":"quiet","instances":[{{"resources":{{"cpu_milli":1000,"memory_mib":1024,"disk_mib":1024}}}}]}}"#
    )
}

/// Requests of all clients before the first one is repeated.
const VARIANTS: u32 = 1 << 20;

/// Which request of those that no other client sends at the same time: the server explains equal ones
/// together, which an attacker would avoid.
fn variant(client: u16, sent: u32) -> u32 {
    // At most 256 clients.
    sent.wrapping_mul(256).wrapping_add(client.into()) % VARIANTS
}

fn impossible_single(variant: u32) -> String {
    let (id, memory) = (uuid::Uuid::now_v7(), 2_097_152 + variant);
    format!(
        r#"{{"request_id":"{id}","tenant":"loud","instances":[{{"resources":{{"cpu_milli":16000,"memory_mib":{memory},"disk_mib":4096}}}}]}}"#
    )
}

fn impossible_batch(count: u32, variant: u32) -> String {
    // Room for one on every node: what is impossible is the rule.
    let (id, memory) = (uuid::Uuid::now_v7(), 1024 + variant % 8192);
    format!(
        r#"{{"request_id":"{id}","tenant":"loud","instances":[{{"count":{count},"tags":{{"role":"wide-{variant}"}},"affinity":["role!=wide-{variant}@rack"],"resources":{{"cpu_milli":1000,"memory_mib":{memory},"disk_mib":1024}}}}]}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_clients_ask_for_the_same_and_no_client_asks_twice() {
        let asked = |(client, sent)| {
            let variant = variant(client, sent);
            let bodies = [impossible_single(variant), impossible_batch(251, variant)];
            // Without its id.
            bodies.map(|body| body.split_once(r#""tenant""#).map(|(_, rest)| rest.to_owned()))
        };
        let requests = (0..16).flat_map(|client| (0..64).map(move |sent| (client, sent)));
        let requests: Vec<_> = requests.flat_map(asked).collect();
        let distinct: std::collections::BTreeSet<_> = requests.iter().collect();
        assert_eq!(distinct.len(), requests.len());
    }

    #[test]
    fn every_tenant_has_one_token() {
        let tenants = Tokens::tenants(2 * TENANTS_OF_TOKEN + 1);
        let sizes: Vec<usize> = tenants.iter().map(Vec::len).collect();
        let full = usize::from(TENANTS_OF_TOKEN);
        assert_eq!(sizes, [1, 1, full, full, 1]);
        assert_eq!(tenants[4], [format!("crowd-{}", 2 * TENANTS_OF_TOKEN)]);
        assert_eq!(Tokens::tenants(0).len(), 2);
    }
}
