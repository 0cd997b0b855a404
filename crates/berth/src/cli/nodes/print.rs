//! Nodes as tables and in detail.

use std::cmp::Ordering;

use berth_api::engine::elastic::Account;
use berth_api::engine::{Amounts, LinkState, MeasuredLoad, NodeFacts, TraitValue, Unit};
use berth_api::{Node, NodeExplanation, NodeInstance, units};

use crate::cli::resource::Resource;
use crate::cmdutil::style::{BOLD, DIM, GOOD, WARN, paint};
use crate::cmdutil::{
    Cell, Column, Output, Table, Tone, age, amounts, claim_state, columns, cpu_usage, dash,
    key_values, node_state, or_dash, plural, trait_flag, usage,
};

type Compare = fn(&Node, &Node) -> Ordering;

/// The orders of a list, by name.
const ORDERS: [(&str, Compare); 8] = [
    ("name", |a, b| a.facts.id.cmp(&b.facts.id)),
    ("state", |a, b| a.facts.state.cmp(&b.facts.state)),
    ("zone", |a, b| (&a.facts.zone, &a.facts.rack).cmp(&(&b.facts.zone, &b.facts.rack))),
    ("cpu", |a, b| by_share(a, b, |amounts| amounts.cpu_milli)),
    ("memory", |a, b| by_share(a, b, |amounts| amounts.memory_mib)),
    ("disk", |a, b| by_share(a, b, |amounts| amounts.disk_mib)),
    ("instances", |a, b| a.instances.cmp(&b.instances)),
    ("heard", |a, b| a.heard_at.cmp(&b.heard_at)),
];

fn by_share(a: &Node, b: &Node, amount: fn(&Amounts) -> u32) -> Ordering {
    let share = |node: &Node| {
        u64::from(amount(&node.used)) * 1_000_000 / u64::from(amount(&node.limits).max(1))
    };
    share(a).cmp(&share(b))
}

/// The order of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sort {
    compare: Compare,
    reverse: bool,
}

impl Sort {
    /// Parses `memory` or `-memory`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (reverse, name) = text.strip_prefix('-').map_or((false, text), |name| (true, name));
        let Some((_, compare)) = ORDERS.into_iter().find(|(known, _)| *known == name) else {
            let accepted = "name, state, zone, cpu, memory, disk, instances or heard";
            return Err(format!("accepted is {accepted}, with a leading minus to reverse it"));
        };
        Ok(Self { compare, reverse })
    }

    /// Which of two nodes comes first; equal ones are in order of name.
    pub(crate) fn compare(self, a: &Node, b: &Node) -> Ordering {
        let order = (self.compare)(a, b);
        let order = if self.reverse { order.reverse() } else { order };
        order.then_with(|| a.facts.id.cmp(&b.facts.id))
    }
}

impl Resource for Node {
    const KIND: &'static str = "node";
    const PATH: &'static str = "/v1/nodes";
    const EMPTY: &'static str = "\
There are no nodes yet. Add one with: berth nodes register NAME --cpu 16 --memory 64GiB --disk 1TiB";
    const COLUMNS: &'static [Column<Self>] = columns![node;
        "NODE" => node.facts.id.as_str(),
        "STATE" => node_state(node.facts.state),
        "ZONE" => or_dash(node.facts.zone.as_deref()),
        "RACK" => or_dash(node.facts.rack.as_deref()),
        "CPU" => cpu_usage(node),
        "MEMORY" => usage(node.used.memory_mib, node.limits.memory_mib, units::size),
        "DISK" => usage(node.used.disk_mib, node.limits.disk_mib, units::size),
        ">INSTANCES" => node.instances,
        "HEARD" => node.heard_at.map_or_else(|| Cell::with_tone("never", Tone::Dim), |at| age(at).into()),
        "+PRESSURE" => pressure(&node.account),
        "+KIND" => node.facts.capacity_type.name(),
        "+PLATFORM" => platform(&node.facts),
        "+TRAITS" => traits(&node.facts),
        "+LABELS" => key_values(&node.facts.labels),
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        let facts = &self.facts;
        let place = [&facts.zone, &facts.rack].into_iter().flatten();
        let place: Vec<&str> = place.map(String::as_str).collect();
        vec![
            ("node", paint(BOLD, facts.id.as_str())),
            ("state", node_state(facts.state).to_string()),
            ("because", self.state_message.clone().unwrap_or_default()),
            ("heard", self.heard_at.map_or_else(|| "never".to_owned(), age)),
            ("place", place.join(" / ")),
            ("capacity", facts.capacity.as_ref().map_or_else(|| "unknown".to_owned(), amounts)),
            ("reserved for the host", unless_zero(&facts.system_reserve)),
            ("allocatable", amounts(&self.limits)),
            ("used", amounts(&self.used)),
            ("promised CPU", cpu_usage(self).to_string()),
            ("measured load", facts.load.map(measured_load).unwrap_or_default()),
            ("instances", format!("{} of at most {}", self.instances, facts.instance_limit)),
            ("can be emptied", evacuation(self)),
            ("extra resources", key_values(&facts.extra)),
            ("kind", facts.capacity_type.name().to_owned()),
            ("platform", platform(facts).unwrap_or_default()),
            ("next reboot", facts.next_reboot.map(day).unwrap_or_default()),
            ("traits", traits(facts)),
            ("networks", networks(facts)),
            ("labels", key_values(&facts.labels)),
            ("images", facts.cached_images.join(" ")),
            ("flags", flags(facts)),
            ("generation", self.generation.to_string()),
        ]
    }

    fn print(&self, out: &Output) {
        out.pairs(&self.fields());
        print_layers(out, self);
        print_account(out, &self.account);
    }
}

