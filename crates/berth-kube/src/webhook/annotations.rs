//! Labels and annotations: the settings of workloads, and what the webhook writes to pods.
//!
//! Only reads. An annotation wins over a label, and the first prefix over the others. An invalid value is
//! reported with what would be accepted, never guessed.

use std::collections::BTreeMap;

use berth_engine::workload::{CapacityRule, OnChange, on_demand_slots};

/// The cost of deleting a pod, as ReplicaSets understand it.
pub(super) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Marks a deletion cost that the webhook manages.
pub(super) const COST_IS_MANAGED: &str = "berth.dev/deletion-cost";
/// Identifies the reservation of a pod's admission.
pub(super) const TOKEN: &str = "berth.dev/slot-token";
/// The pod's slot.
pub(super) const SLOT: &str = "berth.dev/slot";
/// The pod's workload and revision.
pub(super) const WORKLOAD: &str = "berth.dev/workload";
/// Marks pods whose own template chose the capacity type.
pub(super) const PINNED: &str = "berth.dev/pinned";
/// The pod's capacity type; a label, so that it can be displayed and selected.
pub(super) const CAPACITY: &str = "berth.dev/capacity";

/// The switch, under one of the prefixes.
pub(super) const SWITCH: &str = "webhook-scheduler";
const COUNT: &str = "webhook-scheduler-max-on-demand-count";
const ONE_OF_EACH: &str = "webhook-scheduler-at-least-one-of-each";
const ON_CHANGE: &str = "webhook-scheduler-on-change";

/// Labels and annotations of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectTags<'a> {
    pub(super) labels: Option<&'a BTreeMap<String, String>>,
    pub(super) annotations: Option<&'a BTreeMap<String, String>>,
}

impl<'a> ObjectTags<'a> {
    /// Those of an object.
    pub(super) fn of(metadata: &'a kube::api::ObjectMeta) -> Self {
        Self { labels: metadata.labels.as_ref(), annotations: metadata.annotations.as_ref() }
    }
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidSetting {
    /// The key of the label or annotation.
    pub(super) key: String,
    /// Its value.
    pub(super) value: String,
    /// What would be accepted.
    pub(super) accepted: &'static str,
}

impl InvalidSetting {
    fn new(key: String, value: &str, accepted: &'static str) -> Self {
        Self { key, value: value.to_owned(), accepted }
    }
}

impl std::fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {:?}; accepted is {}", self.key, self.value, self.accepted)
    }
}

/// The settings of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkloadSettings {
    /// Not enabled.
    Off,
    /// The switch is neither true nor false: not enabled, and reported.
    UnclearSwitch(InvalidSetting),
    /// Enabled, with an invalid count.
    InvalidCount(InvalidSetting),
    /// Enabled: split its pods between on-demand and spot by this rule.
    On {
        /// The rule.
        rule: CapacityRule,
        /// An invalid value of another setting, whose default is used.
        problem: Option<InvalidSetting>,
    },
}

impl WorkloadSettings {
    /// The settings for this number of pods, of all revisions together. "At least one of each" becomes a
    /// count that has it, because slots are assigned without knowing how many there will be.
    pub(super) fn for_replicas(self, replicas: Option<i64>) -> Self {
        match self {
            Self::On { rule, problem } if rule.at_least_one_of_each => {
                let replicas = replicas.map(|it| u32::try_from(it).unwrap_or(0));
                let max_on_demand = match on_demand_slots(&rule, replicas) {
                    u32::MAX => None,
                    limit => Some(limit),
                };
                let rule = CapacityRule { max_on_demand, at_least_one_of_each: false, ..rule };
                Self::On { rule, problem }
            }
            other => other,
        }
    }
}

/// Reads settings under the configured prefixes.
#[derive(Clone, Debug)]
pub(super) struct SettingsReader {
    prefixes: Vec<String>,
    on_change: OnChange,
}

impl SettingsReader {
    pub(super) fn new(prefixes: &[String], on_change: OnChange) -> Self {
        Self { prefixes: prefixes.to_vec(), on_change }
    }

