//! Nodes for people.

use std::cmp::Ordering;

use berth_api::engine::elastic::Account;
use berth_api::engine::{Amounts, LinkState, NodeFacts, TraitValue, Unit};
use berth_api::{Node, NodeExplanation, units};

use crate::cli::output::Output;
use crate::cli::output::style::{BOLD, DIM, GOOD, WARN, paint};
use crate::cli::table::{Cell, Table, Tone, pairs};
use crate::cli::words::{
    self, age, amounts, claim_state, counted, many, node_state, or_dash, share,
};

/// By what nodes are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    column: Column,
    reverse: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Name,
    State,
    Zone,
    Cpu,
    Memory,
    Disk,
    Instances,
    Heard,
}

impl Sort {
    /// Reads `memory` or `-memory`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (reverse, name) = match text.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, text),
        };
        let column = match name {
            "name" => Column::Name,
            "state" => Column::State,
            "zone" => Column::Zone,
            "cpu" => Column::Cpu,
            "memory" => Column::Memory,
            "disk" => Column::Disk,
            "instances" => Column::Instances,
            "heard" => Column::Heard,
            _ => {
                let accepted = "name, state, zone, cpu, memory, disk, instances or heard";
                return Err(format!("accepted is {accepted}, with a minus to turn it round"));
            }
        };
        Ok(Self { column, reverse })
    }

    /// Which of two nodes comes first; of equals the smaller name.
    pub(crate) fn order(self, a: &Node, b: &Node) -> Ordering {
        let part = |used: u32, whole: u32| u64::from(used) * 1_000_000 / u64::from(whole.max(1));
        let order = match self.column {
            Column::Name => a.facts.id.cmp(&b.facts.id),
            Column::State => a.facts.state.cmp(&b.facts.state),
            Column::Zone => (&a.facts.zone, &a.facts.rack).cmp(&(&b.facts.zone, &b.facts.rack)),
            Column::Cpu => part(a.used.cpu_milli, a.limits.cpu_milli)
                .cmp(&part(b.used.cpu_milli, b.limits.cpu_milli)),
            Column::Memory => part(a.used.memory_mib, a.limits.memory_mib)
                .cmp(&part(b.used.memory_mib, b.limits.memory_mib)),
            Column::Disk => part(a.used.disk_mib, a.limits.disk_mib)
                .cmp(&part(b.used.disk_mib, b.limits.disk_mib)),
            Column::Instances => a.instances.cmp(&b.instances),
            Column::Heard => a.heard_at.cmp(&b.heard_at),
        };
        let order = if self.reverse { order.reverse() } else { order };
        order.then_with(|| a.facts.id.cmp(&b.facts.id))
    }
}

/// Nodes as a table.
pub(crate) fn table(nodes: &[Node], wide: bool) -> Table {
    let columns = ["NODE", "STATE", "ZONE", "RACK", "CPU", "MEMORY", "DISK", ">INSTANCES", "HEARD"];
    let mut table = Table::new(&columns);
    if wide {
        ["PRESSURE", "KIND", "PLATFORM", "TRAITS", "LABELS"]
            .iter()
            .for_each(|name| table.column(name));
    }
    for node in nodes {
        let facts = &node.facts;
        let mut row: Vec<Cell> = vec![
            facts.id.as_str().into(),
            node_state(facts.state),
            or_dash(facts.zone.as_deref()),
            or_dash(facts.rack.as_deref()),
            share(node.used.cpu_milli, node.limits.cpu_milli, units::cpu),
            share(node.used.memory_mib, node.limits.memory_mib, units::size),
            share(node.used.disk_mib, node.limits.disk_mib, units::size),
            node.instances.to_string().into(),
            heard(node),
        ];
        if wide {
            row.push(pressure(&node.account));
            row.push(facts.capacity_type.name().into());
            row.push(or_dash(platform(facts).as_deref()));
            row.push(traits(facts).into());
            row.push(words::map(&facts.labels).into());
        }
        table.row(row);
    }
    table
}

