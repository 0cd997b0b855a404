//! `berth bench reconcile`: the cost of many idle workloads, and the latency of a change.
//!
//! It runs a control plane in this process, on an embedded ledger, with default settings. There are no
//! agents: members are activated directly in the ledger.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_control::workloads::plan_all;
use berth_control::{ControlOptions, ControlPlane};
use berth_engine::{Amounts, NodeFacts, Policy, Timestamp};
use berth_ledger::{
    Advance, Answer, Backend, ClaimKey, ClaimState, Expect, Job, LedgerError, Op, Step, Workload,
};
use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

/// Operations submitted at once.
const BATCH_SIZE: usize = 4096;

/// How long idle writes are counted: several rounds of the loops.
const IDLE_TIME: Duration = Duration::from_secs(12);

/// How many passes and changes are measured.
const ROUNDS: u32 = 21;

/// Options of `berth bench reconcile`.
#[derive(Args)]
pub(crate) struct ReconcileBench {
    /// Number of workloads.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workloads: u32,
    /// Total number of members.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    instances: u32,
    /// Number of nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Directory of the embedded database, to choose its disk.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Serialize)]
struct Report {
    workloads: u32,
    instances: u32,
    nodes: u32,
    /// Until all members had a place, from the first workload that was stored.
    converge_s: f64,
    /// A pass over all workloads with nothing to do.
    idle_pass_p50_ms: f64,
    idle_pass_max_ms: f64,
    /// Transactions while the loops ran with nothing to do.
    idle_writes: u64,
    idle_seconds: u64,
    /// From storing a change until its member had a place.
    change_p50_ms: f64,
    change_max_ms: f64,
}

impl ReconcileBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let report = runtime.block_on(self.measure())?;
        runtime.shutdown_timeout(Duration::from_secs(5));
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
            return Ok(());
        }
        let Report { workloads, instances, nodes, .. } = report;
        println!("{workloads} workloads with {instances} members on {nodes} nodes");
        println!("  all placed after  {:>9.1} s", report.converge_s);
        let (p50, max) = (report.idle_pass_p50_ms, report.idle_pass_max_ms);
        println!("  idle pass         {p50:>9.1} ms, longest {max:.1} ms");
        println!("  idle writes       {:>9} in {} s", report.idle_writes, report.idle_seconds);
        let (p50, max) = (report.change_p50_ms, report.change_max_ms);
        println!("  one change        {p50:>9.1} ms until placed, longest {max:.1} ms");
        Ok(())
    }

    async fn measure(&self) -> anyhow::Result<Report> {
        let folder = match &self.data_dir {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        };
        let backend = Backend::Sqlite(folder.path().join("berth.db"));
        let control =
            ControlPlane::start(ControlOptions::new(backend, Policy::builtin("balanced")?))?;
        let each = self.instances.div_ceil(self.workloads);
        let soon = jiff::Timestamp::now().as_second() + 86_400;
        submit(&control, (0..self.nodes).map(|number| Op::put_node(node(number, soon))))?;
        let began = Instant::now();
        submit(&control, (0..self.workloads).map(|number| put(number, i64::from(each), 1)))?;
        let wanted = (self.workloads * each) as usize;
        until(&control, wanted, Duration::from_secs(600)).await?;
        let converge = began.elapsed();
        activate(&control)?;
        control.wait_for_read_your_writes().await;
        let idle = idle_passes(&control)?;
        let before = control.ledger.stats().transactions;
        tokio::time::sleep(IDLE_TIME).await;
        let idle_writes = control.ledger.stats().transactions - before;
        let mut changes = Vec::new();
        for round in 0..ROUNDS.min(self.workloads) {
            let began = Instant::now();
            submit(&control, [put(round, i64::from(each) + 1, 2)])?;
            let wanted = wanted + round as usize + 1;
            until(&control, wanted, Duration::from_secs(30)).await?;
            changes.push(began.elapsed());
        }
        changes.sort_unstable();
        control.lifecycle.stop();
        Ok(Report {
            workloads: self.workloads,
            instances: self.workloads * each,
            nodes: self.nodes,
            converge_s: seconds(converge),
            idle_pass_p50_ms: milliseconds(middle(&idle)),
            idle_pass_max_ms: milliseconds(last(&idle)),
            idle_writes,
            idle_seconds: IDLE_TIME.as_secs(),
            change_p50_ms: milliseconds(middle(&changes)),
            change_max_ms: milliseconds(last(&changes)),
        })
    }
}

