//! The page of one decision.

use askama::Template;
use berth_api::{Decision, DecisionExplanation, DecisionOutcome};
use berth_engine::{NodeId, Refusal, SearchEnd};
use jiff::Timestamp;

use super::choice::ChoicePanel;
use super::frame::Frame;
use super::recent_decisions::headline;
use super::request_panel::RequestPanel;
use super::{ago, count, percent, plural};
use berth_control::caller::Caller;

/// One filter's part in a refusal.
#[derive(Debug)]
struct FilterCount {
    filter: String,
    removed: String,
    width: i64,
    /// The node that came closest, and what it lacked.
    nearest: Option<(String, String)>,
}

/// Why an instance has no place.
#[derive(Debug, Template)]
#[template(path = "parts/refusal.html")]
struct RefusalPanel {
    instance: String,
    code: String,
    nodes: String,
    removed: Vec<FilterCount>,
    relaxation: Option<String>,
    search: Option<&'static str>,
    fixes: Vec<String>,
    notices: Vec<String>,
    waiting_may_help: bool,
    remedy: String,
}

fn name(node: Option<&NodeId>) -> String {
    node.map_or_else(|| "a node".to_owned(), ToString::to_string)
}

impl RefusalPanel {
    fn of(refusal: &Refusal) -> Self {
        let nodes = i64::try_from(refusal.nodes).unwrap_or(i64::MAX);
        let removed = refusal.counts.iter().map(|counted| {
            let number = i64::try_from(counted.removed).unwrap_or(i64::MAX);
            let nearest = refusal.nearest.iter().find(|miss| miss.filter == counted.filter);
            FilterCount {
                filter: counted.filter.to_string(),
                removed: count(number),
                width: percent(number, nodes).max(1),
                nearest: nearest.map(|miss| {
                    let node = if miss.is_about_request() {
                        "every node".to_owned()
                    } else {
                        name(miss.node.as_ref())
                    };
                    (node, miss.evidence.to_string())
                }),
            }
        });
        let relaxation = refusal.best_relaxation.as_ref().map(|(filter, admits)| {
            let admits = i64::try_from(*admits).unwrap_or(i64::MAX);
            let word = plural(admits, "node", "nodes");
            format!("Without the {filter} rule, {} {word} could take it.", count(admits))
        });
        Self {
            instance: match &refusal.name {
                Some(name) => format!("{name} ({})", refusal.instance),
                None => refusal.instance.to_string(),
            },
            code: refusal.code.to_string(),
            nodes: count(nodes),
            removed: removed.collect(),
            relaxation,
            search: match refusal.search {
                Some(SearchEnd::DoesNotFit) => {
                    Some("Every way to place the batch was ruled out: it does not fit.")
                }
                Some(SearchEnd::NotFoundWithinBudget) => {
                    Some("No way was found within the search budget; it may still fit.")
                }
                Some(SearchEnd::Greedy | SearchEnd::LargestFirst | SearchEnd::Search) | None => {
                    None
                }
            },
            fixes: refusal.fixes.iter().map(ToString::to_string).collect(),
            notices: refusal.notices.iter().map(ToString::to_string).collect(),
            waiting_may_help: refusal.waiting_may_help,
            remedy: refusal.remedy.to_string(),
        }
    }
}

/// Where an instance went.
#[derive(Debug)]
struct Placement {
    instance: String,
    name: String,
    node: String,
    score: String,
}

/// The page of one decision.
#[derive(Template)]
#[template(path = "decision.html")]
pub(crate) struct DecisionPage {
    frame: Frame,
    id: String,
    granted: bool,
    code: String,
    headline: String,
    at: String,
    ago: String,
    tenant: String,
    request_id: String,
    policy: String,
    fleet_version: String,
    may_replay: bool,
    request: RequestPanel,
    placements: Vec<Placement>,
    refusals: Vec<RefusalPanel>,
    choice: Option<ChoicePanel>,
    /// Whether the choice is explained only when it is asked for.
    may_explain: bool,
}

/// A score in points, of millionths.
pub(super) fn points(score: i64) -> String {
    let (whole, rest) = (score / 1_000_000, (score % 1_000_000).abs() / 1000);
    let sign = if score < 0 && whole == 0 { "-" } else { "" };
    format!("{sign}{whole}.{rest:03}")
}

impl DecisionPage {
    /// The page of a decision, as a caller may see it.
    pub(crate) fn of(
        decision: &Decision,
        explained: Option<&DecisionExplanation>,
        caller: &Caller,
        now: Timestamp,
    ) -> Self {
        let granted = decision.outcome == DecisionOutcome::Granted;
        let title = if granted { "Granted" } else { "Refused" };
        let placements = decision.placed.iter().map(|placed| Placement {
            instance: placed.instance.to_string(),
            name: placed.name.clone().unwrap_or_default(),
            node: name(placed.node.as_ref()),
            score: points(placed.score),
        });
        Self {
            frame: Frame::new(&format!("{title}: {}", decision.id), Some(caller)),
            id: decision.id.clone(),
            granted,
            code: decision.code.clone().unwrap_or_default(),
            headline: headline(decision),
            at: decision.at.to_string(),
            ago: ago(decision.at, now),
            tenant: decision.tenant.clone(),
            request_id: decision.request_id.clone(),
            policy: decision.policy.clone(),
            fleet_version: count(decision.fleet_version),
            may_replay: !caller.is_tenant(),
            request: RequestPanel::of(decision),
            placements: placements.collect(),
            refusals: decision.refusals.iter().map(RefusalPanel::of).collect(),
            choice: explained.map(ChoicePanel::of),
            may_explain: granted && explained.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::points;

    #[test]
    fn scores_are_shown_in_points() {
        assert_eq!(points(12_345_678), "12.345");
        assert_eq!(points(-500_000), "-0.500");
        assert_eq!(points(0), "0.000");
    }
}
