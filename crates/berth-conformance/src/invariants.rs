//! The invariants that must hold after every scenario, and the names of their violations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::ledger_state::{Counters, DIMENSIONS, GroupRecord, LedgerState};

/// Which invariant is violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// More is granted than a limit allows.
    Oversold,
    /// A counter is not the sum of its claims.
    Drift,
    /// A group that stays apart is not.
    NotApart,
    /// A group that stays together is not.
    NotTogether,
    /// A row is left that no one holds, or one is missing.
    Leak,
    /// Not exactly one batch won.
    Winners,
    /// Not exactly as much was granted as there was.
    Granted,
    /// An answer that may not be given.
    Answer,
}

/// A violated invariant, with what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub kind: ViolationKind,
    /// What was found.
    pub text: String,
}

impl Violation {
    /// A violated invariant.
    #[must_use]
    pub fn new(kind: ViolationKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

impl LedgerState {
    /// Every violated invariant.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        self.check_nodes(&mut violations);
        self.check_classes(&mut violations);
        self.check_groups(&mut violations);
        self.check_group_counts(&mut violations);
        self.check_holdings(&mut violations);
        self.check_tenants(&mut violations);
        self.check_leases(&mut violations);
        violations
    }

    fn check_nodes(&self, violations: &mut Vec<Violation>) {
        let mut sums: BTreeMap<&str, Counters> = BTreeMap::new();
        for claim in &self.claims {
            let sum = sums.entry(&claim.node).or_default();
            for (total, part) in sum.iter_mut().zip(claim.charged) {
                *total += part;
            }
            if !self.nodes.contains_key(&claim.node) {
                let text = format!("{} is on {}, which is not there", claim.instance, claim.node);
                violations.push(Violation::new(ViolationKind::Leak, text));
            }
        }
        for (name, node) in &self.nodes {
            let sum = sums.get(name.as_str()).copied().unwrap_or_default();
            if let Some(used) = node.used.filter(|used| *used != sum) {
                let text = format!("{name}: {DIMENSIONS:?} are {used:?}, the claims' sum {sum:?}");
                violations.push(Violation::new(ViolationKind::Drift, text));
            }
            let mut charged = sum;
            charged[1] += sum[4] * node.overhead;
            for (place, dimension) in DIMENSIONS.iter().enumerate() {
                let (promised, limit) = (charged[place], node.limits[place]);
                if promised > limit {
                    let text = format!("{name}: {promised} of {limit} {dimension}");
                    violations.push(Violation::new(ViolationKind::Oversold, text));
                }
            }
            if !node.known && sum[4] > 0 {
                let text = format!("{name} has instances and no known capacity");
                violations.push(Violation::new(ViolationKind::Oversold, text));
            }
        }
    }

    fn check_classes(&self, violations: &mut Vec<Violation>) {
        let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
        for claim in &self.claims {
            for (class, amount) in &claim.holdings.classes {
                *sums.entry((claim.node.clone(), class.clone())).or_default() += i64::from(*amount);
            }
        }
        let keys: BTreeSet<_> = sums.keys().chain(self.classes.keys()).collect();
        for key in keys {
            let (limit, used) = self.classes.get(key).copied().unwrap_or((0, 0));
            let sum = sums.get(key).copied().unwrap_or(0);
            if used != sum {
                violations.push(Violation::new(
                    ViolationKind::Drift,
                    format!("{key:?}: {used}, claims {sum}"),
                ));
            }
            if sum > limit {
                violations.push(Violation::new(
                    ViolationKind::Oversold,
                    format!("{key:?}: {sum} of {limit}"),
                ));
            }
        }
    }

    /// Members per group and domain, from where the claims' nodes really are.
    fn members_by_domain(&self, id: &str, group: &GroupRecord) -> BTreeMap<Option<String>, i64> {
        let mut found: BTreeMap<Option<String>, i64> = BTreeMap::new();
        for claim in &self.claims {
            if claim.holdings.groups.iter().any(|place| *place.group == *id) {
                *found.entry(self.domain(&claim.node, &group.topology)).or_default() += 1;
            }
        }
        found
    }

    fn check_groups(&self, violations: &mut Vec<Violation>) {
        for (id, group) in self.groups.iter().filter(|(_, group)| group.hard) {
            let found = self.members_by_domain(id, group);
            let apart = group.kind == "apart";
            let most = group.most.unwrap_or(if apart { 1 } else { i64::MAX });
            for (domain, members) in &found {
                if domain.is_some() && *members > most {
                    let text = format!("{id}: {members} in {domain:?}, at most {most} may be");
                    let kind =
                        if apart { ViolationKind::NotApart } else { ViolationKind::NotTogether };
                    violations.push(Violation::new(kind, text));
                }
            }
            if !apart && found.len() > 1 {
                violations.push(Violation::new(
                    ViolationKind::NotTogether,
                    format!("{id} is split: {found:?}"),
                ));
            }
        }
    }

    /// What the ledger counts of groups; the naive tables count nothing.
    fn check_group_counts(&self, violations: &mut Vec<Violation>) {
        if self.nodes.values().any(|node| node.used.is_none()) {
            return;
        }
        let mut members = BTreeSet::new();
        for claim in &self.claims {
            for place in &claim.holdings.groups {
                members.insert((place.group.to_string(), claim.instance.clone(), claim.role));
            }
        }
        let stored: BTreeSet<_> = self.members.iter().cloned().collect();
        if members != stored {
            let off: Vec<_> = members.symmetric_difference(&stored).collect();
            violations.push(Violation::new(
                ViolationKind::Leak,
                format!("members without claim or row: {off:?}"),
            ));
        }
        for (id, group) in &self.groups {
            let found = self.members_by_domain(id, group);
            let counted: BTreeMap<Option<String>, i64> = self
                .domains
                .iter()
                .filter(|((group, _), _)| group == id)
                .map(|((_, domain), count)| (Some(domain.clone()), *count))
                .collect();
            let found_in_domains: BTreeMap<_, _> =
                found.into_iter().filter(|(domain, _)| domain.is_some()).collect();
            if counted != found_in_domains {
                let text = format!("{id}: counted {counted:?}, found {found_in_domains:?}");
                violations.push(Violation::new(ViolationKind::Drift, text));
            }
            let home_is_right = match (group.kind.as_str(), &group.home) {
                ("together", Some(home)) => found_in_domains.contains_key(&Some(home.clone())),
                ("together", None) => found_in_domains.is_empty(),
                _ => group.home.is_none(),
            };
            if !home_is_right {
                let text = format!("{id}: home {:?}, members {found_in_domains:?}", group.home);
                violations.push(Violation::new(ViolationKind::Leak, text));
            }
        }
        for (group, domain) in self.domains.keys() {
            if !self.groups.contains_key(group) {
                let text = format!("{group} in {domain} is counted and not defined");
                violations.push(Violation::new(ViolationKind::Leak, text));
            }
        }
    }

    /// Slots, values and volumes against the claims that hold them, both ways.
    fn check_holdings(&self, violations: &mut Vec<Violation>) {
        let mut held = BTreeSet::new();
        for claim in &self.claims {
            let who = format!("{}/{}", claim.instance, claim.role);
            if let Some(slot) = &claim.holdings.slot {
                let slot =
                    format!("{}/{}/{}/{}", slot.tenant, slot.workload, slot.revision, slot.slot);
                held.insert(format!("slot {slot} by {who}"));
            }
            for volume in &claim.holdings.volumes {
                held.insert(format!("volume {volume} by {}", claim.instance));
            }
            for value in &claim.holdings.values {
                held.insert(format!("value of {} by {who}", value.pool));
            }
        }
        let mut stored = BTreeSet::new();
        for (slot, instance, role) in &self.slots {
            stored.insert(format!("slot {} by {instance}/{role}", slot.join("/")));
        }
        for (volume, instance) in &self.volumes {
            stored.insert(format!("volume {volume} by {instance}"));
        }
        for (pool, instance, role) in &self.values {
            stored.insert(format!("value of {pool} by {instance}/{role}"));
        }
        for leak in stored.difference(&held) {
            violations.push(Violation::new(
                ViolationKind::Leak,
                format!("{leak}, whose claim has no such thing"),
            ));
        }
        for loss in held.difference(&stored) {
            violations.push(Violation::new(ViolationKind::Leak, format!("{loss} has no row")));
        }
    }

    fn check_tenants(&self, violations: &mut Vec<Violation>) {
        for (tenant, used) in &self.tenants {
            let mut sum = [0; 4];
            // An instance counts once, by its primary claim.
            let counted = |claim: &&crate::ClaimRecord| claim.tenant == *tenant && claim.role == 0;
            for claim in self.claims.iter().filter(counted) {
                let [cpu, memory, disk, _, instances, _] = claim.charged;
                for (total, part) in sum.iter_mut().zip([cpu, memory, disk, instances]) {
                    *total += part;
                }
            }
            if *used != sum {
                let text = format!("tenant {tenant}: {used:?}, the claims' sum {sum:?}");
                violations.push(Violation::new(ViolationKind::Drift, text));
            }
        }
    }

    /// Only what is held has a lease, and it always has one. The naive tables know no leases.
    fn check_leases(&self, violations: &mut Vec<Violation>) {
        if self.nodes.values().any(|node| node.used.is_none()) {
            return;
        }
        for claim in &self.claims {
            if (claim.state == 0) != claim.lease_until.is_some() {
                let (state, lease) = (claim.state, claim.lease_until);
                let text = format!("{}: state {state}, lease {lease:?}", claim.instance);
                violations.push(Violation::new(ViolationKind::Leak, text));
            }
        }
        let keys: BTreeSet<_> = self.claims.iter().map(|c| (&c.instance, c.role)).collect();
        if keys.len() != self.claims.len() {
            violations.push(Violation::new(
                ViolationKind::Leak,
                "an instance has two claims of one role",
            ));
        }
    }
}