fn idle_passes(control: &ControlPlane) -> anyhow::Result<Vec<Duration>> {
    let mut passes = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let busy = plan_all(control);
        passes.push(began.elapsed());
        if busy > 0 {
            bail!("{busy} workloads are not idle although everything runs");
        }
    }
    passes.sort_unstable();
    Ok(passes)
}

fn middle(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn last(sorted: &[Duration]) -> Duration {
    sorted.last().copied().unwrap_or_default()
}

#[allow(clippy::float_arithmetic, reason = "figures for people")]
fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn node(number: u32, heard_at: i64) -> NodeFacts {
    let capacity = Amounts::new(4_000_000, 8_000_000).with_disk(100_000_000);
    let mut facts = NodeFacts::new(&format!("node-{number:06}"), capacity);
    facts.instance_limit = 100_000;
    facts.heartbeat_at = Timestamp(heard_at);
    facts.zone = Some(format!("zone-{}", number / 40 % 3));
    facts.rack = Some(format!("rack-{:04}", number / 40));
    facts
}

/// A workload of one of a hundred tenants, in one of eight sizes.
fn put(number: u32, replicas: i64, version: i64) -> Op {
    let size = 1 + number % 8;
    let body = serde_json::json!({
        "revision": 1,
        "template": { "resources": { "cpu_milli": 250 * size, "memory_mib": 256 * size } },
    });
    let expect = if version == 1 { Expect::Absent } else { Expect::Revision(version - 1) };
    let workload = Workload {
        tenant: format!("tenant-{:02}", number % 100),
        name: format!("workload-{number:06}"),
        revision: version,
        replicas,
        body: body.to_string(),
    };
    Op::PutWorkload { workload, expect }
}

/// Submits operations in batches, and waits until all are durable.
fn submit(control: &ControlPlane, ops: impl IntoIterator<Item = Op>) -> anyhow::Result<()> {
    let mut ops = ops.into_iter().peekable();
    while ops.peek().is_some() {
        let (sender, answers) = mpsc::channel::<Result<Answer, LedgerError>>();
        let some: Vec<Job> = ops
            .by_ref()
            .take(BATCH_SIZE)
            .map(|op| {
                let sender = sender.clone();
                Job { op, reply: Box::new(move |answer| drop(sender.send(answer))) }
            })
            .collect();
        drop(sender);
        control.ledger.submit(some);
        for answer in answers {
            if let Answer::Claim(Err(rejected)) = answer? {
                bail!("a step was refused: {}", rejected.code());
            }
        }
    }
    Ok(())
}

/// Waits until this many members are placed.
async fn until(
    control: &Arc<ControlPlane>,
    members: usize,
    timeout: Duration,
) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let placed = control.catalog.read().claims.len();
        if placed >= members {
            return Ok(());
        }
        if began.elapsed() > timeout {
            bail!("only {placed} of {members} members are placed after {timeout:?}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Activates all members.
fn activate(control: &ControlPlane) -> anyhow::Result<()> {
    let claims: Vec<(ClaimKey, i64)> = {
        let catalog = control.catalog.read();
        let held = catalog.claims.values().filter(|claim| claim.state == ClaimState::Held);
        held.map(|claim| (claim.key, claim.fence)).collect()
    };
    for step in [Step::Bind, Step::Activate] {
        let ops = claims.iter().map(|(key, fence)| {
            Op::Advance(Advance { key: *key, tenant: None, fence: *fence, step })
        });
        submit(control, ops).context("failed to activate members")?;
    }
    Ok(())
}
