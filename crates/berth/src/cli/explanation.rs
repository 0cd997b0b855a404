//! A successful placement explained: the winner and the runner-up, and the verdict on every node.

use std::fmt::Write as _;

use berth_api::engine::{Explanation, NodeVerdict};

use super::refusal::evidence;
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
    let by = paint(DIM, &format!("policy {} ({})", explanation.policy, explanation.policy_hash));
    let Some(winner) = &explanation.winner else {
        return format!("no node can take it  {by}");
    };
    let mut text = match &explanation.runner_up {
        Some(second) => {
            let mut table = Table::new(&[
                "TERM",
                &format!(">{}", winner.node),
                &format!(">{}", second.node),
                "",
            ]);
            for (term, other) in winner.terms.iter().zip(&second.terms) {
                let differs = term.points != other.points;
                let mark = if differs { "←" } else { "" };
                let tone = if differs { Tone::Plain } else { Tone::Dim };
                table.row([
                    Cell::toned(term.scorer.to_string(), tone),
                    Cell::toned(points(term.points), tone),
                    Cell::toned(points(other.points), tone),
                    mark.into(),
                ]);
            }
            table.row([
                "total".into(),
                points(winner.total).into(),
                points(second.total).into(),
                "".into(),
            ]);
            let title = format!("Why {} and not {}", winner.node, second.node);
            format!("{}  {by}\n\n{}", paint(BOLD, &title), table.text())
        }
        None => {
            let mut table = Table::new(&["TERM", ">POINTS"]);
            for term in &winner.terms {
                table.row([term.scorer.to_string().into(), points(term.points).into()]);
            }
            table.row(["total".into(), points(winner.total).into()]);
            let title = format!("Why {}: no other node can take it", winner.node);
            format!("{}  {by}\n\n{}", paint(BOLD, &title), table.text())
        }
    };
    for notice in &explanation.notices {
        let _ = write!(text, "\nNote: {notice}");
    }
    text
}

/// Every node: the best first, then those that were filtered out, and by which rules.
pub(crate) fn table(explanation: &Explanation, wide: bool, limit: usize) -> String {
    let (mut scored, mut removed) = (Vec::new(), Vec::new());
    for verdict in &explanation.table {
        match verdict {
            NodeVerdict::Scored { node, total, terms } => scored.push((node, *total, terms)),
            NodeVerdict::Removed { node, filter, evidence, others } => {
                removed.push((node, filter, evidence, others));
            }
        }
    }
    // The sort is stable and nodes come in order of id, so equal ones stay in order of id.
    scored.sort_by_key(|(_, total, _)| std::cmp::Reverse(*total));
    let mut text = String::new();
    if !scored.is_empty() {
        let title = format!("{} can take it", plural(scored.len(), "node"));
        text.push_str(&paint(BOLD, &title));
        text.push_str(&format!("\n{}", scores(&scored, wide, limit)));
        text.push_str(&more_rows(scored.len(), limit));
    }
    if !removed.is_empty() {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&paint(BOLD, &format!("{} cannot", plural(removed.len(), "node"))));
        let mut table = Table::new(&["NODE", "RULE", "WHY", "ALSO"]);
        for (node, filter, why, others) in removed.iter().take(limit) {
            let others: Vec<String> = if wide {
                others.iter().map(|(name, why)| format!("{name} ({})", evidence(why))).collect()
            } else {
                others.iter().map(|(name, _)| name.to_string()).collect()
            };
            table.row([
                node.as_str().into(),
                filter.as_ref().into(),
                evidence(why).into(),
                Cell::toned(others.join(", "), Tone::Dim),
            ]);
        }
        text.push_str(&format!("\n{}", table.text()));
        text.push_str(&more_rows(removed.len(), limit));
    }
    text
}

type Scored<'a> = (&'a berth_api::engine::NodeId, i64, &'a Vec<berth_api::engine::Term>);

fn scores(scored: &[Scored<'_>], wide: bool, limit: usize) -> String {
    let mut table = Table::new(&["NODE", ">TOTAL"]);
    let Some((_, _, terms)) = scored.first() else { return String::new() };
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
    table.text()
}

/// The note below a table that was cut off.
pub(crate) fn more_rows(count: usize, limit: usize) -> String {
    if count <= limit {
        return String::new();
    }
    format!("\n{}", paint(DIM, &format!("and {} more; show more with --limit", count - limit)))
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
