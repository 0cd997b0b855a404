//! Hard "apart" rules of placed instances: every further request of their tenant is matched with all of
//! them, so how many different ones a tenant may have is limited.
//!
//! Equal rules are kept once, whoever placed them: a regular expression takes far more memory than its
//! text. Nothing here refuses what is placed already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::posting::Posting;
use super::{Fleet, Symbol};
use crate::affinity::{Operator, Rule};
use crate::model::limits::table;
use crate::model::{InstanceRequest, InvalidRequest};

/// The rules of one tenant's instances, with where those instances are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResidentRules {
    nodes: BTreeMap<Arc<Rule>, Posting>,
    regexes: usize,
}

/// How many different rules there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentRuleCounts {
    /// All of them.
    pub rules: usize,
    /// Those with a regular expression.
    pub regexes: usize,
}

impl ResidentRules {
    pub(crate) fn add(&mut self, rule: &Arc<Rule>, index: u32) {
        let is_regex = usize::from(rule.pattern().is_regex());
        let nodes = self.nodes.entry(Arc::clone(rule)).or_insert_with(|| {
            self.regexes += is_regex;
            Posting::default()
        });
        nodes.add(index);
    }

    pub(crate) fn remove(&mut self, rule: &Rule, index: u32) {
        let Some(nodes) = self.nodes.get_mut(rule) else { return };
        nodes.remove(index);
        if nodes.is_empty() {
            self.nodes.remove(rule);
            self.regexes -= usize::from(rule.pattern().is_regex());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<Rule>, &Posting)> {
        self.nodes.iter()
    }

    fn counts(&self) -> ResidentRuleCounts {
        ResidentRuleCounts { rules: self.nodes.len(), regexes: self.regexes }
    }
}

fn hard_apart(request: &InstanceRequest) -> impl Iterator<Item = &Rule> {
    let is_resident = |rule: &&Rule| rule.operator() == Operator::Different && rule.is_hard();
    request.affinity.iter().filter(is_resident)
}

impl Fleet {
    fn resident_rules(&self, tenant: &str) -> Option<&ResidentRules> {
        let tenant: Symbol = self.texts.find(tenant)?;
        self.index.resident_rules(tenant)
    }

    /// How many different hard "apart" rules a tenant's instances have.
    #[must_use]
    pub fn resident_rule_counts(&self, tenant: &str) -> ResidentRuleCounts {
        self.resident_rules(tenant).map(ResidentRules::counts).unwrap_or_default()
    }

    /// The hard "apart" rules of a request, each as it is kept already if an instance has it.
    pub(super) fn resident_rules_of(&self, request: &InstanceRequest) -> Vec<Arc<Rule>> {
        let resident = self.resident_rules(&request.tenant);
        let kept = |rule: &Rule| {
            let kept = resident.and_then(|resident| resident.nodes.get_key_value(rule));
            kept.map_or_else(|| Arc::new(rule.clone()), |(kept, _)| Arc::clone(kept))
        };
        hard_apart(request).map(kept).collect()
    }

    /// Refuses requests of one tenant that would give its instances more different rules than they may
    /// have. Requests that add no rule are never refused, also while there are more.
    ///
    /// # Errors
    /// [`InvalidRequest::TooManyRules`].
    pub fn check_resident_rules<'a>(
        &self,
        tenant: &str,
        requests: impl IntoIterator<Item = &'a InstanceRequest>,
    ) -> Result<(), InvalidRequest> {
        let resident = self.resident_rules(tenant);
        let is_new = |rule: &&Rule| resident.is_none_or(|it| !it.nodes.contains_key(*rule));
        let added: BTreeSet<&Rule> =
            requests.into_iter().flat_map(hard_apart).filter(is_new).collect();
        let before = resident.map(ResidentRules::counts).unwrap_or_default();
        let regexes = added.iter().filter(|rule| rule.pattern().is_regex()).count();
        let check = |kind, before: usize, added: usize, most| match before + added > most {
            true if added > 0 => Err(InvalidRequest::TooManyRules { kind, before, added, most }),
            _ => Ok(()),
        };
        check("regular expressions in ", before.regexes, regexes, table::TENANT_REGEXES)?;
        check("", before.rules, added.len(), table::TENANT_RULES)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use super::*;
    use crate::model::{Amounts, InstanceId, NodeFacts, NodeId};

    fn fleet() -> Fleet {
        let mut fleet = Fleet::new();
        let mut facts = NodeFacts::new("n", Amounts::new(1_000_000, 1_000_000));
        facts.instance_limit = 100_000;
        fleet.add_node(&facts).unwrap();
        fleet
    }

    fn request(id: u128, rules: &[String]) -> InstanceRequest {
        let mut request = InstanceRequest::new(InstanceId::from_u128(id), "t", Amounts::new(1, 1));
        request.affinity = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        request
    }

    fn regexes(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|number| format!("role!=/^x{number}$/")).collect()
    }

