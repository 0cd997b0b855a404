//! What a fix does, in words and as a command that can be pasted.

use berth_api::engine::affinity::Rule;
use berth_api::engine::{
    Amounts, Fix, InstanceRequest, NodeFacts, NodeState, QuotaLimits, Ratios, TraitValue,
};
use berth_api::units;

use super::place::flags::{CommandLine, RequestFlags};
use super::refusal::{Advice, name};
use crate::cmdutil::{amounts, args, plural, trait_flag};

/// Most instances whose names are listed.
const MAX_NAMED: usize = 5;

/// What a fix does, and the command that does it.
pub(super) fn describe(fix: &Fix, advice: &Advice<'_>) -> (String, Option<String>) {
    let change = change(fix);
    let description = match (fix, fix.tried_on()) {
        // One node does not hold all of a batch.
        (_, Some(_)) if advice.is_batch() => format!("{change}: then all of them fit"),
        (Fix::Shrink { .. }, Some(node)) => format!("{change} fits on {node}"),
        (_, Some(node)) => format!("{change}: then it fits on {node}"),
        (_, None) => change,
    };
    (description, command(fix, advice))
}

fn change(fix: &Fix) -> String {
    match fix {
        Fix::Shrink { resources, extra, .. } => {
            let classes = extra.iter().map(|(class, amount)| match amount {
                0 => format!(", no {class}"),
                amount => format!(", {amount} {class}"),
            });
            format!("ask for less: {}{}", amounts(resources), classes.collect::<String>())
        }
        Fix::Relax { change, .. } => change.clone(),
        Fix::Free { instances, names, tenants, node, preempts } => {
            let whose = match tenants.is_empty() {
                true => String::new(),
                false => format!(" of {}", tenants.join(", ")),
            };
            let place = node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
            let count = plural(instances.len(), "instance");
            let action = if *preempts { "preempt" } else { "release" };
            format!("{action} {count}{whose}{place}{}", named(names, instances.len()))
        }
        Fix::Mend { filter, remedy, node, state } => {
            let on = name(node.as_ref());
            match node_change(filter, *state) {
                Some((change, _)) => format!("fix {on}: {change}"),
                None => format!("work on the host of {on}: {remedy}"),
            }
        }
        Fix::AddNode { .. } => fix.to_string(),
        Fix::Fewer { count, of } => format!("place {count} of {of} now"),
        Fix::Count { count, of } => format!("ask for {count} instead of {of}"),
        Fix::ChangePool { pool, to: Some(to) } => {
            format!("take a value of pool {to} instead of {pool}")
        }
        Fix::ChangePool { pool, to: None } => format!("ask for no value of pool {pool}"),
        Fix::RaiseQuota { tenant, limits } => format!("raise the quota of {tenant} to {limits}"),
        Fix::SetPool { pool, range, tenant, .. } => match tenant {
            Some(tenant) => format!("give pool {pool} of {tenant} the range {range}"),
            None => format!("give pool {pool} the range {range}, open to all tenants"),
        },
        Fix::Combined { changes } => changes.iter().map(change).collect::<Vec<_>>().join("; and "),
    }
}

/// The names of instances, those of them that have one.
fn named(names: &[String], count: usize) -> String {
    let known: Vec<&str> = names.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    let shown = &known[..known.len().min(MAX_NAMED)];
    match (shown.is_empty(), count - shown.len()) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({})", shown.join(", ")),
        (false, more) => format!(" ({} and {more} more)", shown.join(", ")),
    }
}

