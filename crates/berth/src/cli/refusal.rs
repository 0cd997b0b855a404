//! A refusal drawn for people: which filter removed how many nodes, how close the nearest one came, and
//! what would help, as commands that can be pasted.

use std::fmt::Write as _;

use berth_api::engine::affinity::Rule;
use berth_api::engine::{FilterCount, Fix, NearestMiss, NodeFacts, NodeId, Refusal, SearchEnd};
use berth_api::{PlaceRequest, units};

use super::place::flags::{CommandLine, RequestFlags};
use crate::cmdutil::style::{BAD, BOLD, COMMAND, DIM, WARN, paint};
use crate::cmdutil::{amounts, args, plural, trait_flag};

/// The width of the longest bar.
const BAR: usize = 24;

/// Most instances that one suggested command releases.
const MAX_RELEASED: usize = 40;

/// What is needed to write a changed request as a command.
pub(crate) struct Advice<'a> {
    flags: Option<&'a RequestFlags>,
    /// Flags that a changed request keeps.
    kept: Vec<String>,
    /// Whether there is one instance spec, so that a flag changes what was refused.
    uniform: bool,
    disk_requested: bool,
    /// How many instances were placed.
    placed: u32,
}

impl<'a> Advice<'a> {
    /// For a request that was made with flags.
    pub(crate) fn new(flags: &'a RequestFlags, kept: Vec<String>, request: &PlaceRequest) -> Self {
        let disk_requested = request.instances.iter().any(|spec| spec.resources.disk_mib.is_some());
        let uniform = request.instances.len() == 1;
        Self { flags: Some(flags), kept, uniform, disk_requested, placed: 0 }
    }

    /// Only for the rest, after some instances were placed.
    pub(crate) fn after(self, placed: u32) -> Self {
        Self { placed, ..self }
    }

    /// For a request that this command did not make, such as one in the log.
    pub(crate) const fn none() -> Self {
        Self { flags: None, kept: Vec::new(), uniform: false, disk_requested: false, placed: 0 }
    }

    /// The command of the changed request, if flags can express it.
    fn with_change(&self, change: impl FnOnce(&mut RequestFlags) -> bool) -> Option<String> {
        let mut flags = self.flags.filter(|_| self.uniform)?.clone();
        change(&mut flags).then(|| self.line(&flags, &[]))
    }

    fn line(&self, flags: &RequestFlags, after: &[&str]) -> String {
        let mut flags = flags.clone();
        if self.placed > 0 {
            // Instances that were placed are not requested again.
            flags.count = flags.count.map(|count| count.saturating_sub(self.placed).max(1));
        }
        let after: Vec<&str> =
            self.kept.iter().map(String::as_str).chain(after.iter().copied()).collect();
        flags.line("berth place", &after)
    }
}

/// Draws refusals.
pub(crate) fn draw_refusals(refusals: &[Refusal], advice: &Advice<'_>) -> String {
    let drawings: Vec<String> = refusals.iter().map(|refusal| draw(refusal, advice)).collect();
    drawings.join("\n\n")
}

fn draw(refusal: &Refusal, advice: &Advice<'_>) -> String {
    let mut text = headline(refusal, advice);
    if let Some(search) = refusal.search.and_then(search) {
        let _ = write!(text, "\n{search}");
    }
    text.push_str(&bars(refusal));
    if let Some((filter, admits)) = &refusal.best_relaxation {
        let nodes = plural(*admits, "node");
        let _ = write!(text, "\n\nWithout {} alone, {nodes} could take it.", paint(BOLD, filter));
    }
    for notice in &refusal.notices {
        let _ = write!(text, "\nNote: {notice}");
    }
    text.push_str(&fixes(refusal, advice));
    text.push_str(&waiting(refusal, advice));
    text
}

fn headline(refusal: &Refusal, advice: &Advice<'_>) -> String {
    let code = paint(BOLD, &refusal.code);
    let subject = if advice.placed > 0 {
        format!("{} no room for the rest", paint(WARN, "note:"))
    } else if advice.flags.is_some() {
        format!("{} no room", paint(BAD, "error:"))
    } else {
        // A refusal in the log is no error of the command that shows it.
        "no room".to_owned()
    };
    let subject = match &refusal.name {
        Some(name) if advice.placed == 0 => format!("{subject} for {name}"),
        Some(_) | None => subject,
    };
    match refusal.nodes {
        0 => format!("{subject}: there are no nodes ({code})"),
        1 => format!("{subject}: the one node cannot take it ({code})"),
        nodes => format!("{subject}: none of {nodes} nodes can take it ({code})"),
    }
}

