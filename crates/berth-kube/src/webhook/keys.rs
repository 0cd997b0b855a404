//! Labels and annotations: what a workload asks for, and what we write on its pods.
//!
//! Only reads. An annotation wins over a label, and of several prefixes the first. A value that
//! means nothing is a [`Problem`] with what would be accepted, never a guess.

use std::collections::BTreeMap;

use berth_engine::workload::{CapacityRule, OnChange};

/// The cost of deleting a pod, as ReplicaSets understand it.
pub(super) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Says that the deletion cost is ours, and so may be changed by us.
pub(super) const COST_IS_OURS: &str = "berth.dev/deletion-cost";
/// Names the reservation that a pod was admitted with.
pub(super) const TOKEN: &str = "berth.dev/slot-token";
/// The pod's slot.
pub(super) const SLOT: &str = "berth.dev/slot";
/// The pod's workload and revision.
pub(super) const WORKLOAD: &str = "berth.dev/workload";
/// Says that the pod's own template chose the kind of capacity.
pub(super) const PINNED: &str = "berth.dev/pinned";
/// The pod's kind of capacity; a label, so that it can be shown and selected by.
pub(super) const CAPACITY: &str = "berth.dev/capacity";

const SWITCH: &str = "webhook-scheduler";
const COUNT: &str = "webhook-scheduler-max-on-demand-count";
const ON_CHANGE: &str = "webhook-scheduler-on-change";

/// Labels and annotations of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks<'a> {
    pub(super) labels: Option<&'a BTreeMap<String, String>>,
    pub(super) annotations: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Marks<'a> {
    /// Those of an object's metadata.
    pub(super) fn of(metadata: &'a kube::api::ObjectMeta) -> Self {
        Self { labels: metadata.labels.as_ref(), annotations: metadata.annotations.as_ref() }
    }
}

/// A value that means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// The label's or annotation's key.
    pub(super) key: String,
    /// What is there.
    pub(super) value: String,
    /// What would be accepted.
    pub(super) accepted: &'static str,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {:?}; accepted is {}", self.key, self.value, self.accepted)
    }
}

/// What a workload asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nothing, or to be left alone.
    Off,
    /// The switch is neither on nor off: left alone, and said.
    UnclearSwitch(Problem),
    /// It is on, and the count means nothing.
    InvalidCount(Problem),
    /// To be shared between on-demand and spot by this rule.
    On {
        /// The rule.
        rule: CapacityRule,
        /// Something beside it that means nothing, for which the default is used.
        problem: Option<Problem>,
    },
}

/// Reads by prefixes.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefixes: Vec<String>,
    on_change: OnChange,
}

impl Keys {
    pub(super) fn new(prefixes: &[String], on_change: OnChange) -> Self {
        Self { prefixes: prefixes.to_vec(), on_change }
    }

    /// The first value under a name: annotations before labels, prefixes in their order.
    fn find<'a>(&self, marks: Marks<'a>, name: &str) -> Option<(String, &'a str)> {
        [marks.annotations, marks.labels].into_iter().flatten().find_map(|map| {
            self.prefixes.iter().find_map(|prefix| {
                let key = format!("{prefix}/{name}");
                let value = map.get(&key)?;
                Some((key, value.trim()))
            })
        })
    }

    /// What a workload asks for.
    pub(super) fn asked(&self, marks: Marks<'_>) -> Asked {
        match self.find(marks, SWITCH) {
            None => return Asked::Off,
            Some((_, "false")) => return Asked::Off,
            Some((_, "true")) => {}
            Some((key, value)) => {
                let accepted = "true or false";
                return Asked::UnclearSwitch(Problem { key, value: value.to_owned(), accepted });
            }
        }
        let max_on_demand = match self.find(marks, COUNT) {
            None => None,
            Some((key, value)) => match count(value) {
                Some(count) => Some(count),
                None => {
                    let accepted = "a whole number from 0";
                    return Asked::InvalidCount(Problem { key, value: value.to_owned(), accepted });
                }
            },
        };
        let (on_change, problem) = self.on_change(marks);
        let rule = CapacityRule { max_on_demand, on_change, ..CapacityRule::default() };
        Asked::On { rule, problem }
    }

    fn on_change(&self, marks: Marks<'_>) -> (OnChange, Option<Problem>) {
        match self.find(marks, ON_CHANGE) {
            None => (self.on_change, None),
            Some((_, "rebuild")) => (OnChange::Rebuild, None),
            Some((_, "lazy")) => (OnChange::Lazy, None),
            Some((key, value)) => {
                let accepted = "rebuild or lazy";
                (self.on_change, Some(Problem { key, value: value.to_owned(), accepted }))
            }
        }
    }

    /// Whether a pod says itself that it is to be left alone.
    pub(super) fn opts_out(&self, marks: Marks<'_>) -> bool {
        self.find(marks, SWITCH).is_some_and(|(_, value)| value == "false")
    }
}