fn command(fix: &Fix, advice: &Advice<'_>) -> Option<String> {
    match fix {
        Fix::Shrink { .. } | Fix::Relax { .. } | Fix::ChangePool { .. } => {
            advice.with_changes(&[fix])
        }
        Fix::Fewer { count, .. } => advice.with_fewer(*count),
        Fix::Count { .. } => advice.with_count(fix),
        // To release them alone brings no room where they would be replaced.
        Fix::Free { preempts: true, .. } => advice.with_preemption(),
        Fix::Free { .. }
        | Fix::Mend { .. }
        | Fix::AddNode { .. }
        | Fix::RaiseQuota { .. }
        | Fix::SetPool { .. } => fleet_command(fix),
        Fix::Combined { changes } => {
            let of_request = |fix: &&Fix| {
                matches!(fix, Fix::Shrink { .. } | Fix::Relax { .. } | Fix::ChangePool { .. })
            };
            let (of_request, others): (Vec<&Fix>, Vec<&Fix>) = changes.iter().partition(of_request);
            let (fewer, of_fleet): (Vec<&Fix>, Vec<&Fix>) =
                others.into_iter().partition(|fix| matches!(fix, Fix::Fewer { .. }));
            let mut commands = Vec::new();
            for fix in of_fleet {
                commands.push(fleet_command(fix)?);
            }
            // Once the fleet is changed, the request is sent again, changed or not.
            if let Some(Fix::Fewer { count, .. }) = fewer.first() {
                commands.push(advice.for_fewer(*count).with_changes(&of_request)?);
            } else if !(of_request.is_empty() && advice.tries_again()) {
                commands.push(advice.with_changes(&of_request)?);
            }
            Some(commands.join(" && "))
        }
    }
}

/// The command of a fix that an operator does to the fleet.
fn fleet_command(fix: &Fix) -> Option<String> {
    match fix {
        Fix::Free { instances, .. } => {
            let ids: Vec<String> = instances.iter().map(ToString::to_string).collect();
            (!ids.is_empty()).then(|| format!("berth claims release {}", ids.join(" ")))
        }
        Fix::Mend { filter, node, state, .. } => {
            let (node, (_, command)) = (node.as_ref()?, node_change(filter, *state)?);
            Some(command.replace("NODE", &args::shell_quote(node.as_str())))
        }
        Fix::AddNode { facts, count, .. } => Some(register_command(facts, *count)),
        Fix::RaiseQuota { tenant, limits } => Some(quota_command(tenant, limits)),
        Fix::SetPool { pool, range, quarantine_s, tenant } => {
            let mut line = CommandLine::default();
            line.flag("--quarantine", Some(format!("{quarantine_s}s")));
            line.flag("--tenant", tenant.clone());
            let flags = args::shell_line(line.0.iter().map(String::as_str));
            let open = if tenant.is_none() { " --open" } else { "" };
            let (pool, range) = (args::shell_quote(pool), args::shell_quote(range));
            Some(format!("berth pools set {pool} {range} {flags}{open}"))
        }
        Fix::Shrink { .. }
        | Fix::Relax { .. }
        | Fix::Fewer { .. }
        | Fix::Count { .. }
        | Fix::ChangePool { .. }
        | Fix::Combined { .. } => None,
    }
}

/// The command that sets all limits of a tenant: one that is left out would be lifted.
fn quota_command(tenant: &str, limits: &QuotaLimits) -> String {
    let mut line = CommandLine::default();
    line.flag("--cpu", limits.cpu_milli.map(units::cpu_exact));
    line.flag("--memory", limits.memory_mib.map(units::size_exact));
    line.flag("--disk", limits.disk_mib.map(units::size_exact));
    line.flag("--instances", limits.instances.map(|count| count.to_string()));
    let flags = args::shell_line(line.0.iter().map(String::as_str));
    format!("berth quotas set {} {flags}", args::shell_quote(tenant))
}

/// What an operator changes about a node that a filter keeps out, and by which command; absent where
/// only work on the host helps: what Berth is told of a host does not repair it.
fn node_change(filter: &str, state: Option<NodeState>) -> Option<(&'static str, &'static str)> {
    Some(match (filter, state) {
        // What is lost or degraded stays so until its agent reports otherwise.
        ("node-active", Some(NodeState::Lost | NodeState::Degraded)) => return None,
        ("node-active", Some(NodeState::Draining)) => (
            "cancel its drain, so that it takes instances again",
            "berth nodes drain NODE --cancel",
        ),
        ("node-active", Some(_)) => ("let it take instances again", "berth nodes uncordon NODE"),
        ("not-reserved", _) => ("end its reservation", "berth nodes set NODE reserved=false"),
        ("no-reboot-soon", _) => {
            ("cancel its planned reboot", "berth nodes set NODE next_reboot=null")
        }
        ("not-headnode", _) => (
            "let it take instances although it runs the control plane",
            "berth nodes set NODE headnode=false",
        ),
        _ => return None,
    })
}