/// Prints the facts that are not as reported: what is in effect, whose word it is, and the report.
fn print_layers(out: &Output, node: &Node) {
    if node.reported.is_empty() {
        return;
    }
    let mut table = Table::new(&["FACT", "VALUE", "BY", "REPORTED"]);
    for (field, reported) in &node.reported {
        let set = node.set.get(field).map(|value| (value, "operator"));
        let policy = node.policy_defaults.get(field).map(|value| (value, "policy"));
        let Some((value, by)) = set.or(policy) else { continue };
        table.row([field.as_str().into(), plain(value), by.into(), plain(reported)]);
    }
    out.line(format!("\n{}", out.text_of(&table)));
    if !node.set.is_empty() {
        let id = node.facts.id.as_str();
        out.note(paint(DIM, &format!("Give back with: berth nodes unset {id} FACT")));
    }
}

/// A value of a fact as a cell.
fn plain(value: &serde_json::Value) -> Cell {
    match value {
        serde_json::Value::Null => dash(),
        serde_json::Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

fn measured_load(load: MeasuredLoad) -> String {
    let percent = |permille: u16| format!("{} %", permille / 10);
    let memory = load.memory_permille.map(|memory| format!(", memory {}", percent(memory)));
    format!("CPU {}{}", percent(load.cpu_permille), memory.unwrap_or_default())
}

fn platform(facts: &NodeFacts) -> Option<String> {
    let platform = facts.platform?;
    Some(format!("{} built {}", platform.version, day(platform.built_at)))
}

fn day(at: berth_api::engine::Timestamp) -> String {
    let at = jiff::Timestamp::from_second(at.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    at.strftime("%Y-%m-%d").to_string()
}

fn traits(facts: &NodeFacts) -> String {
    let typed = |(name, value): (&String, &TraitValue)| trait_flag(name, value);
    facts.traits.iter().map(typed).collect::<Vec<_>>().join(" ")
}

/// Prints what of CPU and memory is reserved, uncertain and lacking, and whether the node must shed load.
fn print_account(out: &Output, account: &Account) {
    let mut table = Table::new(&[
        "ACCOUNT",
        ">TOTAL",
        ">SYSTEM",
        ">OTHER",
        ">RESERVED",
        ">BUFFER",
        ">PRESSURE",
        ">ACCOUNTED FOR",
        ">WATERMARK",
    ]);
    let resources = [("cpu", &account.cpu, Unit::MilliCpu), ("memory", &account.memory, Unit::Mib)];
    for (name, of, unit) in resources {
        let cell = |amount: i64| match amount {
            0 => Cell::with_tone("0", Tone::Dim),
            _ => unit.text(amount).into(),
        };
        let amounts = [
            of.total,
            of.system,
            of.other,
            of.reserved,
            of.buffer,
            of.capacity_pressure,
            of.pressure_accounted_for,
            of.watermark,
        ];
        table.row(std::iter::once(name.into()).chain(amounts.map(cell)));
    }
    out.line(format!("\n{}", out.text_of(&table)));
    let style = if account.must_shed() || account.is_over() { WARN } else { DIM };
    out.line(paint(style, &pressure_sentence(account)));
}

/// The excess beyond what is already leaving, such as `2 CPU and 4 GiB`.
fn excess(account: &Account) -> String {
    let parts = [(account.cpu.excess(), Unit::MilliCpu), (account.memory.excess(), Unit::Mib)];
    let parts = parts.into_iter().filter(|(amount, _)| *amount > 0);
    parts.map(|(amount, unit)| unit.text(amount)).collect::<Vec<_>>().join(" and ")
}

/// Whether instances must leave, in one sentence.
fn pressure_sentence(account: &Account) -> String {
    let leaving = account.cpu.pressure_accounted_for.max(account.memory.pressure_accounted_for) > 0;
    let also = match (account.must_shed(), leaving) {
        (true, true) => format!("In addition to what is leaving, {} must leave.", excess(account)),
        (true, false) => format!("Over the watermark: {} must leave.", excess(account)),
        (false, true) => "Enough is leaving already.".to_owned(),
        (false, false) => "Nothing needs to leave.".to_owned(),
    };
    if account.is_over() {
        return format!("Over its limit, so no instance may grow. {also}");
    }
    also
}

/// What must leave, for a column.
fn pressure(account: &Account) -> Cell {
    match (account.must_shed(), account.is_over()) {
        (true, _) => Cell::with_tone(format!("{} over", excess(account)), Tone::Bad),
        (false, true) => Cell::with_tone("full", Tone::Warn),
        (false, false) => dash(),
    }
}

/// Whether the node could be emptied, and when that was checked.
fn evacuation(node: &Node) -> String {
    let Some(found) = &node.evacuation else { return String::new() };
    let answer = if found.can_be_emptied { "yes:" } else { "no, because" };
    format!("{answer} {} ({})", found.message, age(found.checked_at))
}

fn networks(facts: &NodeFacts) -> String {
    let networks = facts.networks.iter().map(|network| match network.link {
        LinkState::Up => network.tag.clone(),
        LinkState::Down => format!("{} (down)", network.tag),
        LinkState::Unknown => format!("{} (unknown)", network.tag),
    });
    networks.collect::<Vec<_>>().join(" ")
}

fn flags(facts: &NodeFacts) -> String {
    let switches = [
        (facts.reserved, "reserved"),
        (facts.headnode, "runs the control plane"),
        (facts.is_virtual, "is a virtual machine"),
        (facts.reservoir, "reservoir"),
        (!facts.kvm, "no KVM"),
    ];
    let flags = switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name);
    flags.collect::<Vec<_>>().join(", ")
}

fn unless_zero(value: &Amounts) -> String {
    if *value == Amounts::default() { String::new() } else { amounts(value) }
}

/// Prints what is on a node and why.
pub(crate) fn explanation(out: &Output, explanation: &NodeExplanation) {
    let facts = &explanation.node.facts;
    let state = format!("{} is {}", facts.id, facts.state.name());
    out.line(paint(BOLD, &state));
    if explanation.obstacles.is_empty() {
        out.line(paint(GOOD, "It accepts instances."));
    }
    for obstacle in &explanation.obstacles {
        out.line(format!("{} {obstacle}", paint(WARN, "!")));
    }
    for room in &explanation.room {
        out.line(format!("  {room}"));
    }
    if explanation.guests.is_empty() {
        out.line("\nIt is empty.");
        return;
    }
    out.line(format!("\n{}", paint(BOLD, &plural(explanation.guests.len(), "instance"))));
    let columns = columns![instance: NodeInstance;
        "INSTANCE" => instance.claim.instance.to_string(),
        "NAME" => instance.claim.name.as_deref(),
        "TENANT" => instance.claim.tenant.as_str(),
        "STATE" => claim_state(instance.claim.state),
        "CHARGED" => amounts(&instance.claim.resources),
        "WHY" => instance.why.as_str(),
    ];
    let table = Table::of(&explanation.guests, false, columns);
    out.line(out.text_of(&table));
    out.note(paint(DIM, "\nExplain one with: berth explain INSTANCE"));
}

#[cfg(test)]
mod tests {
    use berth_api::engine::elastic::ResourceAccount;

    use super::*;

    fn resource(reserved: i64, watermark: i64) -> ResourceAccount {
        ResourceAccount { total: 10_000, reserved, watermark, ..ResourceAccount::default() }
    }

    #[test]
    fn an_account_says_in_one_sentence_whether_instances_must_leave() {
        let calm = Account { cpu: resource(1000, 9000), memory: resource(1024, 9000) };
        assert_eq!(pressure_sentence(&calm), "Nothing needs to leave.");
        let mut full = Account { cpu: resource(9500, 9000), memory: resource(1024, 9000) };
        assert_eq!(pressure_sentence(&full), "Over the watermark: 0.5 CPU must leave.");
        full.cpu.pressure_accounted_for = 400;
        assert_eq!(pressure_sentence(&full), "In addition to what is leaving, 0.1 CPU must leave.");
        full.cpu.pressure_accounted_for = 500;
        assert_eq!(pressure_sentence(&full), "Enough is leaving already.");
        let over = Account { cpu: resource(11_000, 9000), memory: resource(9100, 9000) };
        let text = pressure_sentence(&over);
        assert!(text.starts_with("Over its limit"), "{text}");
        assert!(text.ends_with("2 CPU and 100 MiB must leave."), "{text}");
    }
}