fn search(end: SearchEnd) -> Option<&'static str> {
    match end {
        SearchEnd::DoesNotFit => Some("Every way to place all of them was ruled out."),
        SearchEnd::NotFoundWithinBudget => {
            Some("No way to place all of them was found in time; there may be one.")
        }
        SearchEnd::Greedy | SearchEnd::LargestFirst | SearchEnd::Search => None,
    }
}

/// A bar for each filter, with the node that came nearest.
fn bars(refusal: &Refusal) -> String {
    let names = refusal.counts.iter().map(|count| count.filter.chars().count());
    let width = names.max().unwrap_or(0);
    let digits = refusal.nodes.to_string().len();
    let mut text = String::new();
    for count in &refusal.counts {
        let bar = bar(count.removed, refusal.nodes);
        let space = " ".repeat(BAR.saturating_sub(bar.chars().count()));
        let mark = if Some(&count.filter) == refusal.filter.as_ref() { BAD } else { DIM };
        let _ = write!(
            text,
            "\n  {:<width$}  {}{space} {:>digits$}",
            count.filter,
            paint(mark, &bar),
            count.removed,
        );
        text.push_str(&nearest(refusal, count, width));
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn nearest(refusal: &Refusal, count: &FilterCount, width: usize) -> String {
    let Some(miss) = refusal.nearest.iter().find(|miss| miss.filter == count.filter) else {
        return String::new();
    };
    format!("\n  {:<width$}  {}", "", paint(DIM, &nearest_miss(miss)))
}

fn nearest_miss(miss: &NearestMiss) -> String {
    let text = miss.evidence.to_string();
    // The name of the filter already precedes the bar.
    let named = format!("{}: ", miss.filter);
    let text = text.strip_prefix(&named).unwrap_or(&text);
    if miss.is_about_request() {
        return text.to_owned();
    }
    format!("nearest {}: {text}", name(miss.node.as_ref()))
}

/// A bar in eighths of a character; anything above zero is visible.
fn bar(part: usize, whole: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if part == 0 || whole == 0 {
        return String::new();
    }
    let eighths = (part.saturating_mul(BAR * 8) / whole).clamp(1, BAR * 8);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn name(node: Option<&NodeId>) -> &str {
    node.map_or("a node", NodeId::as_str)
}

/// What would help, each with a command where there is one.
fn fixes(refusal: &Refusal, advice: &Advice<'_>) -> String {
    if refusal.fixes.is_empty() {
        return format!("\n\nWhat would help: {}.", refusal.remedy);
    }
    let mut text = "\n\nWhat would help (each was tried):".to_owned();
    for (place, fix) in refusal.fixes.iter().enumerate() {
        let (description, command) = describe(fix, advice);
        let _ = write!(text, "\n  {}. {description}", place + 1);
        if let Some(command) = command {
            let _ = write!(text, "\n     {}", paint(COMMAND, &command));
        }
    }
    text
}

fn waiting(refusal: &Refusal, advice: &Advice<'_>) -> String {
    if !refusal.waiting_may_help {
        return "\n\nWaiting will not help.".to_owned();
    }
    match advice.flags {
        Some(flags) => {
            // A batch that waits is all or nothing.
            let alone = Advice { kept: Vec::new(), flags: advice.flags, ..*advice };
            let command = alone.line(flags, &["--wait", "10m"]);
            format!("\n\nWaiting may help:\n     {}", paint(COMMAND, &command))
        }
        None => "\n\nWaiting may help.".to_owned(),
    }
}

/// What a fix does, and the command that does it.
fn describe(fix: &Fix, advice: &Advice<'_>) -> (String, Option<String>) {
    match fix {
        Fix::Shrink { resources, node } => {
            let description =
                format!("ask for less: {} fits on {}", amounts(resources), name(node.as_ref()));
            let command = advice.with_change(|flags| {
                let instance = &mut flags.instance;
                instance.cpu = (resources.cpu_milli > 0).then_some(resources.cpu_milli);
                instance.memory = Some(resources.memory_mib);
                instance.bandwidth =
                    (resources.bandwidth_mbps > 0).then_some(resources.bandwidth_mbps);
                let default = berth_api::engine::InstanceRequest::DEFAULT_DISK_MIB;
                if advice.disk_requested || resources.disk_mib != default {
                    instance.disk = Some(resources.disk_mib);
                }
                true
            });
            (description, command)
        }
        Fix::Relax { filter, change, node } => {
            let description = format!("{change}: then it goes to {}", name(node.as_ref()));
            (description, advice.with_change(|flags| relax(flags, filter, change)))
        }
        Fix::Free { instances, tenants, node } => {
            let whose = if tenants.is_empty() {
                String::new()
            } else {
                format!(" of {}", tenants.join(", "))
            };
            let description = format!(
                "release {}{whose} on {}",
                plural(instances.len(), "instance"),
                name(node.as_ref())
            );
            let ids: Vec<String> = instances.iter().map(ToString::to_string).collect();
            let command = (ids.len() <= MAX_RELEASED)
                .then(|| format!("berth claims release {}", ids.join(" ")));
            (description, command)
        }
        Fix::Mend { filter, remedy, node } => {
            let description = format!("fix {}: {remedy}", name(node.as_ref()));
            (description, node.as_ref().map(|node| node_command(filter, node)))
        }
        Fix::AddNode { shape, facts } => {
            let description = format!("add a node with at least {}", shape.at_least());
            (description, Some(register_command(facts)))
        }
    }
}

/// The command that fixes a node, or shows what is wrong with it.
fn node_command(filter: &str, node: &NodeId) -> String {
    let name = args::shell_quote(node.as_str());
    match filter {
        "node-active" => format!("berth nodes uncordon {name}"),
        "not-reserved" => format!("berth nodes set {name} reserved=false"),
        "no-reboot-soon" => format!("berth nodes set {name} next_reboot=null"),
        _ => format!("berth nodes explain {name}"),
    }
}

/// The command that registers a node.
fn register_command(facts: &NodeFacts) -> String {
    let mut line = CommandLine::default();
    let shape = facts.capacity.unwrap_or_default();
    let exact =
        |amount: u32, text: fn(i64) -> String| (amount > 0).then(|| text(i64::from(amount)));
    line.flag("--cpu", exact(shape.cpu_milli, units::cpu_exact));
    line.flag("--memory", exact(shape.memory_mib, units::size_exact));
    line.flag("--disk", exact(shape.disk_mib, units::size_exact));
    line.flag("--bandwidth", exact(shape.bandwidth_mbps, units::bandwidth_exact));
    line.flag("--extra", facts.extra.iter().map(|(class, amount)| format!("{class}={amount}")));
    line.flag("--trait", facts.traits.iter().map(|(name, value)| trait_flag(name, value)));
    line.flag("--network", facts.networks.iter().map(|network| network.tag.clone()));
    line.flag("--zone", facts.zone.clone());
    line.flag("--rack", facts.rack.clone());
    line.flag("--label", facts.labels.iter().map(|(key, value)| format!("{key}={value}")));
    let spot = facts.capacity_type != berth_api::engine::CapacityType::default();
    line.flag("--capacity", spot.then(|| facts.capacity_type.name().to_owned()));
    format!(
        "berth nodes register {} {}",
        facts.id,
        args::shell_line(line.0.iter().map(String::as_str))
    )
}

/// Removes one rule from the flags; false when it is not among them.
fn relax(flags: &mut RequestFlags, filter: &str, change: &str) -> bool {
    let instance = &mut flags.instance;
    let before = instance.clone();
    let after = |prefix: &str| change.strip_prefix(prefix).unwrap_or_default().to_owned();
    match filter {
        "capacity-type" => instance.capacity = None,
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
        "cpu-cap-mixing" => instance.cpu_capped = !instance.cpu_capped,
        "secrets-present" => instance.needs_secrets = false,
        _ => {}
    }
    *instance != before
}

/// Makes the named rule soft.
fn soften(rules: &mut [Rule], change: &str) {
    for rule in rules.iter_mut().filter(|rule| rule.is_hard()) {
        let text = rule.as_str();
        if !change.contains(text) {
            continue;
        }
        // The first == is the operator if there is one, else the first !=.
        let operator = if text.contains("==") { "==" } else { "!=" };
        if let Ok(soft) = Rule::parse(&text.replacen(operator, &format!("{operator}~"), 1)) {
            *rule = soft;
        }
    }
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
