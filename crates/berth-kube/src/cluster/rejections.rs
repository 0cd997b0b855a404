//! Puts the rejections of all nodes into words: one line first, then what would help.
//!
//! Nodes that the same rules reject are one group, and every node counts once. The line names every rule, and
//! every short resource, with the nearest miss of the largest groups. What helps against one rule is advised
//! only if it is enough on some node. Decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::filters::{FilterFailure, enumerate};
use super::outcome::{Refusal, RuleCount};
use super::pod_store::PodEntry;
use super::resources::format_amount;

/// Groups that the line describes; of the others it names the rules.
const GROUPS_DESCRIBED: usize = 4;

/// Suggestions that are given.
const SUGGESTIONS: usize = 3;

/// The nodes that were rejected, by the rules that rejected them.
#[derive(Default)]
pub(super) struct Rejections {
    nodes: usize,
    groups: BTreeMap<Vec<Arc<str>>, Group>,
}

/// The nodes that the same rules reject.
struct Group {
    nodes: usize,
    rules: Vec<Rule>,
    /// The position of the first rule among the filters: those that come last were nearest to fitting.
    stage: usize,
    code: &'static str,
    nearest: NearestNode,
    /// The nearest node that would be large enough if it were empty.
    large_enough: Option<(i64, Arc<str>)>,
}

/// A rule, with what is said of it.
struct Rule {
    name: Arc<str>,
    code: &'static str,
    /// The topology label that nodes lack, and how many do.
    missing_label: Option<(Box<str>, usize)>,
}

/// The node that misses by the least: by how much, its name, and why.
struct NearestNode {
    short: Option<i64>,
    name: Arc<str>,
    text: String,
    too_small: Option<Box<str>>,
    help: Option<&'static str>,
}

impl NearestNode {
    fn new(name: &Arc<str>, failures: &[FilterFailure]) -> Self {
        // A cordon has nothing to add.
        let said = failures.iter().filter(|it| it.code != "node_cordoned");
        let text = |it: &FilterFailure| match it.short {
            // Among other reasons, an amount needs the name of its resource.
            Some(_) if failures.len() > 1 && !it.text.contains(": ") => {
                format!("{}: {}", it.rule, it.text)
            }
            Some(_) | None => it.text.clone(),
        };
        let texts: Vec<String> = said.map(text).collect();
        Self {
            short: miss(failures),
            name: Arc::clone(name),
            text: texts.join(", "),
            too_small: failures.iter().find_map(|it| it.too_small().map(Box::from)),
            help: failures.iter().find_map(FilterFailure::help),
        }
    }
}

/// By how much a node misses, if that is a number.
fn miss(failures: &[FilterFailure]) -> Option<i64> {
    failures.iter().filter_map(|it| it.short).max()
}

impl Group {
    fn new(name: &Arc<str>, failures: &[FilterFailure]) -> Self {
        let rule = |it: &FilterFailure| Rule {
            name: Arc::clone(&it.rule),
            code: it.code,
            missing_label: None,
        };
        Self {
            nodes: 0,
            rules: failures.iter().map(rule).collect(),
            stage: 0,
            code: "no_place",
            nearest: NearestNode::new(name, failures),
            large_enough: None,
        }
    }

    fn add_node(&mut self, name: &Arc<str>, failures: &[FilterFailure]) {
        self.nodes += 1;
        if let Some(first) = failures.first()
            && (self.nodes == 1 || filter_stage(first) > self.stage)
        {
            (self.stage, self.code) = (filter_stage(first), first.code);
        }
        let distance = |short: Option<i64>| short.unwrap_or(i64::MAX);
        let (short, nearest) = (miss(failures), &self.nearest);
        if (distance(short), name) < (distance(nearest.short), &nearest.name) {
            self.nearest = NearestNode::new(name, failures);
        }
        if failures.iter().all(|it| it.too_small().is_none()) {
            let found = (distance(short), Arc::clone(name));
            let best = self.large_enough.take();
            self.large_enough = Some(best.map_or(found.clone(), |best| best.min(found)));
        }
        for (rule, failure) in self.rules.iter_mut().zip(failures) {
            let Some(key) = &failure.missing_label else { continue };
            let (least, count) = rule.missing_label.get_or_insert_with(|| (key.clone(), 0));
            if key < least {
                least.clone_from(key);
            }
            *count += 1;
        }
    }