/// New nodes whose names a command lists one by one.
const NAMES_LISTED: u32 = 3;

/// The command that registers nodes: all that the request asks of them.
fn register_command(facts: &NodeFacts, count: u32) -> String {
    let mut line = CommandLine::default();
    let shape = facts.capacity.unwrap_or_default();
    let exact =
        |amount: u32, text: fn(i64) -> String| (amount > 0).then(|| text(i64::from(amount)));
    line.flag("--cpu", exact(shape.cpu_milli, units::cpu_exact));
    line.flag("--memory", exact(shape.memory_mib, units::size_exact));
    line.flag("--disk", exact(shape.disk_mib, units::size_exact));
    line.flag("--bandwidth", exact(shape.bandwidth_mbps, units::bandwidth_exact));
    line.flag("--extra", facts.extra.iter().map(|(class, amount)| format!("{class}={amount}")));
    line.flag("--zone", facts.zone.clone());
    line.flag("--rack", facts.rack.clone());
    line.flag("--label", facts.labels.iter().map(|(key, value)| format!("{key}={value}")));
    line.flag("--trait", facts.traits.iter().map(|(name, value)| trait_flag(name, value)));
    line.flag("--network", facts.networks.iter().map(|network| network.tag.clone()));
    let spot = facts.capacity_type != berth_api::engine::CapacityType::default();
    line.flag("--capacity", spot.then(|| facts.capacity_type.name().to_owned()));
    let flags = args::shell_line(line.0.iter().map(String::as_str));
    let set = further_facts(facts);
    let register = |name: &str| match set.is_empty() {
        true => format!("berth nodes register {name} {flags}"),
        false => format!(
            "berth nodes register {name} {flags} && berth nodes set {name} {}",
            args::shell_line(set.iter().map(String::as_str))
        ),
    };
    if count == 1 {
        return register(&args::shell_quote(facts.id.as_str()));
    }
    format!(
        "for node in {}; do {}; done",
        shell_names(facts.id.as_str(), count),
        register("\"$node\"")
    )
}

/// The names of so many nodes, for a shell: `new-node new-node-2 …`. A long list is left to `seq`.
fn shell_names(first: &str, count: u32) -> String {
    let quoted = args::shell_quote(first);
    if count > NAMES_LISTED {
        let further = args::shell_quote(&format!("{first}-%.0f"));
        return format!("{quoted} $(seq -f {further} 2 {count})");
    }
    let further = (2..=count).map(|number| args::shell_quote(&format!("{first}-{number}")));
    std::iter::once(quoted).chain(further).collect::<Vec<String>>().join(" ")
}

/// Facts that have no flag, as values to set.
fn further_facts(facts: &NodeFacts) -> Vec<String> {
    let mut set = Vec::new();
    if let Some(platform) = facts.platform {
        set.push(format!("platform.version={:?}", platform.version.to_string()));
        set.push(format!("platform.built_at={}", platform.built_at.0));
    }
    if facts.ratios != Ratios::default() {
        let Ratios { cpu_permille, memory_permille, disk_permille } = facts.ratios;
        set.push(format!("ratios.cpu_permille={cpu_permille}"));
        set.push(format!("ratios.memory_permille={memory_permille}"));
        set.push(format!("ratios.disk_permille={disk_permille}"));
    }
    let usual = NodeFacts::new("", Amounts::default()).vmm_overhead_mib;
    if facts.vmm_overhead_mib != usual {
        set.push(format!("vmm_overhead_mib={}", facts.vmm_overhead_mib));
    }
    set
}

