//! Clients that send one placement request after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use berth_control::{PlaceAnswer, PlaceRequest, Placer};
use berth_engine::{Amounts, BatchMode, CapacityType, InstanceId, InstanceRequest};
use berth_ledger::{DEFAULT_LEASE_S, Text, WriteStats};
use tokio::sync::oneshot;
use uuid::Uuid;

/// Kinds of requests.
const SHAPES: u32 = 16;

#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) clients: usize,
    pub(super) batch: usize,
    pub(super) seconds: u32,
}

pub(super) struct Measurements {
    pub(super) claims: u64,
    pub(super) elapsed: Duration,
    pub(super) latencies_us: Vec<u32>,
    pub(super) writes: WriteStats,
}

fn shape(number: u32) -> InstanceRequest {
    let cores = 1 << (number % 4);
    let tenant = format!("owner-{}", number % 10);
    let wanted = Amounts::new(cores * 100, cores * 64).with_disk(cores * 256);
    let mut request = InstanceRequest::new(InstanceId::default(), &tenant, wanted);
    request.workload = Some(format!("bench-{number}"));
    request.image = Some(format!("image-{number}"));
    request.tags.insert("role".to_owned(), "web".to_owned());
    request.tags.insert("shape".to_owned(), format!("s{number}"));
    if number == 3 {
        request.capacity_type = Some(CapacityType::OnDemand);
    }
    request
}

/// Ids that rise with time, like those of servers.
fn next_id(client: usize, number: u64) -> Uuid {
    let client = u64::try_from(client).unwrap_or(0);
    Uuid::from_u128((u128::from(number) << 64) | u128::from(client) | (7 << 76) | (8 << 60))
}

/// Runs all clients as tasks of one thread, as a server runs its connections.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(super) fn measure(placer: &Arc<Placer>, run: Run) -> anyhow::Result<Measurements> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = placer.ledger().stats();
    let started = Instant::now();
    let mut latencies_us = runtime.block_on(async {
        let until = started + Duration::from_secs(run.seconds.into());
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..run.clients {
            clients.spawn(one_client(Arc::clone(placer), number, run, until));
        }
        let mut latencies = Vec::new();
        while let Some(outcome) = clients.join_next().await {
            latencies.extend(outcome??);
        }
        anyhow::Ok(latencies)
    })?;
    let elapsed = started.elapsed();
    latencies_us.sort_unstable();
    let claims = u64::try_from(latencies_us.len() * run.batch)?;
    let mut writes = placer.ledger().stats();
    writes.transactions -= before.transactions;
    writes.operations -= before.operations;
    Ok(Measurements { claims, elapsed, latencies_us, writes })
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
async fn one_client(
    placer: Arc<Placer>,
    client: usize,
    run: Run,
    until: Instant,
) -> anyhow::Result<Vec<u32>> {
    let shapes: Vec<InstanceRequest> = (0..SHAPES).map(shape).collect();
    let mut latencies = Vec::with_capacity(100_000);
    let mut number = 0;
    while Instant::now() < until {
        let place = (client + latencies.len()) % shapes.len();
        let mut instances = Vec::with_capacity(run.batch);
        for _ in 0..run.batch {
            number += 1;
            let mut instance = shapes[place].clone();
            instance.id = InstanceId(next_id(client, number));
            instances.push(Arc::new(instance));
        }
        let request = PlaceRequest {
            request_id: Text::from(next_id(client, number).to_string()),
            tenant: Text::from(shapes[place].tenant.as_str()),
            instances,
            mode: BatchMode::AllOrNothing,
            lease_s: DEFAULT_LEASE_S,
            pools: Vec::new(),
            ..PlaceRequest::default()
        };
        let sent_at = Instant::now();
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        placer.submit(berth_control::PlaceJob { request, reply });
        match receiver.await? {
            PlaceAnswer::Granted(_) => {
                latencies.push(u32::try_from(sent_at.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
            other => bail!("a claim was not granted: {other:?}"),
        }
    }
    Ok(latencies)
}
