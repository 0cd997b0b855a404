//! `berth policy diff --on-live`: what another policy would change on the fleet as it is now.

use berth_api::engine::elastic::Size;
use berth_api::{LiveClass, LiveDiff, LiveNode, LiveStanding, LiveTerms};

use super::output::Output;
use super::output::style::{BOLD, paint};
use super::table::{Cell, Table, Tone};
use super::words::{many, or_dash};

pub(super) fn print(out: &Output, live: &LiveDiff) {
    out.line(format!("\n{}", paint(BOLD, &live.summary)));
    let counts = &live.counts;
    out.line(format!(
        "same node {}, other node {}, placed only by the first {}, only by the second {}, by neither {}",
        counts.same, counts.other_node, counts.only_from, counts.only_to, counts.refused
    ));
    if !live.decisions.is_empty() {
        out.line(format!("\n{}", decisions(live).text()));
        let changed = counts.other_node + counts.only_from + counts.only_to;
        let left = changed.saturating_sub(live.decisions.len());
        if left > 0 {
            out.note(format!("{} more would change; --limit says how many to show", left));
        }
    }
    if !live.nodes.is_empty() {
        out.line(format!("\n{}", nodes(&live.nodes).text()));
        let left = live.nodes_changed.saturating_sub(live.nodes.len());
        if left > 0 {
            out.note(format!("and {}; --limit says how many to show", many(left, "more node")));
        }
    }
    if !live.classes.is_empty() {
        out.line(format!("\n{}", classes(&live.classes).text()));
    }
}

fn decisions(live: &LiveDiff) -> Table {
    let mut table = Table::new(&["INSTANCE", "OWNER", "NOW ON", "FIRST", "SECOND", "WHY NOT"]);
    for one in &live.decisions {
        let place = |node: &Option<berth_api::engine::NodeId>| match node {
            Some(node) => Cell::from(node.as_str()),
            None => Cell::toned("refused", Tone::Bad),
        };
        table.row([
            one.instance.to_string().into(),
            one.owner.as_str().into(),
            one.node.as_str().into(),
            place(&one.from),
            place(&one.to),
            or_dash(one.code.as_deref()),
        ]);
    }
    table
}

fn size(size: Size) -> String {
    format!("{} mCPU, {} MiB", size.cpu_milli, size.memory_mib)
}

/// What would change of a node, in words: what, before, after.
fn changes(node: &LiveNode) -> Vec<(&'static str, String, String)> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let marks =
        |of: &LiveStanding| format!("{} mCPU, {} MiB", of.watermark_cpu, of.watermark_memory);
    let (from, to) = (&node.from, &node.to);
    let all = [
        ("host keeps", size(from.system), size(to.system)),
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
    let mut table = Table::new(&["CLASS", ">INSTANCES", "FIRST", "SECOND"]);
    for class in classes {
        let terms = |terms: &Option<LiveTerms>| match terms {
            Some(terms) => Cell::from(format!(
                "overcommit {}‰, charged {} mCPU, {} MiB",
                terms.overcommit_permille, terms.charged_cpu_milli, terms.charged_memory_mib
            )),
            None => Cell::toned("not known", Tone::Bad),
        };
        table.row([
            class.class.as_str().into(),
            class.instances.to_string().into(),
            terms(&class.from),
            terms(&class.to),
        ]);
    }
    table
}
