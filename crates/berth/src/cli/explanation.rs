//! A successful placement explained: the winner and the runner-up, and the verdict on every node.

use std::fmt::Write as _;

use berth_api::engine::{
    Decision, Explanation, ExplanationPage, NodeVerdict, Notice, UsualShape, units,
};
use berth_api::{DecisionExplanation, ReplayOutcome};

use crate::cmdutil::style::{BOLD, DIM, paint};
use crate::cmdutil::{Cell, Table, Tone, plural};

/// Millionths of a point, with four decimals.
pub(crate) fn points(millionths: i64) -> String {
    let sign = if millionths < 0 { "-" } else { "" };
    let amount = millionths.unsigned_abs();
    format!("{sign}{}.{:04}", amount / 1_000_000, amount % 1_000_000 / 100)
}

/// The winner's terms next to the runner-up's.
pub(crate) fn winner(explanation: &Explanation) -> String {
    let by = policy(&explanation.policy, &explanation.policy_hash);
    let text = choice(
        explanation.winner.as_ref(),
        explanation.runner_up.as_ref(),
        &by,
        &explanation.notices,
    );
    format!("{text}{}", usual_shapes(&explanation.usual_shapes))
}

/// The sizes that the policy keeps room for, with their weights.
fn usual_shapes(shapes: &[UsualShape]) -> String {
    if shapes.is_empty() {
        return String::new();
    }
    let shape = |shape: &UsualShape| {
        let (cpu, memory) = (i64::from(shape.cpu_milli), i64::from(shape.memory_mib));
        format!("{} and {} (×{})", units::cpu(cpu), units::size(memory), shape.weight)
    };
    let shapes: Vec<String> = shapes.iter().map(shape).collect();
    format!("\nUsual sizes: {}", shapes.join(", "))
}

fn policy(name: &str, hash: &str) -> String {
    paint(DIM, &format!("policy {name} ({hash})"))
}

fn choice(
    winner: Option<&Decision>,
    runner_up: Option<&Decision>,
    by: &str,
    notices: &[Notice],
) -> String {
    let Some(winner) = winner else {
        return format!("no node can take it  {by}");
    };
    let mut text = match runner_up {
        Some(second) => {
            let title = format!("Why {} and not {}", winner.node, second.node);
            let table = terms_of_both(winner, second);
            format!("{}  {by}\n\n{}", paint(BOLD, &title), table.text(None))
        }
        None => {
            let mut table = Table::new(&["TERM", ">POINTS"]);
            for term in &winner.terms {
                table.row([term.label().into(), points(term.points).into()]);
            }
            table.row(["total".into(), points(winner.total).into()]);
            let title = format!("Why {}: no other node can take it", winner.node);
            format!("{}  {by}\n\n{}", paint(BOLD, &title), table.text(None))
        }
    };
    for notice in notices {
        let _ = write!(text, "\nNote: {notice}");
    }
    text
}

fn terms_of_both(winner: &Decision, second: &Decision) -> Table {
    let mut table =
        Table::new(&["TERM", &format!(">{}", winner.node), &format!(">{}", second.node), ""]);
    for (term, other) in winner.terms.iter().zip(&second.terms) {
        let differs = term.points != other.points;
        let mark = if differs { "←" } else { "" };
        let tone = if differs { Tone::Plain } else { Tone::Dim };
        table.row([
            Cell::with_tone(term.label(), tone),
            Cell::with_tone(points(term.points), tone),
            Cell::with_tone(points(other.points), tone),
            mark.into(),
        ]);
    }
    table.row([
        "total".into(),
        points(winner.total).into(),
        points(second.total).into(),
        "".into(),
    ]);
    table
}

/// Why a decision of the past came out as it did, or why that is no longer known.
pub(crate) fn of_decision(explained: &DecisionExplanation, wide: bool, limit: usize) -> String {
    let note = &explained.note;
    let derived = match explained.outcome {
        ReplayOutcome::Identical => format!("Derived again from the log: {note}."),
        ReplayOutcome::Different => {
            format!("It cannot be explained: derived again from the log, {note}.")
        }
        ReplayOutcome::OutOfReach => format!("It cannot be derived again: {note}."),
    };
    let derived = paint(DIM, &derived);
    let Some(explanation) = &explained.explanation else { return derived };
    let page = &explanation.page;
    let mut parts = Vec::new();
    if page.winner.is_some() {
        let by = policy(&page.policy, &page.policy_hash);
        let text = choice(page.winner.as_ref(), page.runner_up.as_ref(), &by, &page.notices);
        parts.push(format!("{text}{}", usual_shapes(&page.usual_shapes)));
    }
    parts.push(filters(page));
    if !page.items.is_empty() {
        parts.push(nodes(page, &page.items, wide, limit));
    }
    parts.push(derived);
    parts.join("\n\n")
}

/// How many nodes could take it, and how many each filter removed.
fn filters(page: &ExplanationPage) -> String {
    let passed = format!(
        "{} of {} could take it, having passed all {}",
        page.eligible,
        plural(page.nodes, "node"),
        plural(page.filters.len(), "filter")
    );
    if page.counts.is_empty() {
        return format!("{passed}.");
    }
    let removed = page.counts.iter().map(|count| format!("{} {}", count.filter, count.removed));
    format!("{passed}. Removed by {}.", removed.collect::<Vec<_>>().join(", "))
}