/// Makes the change in the flags; false when they cannot express it.
pub(super) fn change_flags(flags: &mut RequestFlags, fix: &Fix, advice: &Advice<'_>) -> bool {
    match fix {
        Fix::Shrink { resources, extra, .. } => {
            let instance = &mut flags.instance;
            instance.cpu = (resources.cpu_milli > 0).then_some(resources.cpu_milli);
            instance.memory = Some(resources.memory_mib);
            instance.bandwidth = (resources.bandwidth_mbps > 0).then_some(resources.bandwidth_mbps);
            if advice.names_disk() || resources.disk_mib != InstanceRequest::DEFAULT_DISK_MIB {
                instance.disk = Some(resources.disk_mib);
            }
            for (class, amount) in extra {
                instance.extra.retain(|(other, _)| other != class);
                instance.extra.extend((*amount > 0).then(|| (class.clone(), *amount)));
            }
            // A file states its classes itself, and flags only add to them.
            extra.is_empty() || flags.file.is_none()
        }
        Fix::Relax { filter, change, .. } => relax(flags, filter, change),
        Fix::ChangePool { pool, to } => {
            let named = flags.pools.len();
            flags.pools.retain(|other| other != pool);
            let is_named = flags.pools.len() < named;
            flags.pools.extend(to.iter().cloned());
            is_named
        }
        Fix::Free { .. }
        | Fix::Mend { .. }
        | Fix::AddNode { .. }
        | Fix::Fewer { .. }
        | Fix::Count { .. }
        | Fix::RaiseQuota { .. }
        | Fix::SetPool { .. }
        | Fix::Combined { .. } => false,
    }
}

/// Removes one rule from the flags; false when it is not among them.
fn relax(flags: &mut RequestFlags, filter: &str, change: &str) -> bool {
    let instance = &mut flags.instance;
    let before = instance.clone();
    let after = |prefix: &str| change.strip_prefix(prefix).unwrap_or_default().to_owned();
    match filter {
        // Sent again, it is a new request.
        "not-excluded" => return true,
        "capacity-type" => instance.capacity = None,
        "traits" if change.starts_with("ask for trait ") => {
            let asked = after("ask for trait ");
            let Ok(asked) = args::trait_value(&asked) else { return false };
            instance.traits.retain(|(name, _): &(String, TraitValue)| *name != asked.0);
            instance.traits.push(asked);
        }
        "traits" => instance.traits.retain(|(name, _)| *name != after("drop trait ")),
        "networks" => {
            let dropped = after("drop network ");
            instance.networks.retain(|networks| networks.0.join(" or ") != dropped);
        }
        "placement-constraint" => instance.place.drop_part(&after("drop where ")),
        "not-virtual" => instance.exclude_virtual = false,
        "groups" => instance.groups.retain(|group| *group != after("leave group ")),
        "affinity" => soften(&mut instance.affinity, change),
        "strict-locality" => instance.strict = false,
        "volume-home" => {
            instance.volumes.clear();
            instance.attachments.clear();
        }
        "cpu-cap-mixing" => instance.cpu_capped = change == "cap the CPU",
        "secrets-present" => instance.needs_secrets = false,
        _ => {}
    }
    *instance != before
}

/// Makes the named rule soft.
fn soften(rules: &mut [Rule], change: &str) {
    for rule in rules.iter_mut() {
        if let Some(soft) = softened(rule, change) {
            *rule = soft;
        }
    }
}

/// The soft form of a rule, if it is the hard one that a change names.
pub(super) fn softened(rule: &Rule, change: &str) -> Option<Rule> {
    let text = rule.as_str();
    if !rule.is_hard() || change != format!("make {text} soft with ~, or drop it") {
        return None;
    }
    // The first == is the operator if there is one, else the first !=.
    let operator = if text.contains("==") { "==" } else { "!=" };
    Rule::parse(&text.replacen(operator, &format!("{operator}~"), 1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_for_many_nodes_does_not_list_them_all() {
        assert_eq!(shell_names("new-node", 3), "new-node new-node-2 new-node-3");
        assert_eq!(shell_names("new-node", 900), "new-node $(seq -f new-node-%.0f 2 900)");
    }
}