    fn claim(fleet: &mut Fleet, request: &InstanceRequest) {
        fleet.claim(request, &NodeId::new("n")).unwrap();
    }

    #[test]
    fn a_request_may_add_rules_up_to_the_limit_and_not_one_more() {
        let mut fleet = fleet();
        claim(&mut fleet, &request(1, &regexes(0..100)));
        let plain: Vec<String> = (0..500).map(|number| format!("role!=y{number}")).collect();
        claim(&mut fleet, &request(2, &plain));
        let counts = ResidentRuleCounts { rules: 600, regexes: 100 };
        assert_eq!(fleet.resident_rule_counts("t"), counts);
        let check = |rules: &[String]| {
            let batch = [request(3, &rules[..1]), request(4, rules)];
            fleet.check_resident_rules("t", &batch)
        };
        let most = table::TENANT_REGEXES;
        assert_eq!(check(&regexes(0..most)), Ok(()), "those that are there count once");
        let refused = check(&regexes(0..most + 1)).unwrap_err();
        let text = "the instances of this tenant have 100 different regular expressions in hard != \
                    rules, and this request adds 29; accepted are 128 in all: select others by a \
                    workload or a tag that they share, or release instances";
        assert_eq!(refused.to_string(), text);
        let more = |count: usize| (0..count).map(|n| format!("role!=z{n}")).collect::<Vec<_>>();
        let left = table::TENANT_RULES - 600;
        assert_eq!(check(&more(left)), Ok(()));
        let refused = check(&more(left + 1));
        assert!(
            matches!(refused, Err(InvalidRequest::TooManyRules { kind: "", .. })),
            "{refused:?}"
        );
        let other = [request(5, &regexes(0..most))];
        assert_eq!(
            fleet.check_resident_rules("another", &other),
            Ok(()),
            "each tenant has its own"
        );
        // Soft rules, and those about company, are not matched with others.
        let free: Vec<String> =
            (0..2000).flat_map(|n| [format!("role!=~q{n}"), format!("role==q{n}")]).collect();
        assert_eq!(check(&free), Ok(()));
    }

    #[test]
    fn what_is_placed_beyond_the_limit_stays_and_only_further_rules_are_refused() {
        let mut fleet = fleet();
        let most = table::TENANT_REGEXES;
        claim(&mut fleet, &request(1, &regexes(0..most + 50)));
        let check =
            |fleet: &Fleet, rules: &[String]| fleet.check_resident_rules("t", [&request(2, rules)]);
        assert_eq!(check(&fleet, &regexes(20..60)), Ok(()), "it adds none");
        assert_eq!(check(&fleet, &["role!=plain".to_owned()]), Ok(()));
        assert!(check(&fleet, &regexes(999..1000)).is_err());
        fleet.release(InstanceId::from_u128(1)).unwrap();
        assert_eq!(fleet.resident_rule_counts("t"), ResidentRuleCounts::default());
        assert_eq!(check(&fleet, &regexes(999..1000)), Ok(()));
    }

    #[test]
    fn equal_rules_of_different_requests_are_kept_once() {
        let mut fleet = fleet();
        for id in 1..=100 {
            // Read again for each request, as a server does.
            claim(&mut fleet, &request(id, &regexes(0..2)));
        }
        let tenant = fleet.texts.find("t").unwrap();
        for (rule, _) in fleet.index.resident_rules(tenant).unwrap().iter() {
            assert_eq!(Arc::strong_count(rule), 101, "one for the index, one for each instance");
        }
    }
}
