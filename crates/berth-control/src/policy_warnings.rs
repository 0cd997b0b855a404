//! What an operator should know about the policy in force: it lacks a rule that every policy has by
//! now, or it took the place of one that exceeds a limit. It changes no policy.

use berth_api::limits::{check_size, table};
use berth_engine::Policy;
use berth_ledger::{Ledger, LedgerError, StoredPolicy};

/// Stores a policy as it is, with the rules that were added since.
const STORE_AGAIN: &str =
    "store it again: berth policies show active -o toml | berth policies put - --activate";

/// What is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWarning {
    /// What is wrong.
    pub text: String,
    /// What to do.
    pub remedy: String,
}

/// A policy that was in force until a server found that it exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuarantinedPolicy {
    name: String,
    excess: String,
    /// The hash of the policy that took its place.
    replaced_by: String,
}

impl QuarantinedPolicy {
    /// The policy as quarantined, if it exceeds a limit.
    pub(crate) fn find(stored: &StoredPolicy, replaced_by: &str) -> Option<Self> {
        let checked = check_size(stored.body.len(), table::STORED_POLICY_BYTES);
        let excess = checked.err()?.inside("policy").to_string();
        let (name, replaced_by) = (stored.name.clone(), replaced_by.to_owned());
        Some(Self { name, excess, replaced_by })
    }

    /// The policy that the active one took the place of, if it was quarantined.
    pub(crate) fn before(
        ledger: &Ledger,
        stored: &[StoredPolicy],
        active: &StoredPolicy,
    ) -> Result<Option<Self>, LedgerError> {
        let history = ledger.policy_history(2)?;
        let [_, (_, hash, _)] = history.as_slice() else { return Ok(None) };
        let previous = stored.iter().find(|policy| policy.hash == *hash);
        Ok(previous.and_then(|previous| Self::find(previous, &active.hash)))
    }

    fn warning(&self) -> PolicyWarning {
        let Self { name, excess, .. } = self;
        PolicyWarning {
            text: format!(
                "policy {name} is no longer in force, because it exceeds a limit: {excess}"
            ),
            remedy: "store a shorter one: berth policies put FILE --activate".to_owned(),
        }
    }
}

/// What is wrong with a policy itself.
fn missing_rules(policy: &Policy) -> Option<PolicyWarning> {
    let text = format!(
        "policy {} was stored by an earlier version without the rule cpu-within-host: an instance may \
         get more CPU than its host has",
        policy.name()
    );
    let is_missing = !policy.filters().cpu_within_host;
    is_missing.then(|| PolicyWarning { text, remedy: STORE_AGAIN.to_owned() })
}

/// What is wrong with the policy in force.
pub(crate) fn policy_warnings(
    policy: &Policy,
    quarantined: Option<&QuarantinedPolicy>,
) -> Vec<PolicyWarning> {
    let hash = policy.hash().to_string();
    let quarantined = quarantined.filter(|quarantined| quarantined.replaced_by == hash);
    let quarantined = quarantined.map(QuarantinedPolicy::warning);
    quarantined.into_iter().chain(missing_rules(policy)).collect()
}

/// Logs what is wrong with the policy in force when a server starts.
pub(crate) fn log_at_start(active: &StoredPolicy) {
    let policy = Policy::from_stored(&active.body).ok();
    if let Some(PolicyWarning { text, remedy }) = policy.as_ref().and_then(missing_rules) {
        tracing::warn!(remedy, "{text}");
    }
}
