//! All metrics of the control plane as text: what was counted, and what is read when it is asked for
//! (the fleet, the queue, the ledger's writers, the loops).

use std::fmt;
use std::sync::Arc;

use berth_api::DrainState;
use berth_engine::NodeState;
use berth_ledger::ClaimState;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::control_plane::ControlPlane;
use crate::invariant_metrics::InvariantCollector;
use crate::placer::QueueLength;

/// Writes metrics with their descriptions.
struct MetricWriter<'a>(DescriptorEncoder<'a>);

impl MetricWriter<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl TryInto<i64>) -> fmt::Result {
        let help = format!("{help}.");
        let value: i64 = value.try_into().unwrap_or(i64::MAX);
        ConstGauge::new(value).encode(self.0.encode_descriptor(
            name,
            &help,
            None,
            MetricType::Gauge,
        )?)
    }

    /// A gauge of time, in seconds with their fraction: Prometheus' base unit.
    fn gauge_of_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        let help = format!("{help}.");
        ConstGauge::new(seconds).encode(self.0.encode_descriptor(
            name,
            &help,
            None,
            MetricType::Gauge,
        )?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let help = format!("{help}.");
        ConstCounter::new(value).encode(self.0.encode_descriptor(
            name,
            &help,
            None,
            MetricType::Counter,
        )?)
    }

    /// A gauge for each set of labels.
    fn gauges<const N: usize, V: TryInto<i64>>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, &'static str); N], V)>,
    ) -> fmt::Result {
        let help = format!("{help}.");
        let mut family = self.0.encode_descriptor(name, &help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            let value: i64 = value.try_into().unwrap_or(i64::MAX);
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A counter for each set of labels.
    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, &'static str); N], u64)>,
    ) -> fmt::Result {
        let help = format!("{help}.");
        let mut family = self.0.encode_descriptor(name, &help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// What is read when metrics are asked for.
struct StateCollector(Arc<ControlPlane>);

impl fmt::Debug for StateCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateCollector")
    }
}

impl Collector for StateCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (control, writer) = (&*self.0, &mut MetricWriter(encoder));
        write_fleet(control, writer)?;
        write_drains(control, writer)?;
        write_ledger(control, writer)?;
        write_queue(control, writer)?;
        write_queue_lengths(control, writer)?;
        write_workloads(control, writer)?;
        write_evacuations(control, writer)?;
        write_pressure(control, writer)?;
        write_threads(control, writer)?;
        let rounds = control.metrics.rounds().into_iter().filter(|(_, at)| *at > 0);
        let help = "When each loop last completed a pass, Unix time";
        let rounds = rounds.map(|(name, at)| ([("loop", name)], at));
        writer.gauges("loop_last_round_seconds", help, rounds)
    }
}

/// The metrics as OpenMetrics, without the line that ends it.
#[must_use]
pub fn metrics_text(control: &Arc<ControlPlane>) -> String {
    let mut registry = Registry::with_prefix("berth");
    registry.register_collector(Box::new(StateCollector(Arc::clone(control))));
    registry.register_collector(Box::new(InvariantCollector));
    let mut text = control.metrics.text();
    // Writing to a string does not fail.
    let _ = encode_registry(&mut text, &registry);
    text
}

/// What nodes lack: a signal to add some.
fn write_pressure(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let found = crate::moves::relief::measure_pressure(control);
    let help = "What elastic instances lack, in milli-CPU and MiB: denied and fading, above \
        watermarks, leaving with migrations, and what should leave beyond that";
    let resources = [("cpu", found.cpu), ("memory", found.memory)].into_iter();
    let values = resources.flat_map(|(resource, lacking)| {
        let kinds = [
            ("capacity", lacking.capacity_pressure),
            ("logical", lacking.logical_pressure),
            ("accounted_for", lacking.accounted_for),
            ("excess", lacking.excess),
        ];
        kinds.map(|(kind, value)| ([("resource", resource), ("kind", kind)], value))
    });
    writer.gauges("elastic_pressure", help, values)?;
    let shedding = found.nodes.iter().filter(|node| node.must_shed).count();
    writer.gauge("nodes_under_pressure", "Nodes that somebody should leave", shedding)?;
    let migrations = control.moves.migrations.all();
    let open = migrations.iter().filter(|(_, known)| known.value.is_open()).count();
    writer.gauge("migrations_open", "Migrations under way", open)
}

