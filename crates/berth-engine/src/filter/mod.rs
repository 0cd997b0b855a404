//! The rules that remove a node: the feasibility function, and its filters in their fixed order.
//!
//! [`first_failure`] decides whether an instance may be placed on a node. Preview, choice, re-check and
//! explanation all use it: the fast scan folds the same tests into bits and compares the same columns
//! with the same needs, and property tests check that both agree.
//!
//! The order is cheapest and most static first, with capacity last, so that the last rule to
//! remove a node names what the remaining nodes lacked. A filter never scores and never mutates.

mod capacity;
mod equipment;
mod lifecycle;
mod matching;
mod neighbours;
mod requested;

use std::ops::Range;

use crate::example::Example;
use crate::fleet::{NodeIndex, NodePlace, NodeRow};
use crate::model::{Evidence, InstanceRequest, Timestamp};
use crate::policy::{OPTIONAL_FILTERS, Policy};
use crate::prepared_request::PreparedRequest;

pub(crate) use capacity::{Gate, Needs};

pub use crate::policy::FilterId;

/// The verdict of a filter on a node: `Ok`, or the evidence.
pub(crate) type Verdict = Result<(), Evidence>;

/// What a filter depends on, and so when it must be run again.
#[derive(Clone, Copy)]
pub(crate) enum FilterTest {
    /// Only the request: the same answer for every node.
    Request(fn(&PreparedRequest<'_>) -> Verdict),
    /// The node's facts, the policy and the time.
    Node(fn(&NodeRow, &Policy, Timestamp) -> Verdict),
    /// The node's facts and the request's requirements on them.
    Static(fn(&NodePlace<'_>, &InstanceRequest, &Policy) -> Verdict),
    /// Where other instances are.
    Neighbour(fn(&PreparedRequest<'_>, NodeIndex) -> Verdict),
    /// What is used on the node.
    Load(fn(&PreparedRequest<'_>, &NodeRow) -> Verdict),
}

/// One rule that can remove a node.
pub struct Filter {
    /// Its stable name.
    pub name: &'static str,
    /// The stable reason code of a refusal that it caused.
    pub code: &'static str,
    /// What the caller or operator can do about it.
    pub remedy: &'static str,
    /// Whether waiting may help.
    pub transient: bool,
    /// What it lets through: a node passes if this holds.
    pub rule: &'static str,
    /// What a refusal with its code means.
    pub means: &'static str,
    /// Settings of the policy that it reads.
    pub settings: &'static [&'static str],
    /// A fleet in which it removes node `a`, for the reference.
    pub(crate) example: Example,
    pub(crate) test: FilterTest,
}

impl Filter {
    /// Whether a policy may switch it off.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        OPTIONAL_FILTERS.contains(&self.name)
    }

    /// What can be done about it where waiting will not help: then no release of others helps either.
    #[must_use]
    pub fn lasting_remedy(&self) -> String {
        let releases = "release instances, ";
        self.remedy.replace(releases, "")
    }

    /// Whether it looks at the request alone, so that no node is closer to passing than another.
    #[must_use]
    pub const fn is_about_request(&self) -> bool {
        matches!(self.test, FilterTest::Request(_))
    }
}

impl FilterId {
    /// The filter itself.
    #[must_use]
    pub fn filter(self) -> &'static Filter {
        FILTERS[usize::from(self.0)]
    }

    /// All filters in order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..FILTERS.len()).map(|place| Self(u8::try_from(place).unwrap_or(u8::MAX)))
    }

    /// The filter with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|id| id.filter().name == name)
    }
}

/// The filter on the state of a node.
pub(crate) const NODE_ACTIVE: FilterId = FilterId(3);

/// The filter on an instance with more CPU than its host, which a smaller request passes.
pub(crate) const CPU_WITHIN_HOST: FilterId = FilterId(21);

/// The filter on mixing capped and uncapped instances, which the scan reads as bits.
pub(crate) const CPU_CAP_MIXING: FilterId = FilterId(29);

/// Every filter, in the order in which they are run.
pub static FILTERS: [&Filter; 35] = [
    &requested::SECRETS_PRESENT,
    &requested::ADDRESS_AVAILABLE,
    &requested::VOLUME_EXCLUSIVE,
    &lifecycle::NODE_ACTIVE,
    &lifecycle::HEARTBEAT_FRESH,
    &equipment::FACTS_VALID,
    &equipment::CAPACITY_KNOWN,
    &equipment::KVM,
    &equipment::SCRATCH_DISK,
    &equipment::OVERLAY_HEALTHY,
    &equipment::NOT_RESERVED,
    &equipment::NOT_HEADNODE,
    &lifecycle::NOT_SICK,
    &lifecycle::NO_REBOOT_SOON,
    &matching::NOT_VIRTUAL,
    &matching::CAPACITY_TYPE,
    &matching::PLATFORM,
    &matching::TRAITS,
    &matching::NETWORKS,
    &matching::OVERPROVISION_RATIOS,
    &matching::PLACEMENT_CONSTRAINT,
    &matching::CPU_WITHIN_HOST,
    &neighbours::NOT_EXCLUDED,
    &neighbours::VOLUME_HOME,
    &neighbours::GROUPS,
    &neighbours::RESIDENT_RULES,
    &neighbours::AFFINITY,
    &neighbours::STRICT_LOCALITY,
    &capacity::INSTANCE_COUNT,
    &capacity::CPU_CAP_MIXING,
    &capacity::MEMORY,
    &capacity::CPU,
    &capacity::DISK,
    &capacity::BANDWIDTH,
    &capacity::EXTRA_CLASSES,
];

/// Runs one filter on one node.
pub(crate) fn run_filter(
    id: FilterId,
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
) -> Verdict {
    if prepared.policy.is_off(id) {
        return Ok(());
    }
    match id.filter().test {
        FilterTest::Request(test) => test(prepared),
        FilterTest::Node(test) => test(row, prepared.policy, prepared.now),
        FilterTest::Static(test) => {
            let place = NodePlace { fleet: prepared.fleet, row };
            test(&place, prepared.request, prepared.policy)
        }
        FilterTest::Neighbour(test) => test(prepared, index),
        FilterTest::Load(test) => test(prepared, row),
    }
}

/// The first filter that removes the node, if any does.
pub(crate) fn first_failure(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
) -> Option<(FilterId, Evidence)> {
    FilterId::all()
        .find_map(|id| run_filter(id, prepared, index, row).err().map(|evidence| (id, evidence)))
}

/// Every filter that removes the node, in order.
pub(crate) fn all_failures(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
) -> Vec<(FilterId, Evidence)> {
    let failure = |id| run_filter(id, prepared, index, row).err().map(|evidence| (id, evidence));
    FilterId::all().filter_map(failure).collect()
}

/// Positions of the filters that depend only on a node's own facts and the time.
const NODE_TESTS: Range<u8> = 3..14;

/// Positions of the filters that compare a node's facts with the request.
const STATIC_TESTS: Range<u8> = 14..22;

/// Whether the node passes every rule that looks only at its own facts and the time.
pub(crate) fn passes_node_tests(row: &NodeRow, policy: &Policy, now: Timestamp) -> bool {
    NODE_TESTS.map(FilterId).all(|id| match id.filter().test {
        FilterTest::Node(test) => policy.is_off(id) || test(row, policy, now).is_ok(),
        FilterTest::Request(_)
        | FilterTest::Static(_)
        | FilterTest::Neighbour(_)
        | FilterTest::Load(_) => true,
    })
}

/// Whether the node passes every rule that compares its facts with the request's.
pub(crate) fn passes_static_tests(
    place: &NodePlace<'_>,
    request: &InstanceRequest,
    policy: &Policy,
) -> bool {
    STATIC_TESTS.map(FilterId).all(|id| match id.filter().test {
        FilterTest::Static(test) => policy.is_off(id) || test(place, request, policy).is_ok(),
        FilterTest::Request(_)
        | FilterTest::Node(_)
        | FilterTest::Neighbour(_)
        | FilterTest::Load(_) => true,
    })
}

/// Whether the request passes every rule that is the same for all nodes.
pub(crate) fn passes_request_tests(prepared: &PreparedRequest<'_>) -> bool {
    requested::admits(prepared)
}

/// Whether one node passes every rule about where other instances are. No policy may switch these
/// off.
pub(crate) fn passes_neighbour_tests(prepared: &PreparedRequest<'_>, index: NodeIndex) -> bool {
    neighbours::admits(prepared, index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_codes_are_unique_and_well_formed() {
        let names: BTreeSet<_> = FILTERS.iter().map(|filter| filter.name).collect();
        let codes: BTreeSet<_> = FILTERS.iter().map(|filter| filter.code).collect();
        assert_eq!(names.len(), FILTERS.len());
        assert_eq!(codes.len(), FILTERS.len());
        for filter in FILTERS {
            let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            let snake = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(filter.name.chars().all(kebab), "{}", filter.name);
            assert!(filter.code.chars().all(snake), "{}", filter.code);
            assert!(!filter.remedy.is_empty(), "{}", filter.name);
        }
    }

    #[test]
    fn every_optional_filter_exists() {
        let optional: Vec<_> = FILTERS
            .iter()
            .filter(|filter| filter.is_optional())
            .map(|filter| filter.name)
            .collect();
        assert_eq!(optional, OPTIONAL_FILTERS);
    }

    #[test]
    fn the_named_places_are_the_filters_they_name() {
        assert_eq!(NODE_ACTIVE.filter().name, "node-active");
        assert_eq!(CPU_CAP_MIXING.filter().name, "cpu-cap-mixing");
        assert_eq!(CPU_WITHIN_HOST.filter().name, "cpu-within-host");
        let places = |wanted: fn(&FilterTest) -> bool| {
            let found: Vec<u8> =
                FilterId::all().filter(|id| wanted(&id.filter().test)).map(|id| id.0).collect();
            found
        };
        let node = places(|test| matches!(test, FilterTest::Node(_)));
        let fixed = places(|test| matches!(test, FilterTest::Static(_)));
        assert_eq!(node, NODE_TESTS.collect::<Vec<_>>());
        assert_eq!(fixed, STATIC_TESTS.collect::<Vec<_>>());
    }

    #[test]
    fn the_seed_codes_keep_their_names() {
        let codes: BTreeSet<_> = FILTERS.iter().map(|filter| filter.code).collect();
        for code in [
            "no_capacity_memory",
            "volume_locality_no_node",
            "no_nodes_active",
            "ipam_exhausted",
            "volume_in_use",
            "secrets_missing",
        ] {
            assert!(codes.contains(code), "{code}");
        }
    }

    #[test]
    fn facts_come_before_neighbours_and_neighbours_before_load() {
        let stage = |filter: &&Filter| match filter.test {
            FilterTest::Request(_) => 0,
            FilterTest::Node(_) => 1,
            FilterTest::Static(_) => 2,
            FilterTest::Neighbour(_) => 3,
            FilterTest::Load(_) => 4,
        };
        assert!(FILTERS.iter().map(stage).is_sorted());
    }
}