    /// The first value under a name: annotations before labels, prefixes in order.
    fn find<'a>(&self, tags: ObjectTags<'a>, name: &str) -> Option<(String, &'a str)> {
        [tags.annotations, tags.labels].into_iter().flatten().find_map(|map| {
            self.prefixes.iter().find_map(|prefix| {
                let key = format!("{prefix}/{name}");
                let value = map.get(&key)?;
                Some((key, value.trim()))
            })
        })
    }

    /// The settings of a workload.
    pub(super) fn read(&self, tags: ObjectTags<'_>) -> WorkloadSettings {
        match self.find(tags, SWITCH) {
            None => return WorkloadSettings::Off,
            Some((_, "false")) => return WorkloadSettings::Off,
            Some((_, "true")) => {}
            Some((key, value)) => {
                let invalid = InvalidSetting::new(key, value, "true or false");
                return WorkloadSettings::UnclearSwitch(invalid);
            }
        }
        let max_on_demand = match self.find(tags, COUNT) {
            None => None,
            Some((key, value)) => match parse_count(value) {
                Some(count) => Some(count),
                None => {
                    let invalid = InvalidSetting::new(key, value, "a whole number from 0");
                    return WorkloadSettings::InvalidCount(invalid);
                }
            },
        };
        let (on_change, problem) = self.on_change(tags);
        let (at_least_one_of_each, other_problem) = self.one_of_each(tags);
        let rule = CapacityRule {
            max_on_demand,
            on_change,
            at_least_one_of_each,
            ..CapacityRule::default()
        };
        WorkloadSettings::On { rule, problem: problem.or(other_problem) }
    }

    fn one_of_each(&self, tags: ObjectTags<'_>) -> (bool, Option<InvalidSetting>) {
        match self.find(tags, ONE_OF_EACH) {
            None | Some((_, "false")) => (false, None),
            Some((_, "true")) => (true, None),
            Some((key, value)) => (false, Some(InvalidSetting::new(key, value, "true or false"))),
        }
    }

    fn on_change(&self, tags: ObjectTags<'_>) -> (OnChange, Option<InvalidSetting>) {
        match self.find(tags, ON_CHANGE) {
            None => (self.on_change, None),
            Some((_, "rebuild")) => (OnChange::Rebuild, None),
            Some((_, "lazy")) => (OnChange::Lazy, None),
            Some((key, value)) => {
                (self.on_change, Some(InvalidSetting::new(key, value, "rebuild or lazy")))
            }
        }
    }

    /// Whether a pod itself disables the webhook.
    pub(super) fn opts_out(&self, tags: ObjectTags<'_>) -> bool {
        self.find(tags, SWITCH).is_some_and(|(_, value)| value == "false")
    }
}