fn write_workloads(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let (workloads, members) = {
        let catalog = control.catalog.read();
        (catalog.workloads.len(), catalog.members.values().map(Vec::len).sum::<usize>())
    };
    writer.gauge("workloads", "Workloads that are stored", workloads)?;
    writer.gauge("workload_members", "Members of workloads that hold a place", members)?;
    let degraded = control.degraded.count();
    writer.gauge("workloads_degraded", "Workloads that cannot be as they should be", degraded)
}

const STATES: [NodeState; 6] = [
    NodeState::Joining,
    NodeState::Active,
    NodeState::Cordoned,
    NodeState::Draining,
    NodeState::Degraded,
    NodeState::Lost,
];

const CLAIM_STATES: [ClaimState; 4] =
    [ClaimState::Held, ClaimState::Binding, ClaimState::Active, ClaimState::Releasing];

fn write_drains(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let drains = crate::moves::drain::all(control);
    let states = [
        (DrainState::Running, "running"),
        (DrainState::Blocked, "blocked"),
        (DrainState::Done, "done"),
    ];
    let counts = states.map(|(state, name)| {
        ([("state", name)], drains.iter().filter(|drain| drain.state == state).count())
    });
    writer.gauges("drains", "Nodes that are being emptied, by how that stands", counts)
}

fn write_fleet(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let catalog = control.catalog.read();
    let nodes = STATES.map(|state| {
        let count = catalog.nodes.values().filter(|node| node.facts.state == state).count();
        ([("state", state.name())], count)
    });
    writer.gauges("nodes", "Nodes by state", nodes)?;
    let mut amounts = [(0_i64, 0_i64); 4];
    for node in catalog.nodes.values() {
        let (limits, used) = (&node.room.limits, &node.room.used);
        let pairs = [
            (used.cpu, limits.cpu),
            (node.room.memory_used(), limits.memory),
            (used.disk, limits.disk),
            (used.bandwidth, limits.bandwidth),
        ];
        for (sum, (used, limit)) in amounts.iter_mut().zip(pairs) {
            sum.0 += used;
            sum.1 += limit;
        }
    }
    let names = ["cpu_milli", "memory_mib", "disk_mib", "bandwidth_mbps"];
    let labels = names.map(|name| [("resource", name)]);
    let used = labels.into_iter().zip(amounts.map(|(used, _)| used));
    writer.gauges("resource_used", "What instances are charged, over all nodes", used)?;
    let limits = labels.into_iter().zip(amounts.map(|(_, limit)| limit));
    writer.gauges("resource_limit", "What may be promised, over all nodes", limits)?;
    let claims = CLAIM_STATES.map(|state| {
        let count = catalog.claims.values().filter(|claim| claim.state == state).count();
        ([("state", state.name())], count)
    });
    writer.gauges("claims", "Claims by state; those held are leases", claims)
}

fn write_evacuations(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    // Before the first check nothing is known, and 0 would say something else.
    let Some(counts) = control.moves.evacuations.counts() else { return Ok(()) };
    writer.gauge("nodes_evacuable", "Nodes that could be emptied by themselves", counts.can)?;
    writer.gauge("nodes_not_evacuable", "Nodes that could not", counts.cannot)?;
    let age = (control.now().as_second() - counts.at.as_second()).max(0);
    writer.gauge("evacuation_check_age_seconds", "How long ago that was found out", age)
}