fn heard(node: &Node) -> Cell {
    node.heard_at.map_or_else(|| Cell::toned("never", Tone::Dim), |at| age(at).into())
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
    let typed = |(name, value): (&String, &TraitValue)| words::trait_typed(name, value);
    facts.traits.iter().map(typed).collect::<Vec<_>>().join(" ")
}

/// One node with everything that is known of it.
pub(crate) fn node(out: &Output, node: &Node) {
    let facts = &node.facts;
    let state = paint(if facts.state.name() == "active" { GOOD } else { WARN }, facts.state.name());
    let place = [&facts.zone, &facts.rack].into_iter().flatten();
    let place: Vec<&str> = place.map(String::as_str).collect();
    let heard = node.heard_at.map_or_else(|| "never".to_owned(), age);
    let capacity = facts.capacity.as_ref().map_or_else(|| "unknown".to_owned(), amounts);
    let lines = [
        ("node", paint(BOLD, facts.id.as_str())),
        ("state", state),
        ("heard", heard),
        ("place", place.join(" / ")),
        ("capacity", capacity),
        ("kept for the host", none_when_zero(&facts.system_reserve)),
        ("to give", amounts(&node.limits)),
        ("used", amounts(&node.used)),
        ("instances", format!("{} of at most {}", node.instances, facts.instance_limit)),
        ("can be emptied", emptied(node)),
        ("further classes", words::map(&facts.extra)),
        ("kind", facts.capacity_type.name().to_owned()),
        ("platform", platform(facts).unwrap_or_default()),
        ("next reboot", facts.next_reboot.map(day).unwrap_or_default()),
        ("traits", traits(facts)),
        ("networks", networks(facts)),
        ("labels", words::map(&facts.labels)),
        ("images", facts.cached_images.join(" ")),
        ("marks", marks(facts)),
        ("generation", node.generation.to_string()),
    ];
    out.line(pairs(&lines));
    account(out, &node.account);
}

/// What of CPU and memory is reserved, uncertain and lacking, and whether somebody should leave.
fn account(out: &Output, account: &Account) {
    let columns = [
        "ACCOUNT",
        ">TOTAL",
        ">SYSTEM",
        ">OTHER",
        ">RESERVED",
        ">BUFFER",
        ">PRESSURE",
        ">ACCOUNTED FOR",
        ">WATERMARK",
    ];
    let mut table = Table::new(&columns);
    let resources = [("cpu", &account.cpu, Unit::MilliCpu), ("memory", &account.memory, Unit::Mib)];
    for (name, of, unit) in resources {
        let amount = |amount: i64| match amount {
            0 => Cell::toned("0", Tone::Dim),
            _ => counted(amount, unit).into(),
        };
        table.row([
            name.into(),
            amount(of.total),
            amount(of.system),
            amount(of.other),
            amount(of.reserved),
            amount(of.buffer),
            amount(of.capacity_pressure),
            amount(of.pressure_accounted_for),
            amount(of.watermark),
        ]);
    }
    out.line(format!("\n{}", table.text()));
    let style = if account.must_shed() || account.is_over() { WARN } else { DIM };
    out.line(paint(style, &judged(account)));
}

/// What should leave beyond what is leaving, such as `2 CPU and 4 GiB`.
fn excess(account: &Account) -> String {
    let parts = [(account.cpu.excess(), Unit::MilliCpu), (account.memory.excess(), Unit::Mib)];
    let parts = parts.into_iter().filter(|(amount, _)| *amount > 0);
    parts.map(|(amount, unit)| counted(amount, unit)).collect::<Vec<_>>().join(" and ")
}

/// Whether somebody should leave, in one sentence.
fn judged(account: &Account) -> String {
    let leaving = account.cpu.pressure_accounted_for.max(account.memory.pressure_accounted_for) > 0;
    let also = match (account.must_shed(), leaving) {
        (true, true) => format!("Beyond what is leaving already, {} too much.", excess(account)),
        (true, false) => format!("Somebody should leave: {} too much.", excess(account)),
        (false, true) => "What is leaving already is enough.".to_owned(),
        (false, false) => "Nobody needs to leave.".to_owned(),
    };
    if account.is_over() {
        return format!("More is reserved than may be, so nothing grows here. {also}");
    }
    also
}

