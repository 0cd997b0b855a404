//! Recent decisions: grants, and refusals with their reasons.

use askama::Template;
use berth_api::{Decision, DecisionOutcome};
use jiff::Timestamp;

use super::ago;

/// Grants shown.
const GRANTS: usize = 12;

/// Refusals shown.
const REFUSALS: usize = 8;

/// One grant.
#[derive(Debug)]
struct GrantRow {
    id: String,
    at: String,
    ago: String,
    tenant: String,
    /// The first instance and its node.
    instance: String,
    node: String,
    /// How many more there are in the same decision.
    more: usize,
}

/// Decisions that placed something.
#[derive(Debug, Template)]
#[template(path = "parts/grants.html")]
pub(super) struct Grants {
    grants: Vec<GrantRow>,
}

/// One refusal.
#[derive(Debug)]
struct RefusalRow {
    id: String,
    at: String,
    ago: String,
    tenant: String,
    code: String,
    headline: String,
    remedy: String,
}

/// Decisions that placed nothing.
#[derive(Debug, Template)]
#[template(path = "parts/refusals.html")]
pub(super) struct Refusals {
    refusals: Vec<RefusalRow>,
}

impl Grants {
    /// The newest grants.
    pub(super) fn of(decisions: &[Decision], now: Timestamp) -> Self {
        let granted = decisions.iter().filter(|one| one.outcome == DecisionOutcome::Granted);
        let grants = granted.filter_map(|decision| {
            let first = decision.placed.first()?;
            Some(GrantRow {
                id: decision.id.clone(),
                at: decision.at.to_string(),
                ago: ago(decision.at, now),
                tenant: decision.tenant.clone(),
                instance: first.instance.to_string(),
                node: first.node.as_ref().map(ToString::to_string).unwrap_or_default(),
                more: decision.placed.len() - 1,
            })
        });
        Self { grants: grants.take(GRANTS).collect() }
    }
}

/// A refusal's headline without the code, which is shown next to it.
pub(super) fn headline(decision: &Decision) -> String {
    let Some(first) = decision.refusals.first() else {
        return decision.reason.clone().unwrap_or_default();
    };
    let line = first.headline();
    let rest = line.strip_prefix(&*first.code).and_then(|rest| rest.strip_prefix(": "));
    rest.unwrap_or(&line).to_owned()
}

impl Refusals {
    /// The newest refusals.
    pub(super) fn of(decisions: &[Decision], now: Timestamp) -> Self {
        let refused = decisions.iter().filter(|one| one.outcome == DecisionOutcome::Refused);
        let refusals = refused.map(|decision| RefusalRow {
            id: decision.id.clone(),
            at: decision.at.to_string(),
            ago: ago(decision.at, now),
            tenant: decision.tenant.clone(),
            code: decision.code.clone().unwrap_or_default(),
            headline: headline(decision),
            remedy: decision
                .refusals
                .first()
                .map(|first| first.remedy.to_string())
                .unwrap_or_default(),
        });
        Self { refusals: refusals.take(REFUSALS).collect() }
    }
}