    /// The only rule, if there is one.
    fn only_rule(&self) -> Option<&Rule> {
        match self.rules.as_slice() {
            [rule] => Some(rule),
            _ => None,
        }
    }

    fn names(&self) -> String {
        enumerate(&self.rules.iter().map(|it| &*it.name).collect::<Vec<_>>())
    }

    fn describe(&self) -> String {
        let phrases: Vec<String> = self.rules.iter().map(|it| it.phrase(self.nodes)).collect();
        let phrases: Vec<&str> = phrases.iter().map(String::as_str).collect();
        let what = format!("{} {}", self.nodes, enumerate(&phrases));
        match &self.nearest {
            NearestNode { text, .. } if text.is_empty() => what,
            NearestNode { short: Some(_), name, text, .. } => {
                format!("{what} (nearest {name}: {text})")
            }
            NearestNode { name, text, .. } => format!("{what} ({name}: {text})"),
        }
    }

    /// What would help, if one change is enough.
    fn suggest_fix(&self) -> Option<String> {
        let (rule, near) = (self.only_rule()?, &self.nearest.name);
        if let Some((key, _)) = &rule.missing_label {
            return Some(format!("Label all nodes with {key}, or use another topology key."));
        }
        let name = &rule.name;
        Some(match rule.code {
            "node_cordoned" => format!("Uncordon a node, such as `kubectl uncordon {near}`."),
            "taint_not_tolerated" => "Add a toleration to the pod, or remove the taint.".to_owned(),
            "node_selector_no_match" | "node_affinity_no_match" => {
                format!("Label a node to match, or relax the pod's {name}.")
            }
            "node_feature_missing" => {
                "Upgrade a node or enable its feature gate, or remove the field that needs it."
                    .to_owned()
            }
            "no_capacity_pods" => {
                "Add a node, delete other pods, or raise maxPods of the kubelet.".to_owned()
            }
            code if code.starts_with("no_capacity") => match (&self.large_enough, &self.nearest) {
                (Some((_, near)), _) => {
                    format!("Request less {name}, add a node, or delete other pods (nearest: {near}).")
                }
                (None, NearestNode { too_small: Some(amounts), .. }) => {
                    format!("Request less {name}, or add a larger node: {near} has {amounts}.")
                }
                (None, _) => format!("Request less {name}, or add a larger node."),
            },
            "host_port_in_use" => "Use a Service instead of a host port, or add a node.".to_owned(),
            "pod_affinity" => {
                "Start a pod that its affinity matches, or make the rule preferred instead of required."
                    .to_owned()
            }
            "pod_anti_affinity" | "anti_affinity_of_others" => {
                "Add a node in another domain, or make the rule preferred instead of required."
                    .to_owned()
            }
            "topology_spread" => {
                "Add a node in the least loaded domain, raise maxSkew, or use ScheduleAnyway."
                    .to_owned()
            }
            "devices_unavailable" => {
                "Free a device, add a node that has one, or relax the selectors of the claim."
                    .to_owned()
            }
            "devices_elsewhere" => {
                "Make room on the nodes that can reach the devices of the claim, or use another claim."
                    .to_owned()
            }
            "device_selector_failed" => {
                "Test in the selector whether a device has the attribute, with has() or `in`."
                    .to_owned()
            }
            _ => sentence(self.nearest.help?),
        })
    }

    /// Whether a node like those that are there would take the pod if it were new and empty.
    fn needs_a_node(&self) -> bool {
        const HELPED: [&str; 7] = [
            "node_cordoned",
            "taint_not_tolerated",
            "node_selector_no_match",
            "node_affinity_no_match",
            "host_port_in_use",
            "pod_anti_affinity",
            "anti_affinity_of_others",
        ];
        let is_helped =
            |code: &'static str| HELPED.contains(&code) || code.starts_with("no_capacity_");
        self.rules.iter().all(|it| is_helped(it.code))
    }
}