/// What should leave, for a column.
fn pressure(account: &Account) -> Cell {
    match (account.must_shed(), account.is_over()) {
        (true, _) => Cell::toned(format!("{} over", excess(account)), Tone::Bad),
        (false, true) => Cell::toned("full", Tone::Warn),
        (false, false) => Cell::toned("-", Tone::Dim),
    }
}

/// Whether it could be emptied, and how old that knowledge is.
fn emptied(node: &Node) -> String {
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

fn marks(facts: &NodeFacts) -> String {
    let switches = [
        (facts.reserved, "reserved"),
        (facts.headnode, "runs the control plane"),
        (facts.is_virtual, "is a virtual machine"),
        (facts.reservoir, "reservoir"),
        (!facts.kvm, "no KVM"),
    ];
    let marks = switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name);
    marks.collect::<Vec<_>>().join(", ")
}

fn none_when_zero(value: &Amounts) -> String {
    if *value == Amounts::default() { String::new() } else { amounts(value) }
}

/// What is on a node and why.
pub(crate) fn explanation(out: &Output, explanation: &NodeExplanation) {
    let facts = &explanation.node.facts;
    let state = format!("{} is {}", facts.id, facts.state.name());
    out.line(paint(BOLD, &state));
    if explanation.obstacles.is_empty() {
        out.line(paint(GOOD, "It takes instances."));
    }
    for obstacle in &explanation.obstacles {
        out.line(format!("{} {obstacle}", paint(WARN, "!")));
    }
    for room in &explanation.room {
        out.line(format!("  {room}"));
    }
    if explanation.guests.is_empty() {
        out.line("\nNothing is on it.");
        return;
    }
    out.line(format!("\n{}", paint(BOLD, &many(explanation.guests.len(), "instance"))));
    let mut table = Table::new(&["INSTANCE", "NAME", "OWNER", "STATE", "CHARGED", "WHY"]);
    for guest in &explanation.guests {
        table.row([
            guest.claim.instance.to_string().into(),
            or_dash(guest.claim.name.as_deref()),
            guest.claim.owner.as_str().into(),
            claim_state(guest.claim.state),
            amounts(&guest.claim.resources).into(),
            guest.why.as_str().into(),
        ]);
    }
    out.line(table.text());
    out.note(paint(DIM, "\nberth explain INSTANCE tells all of it for one."));
}

#[cfg(test)]
mod tests {
    use berth_api::engine::elastic::ResourceAccount;

    use super::*;

    fn resource(reserved: i64, watermark: i64) -> ResourceAccount {
        ResourceAccount { total: 10_000, reserved, watermark, ..ResourceAccount::default() }
    }

    #[test]
    fn an_account_says_in_one_sentence_whether_somebody_should_leave() {
        let calm = Account { cpu: resource(1000, 9000), memory: resource(1024, 9000) };
        assert_eq!(judged(&calm), "Nobody needs to leave.");
        let mut full = Account { cpu: resource(9500, 9000), memory: resource(1024, 9000) };
        assert_eq!(judged(&full), "Somebody should leave: 500m CPU too much.");
        full.cpu.pressure_accounted_for = 400;
        assert_eq!(judged(&full), "Beyond what is leaving already, 100m CPU too much.");
        full.cpu.pressure_accounted_for = 500;
        assert_eq!(judged(&full), "What is leaving already is enough.");
        let over = Account { cpu: resource(11_000, 9000), memory: resource(9100, 9000) };
        let text = judged(&over);
        assert!(text.starts_with("More is reserved than may be"), "{text}");
        assert!(text.ends_with("2 CPU and 100 MiB too much."), "{text}");
    }
}
