//! All metrics of the control plane as text: what was counted, and what is read when it is asked for
//! (the fleet, the queue, the ledger's writers, the loops).

use std::fmt::Write as _;

use berth_api::DrainState;
use berth_engine::NodeState;
use berth_ledger::ClaimState;

use crate::control_plane::ControlPlane;

/// One metric's lines: its head, then a line for each set of labels.
struct Lines(String);

impl Lines {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP berth_{name} {help}.\n# TYPE berth_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = if labels.is_empty() {
            writeln!(self.0, "berth_{name} {value}")
        } else {
            writeln!(self.0, "berth_{name}{{{labels}}} {value}")
        };
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        self.value(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.value(&format!("{name}_total"), "", value);
    }
}

/// The metrics in Prometheus' text format, without the line that ends it.
#[must_use]
pub fn metrics_text(control: &ControlPlane) -> String {
    let mut lines = Lines(control.metrics.text());
    fleet(control, &mut lines);
    drains(control, &mut lines);
    ledger(control, &mut lines);
    queue(control, &mut lines);
    workloads(control, &mut lines);
    evacuations(control, &mut lines);
    pressure(control, &mut lines);
    lines.head("loop_last_round_seconds", "gauge", "When each loop last did its round, Unix time");
    for (name, at) in control.metrics.rounds().into_iter().filter(|(_, at)| *at > 0) {
        lines.value("loop_last_round_seconds", &format!("loop=\"{name}\""), at);
    }
    lines.0
}

/// What nodes lack: the signal for whoever adds some.
fn pressure(control: &ControlPlane, lines: &mut Lines) {
    let found = crate::moves::relief::measure_pressure(control);
    let help = "What elastic instances lack, in milli-CPU and MiB: denied and fading, above \
        watermarks, leaving with migrations, and what should leave beyond that";
    lines.head("elastic_pressure", "gauge", help);
    for (resource, lacking) in [("cpu", found.cpu), ("memory", found.memory)] {
        let kinds = [
            ("capacity", lacking.capacity_pressure),
            ("logical", lacking.logical_pressure),
            ("accounted_for", lacking.accounted_for),
            ("excess", lacking.excess),
        ];
        for (kind, value) in kinds {
            let labels = format!("resource=\"{resource}\",kind=\"{kind}\"");
            lines.value("elastic_pressure", &labels, value);
        }
    }
    let shedding = found.nodes.iter().filter(|node| node.must_shed).count();
    lines.gauge("nodes_under_pressure", "Nodes that somebody should leave", shedding);
    let open =
        control.moves.migrations.all().iter().filter(|(_, known)| known.value.is_open()).count();
    lines.gauge("migrations_open", "Migrations under way", open);
}

fn workloads(control: &ControlPlane, lines: &mut Lines) {
    let (workloads, members) = {
        let catalog = control.catalog.read();
        (catalog.workloads.len(), catalog.members.values().map(Vec::len).sum::<usize>())
    };
    lines.gauge("workloads", "Workloads that are stored", workloads);
    lines.gauge("workload_members", "Members of workloads that hold a place", members);
    let degraded = control.degraded.count();
    lines.gauge("workloads_degraded", "Workloads that cannot be as they should be", degraded);
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

fn drains(control: &ControlPlane, lines: &mut Lines) {
    let drains = crate::moves::drain::all(control);
    lines.head("drains", "gauge", "Nodes that are being emptied, by how that stands");
    let states = [
        (DrainState::Running, "running"),
        (DrainState::Blocked, "blocked"),
        (DrainState::Done, "done"),
    ];
    for (state, name) in states {
        let count = drains.iter().filter(|drain| drain.state == state).count();
        lines.value("drains", &format!("state=\"{name}\""), count);
    }
}

fn fleet(control: &ControlPlane, lines: &mut Lines) {
    let catalog = control.catalog.read();
    let mut nodes = [0_u64; STATES.len()];
    let mut amounts = [(0_i64, 0_i64); 4];
    for node in catalog.nodes.values() {
        let place = STATES.iter().position(|state| *state == node.facts.state).unwrap_or(0);
        nodes[place] += 1;
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
    lines.head("nodes", "gauge", "Nodes by state");
    for (state, count) in STATES.iter().zip(nodes) {
        lines.value("nodes", &format!("state=\"{}\"", state.name()), count);
    }
    let names = ["cpu_milli", "memory_mib", "disk_mib", "bandwidth_mbps"];
    lines.head("resource_used", "gauge", "What instances are charged, over all nodes");
    for (name, (used, _)) in names.iter().zip(amounts) {
        lines.value("resource_used", &format!("resource=\"{name}\""), used);
    }
    lines.head("resource_limit", "gauge", "What may be promised, over all nodes");
    for (name, (_, limit)) in names.iter().zip(amounts) {
        lines.value("resource_limit", &format!("resource=\"{name}\""), limit);
    }
    let mut claims = [0_u64; CLAIM_STATES.len()];
    for claim in catalog.claims.values() {
        let place = CLAIM_STATES.iter().position(|state| *state == claim.state).unwrap_or(0);
        claims[place] += 1;
    }
    lines.head("claims", "gauge", "Claims by state; those held are leases");
    for (state, count) in CLAIM_STATES.iter().zip(claims) {
        lines.value("claims", &format!("state=\"{}\"", state.name()), count);
    }
}

fn evacuations(control: &ControlPlane, lines: &mut Lines) {
    // Before the first round nothing is known, and 0 would say something else.
    let Some(counts) = control.moves.evacuations.counts() else { return };
    lines.gauge("nodes_evacuable", "Nodes that could be emptied by themselves", counts.can);
    lines.gauge("nodes_not_evacuable", "Nodes that could not", counts.cannot);
    let age = (control.now().as_second() - counts.at.as_second()).max(0);
    lines.gauge("evacuation_check_age_seconds", "How long ago that was found out", age);
}

fn ledger(control: &ControlPlane, lines: &mut Lines) {
    let stats = control.ledger.stats();
    lines.counter("ledger_commits", "Transactions that were committed", stats.transactions);
    lines.counter("ledger_operations", "Operations in those", stats.operations);
    lines.counter("ledger_drift", "Counters found out of step with their claims", stats.drifts);
    lines.head("ledger_retries", "counter", "Transactions begun again, by cause");
    let retries = &stats.retries;
    for (cause, count) in [
        ("serialization", retries.conflicts),
        ("duplicate", retries.duplicates),
        ("guard", retries.guards),
        ("connection", retries.lost),
    ] {
        lines.value("ledger_retries_total", &format!("cause=\"{cause}\""), count);
    }
}

fn queue(control: &ControlPlane, lines: &mut Lines) {
    let waiting = control.queue.waiting();
    lines.gauge("queue_waiting", "Requests that wait for room", waiting);
    let oldest = control.queue.oldest();
    let age = oldest.map_or(0, |since| (control.now().as_second() - since).max(0));
    lines.gauge("queue_oldest_seconds", "How long the oldest of them has waited", age);
    let wanted = control.queue.wanted();
    lines.head("unmet_demand", "gauge", "What waiting requests ask for: the signal to scale out");
    for (resource, amount) in [
        ("cpu_milli", wanted.cpu),
        ("memory_mib", wanted.memory),
        ("disk_mib", wanted.disk),
        ("instances", i64::from(wanted.instances)),
    ] {
        lines.value("unmet_demand", &format!("resource=\"{resource}\""), amount);
    }
    lines.gauge("event_streams", "Open streams of the change feed", control.feed.streams());
}