impl Rule {
    /// What is said of nodes that it rejects.
    fn phrase(&self, nodes: usize) -> String {
        let name = &self.name;
        match self.code {
            "node_cordoned" => "cordoned".to_owned(),
            "taint_not_tolerated" => "with an untolerated taint".to_owned(),
            "node_selector_no_match" | "node_affinity_no_match" => {
                format!("not matching its {name}")
            }
            "node_feature_missing" => "without a feature that it needs".to_owned(),
            "pod_anti_affinity" => "violating its pod anti-affinity".to_owned(),
            "anti_affinity_of_others" => "violating the anti-affinity of other pods".to_owned(),
            "pod_affinity" => format!("not matching its pod affinity{}", self.unlabelled()),
            "topology_spread" => {
                format!("violating its topology spread constraints{}", self.unlabelled())
            }
            "no_capacity_pods" => "with too many pods".to_owned(),
            "host_port_in_use" => "with its host port in use".to_owned(),
            code if code.starts_with("no_capacity") => format!("short of {name}"),
            "device_feature_unsupported" if **name != *"devices" => {
                format!(
                    "where {name} would have to be claimed (extendedResourceName is not supported)"
                )
            }
            "devices_elsewhere" => "that cannot reach the devices of its claim".to_owned(),
            "device_selector_failed" => "where a device selector fails".to_owned(),
            _ if **name == *"devices" => "without the devices that it claims".to_owned(),
            _ if **name == *"volumes" => "where its volumes cannot be used".to_owned(),
            _ => format!("node{} by {name}", if nodes == 1 { "" } else { "s" }),
        }
    }

    /// How many of the nodes lack the topology label.
    fn unlabelled(&self) -> String {
        self.missing_label.as_ref().map_or_else(String::new, |(key, count)| {
            format!(", {count} of them without label {key}")
        })
    }
}

impl Rejections {
    /// Counts a node that these rules reject.
    pub(super) fn add_node(&mut self, name: &Arc<str>, failures: Vec<FilterFailure>) {
        self.nodes += 1;
        if failures.is_empty() {
            return;
        }
        let rules: Vec<Arc<str>> = failures.iter().map(|it| Arc::clone(&it.rule)).collect();
        let group = self.groups.entry(rules).or_insert_with(|| Group::new(name, &failures));
        group.add_node(name, &failures);
    }

    /// The refusal of a pod that all these nodes reject.
    pub(super) fn summarize(self, entry: &PodEntry) -> Refusal {
        let (pod, nodes) = (entry.pod.key.clone(), self.nodes);
        if nodes == 0 {
            let line = "the cluster has no nodes".to_owned();
            let mut help = vec!["Add a node; the pod is retried when it joins.".to_owned()];
            let shape = NodeShape::of(entry);
            help.push(shape.describe());
            let (code, shape) = ("no_nodes".to_owned(), Some(shape.as_json()));
            return Refusal { pod, code, nodes, counts: Vec::new(), line, help, shape };
        }
        let mut groups: Vec<Group> = self.groups.into_values().collect();
        groups.sort_by_cached_key(|it| (std::cmp::Reverse(it.nodes), it.names()));
        let code = groups.iter().max_by_key(|it| it.stage).map_or("no_place", |it| it.code);
        let mut parts: Vec<String> =
            groups.iter().take(GROUPS_DESCRIBED).map(Group::describe).collect();
        parts.extend(describe_others(groups.get(GROUPS_DESCRIBED..).unwrap_or_default()));
        let line = format!("0/{nodes} nodes are available: {}", parts.join("; "));
        let mut help: Vec<String> = Vec::new();
        for line in groups.iter().filter_map(Group::suggest_fix) {
            if help.len() < SUGGESTIONS && !help.contains(&line) {
                help.push(line);
            }
        }
        if help.is_empty() {
            help.extend(no_single_fix(&groups));
        }
        let shape = groups.iter().any(Group::needs_a_node).then(|| NodeShape::of(entry));
        help.extend(shape.as_ref().map(NodeShape::describe));
        let counts = groups.into_iter().map(|it| RuleCount {
            rule: it.names(),
            nodes: it.nodes,
            nearest: Some((it.nearest.name, it.nearest.text)),
        });
        let (code, counts) = (code.to_owned(), counts.collect());
        let shape = shape.map(|it| it.as_json());
        Refusal { pod, code, nodes, counts, line, help, shape }
    }
}

