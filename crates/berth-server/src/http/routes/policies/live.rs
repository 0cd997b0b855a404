//! Two policies side by side: key by key, and on the fleet as it is now.

use berth_api::{PolicyDiff, PolicyDiffQuery, PolicyRef};
use berth_engine::Policy;
use berth_ledger::LedgerError;

use super::body;
use super::diff::changes;
use super::find::{FoundPolicy, find};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::policy_effects::{self, ComparisonRange};

/// How many of each kind are listed by default, and at most.
const LISTED: usize = 100;
const LISTED_MOST: usize = 1000;

pub(super) async fn compare(
    control: &ControlPlane,
    request: PolicyDiffQuery,
) -> ApiResult<PolicyDiff> {
    let PolicyDiffQuery { from, to, live, limit, after } = request;
    let listed = limit.unwrap_or(LISTED);
    if !(1..=LISTED_MOST).contains(&listed) {
        let accepted = format!("1 to {LISTED_MOST}");
        return Err(ApiError::field("limit", Some(listed.to_string()), &accepted));
    }
    let (from, to) = (resolve_policy(control, from).await?, resolve_policy(control, to).await?);
    let live = if live {
        let (from, to) = (policy(&from)?, policy(&to)?);
        Some(policy_effects::compare(control, from, to, ComparisonRange { listed, after }).await?)
    } else {
        None
    };
    let (from, to) = (from.view()?, to.view()?);
    let changes = changes(&from.body, &to.body);
    Ok(PolicyDiff { from: from.hash, to: to.hash, changes, live })
}

async fn resolve_policy(control: &ControlPlane, which: PolicyRef) -> ApiResult<FoundPolicy> {
    match which {
        PolicyRef::Named(name) => find(control, &name).await,
        PolicyRef::Text(text) => Ok(FoundPolicy::not_stored(&body::read(&text.toml)?)),
    }
}

fn policy(found: &FoundPolicy) -> ApiResult<Policy> {
    let stored = &found.policy;
    let policy = Policy::from_stored(&stored.body);
    Ok(policy.map_err(|error| {
        LedgerError::Corrupt(format!("policy {} cannot be read: {error}", stored.hash))
    })?)
}
