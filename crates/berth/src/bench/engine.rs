//! `berth bench engine`: the speed of decisions, and memory usage.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, bail};
use berth_engine::{
    Batch, Engine, Fleet, InstanceId, InstanceRequest, PlaceError, Placement, Policy, Reuse,
};
use clap::Args;
use serde::Serialize;

use super::resident_bytes;
use berth_sim::NOW;

/// Timed decisions of each kind.
const TIMED: usize = 4000;

/// Claims that are kept before the oldest is released, so that the fleet stays half full.
const KEPT_CLAIMS: usize = 2000;

/// Requests of a class in a row where repeated classes are measured, as when a workload scales out.
const RUN: usize = 8;

const SEED: u64 = 20_260_101;

/// Options of `berth bench engine`.
#[derive(Args)]
pub(crate) struct EngineBench {
    /// Number of nodes.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    nodes: u64,
    /// Policy.
    #[arg(long, default_value = "balanced")]
    policy: String,
    /// Also print the median of every request shape.
    #[arg(long)]
    by_shape: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print only the two memory figures, separated by a space.
    #[arg(long, hide = true)]
    memory_only: bool,
}

/// What was measured.
#[derive(Serialize)]
struct Report {
    nodes: u64,
    instances: u64,
    shapes: usize,
    policy: String,
    full_scan_p50_us: f64,
    full_scan_p99_us: f64,
    class_p50_us: f64,
    class_p99_us: f64,
    class_interleaved_p50_us: f64,
    cold_p50_us: f64,
    batch100_ms: f64,
    decisions_per_s: u64,
    bytes_per_node: u64,
    bytes_per_instance: u64,
    digest: String,
}

impl EngineBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if self.memory_only {
            let (bytes_per_node, bytes_per_instance) = measure_memory(self.nodes)?;
            println!("{bytes_per_node} {bytes_per_instance}");
            return Ok(());
        }
        let (bytes_per_node, bytes_per_instance) = measure_memory_apart(self.nodes)?;
        let policy = Policy::builtin(&self.policy)?;
        let mut fleet = Fleet::new();
        berth_sim::add_nodes(&mut fleet, self.nodes, SEED)?;
        let instances = berth_sim::fill_half(&mut fleet, self.nodes, SEED)?;
        berth_sim::add_groups(&mut fleet);

        let mut bench = EngineFixture::new(Engine::with_fleet(fleet, policy))?;
        bench.by_shape = self.by_shape;
        bench.warm_up()?;
        let (full_p50, full_p99) = bench.time(Reuse::Mask, TIMED, 1)?;
        let (class_p50, class_p99) = bench.time(Reuse::Ranking, TIMED * 5, RUN)?;
        let (interleaved_p50, _) = bench.time(Reuse::Ranking, TIMED * 5, 1)?;
        let (cold_p50, _) = bench.time(Reuse::Nothing, 50, 1)?;
        let report = Report {
            nodes: self.nodes,
            instances,
            shapes: bench.shapes.len(),
            policy: self.policy,
            full_scan_p50_us: full_p50,
            full_scan_p99_us: full_p99,
            class_p50_us: class_p50,
            class_p99_us: class_p99,
            class_interleaved_p50_us: interleaved_p50,
            cold_p50_us: cold_p50,
            batch100_ms: bench.time_batches()?,
            decisions_per_s: bench.throughput()?,
            bytes_per_node,
            bytes_per_instance,
            digest: bench.digest.finalize().to_hex().chars().take(16).collect(),
        };
        super::print_report(self.json, &report)
    }
}

/// An engine and its requests.
struct EngineFixture {
    engine: Engine,
    shapes: Vec<InstanceRequest>,
    claimed: VecDeque<InstanceId>,
    next_id: u128,
    digest: blake3::Hasher,
    by_shape: bool,
}

impl EngineFixture {
    fn new(engine: Engine) -> anyhow::Result<Self> {
        let shapes = berth_sim::shapes()?;
        let digest = blake3::Hasher::new();
        Ok(Self {
            engine,
            shapes,
            claimed: VecDeque::new(),
            next_id: 1 << 64,
            digest,
            by_shape: false,
        })
    }

    fn request(&mut self, step: usize) -> InstanceRequest {
        let mut request = self.shapes[step % self.shapes.len()].clone();
        self.next_id += 1;
        request.id = InstanceId::from_u128(self.next_id);
        request
    }