/// The nodes listed: the best first, then those that were filtered out, and by which rules.
pub(crate) fn table(explanation: &Explanation, wide: bool, limit: usize) -> String {
    let is_scored = |verdict: &&NodeVerdict| matches!(verdict, NodeVerdict::Scored { .. });
    // Servers of 0.1 list every node and do not count them.
    let eligible = match explanation.nodes {
        0 => explanation.table.iter().filter(is_scored).count(),
        _ => explanation.eligible,
    };
    let nodes = explanation.nodes.max(explanation.table.len());
    verdicts(&explanation.table, (eligible, nodes - eligible), wide, limit)
}

/// The same of a page, whose counts are over all nodes.
pub(crate) fn nodes(
    page: &ExplanationPage,
    items: &[NodeVerdict],
    wide: bool,
    limit: usize,
) -> String {
    verdicts(items, (page.eligible, page.nodes.saturating_sub(page.eligible)), wide, limit)
}

fn verdicts(
    items: &[NodeVerdict],
    (eligible, cannot): (usize, usize),
    wide: bool,
    limit: usize,
) -> String {
    let (mut scored, mut removed) = (Vec::new(), Vec::new());
    for verdict in items {
        match verdict {
            NodeVerdict::Scored { node, total, terms } => scored.push((node, *total, terms)),
            NodeVerdict::Removed { node, filter, evidence, others } => {
                removed.push((node, filter, evidence, others));
            }
        }
    }
    // The sort is stable and nodes come in order of id, so equal ones stay in order of id.
    scored.sort_by_key(|(_, total, _)| std::cmp::Reverse(*total));
    let mut parts = Vec::new();
    if !scored.is_empty() {
        parts.push(eligible_nodes(eligible, &scores(&scored, wide, limit), limit));
    }
    if !removed.is_empty() {
        let rows = removed.iter().map(|(node, filter, why, others)| {
            let other = |(name, why): &(_, _)| match wide {
                true => format!("{name} ({why})"),
                false => format!("{name}"),
            };
            let others = others.iter().map(other).collect();
            RemovedNode { node: node.as_str(), rule: filter, why: why.to_string(), others }
        });
        parts.push(removed_nodes(cannot, rows, limit));
    }
    parts.join("\n\n")
}

/// A node that cannot take it: the first rule that removed it and why, and the other rules.
pub(crate) struct RemovedNode<'a> {
    pub(crate) node: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) why: String,
    pub(crate) others: Vec<String>,
}

/// The nodes that can take it, with their scores.
pub(crate) fn eligible_nodes(count: usize, table: &Table, limit: usize) -> String {
    section(&format!("{} can take it", plural(count, "node")), table, count, limit)
}

/// The nodes that cannot take it, and why.
pub(crate) fn removed_nodes<'a>(
    count: usize,
    nodes: impl Iterator<Item = RemovedNode<'a>>,
    limit: usize,
) -> String {
    let mut table = Table::new(&["NODE", "RULE", "WHY", "ALSO"]);
    for RemovedNode { node, rule, why, others } in nodes.take(limit) {
        let others = Cell::with_tone(others.join(", "), Tone::Dim);
        table.row([node.into(), rule.into(), why.into(), others]);
    }
    section(&format!("{} cannot", plural(count, "node")), &table, count, limit)
}

/// A table below its title, and a note if it was cut off.
fn section(title: &str, table: &Table, count: usize, limit: usize) -> String {
    let mut text = format!("{}\n{}", paint(BOLD, title), table.text(None));
    if count > limit {
        let more = format!("and {} more; show more with --limit", count - limit);
        let _ = write!(text, "\n{}", paint(DIM, &more));
    }
    text
}

type ScoredNode<'a> = (&'a berth_api::engine::NodeId, i64, &'a Vec<berth_api::engine::Term>);

fn scores(scored: &[ScoredNode<'_>], wide: bool, limit: usize) -> Table {
    let mut table = Table::new(&["NODE", ">TOTAL"]);
    let Some((_, _, terms)) = scored.first() else { return table };
    // A term that is the same for all nodes makes no difference.
    let differs = |place: usize| {
        let first = terms.get(place).map(|term| term.points);
        scored.iter().any(|(_, _, terms)| terms.get(place).map(|term| term.points) != first)
    };
    let shown: Vec<usize> = (0..terms.len()).filter(|place| wide || differs(*place)).collect();
    for place in &shown {
        table.column(&format!(">{}", terms[*place].scorer));
    }
    for (node, total, terms) in scored.iter().take(limit) {
        let mut row: Vec<Cell> = vec![node.as_str().into(), points(*total).into()];
        row.extend(shown.iter().map(|place| {
            terms.get(*place).map_or_else(|| Cell::from("-"), |term| points(term.points).into())
        }));
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_four_decimals_and_a_sign() {
        assert_eq!(points(127_207_212), "127.2072");
        assert_eq!(points(-1_500_000), "-1.5000");
        assert_eq!(points(50), "0.0000");
    }
}