/// The rules of groups that are not described.
fn describe_others(groups: &[Group]) -> Option<String> {
    let nodes: usize = groups.iter().map(|it| it.nodes).sum();
    let mut rules: Vec<&str> = groups.iter().flat_map(|it| &it.rules).map(|it| &*it.name).collect();
    rules.sort_unstable();
    rules.dedup();
    (nodes > 0).then(|| format!("{nodes} more by {}", enumerate(&rules)))
}

/// That several rules reject every node, by the example of one that few reject.
fn no_single_fix(groups: &[Group]) -> Option<String> {
    let several = groups.iter().filter(|it| it.rules.len() > 1);
    let example = several.min_by_key(|it| (it.rules.len(), Arc::clone(&it.nearest.name)))?;
    let (node, rules) = (&example.nearest.name, example.names());
    Some(format!("No single change is enough: {node} is rejected by {rules}."))
}

/// The node that an autoscaler, or a person, could add for a pod.
struct NodeShape<'a> {
    /// What has to be free on it: amounts by resource.
    amounts: Vec<(&'a str, String)>,
    /// Its labels.
    labels: &'a [(String, String)],
    /// Whether it has to match required node affinity.
    has_affinity: bool,
}

impl<'a> NodeShape<'a> {
    fn of(entry: &'a PodEntry) -> Self {
        let requested = &entry.requested;
        let named = [
            ("cpu", requested.cpu_milli),
            ("memory", requested.memory),
            ("ephemeral-storage", requested.storage),
        ];
        let others = requested.others.iter().map(|(name, amount)| (&**name, *amount));
        let amounts = named.into_iter().chain(others).filter(|(_, amount)| *amount > 0);
        let requirements = &entry.pod.node_requirements;
        Self {
            amounts: amounts.map(|(name, amount)| (name, format_amount(name, amount))).collect(),
            labels: &requirements.labels,
            has_affinity: requirements.has_affinity(),
        }
    }

    fn describe(&self) -> String {
        let amounts: Vec<String> =
            self.amounts.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
        let amounts: Vec<&str> = amounts.iter().map(String::as_str).collect();
        let mut line = match amounts.as_slice() {
            [] => "A new node would help with room for one pod".to_owned(),
            amounts => format!("A new node would help with {} free", enumerate(amounts)),
        };
        let labels: Vec<String> =
            self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if !labels.is_empty() {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            line.push_str(&format!(", and label {}", enumerate(&labels)));
        }
        if self.has_affinity {
            line.push_str(", matching its required node affinity");
        }
        line.push('.');
        line
    }

    /// The same for programs.
    fn as_json(&self) -> Arc<str> {
        let amounts: BTreeMap<&str, &str> =
            self.amounts.iter().map(|(name, amount)| (*name, amount.as_str())).collect();
        let labels: BTreeMap<&str, &str> =
            self.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let shape = serde_json::json!({
            "free": amounts, "labels": labels, "requiredNodeAffinity": self.has_affinity,
        });
        shape.to_string().into()
    }
}

/// A remedy as a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|it| it.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// The position of a failure among the filters.
fn filter_stage(failure: &FilterFailure) -> usize {
    const ORDER: [&str; 13] = [
        "node_cordoned",
        "taint_not_tolerated",
        "node_selector_no_match",
        "node_affinity_no_match",
        "node_feature_missing",
        "pod_anti_affinity",
        "anti_affinity_of_others",
        "pod_affinity",
        "topology_spread",
        "host_port_in_use",
        "no_capacity_pods",
        "no_capacity_cpu",
        "no_capacity_memory",
    ];
    ORDER.iter().position(|code| *code == failure.code).unwrap_or(ORDER.len())
}