    /// Every shape three times, so that masks and rankings exist.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        for step in 0..self.shapes.len() * 3 {
            let request = self.request(step);
            let placement = self.decide(&request, Reuse::Ranking)?;
            self.claim(&request, &placement)?;
        }
        Ok(())
    }

    fn decide(&mut self, request: &InstanceRequest, reuse: Reuse) -> anyhow::Result<Placement> {
        match self.engine.place_with(request, NOW, reuse) {
            Ok(placement) => Ok(placement),
            Err(PlaceError::Refused(refusal)) => bail!("the benchmark's fleet is full: {refusal}"),
            Err(error) => Err(error).context("the benchmark made an invalid request"),
        }
    }

    fn claim(&mut self, request: &InstanceRequest, placement: &Placement) -> anyhow::Result<()> {
        self.digest.update(placement.node.as_str().as_bytes());
        self.digest.update(&placement.score.to_le_bytes());
        self.engine.fleet_mut().claim(request, &placement.node)?;
        self.claimed.push_back(request.id);
        if self.claimed.len() > KEPT_CLAIMS
            && let Some(oldest) = self.claimed.pop_front()
        {
            self.engine.fleet_mut().release(oldest);
        }
        Ok(())
    }

    /// Median and 99th percentile of a decision in microseconds. Every decision is claimed and an
    /// old claim released, so that each one has changes to take in. Each shape is asked for `run`
    /// times, then comes the next.
    fn time(&mut self, reuse: Reuse, decisions: usize, run: usize) -> anyhow::Result<(f64, f64)> {
        let mut nanoseconds = Vec::with_capacity(decisions);
        for step in 0..decisions {
            let request = self.request(step / run);
            let start = now();
            let placement = self.decide(&request, reuse)?;
            nanoseconds.push(elapsed_ns(start));
            self.claim(&request, &placement)?;
        }
        if self.by_shape && run == 1 {
            self.print_shapes(reuse, &nanoseconds);
        }
        nanoseconds.sort_unstable();
        Ok((percentile_us(&nanoseconds, 50), percentile_us(&nanoseconds, 99)))
    }

    fn print_shapes(&self, reuse: Reuse, nanoseconds: &[u64]) {
        for shape in 0..self.shapes.len() {
            let every = nanoseconds.iter().skip(shape).step_by(self.shapes.len());
            let mut of_shape: Vec<u64> = every.copied().collect();
            of_shape.sort_unstable();
            println!("{reuse:?} shape {shape:>2} {:>9.2} us p50", percentile_us(&of_shape, 50));
        }
    }

    /// Median time of a batch of 100 instances of four shapes, in milliseconds.
    fn time_batches(&mut self) -> anyhow::Result<f64> {
        let mut nanoseconds = Vec::new();
        for round in 0..50 {
            let plain = [0, 2, 8, 12];
            let requests = (0..100).map(|n| self.request(plain[(n / 25 + round) % 4])).collect();
            let batch = Batch::new(requests);
            let start = now();
            let outcome = self.engine.place_batch(&batch, NOW)?;
            nanoseconds.push(elapsed_ns(start));
            if outcome.placements.len() != 100 {
                bail!("the benchmark's fleet is too full for a batch of 100");
            }
            for placement in &outcome.placements {
                self.digest.update(placement.node.as_str().as_bytes());
            }
        }
        nanoseconds.sort_unstable();
        Ok(milliseconds(percentile_us(&nanoseconds, 50)))
    }

    /// Decisions a second when each is claimed and an old claim released.
    fn throughput(&mut self) -> anyhow::Result<u64> {
        let decisions = 50_000usize;
        let start = now();
        for step in 0..decisions {
            let request = self.request(step);
            let placement = self.decide(&request, Reuse::Ranking)?;
            self.claim(&request, &placement)?;
        }
        Ok(decisions as u64 * 1_000_000_000 / elapsed_ns(start).max(1))
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::float_arithmetic, reason = "a time to be read, not decided by")]
fn milliseconds(microseconds: f64) -> f64 {
    microseconds.round() / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "a time to be read, not decided by")]
#[expect(clippy::float_arithmetic, reason = "a time to be read, not decided by")]
fn percentile_us(sorted_ns: &[u64], percent: usize) -> f64 {
    let place = sorted_ns.len() * percent / 100;
    let ns = sorted_ns.get(place.min(sorted_ns.len().saturating_sub(1))).copied().unwrap_or(0);
    (ns as f64 / 10.0).round() / 100.0
}

/// Measures memory in a process of its own, in which the allocator asks for no huge pages: with them,
/// resident memory comes in steps of 2 MiB, which is more than the figure that is measured.
fn measure_memory_apart(nodes: u64) -> anyhow::Result<(u64, u64)> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["bench", "engine", "--memory-only", "--nodes", &nodes.to_string()])
        .env("MIMALLOC_ALLOW_THP", "0")
        .output()
        .context("cannot start the process that measures memory")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = text.split_whitespace().map(str::parse);
    match (figures.next(), figures.next()) {
        (Some(Ok(per_node)), Some(Ok(per_instance))) => Ok((per_node, per_instance)),
        _ => bail!("the process that measures memory failed: {}", output.status),
    }
}

/// Resident bytes that a node and an instance add.
fn measure_memory(nodes: u64) -> anyhow::Result<(u64, u64)> {
    let empty = resident_bytes("self");
    let mut fleet = Fleet::new();
    berth_sim::add_nodes(&mut fleet, nodes, SEED)?;
    let with_nodes = resident_bytes("self");
    let instances = berth_sim::fill_half(&mut fleet, nodes, SEED)?;
    let with_instances = resident_bytes("self");
    let per_node = with_nodes.saturating_sub(empty) / nodes;
    Ok((per_node, with_instances.saturating_sub(with_nodes) / instances.max(1)))
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} nodes, {} instances, {} request shapes, policy {}",
            self.nodes, self.instances, self.shapes, self.policy
        )?;
        writeln!(
            f,
            "full scan      {:>9.2} us p50 {:>9.2} us p99",
            self.full_scan_p50_us, self.full_scan_p99_us
        )?;
        writeln!(
            f,
            "repeated class {:>9.2} us p50 {:>9.2} us p99",
            self.class_p50_us, self.class_p99_us
        )?;
        writeln!(f, "  interleaved  {:>9.2} us p50", self.class_interleaved_p50_us)?;
        writeln!(f, "new kind       {:>9.2} us p50", self.cold_p50_us)?;
        writeln!(f, "batch of 100   {:>9.2} ms", self.batch100_ms)?;
        writeln!(f, "throughput     {:>9} decisions/s, each claimed", self.decisions_per_s)?;
        writeln!(
            f,
            "memory         {:>9} bytes per node, {} bytes per instance",
            self.bytes_per_node, self.bytes_per_instance
        )?;
        writeln!(f, "digest         {}", self.digest)
    }
}
