//! Finds a policy by what a caller named.

use berth_api::StoredPolicy;
use berth_engine::BUILTIN_POLICIES;
use berth_engine::Policy;
use berth_ledger::{LedgerError, Micros};

use crate::http::instrument::items_with_age;
use crate::problem::{ApiError, ApiResult};
use berth_control::{ControlPlane, clock::moment};

/// The least that is taken for the beginning of a hash.
const SHORTEST: usize = 6;

/// A policy, and whether it is stored: those that come with Berth need not be.
pub(super) struct FoundPolicy {
    pub(super) policy: berth_ledger::StoredPolicy,
    pub(super) is_stored: bool,
}

impl FoundPolicy {
    /// A policy that is not stored.
    pub(super) fn not_stored(policy: &Policy) -> Self {
        let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
        let (body, at) = (policy.to_json(), Micros(0));
        let policy = berth_ledger::StoredPolicy { name, hash, body, at, active: false };
        Self { policy, is_stored: false }
    }

    /// The order in which policies are listed.
    pub(super) fn key(&self) -> (&str, &str) {
        (&self.policy.name, &self.policy.hash)
    }

    /// The same as callers see it.
    pub(super) fn view(self) -> ApiResult<StoredPolicy> {
        let policy = self.policy;
        let body = serde_json::from_str(&policy.body).map_err(|error| {
            LedgerError::Corrupt(format!("policy {} cannot be read: {error}", policy.hash))
        })?;
        Ok(StoredPolicy {
            name: policy.name,
            hash: policy.hash,
            active: policy.active,
            stored_at: self.is_stored.then(|| moment(policy.at)),
            body,
        })
    }
}

/// All that are stored, in order of name and hash.
pub(super) async fn all(control: &ControlPlane) -> ApiResult<Vec<berth_ledger::StoredPolicy>> {
    Ok(items_with_age(control.list_policies().await?).to_vec())
}

/// All that are stored, and those that come with Berth, in order of name and hash.
pub(super) async fn all_with_builtins(control: &ControlPlane) -> ApiResult<Vec<FoundPolicy>> {
    let stored = all(control).await?;
    let builtins = BUILTIN_POLICIES.iter().filter_map(|name| Policy::builtin(name).ok());
    let builtins = builtins.map(|policy| FoundPolicy::not_stored(&policy));
    let is_new = |found: &FoundPolicy| stored.iter().all(|it| it.hash != found.policy.hash);
    let mut found: Vec<FoundPolicy> = builtins.filter(is_new).collect();
    found.extend(stored.into_iter().map(|policy| FoundPolicy { policy, is_stored: true }));
    found.sort_by(|a, b| a.key().cmp(&b.key()));
    Ok(found)
}

/// The one in force.
pub(super) async fn active_policy(
    control: &ControlPlane,
) -> ApiResult<Option<berth_ledger::StoredPolicy>> {
    Ok(all(control).await?.into_iter().find(|policy| policy.active))
}

/// The policy that a caller named: `active`, a hash, a name, the beginning of a hash, or one that comes
/// with Berth.
pub(super) async fn find(control: &ControlPlane, which: &str) -> ApiResult<FoundPolicy> {
    let stored = all(control).await?;
    let is_hash = |policy: &&berth_ledger::StoredPolicy| match which {
        "active" => policy.active,
        hash => policy.hash == hash,
    };
    let exact = stored.iter().find(is_hash);
    let newest = || stored.iter().filter(|policy| policy.name == which).max_by_key(|it| it.at.0);
    if let Some(policy) = exact.or_else(newest) {
        return Ok(FoundPolicy { policy: policy.clone(), is_stored: true });
    }
    if which.len() >= SHORTEST {
        let alike: Vec<_> = stored.iter().filter(|it| it.hash.starts_with(which)).collect();
        match alike[..] {
            [] => {}
            [policy] => return Ok(FoundPolicy { policy: policy.clone(), is_stored: true }),
            [one, other, ..] => {
                let detail = format!(
                    "{which:?} begins the hashes of several policies, {} and {} among them",
                    one.hash, other.hash
                );
                return Err(
                    ApiError::conflict("ambiguous_policy", detail).remedy("give more of the hash")
                );
            }
        }
    }
    if BUILTIN_POLICIES.contains(&which)
        && let Ok(policy) = Policy::builtin(which)
    {
        return Ok(FoundPolicy::not_stored(&policy));
    }
    Err(ApiError::not_found("policy", which).remedy(format!(
        "GET /v1/policies lists those that are stored; {} come with Berth",
        BUILTIN_POLICIES.join(", ")
    )))
}
