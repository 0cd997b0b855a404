//! Every key of a policy: its default as the code has it, what is accepted, what it does.

use serde_json::Value;

use super::{MAX_SHAPES, ranged};
use crate::elastic::ElasticSettings;
use crate::policy::{Defaults, FilterSettings, Policy, ScoreOptions};
use crate::units;

/// One key of a policy, for the reference.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    /// As written in TOML.
    pub(crate) default: String,
    pub(crate) accepted: String,
    pub(crate) about: &'static str,
}

/// Key, what is accepted where it is not a range, and what it does.
const KEYS: [(&str, &str, &str); 48] = [
    ("name", "at least one character", "the policy's name"),
    ("combine", "`\"sum\"`, `\"product\"`", "how terms become one number"),
    ("filters.cpu", "`\"soft\"`, `\"hard\"`", "whether a lack of CPU removes a node"),
    (
        "filters.cpu_ceiling_permille",
        "",
        "with soft CPU, the most that may be promised on a node, in thousandths of what its ratio \
         allows",
    ),
    (
        "filters.cpu_within_host",
        "`true`",
        "no instance has more CPU than its host; off only in policies that earlier versions stored",
    ),
    ("filters.admit_degraded", "`true`, `false`", "whether degraded nodes take instances"),
    ("filters.heartbeat_grace_s", "", "how old a heartbeat may be"),
    ("filters.min_scratch_mib", "", "scratch disk a node must have free"),
    ("filters.max_overlay_loss_ppm", "", "overlay packet loss that is still healthy"),
    ("filters.disk_headroom_mib", "", "disk to leave free in addition to the requested amount"),
    ("filters.sick_window_s", "", "how long failed boots in a row keep a node out"),
    ("filters.no_reboot_within_days", "", "keep off nodes that reboot within so many days"),
    ("filters.traits", "`\"exact\"`, `\"subset\"`", "how traits must agree"),
    ("filters.off", "names of filters that may be off", "filters that are switched off"),
    ("scores", "", "the weight of each scorer, by its name"),
    (
        "options.prefer_capacity",
        "`\"on-demand\"`, `\"spot\"`",
        "what `capacity-preference` favours",
    ),
    (
        "options.missed_reboot",
        "`\"ignore\"`, `\"soonest\"`",
        "what `next-reboot` makes of a missed date",
    ),
    (
        "options.owner_spread",
        "`true`, `false`",
        "without hints, `locality` keeps a tenant's instances apart",
    ),
    ("options.failure_half_life_s", "", "how fast `recent-failures` fades"),
    (
        "options.load_max_age_s",
        "",
        "age of a node's last heartbeat above which `measured-load` ignores its load",
    ),
    ("options.tent.idle_ppm", "", "height of `tent` on an idle node"),
    ("options.tent.full_ppm", "", "height of `tent` on a full node"),
    ("options.tent.peak_ppm", "", "use at which `tent` is highest"),
    ("options.shapes", "", "shapes that recur, for `fragmentation`"),
    ("explain.tenants_see_nodes", "`true`, `false`", "whether tenants may see node names"),
    (
        "elastic.grants",
        "`\"joint\"`, `\"per-resource\"`",
        "whether growth is granted in whole units of CPU and memory together",
    ),
    ("elastic.compute_unit.cpu_milli", "", "CPU of a compute unit"),
    ("elastic.compute_unit.memory_mib", "", "memory of a compute unit"),
    ("elastic.watermark.cpu_permille", "", "share of CPU above which instances should leave"),
    ("elastic.watermark.memory_permille", "", "share of memory above which instances should leave"),
    ("elastic.pressure_half_life_s", "", "how fast denied growth is forgotten"),
    (
        "elastic.nodes",
        "at most 64 rules, each with `labels` and any of `watermark`, `system`, `compute_unit`",
        "what holds for nodes with such labels; the first rule that fits counts",
    ),
    (
        "elastic.classes",
        "names, each with `overcommit_permille` (1 to 1000000) and `compute_unit`",
        "classes that elastic instances may name",
    ),
    (
        "elastic.migration.enabled",
        "`true`, `false`",
        "whether nodes under pressure are relieved by moving instances",
    ),
    ("elastic.migration.per_node", "", "most migrations at once from or to one node"),
    ("elastic.migration.fleet", "", "most migrations at once in the fleet"),
    ("elastic.migration.cooldown_s", "", "how long an instance rests after a migration"),
    (
        "elastic.migration.backoff_s",
        "",
        "how long an instance rests after a failed migration; twice as long each time",
    ),
    ("elastic.migration.timeout_s", "", "how long agents have for a migration"),
    (
        "elastic.migration.evict",
        "`true`, `false`",
        "Kubernetes: whether pods that are resized in place are evicted from nodes under pressure",
    ),
    ("defaults.cpu_ratio_permille", "", "how often the CPU of nodes may be promised"),
    ("defaults.vmm_overhead_mib", "", "memory that hypervisors take for each instance"),
    ("defaults.reserved_memory_mib", "", "memory that hosts keep for themselves"),
    ("defaults.disk_mib", "", "disk of instances that do not say how much they need"),
    ("defaults.overlay_pool", "the name of a pool", "pool that every instance takes an address of"),
    (
        "defaults.nodes",
        "at most 64 rules, each with `labels`, `names` or both, and any of the above but `disk_mib`, or `no_overlay_pool = true`",
        "what holds for nodes with such labels and names; the first rule that fits counts",
    ),
    (
        "defaults.instances",
        "at most 64 rules, each with `tags` and `disk_mib`",
        "what holds for instances with such tags; the first rule that fits counts",
    ),
    (
        "shapes",
        "at most 16 tables, each with `cpu_milli`, `memory_mib` and `weight` (1 unless stated)",
        "the usual shapes that `slot-loss` keeps room for; without any, they are learned",
    ),
];

