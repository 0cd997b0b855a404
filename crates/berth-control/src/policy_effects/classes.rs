//! Classes of elastic instances: which would vanish, and which would be charged otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{LiveClass, LiveTerms};
use berth_engine::Policy;
use berth_ledger::Role;

use crate::catalog::ClaimEntry;
use crate::moves::sandbox::FleetSnapshot;

/// Instances that are named for each class.
const EXAMPLES: usize = 5;

/// Classes with instances whose terms would change, in order of name.
pub(super) fn changed(snapshot: &FleetSnapshot, from: &Policy, to: &Policy) -> Vec<LiveClass> {
    let mut by_class: BTreeMap<&str, Vec<&Arc<ClaimEntry>>> = BTreeMap::new();
    for claim in snapshot.claims().iter().filter(|claim| claim.key.role == Role::Primary) {
        let class = claim.request.elastic.as_ref().and_then(|elastic| elastic.class.as_deref());
        if let Some(class) = class {
            by_class.entry(class).or_default().push(claim);
        }
    }
    let changed = by_class.into_iter().filter_map(|(class, claims)| {
        let (from, to) = (terms(from, class, &claims), terms(to, class, &claims));
        (from != to).then(|| LiveClass {
            class: class.to_owned(),
            instances: claims.len(),
            examples: claims.iter().take(EXAMPLES).map(|claim| claim.key.instance).collect(),
            from,
            to,
        })
    });
    changed.collect()
}

fn terms(policy: &Policy, class: &str, claims: &[&Arc<ClaimEntry>]) -> Option<LiveTerms> {
    let known = policy.elastic().classes.get(class)?;
    let mut terms = LiveTerms {
        overcommit_permille: known.overcommit_permille.permille(),
        compute_unit: known.compute_unit,
        charged_cpu_milli: 0,
        charged_memory_mib: 0,
    };
    for permit in claims.iter().filter_map(|claim| claim.permit.as_ref()) {
        let charge = known.overcommit_permille.charge(permit.reserved());
        terms.charged_cpu_milli =
            terms.charged_cpu_milli.saturating_add(i64::from(charge.cpu_milli));
        terms.charged_memory_mib =
            terms.charged_memory_mib.saturating_add(i64::from(charge.memory_mib));
    }
    Some(terms)
}
