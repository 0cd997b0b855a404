//! The load: clients that send one request after the other.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Sizes of requests, in turn: CPU, memory, disk.
const SHAPES: [(u32, u32, u32); 8] = [
    (500, 512, 4096),
    (1000, 1024, 4096),
    (1000, 2048, 8192),
    (2000, 2048, 8192),
    (2000, 4096, 10_240),
    (4000, 8192, 20_480),
    (250, 256, 4096),
    (8000, 16_384, 40_960),
];

/// Number of tenants.
const TENANTS: u64 = 16;

pub(super) struct Load {
    pub(super) address: String,
    pub(super) token: String,
    pub(super) clients: u64,
    pub(super) batch: u32,
    pub(super) warmup: Duration,
    pub(super) measure: Duration,
}

/// What one client measured, or all of them.
#[derive(Default)]
pub(super) struct Measurements {
    /// Latencies of granted placements; those of all clients are sorted.
    pub(super) latencies_us: Vec<u32>,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
}

impl Load {
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(super) async fn run(&self) -> anyhow::Result<Measurements> {
        let from = Instant::now() + self.warmup;
        let until = from + self.measure;
        let clients = (0..self.clients).map(|client| self.client(client, from, until));
        let by_client = futures_util::future::try_join_all(clients).await?;
        let mut measured = Measurements::default();
        for client in by_client {
            measured.latencies_us.extend(client.latencies_us);
            measured.errors += client.errors;
            measured.first_error = measured.first_error.or(client.first_error);
        }
        measured.latencies_us.sort_unstable();
        if measured.latencies_us.is_empty() {
            bail!("nothing was placed: {}", measured.first_error.unwrap_or_default());
        }
        Ok(measured)
    }

    /// One client: sends requests until the end, and counts answers within the measured time.
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn client(
        &self,
        number: u64,
        from: Instant,
        until: Instant,
    ) -> anyhow::Result<Measurements> {
        let mut measured = Measurements::default();
        let mut connection = self.connect().await?;
        for turn in 0_u64.. {
            let sent_at = Instant::now();
            if sent_at >= until {
                break;
            }
            let answer = self.place(&mut connection, number, turn).await;
            let done_at = Instant::now();
            if let Err(error) = answer {
                measured.errors += 1;
                measured.first_error.get_or_insert_with(|| format!("{error:#}"));
                connection = self.connect().await?;
            } else if done_at >= from && done_at < until {
                let micros = done_at.duration_since(sent_at).as_micros();
                measured.latencies_us.push(u32::try_from(micros).unwrap_or(u32::MAX));
            }
        }
        Ok(measured)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.address).await.context("failed to connect")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // The request itself reports the error.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn place(
        &self,
        connection: &mut SendRequest<Full<Bytes>>,
        client: u64,
        turn: u64,
    ) -> anyhow::Result<()> {
        let shape = usize::try_from((client + turn) % 8).unwrap_or(0);
        let (cpu, memory, disk) = SHAPES[shape];
        let (tenant, count, id) = ((client + turn) % TENANTS, self.batch, uuid::Uuid::now_v7());
        let body = format!(
            r#"{{"request_id":"{id}","tenant":"tenant-{tenant}","instances":[{{"count":{count},"resources":{{"cpu_milli":{cpu},"memory_mib":{memory},"disk_mib":{disk}}}}}]}}"#
        );
        let request = Request::post("/v1/placements")
            .header(header::HOST, &self.address)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        if status != StatusCode::CREATED {
            bail!("{status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }
}