/// A count: digits only; values out of range mean all.
fn parse_count(text: &str) -> Option<u32> {
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

    fn read_settings(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> WorkloadSettings {
        let prefixes = ["cloudpilot.ai".to_owned(), "berth.dev".to_owned()];
        let (annotations, labels) = (map(annotations), map(labels));
        let tags = ObjectTags { labels: Some(&labels), annotations: Some(&annotations) };
        SettingsReader::new(&prefixes, OnChange::Rebuild).read(tags)
    }

    fn on(max_on_demand: Option<u32>) -> WorkloadSettings {
        let rule = CapacityRule { max_on_demand, ..CapacityRule::default() };
        WorkloadSettings::On { rule, problem: None }
    }

    const ON: (&str, &str) = ("cloudpilot.ai/webhook-scheduler", "true");
    const N: &str = "cloudpilot.ai/webhook-scheduler-max-on-demand-count";

    #[test]
    fn the_switch_is_read_from_labels_and_annotations_of_any_prefix() {
        assert_eq!(read_settings(&[], &[]), WorkloadSettings::Off);
        assert_eq!(read_settings(&[ON], &[]), on(None));
        assert_eq!(read_settings(&[], &[ON]), on(None));
        assert_eq!(read_settings(&[], &[("berth.dev/webhook-scheduler", "true")]), on(None));
        assert_eq!(
            read_settings(&[("example.com/webhook-scheduler", "true")], &[]),
            WorkloadSettings::Off
        );
        assert_eq!(
            read_settings(&[("cloudpilot.ai/webhook-scheduler", "false")], &[]),
            WorkloadSettings::Off
        );
    }

    #[test]
    fn an_annotation_wins_over_a_label_and_the_first_prefix_over_the_second() {
        let off = ("cloudpilot.ai/webhook-scheduler", "false");
        assert_eq!(read_settings(&[off], &[ON]), WorkloadSettings::Off);
        assert_eq!(read_settings(&[ON], &[off]), on(None));
        let other = ("berth.dev/webhook-scheduler", "false");
        assert_eq!(read_settings(&[ON, other], &[]), on(None));
        assert_eq!(read_settings(&[ON, (N, "1")], &[(N, "2")]), on(Some(1)));
    }

    #[test]
    fn the_count_is_digits_and_nothing_else() {
        for (text, expected) in
            [("0", 0), ("3", 3), (" 3 ", 3), ("007", 7), ("99999999999", u32::MAX)]
        {
            assert_eq!(read_settings(&[ON, (N, text)], &[]), on(Some(expected)), "{text:?}");
        }
        for text in ["", "-1", "three", "3.0", "+3", "1e3", "0x3", "3 3", "∞"] {
            let WorkloadSettings::InvalidCount(problem) = read_settings(&[ON, (N, text)], &[])
            else {
                panic!("{text:?} was accepted");
            };
            assert_eq!((problem.key.as_str(), problem.value.as_str()), (N, text));
        }
    }

    #[test]
    fn a_count_without_the_switch_means_nothing() {
        assert_eq!(read_settings(&[(N, "three")], &[]), WorkloadSettings::Off);
    }

    #[test]
    fn an_invalid_switch_is_reported_with_the_accepted_values() {
        for text in ["yes", "True", "1", ""] {
            let found = read_settings(&[("berth.dev/webhook-scheduler", text)], &[]);
            let WorkloadSettings::UnclearSwitch(problem) = found else {
                panic!("{text:?}: {found:?}")
            };
            let published = problem.to_string();
            let expected =
                format!("berth.dev/webhook-scheduler is {text:?}; accepted is true or false");
            assert_eq!(published, expected);
        }
    }

    #[test]
    fn at_least_one_of_each_becomes_a_count_for_the_number_of_pods() {
        let key = "berth.dev/webhook-scheduler-at-least-one-of-each";
        let count = |count: Option<&str>, replicas: Option<i64>| {
            let mut tags = vec![ON, (key, "true")];
            tags.extend(count.map(|count| (N, count)));
            match read_settings(&tags, &[]).for_replicas(replicas) {
                WorkloadSettings::On { rule, problem: None } => {
                    assert!(!rule.at_least_one_of_each);
                    rule.max_on_demand
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(count(None, Some(5)), Some(4), "all but one are on-demand");
        assert_eq!(count(Some("9"), Some(5)), Some(4));
        assert_eq!(count(Some("0"), Some(5)), Some(1));
        assert_eq!(count(Some("3"), Some(5)), Some(3));
        assert_eq!(count(Some("0"), Some(1)), Some(1), "one pod is on-demand");
        assert_eq!(count(None, Some(1)), None);
        assert_eq!(count(Some("0"), None), Some(0), "without a number of pods the count stands");
        let found = read_settings(&[ON, (key, "yes")], &[]);
        let WorkloadSettings::On { rule, problem: Some(problem) } = found else {
            panic!("not reported: {found:?}");
        };
        assert!(!rule.at_least_one_of_each);
        assert_eq!(problem.to_string(), format!("{key} is \"yes\"; accepted is true or false"));
    }

    #[test]
    fn a_workload_sets_how_misplaced_pods_are_treated() {
        let key = "berth.dev/webhook-scheduler-on-change";
        let rule = CapacityRule { on_change: OnChange::Lazy, ..CapacityRule::default() };
        assert_eq!(
            read_settings(&[ON, (key, "lazy")], &[]),
            WorkloadSettings::On { rule, problem: None }
        );
        let WorkloadSettings::On { rule, problem: Some(problem) } =
            read_settings(&[ON, (key, "later")], &[])
        else {
            panic!("not published");
        };
        assert_eq!((rule.on_change, problem.value.as_str()), (OnChange::Rebuild, "later"));
    }
}