/// Every setting, in the order in which a policy has them.
pub(crate) fn settings() -> Vec<Setting> {
    let defaults = defaults();
    let each = KEYS.iter().map(|(key, accepted, about)| {
        let default = defaults.iter().find(|(known, _)| known == key);
        let default = default.map_or_else(|| "none".to_owned(), |(_, value)| written(key, value));
        Setting { key, default, accepted: accepted_for(key, accepted), about }
    });
    each.collect()
}

fn accepted_for(key: &str, otherwise: &str) -> String {
    let ranges = ranged(&FilterSettings::default(), &ScoreOptions::default());
    let mut elastic = ElasticSettings::default().ranged();
    elastic.extend(Defaults::default().ranged());
    if let Some((_, _, least, most)) = elastic.iter().find(|(ranged, ..)| ranged == key) {
        return format!("{least} to {most}");
    }
    match (key, ranges.iter().find(|(ranged, ..)| *ranged == key)) {
        (_, Some((_, _, least, most))) => format!("{least} to {most}"),
        ("scores", None) => format!(
            "each 0 to {} with at most three decimals, {} in sum; or `{{ weight, from_load }}`, or up \
             to {} of these",
            Policy::MAX_WEIGHT,
            Policy::MAX_WEIGHT_SUM,
            Policy::MAX_WEIGHT_STEPS
        ),
        ("options.shapes", None) => format!("1 to {MAX_SHAPES} shapes"),
        (_, None) => otherwise.to_owned(),
    }
}

/// The value of every key in a policy that only has a name, which is left out.
fn defaults() -> Vec<(String, Value)> {
    let plain = Policy::from_toml("name = 'p'").map(|policy| policy.to_json()).unwrap_or_default();
    let mut found = Vec::new();
    if let Ok(Value::Object(sections)) = serde_json::from_str(&plain) {
        for (key, value) in sections {
            flatten(key, value, &mut found);
        }
    }
    // Left out of the text while it says nothing.
    if let Ok(elastic) = serde_json::to_value(ElasticSettings::default()) {
        flatten("elastic".to_owned(), elastic, &mut found);
    }
    found.push(("elastic.migration.evict".to_owned(), false.into()));
    found.push(("filters.cpu_ceiling_permille".to_owned(), Value::Null));
    let load_age = ScoreOptions::default().load_max_age_s;
    found.push(("options.load_max_age_s".to_owned(), load_age.into()));
    found.retain(|(key, _)| key != "name");
    found
}

fn flatten(key: String, value: Value, found: &mut Vec<(String, Value)>) {
    match value {
        // Weights are one setting, whatever scorers there are.
        Value::Object(inner) if !["scores", "elastic.classes"].contains(&key.as_str()) => {
            for (name, value) in inner {
                flatten(format!("{key}.{name}"), value, found);
            }
        }
        value => found.push((key, value)),
    }
}

fn written(key: &str, value: &Value) -> String {
    match (key, value) {
        (_, Value::Null) => "not set".to_owned(),
        ("scores", _) => "0".to_owned(),
        ("elastic.nodes" | "elastic.classes", _) => "none".to_owned(),
        ("options.shapes", Value::Array(shapes)) => {
            let amount = |shape: &Value, name: &str| shape[name].as_i64().unwrap_or(0);
            let shape = |shape: &Value| {
                let (cpu, memory) = (amount(shape, "cpu_milli"), amount(shape, "memory_mib"));
                format!("{} and {}", units::cpu(cpu), units::size(memory))
            };
            shapes.iter().map(shape).collect::<Vec<_>>().join(", ")
        }
        (_, value) => format!("`{value}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{InstanceDefaults, NodeDefaults};

    #[test]
    fn every_key_of_a_policy_is_listed_and_no_other() {
        // These are left out of the text of a policy unless they are stated.
        let stated = Defaults {
            cpu_ratio_permille: Some(1),
            vmm_overhead_mib: Some(1),
            reserved_memory_mib: Some(1),
            disk_mib: Some(1),
            overlay_pool: Some(String::new()),
            nodes: vec![NodeDefaults::default()],
            instances: vec![InstanceDefaults::default()],
        };
        let mut known = defaults();
        flatten("defaults".to_owned(), serde_json::to_value(stated).unwrap(), &mut known);
        let mut known: Vec<String> = known.into_iter().map(|(key, _)| key).collect();
        known.extend(["name", "shapes"].map(str::to_owned));
        let mut listed: Vec<String> = KEYS.iter().map(|(key, ..)| (*key).to_owned()).collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(known, listed);
    }

    #[test]
    fn every_key_says_what_is_accepted() {
        for setting in settings() {
            assert!(!setting.accepted.is_empty(), "{}", setting.key);
        }
    }
}
