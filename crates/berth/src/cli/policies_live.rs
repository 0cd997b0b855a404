//! `berth policies diff --on-live`: what another policy would change on the current fleet.

use berth_api::engine::elastic::Size;
use berth_api::engine::{NodeId, units};
use berth_api::{LiveClass, LiveDecision, LiveDiff, LiveNode, LiveStanding, LiveTerms};

use crate::cmdutil::style::{BOLD, paint};
use crate::cmdutil::{Cell, Output, Table, Tone, columns, plural};

pub(super) fn print(out: &Output, live: &LiveDiff) {
    out.line(format!("\n{}", paint(BOLD, &live.summary)));
    let counts = &live.counts;
    out.line(format!(
        "same node {}, other node {}, placed only by the first {}, only by the second {}, by neither {}",
        counts.same, counts.other_node, counts.only_from, counts.only_to, counts.refused
    ));
    if !live.decisions.is_empty() {
        out.line(format!("\n{}", out.text_of(&decisions(live))));
        let changed = counts.other_node + counts.only_from + counts.only_to;
        let left = changed.saturating_sub(live.decisions.len());
        if left > 0 {
            out.note(format!("{left} more would change; show more with --limit"));
        }
    }
    if !live.nodes.is_empty() {
        out.line(format!("\n{}", out.text_of(&nodes(&live.nodes))));
        let left = live.nodes_changed.saturating_sub(live.nodes.len());
        if left > 0 {
            out.note(format!("and {}; show more with --limit", plural(left, "more node")));
        }
    }
    if !live.classes.is_empty() {
        out.line(format!("\n{}", out.text_of(&classes(&live.classes))));
    }
}

fn decisions(live: &LiveDiff) -> Table {
    fn place(node: &Option<NodeId>) -> Cell {
        let refused = || Cell::with_tone("refused", Tone::Bad);
        node.as_ref().map_or_else(refused, |node| node.as_str().into())
    }
    let columns = columns![decision: LiveDecision;
        "INSTANCE" => decision.instance.to_string(),
        "TENANT" => decision.tenant.as_str(),
        "NOW ON" => decision.node.as_str(),
        "FIRST" => place(&decision.from),
        "SECOND" => place(&decision.to),
        "WHY NOT" => decision.code.as_deref(),
    ];
    Table::of(&live.decisions, false, columns)
}

fn size(size: Size) -> String {
    cpu_and_memory(size.cpu_milli.into(), size.memory_mib.into())
}

fn cpu_and_memory(cpu_milli: i64, memory_mib: i64) -> String {
    format!("{}, {}", units::cpu(cpu_milli), units::size(memory_mib))
}

/// What would change on a node: what, before, after.
fn changes(node: &LiveNode) -> Vec<(&'static str, String, String)> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let marks = |of: &LiveStanding| cpu_and_memory(of.watermark_cpu, of.watermark_memory);
    let (from, to) = (&node.from, &node.to);
    let all = [
        ("reserved for the host", size(from.system), size(to.system)),
        ("over its limit", yes(from.over_limit), yes(to.over_limit)),
        ("watermark", marks(from), marks(to)),
        ("above watermark", yes(from.above_watermark), yes(to.above_watermark)),
        ("must shed", yes(from.must_shed), yes(to.must_shed)),
        ("compute unit", size(from.compute_unit), size(to.compute_unit)),
    ];
    all.into_iter().filter(|(_, from, to)| from != to).collect()
}

fn nodes(nodes: &[LiveNode]) -> Table {
    let mut table = Table::new(&["NODE", "WHAT", "FIRST", "SECOND"]);
    for node in nodes {
        for (what, from, to) in changes(node) {
            table.row([node.node.as_str().into(), what.into(), from.into(), to.into()]);
        }
    }
    table
}

fn classes(classes: &[LiveClass]) -> Table {
    fn terms(terms: &Option<LiveTerms>) -> Cell {
        let Some(terms) = terms else { return Cell::with_tone("unknown", Tone::Bad) };
        let charged = cpu_and_memory(terms.charged_cpu_milli, terms.charged_memory_mib);
        let overcommit = units::ratio(terms.overcommit_permille.into());
        format!("overcommit {overcommit}, charged {charged}").into()
    }
    let columns = columns![class: LiveClass;
        "CLASS" => class.class.as_str(),
        ">INSTANCES" => class.instances.to_string(),
        "FIRST" => terms(&class.from),
        "SECOND" => terms(&class.to),
    ];
    Table::of(classes, false, columns)
}
