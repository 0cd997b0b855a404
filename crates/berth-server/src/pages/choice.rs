//! Why a decision chose its node: the winner's terms next to the runner-up's.

use askama::Template;
use berth_api::{DecisionExplanation, ReplayOutcome};
use berth_engine::Decision;

use super::decision::points;
use super::{count, plural};

/// One scorer's part in both totals.
#[derive(Debug)]
struct TermRow {
    scorer: String,
    winner: String,
    runner_up: Option<String>,
}

/// Why an instance went to its node.
#[derive(Debug, Template)]
#[template(path = "parts/choice.html")]
pub(super) struct ChoicePanel {
    node: String,
    instance: String,
    summary: String,
    runner_up: Option<String>,
    terms: Vec<TermRow>,
    /// Filters, and how many nodes each removed.
    removed: Vec<(String, String)>,
    filters: String,
    notices: Vec<String>,
    note: String,
}

fn number(amount: usize) -> String {
    count(i64::try_from(amount).unwrap_or(i64::MAX))
}

impl ChoicePanel {
    pub(super) fn of(explained: &DecisionExplanation) -> Self {
        let note = match explained.outcome {
            ReplayOutcome::Identical => format!("Derived again from the log: {}.", explained.note),
            ReplayOutcome::Different => {
                format!("It cannot be explained: derived again from the log, {}.", explained.note)
            }
            ReplayOutcome::OutOfReach => {
                format!("It cannot be derived again: {}.", explained.note)
            }
        };
        let mut panel = Self {
            node: "this node".to_owned(),
            instance: String::new(),
            summary: String::new(),
            runner_up: None,
            terms: Vec::new(),
            removed: Vec::new(),
            filters: String::new(),
            notices: Vec::new(),
            note,
        };
        let Some(explanation) = &explained.explanation else { return panel };
        let (page, instance) = (&explanation.page, explanation.instance);
        panel.instance = match &explanation.name {
            Some(name) => format!("{name} ({instance})"),
            None => instance.to_string(),
        };
        let word = plural(i64::try_from(page.nodes).unwrap_or(i64::MAX), "node", "nodes");
        panel.summary = format!(
            "{} of {} {word} could take it, under policy {} ({}).",
            number(page.eligible),
            number(page.nodes),
            page.policy,
            page.policy_hash
        );
        if let Some(winner) = &page.winner {
            panel.node = winner.node.to_string();
            panel.runner_up = page.runner_up.as_ref().map(|second| second.node.to_string());
            panel.terms = terms(winner, page.runner_up.as_ref());
        }
        let removed = page.counts.iter().map(|c| (c.filter.to_string(), number(c.removed)));
        panel.removed = removed.collect();
        panel.filters = page.filters.join(", ");
        panel.notices = page.notices.iter().map(ToString::to_string).collect();
        panel
    }
}

fn terms(winner: &Decision, runner_up: Option<&Decision>) -> Vec<TermRow> {
    let other = |place: usize| Some(points(runner_up?.terms.get(place)?.points));
    let each = winner.terms.iter().enumerate().map(|(place, term)| TermRow {
        scorer: term.scorer.to_string(),
        winner: points(term.points),
        runner_up: other(place),
    });
    let total = TermRow {
        scorer: "total".to_owned(),
        winner: points(winner.total),
        runner_up: runner_up.map(|second| points(second.total)),
    };
    each.chain(std::iter::once(total)).collect()
}