fn write_ledger(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let stats = control.ledger.stats();
    writer.counter("ledger_commits", "Transactions that were committed", stats.transactions)?;
    writer.counter("ledger_operations", "Operations in those", stats.operations)?;
    let help = "Counters found out of step with their claims";
    writer.counter("ledger_drift", help, stats.drifts)?;
    let retries = [
        ("serialization", stats.retries.conflicts),
        ("duplicate", stats.retries.duplicates),
        ("guard", stats.retries.guards),
        ("connection", stats.retries.lost),
    ];
    let retries = retries.map(|(cause, count)| ([("cause", cause)], count));
    writer.counters("ledger_retries", "Transactions begun again, by cause", retries)?;
    let help = "Groups of operations and callbacks for answers that panicked";
    writer.counter("ledger_panics", help, stats.panics)?;
    let hints = control.ledger.hint_counts();
    let hints = [("sent", hints.sent), ("received", hints.received)];
    let hints = hints.map(|(direction, count)| ([("direction", direction)], count));
    writer.counters("ledger_hints", "Hints of commits, exchanged with other servers", hints)?;
    let help = "Length of SQLite's write-ahead log after the last commit";
    writer.gauge("ledger_log_bytes", help, control.ledger.log_bytes())?;
    let help = "Times that this log was copied into the database";
    writer.counter("ledger_log_copies", help, control.ledger.log_copies())?;
    let help = "Attempts to copy it that failed";
    writer.counter("ledger_log_copy_failures", help, control.ledger.log_copy_failures())?;
    let help = "Times that the connection for hints was lost or could not be opened";
    writer.counter("ledger_hint_failures", help, control.ledger.hint_failures())?;
    let help = "How far the database's clock, which counts, is ahead of this server's";
    let offset = control.clock.offset().as_secs_f64();
    writer.gauge_of_seconds("clock_offset_seconds", help, offset)
}

fn write_threads(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let threads = control.threads().into_iter();
    let threads = threads.map(|(name, is_up)| ([("thread", name)], i64::from(is_up)));
    let help = "Whether each shared thread and background loop runs, neither stalled nor without its database";
    writer.gauges("thread_up", help, threads)?;
    let unreadable = control.unreadable_events();
    let events: i64 = unreadable.iter().map(|part| part.count).sum();
    writer.gauge("unreadable_events", "Events of the log that could not be read", events)
}

/// Length and limit of everything that grows with load: see `docs/queues.md`.
fn write_queue_lengths(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let lengths = control.queue_lengths();
    let gauges = |value: fn(&QueueLength) -> usize| {
        let gauges = lengths.iter().map(move |it| ([("queue", it.queue)], value(it)));
        gauges.collect::<Vec<_>>()
    };
    writer.gauges(
        "queue_length",
        "What waits or is under way, by queue",
        gauges(|it| it.length),
    )?;
    writer.gauges("queue_limit", "How much may, by queue", gauges(|it| it.limit))
}

fn write_queue(control: &ControlPlane, writer: &mut MetricWriter<'_>) -> fmt::Result {
    writer.gauge("queue_waiting", "Requests that wait for room", control.queue.waiting())?;
    let oldest = control.queue.oldest();
    let age = oldest.map_or(0, |since| (control.now().as_second() - since).max(0));
    writer.gauge("queue_oldest_seconds", "How long the oldest of them has waited", age)?;
    let wanted = control.queue.wanted();
    let amounts = [
        ("cpu_milli", wanted.cpu),
        ("memory_mib", wanted.memory),
        ("disk_mib", wanted.disk),
        ("instances", i64::from(wanted.instances)),
    ];
    let amounts = amounts.map(|(resource, amount)| ([("resource", resource)], amount));
    let help = "What waiting requests ask for: the signal to scale out";
    writer.gauges("unmet_demand", help, amounts)?;
    writer.gauge("event_streams", "Open streams of the change feed", control.feed.streams())
}