/// Digits only. What is more than can be counted is as good as all.
fn count(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Map = BTreeMap<String, String>;

    fn map(entries: &[(&str, &str)]) -> Map {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn asked(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> Asked {
        let prefixes = ["cloudpilot.ai".to_owned(), "berth.dev".to_owned()];
        let (annotations, labels) = (map(annotations), map(labels));
        let marks = Marks { labels: Some(&labels), annotations: Some(&annotations) };
        Keys::new(&prefixes, OnChange::Rebuild).asked(marks)
    }

    fn on(max_on_demand: Option<u32>) -> Asked {
        let rule = CapacityRule { max_on_demand, ..CapacityRule::default() };
        Asked::On { rule, problem: None }
    }

    const ON: (&str, &str) = ("cloudpilot.ai/webhook-scheduler", "true");
    const N: &str = "cloudpilot.ai/webhook-scheduler-max-on-demand-count";

    #[test]
    fn the_switch_is_read_from_labels_and_annotations_of_any_prefix() {
        assert_eq!(asked(&[], &[]), Asked::Off);
        assert_eq!(asked(&[ON], &[]), on(None));
        assert_eq!(asked(&[], &[ON]), on(None));
        assert_eq!(asked(&[], &[("berth.dev/webhook-scheduler", "true")]), on(None));
        assert_eq!(asked(&[("example.com/webhook-scheduler", "true")], &[]), Asked::Off);
        assert_eq!(asked(&[("cloudpilot.ai/webhook-scheduler", "false")], &[]), Asked::Off);
    }

    #[test]
    fn an_annotation_wins_over_a_label_and_the_first_prefix_over_the_second() {
        let off = ("cloudpilot.ai/webhook-scheduler", "false");
        assert_eq!(asked(&[off], &[ON]), Asked::Off);
        assert_eq!(asked(&[ON], &[off]), on(None));
        let other = ("berth.dev/webhook-scheduler", "false");
        assert_eq!(asked(&[ON, other], &[]), on(None));
        assert_eq!(asked(&[ON, (N, "1")], &[(N, "2")]), on(Some(1)));
    }

    #[test]
    fn the_count_is_digits_and_nothing_else() {
        for (text, expected) in
            [("0", 0), ("3", 3), (" 3 ", 3), ("007", 7), ("99999999999", u32::MAX)]
        {
            assert_eq!(asked(&[ON, (N, text)], &[]), on(Some(expected)), "{text:?}");
        }
        for text in ["", "-1", "three", "3.0", "+3", "1e3", "0x3", "3 3", "∞"] {
            let Asked::InvalidCount(problem) = asked(&[ON, (N, text)], &[]) else {
                panic!("{text:?} was accepted");
            };
            assert_eq!((problem.key.as_str(), problem.value.as_str()), (N, text));
        }
    }

    #[test]
    fn a_count_without_the_switch_means_nothing() {
        assert_eq!(asked(&[(N, "three")], &[]), Asked::Off);
    }

    #[test]
    fn a_switch_that_is_neither_is_named_with_what_it_may_be() {
        for text in ["yes", "True", "1", ""] {
            let found = asked(&[("berth.dev/webhook-scheduler", text)], &[]);
            let Asked::UnclearSwitch(problem) = found else { panic!("{text:?}: {found:?}") };
            let said = problem.to_string();
            let expected =
                format!("berth.dev/webhook-scheduler is {text:?}; accepted is true or false");
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn a_workload_says_what_becomes_of_misplaced_pods() {
        let key = "berth.dev/webhook-scheduler-on-change";
        let rule = CapacityRule { on_change: OnChange::Lazy, ..CapacityRule::default() };
        assert_eq!(asked(&[ON, (key, "lazy")], &[]), Asked::On { rule, problem: None });
        let Asked::On { rule, problem: Some(problem) } = asked(&[ON, (key, "later")], &[]) else {
            panic!("not said");
        };
        assert_eq!((rule.on_change, problem.value.as_str()), (OnChange::Rebuild, "later"));
    }
}
