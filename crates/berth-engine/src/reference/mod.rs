//! The policy reference as Markdown, made of the same tables that decide.
//!
//! It is generated from the data of filters, scorers, settings and policies, and its examples are run,
//! so it cannot be out of date.

mod example_run;

use std::fmt::Write as _;

use crate::example::{ExampleSetup, plain_node, plain_request};
use crate::filter::{FILTERS, Filter, FilterTest};
use crate::model::PPM;
use crate::policy::Policy;
use crate::policy_document::{BUILTIN_POLICIES, BUILTINS, settings};
use crate::score::{SCORERS, Scorer, ScorerKind};
use example_run::{filter_example, scorer_example};

/// Every filter, scorer, setting and built-in policy, as Markdown.
#[must_use]
pub fn policy_reference() -> String {
    let mut page = String::from(
        "# Policy reference\n\n\
         Written by `cargo xtask docs` from the code; a test fails when it differs. \
         [Policies](policy.md) is the\nintroduction, [refusals](refusals.md) lists the codes.\n\n\
         - [Filters](#filters)\n- [Scorers](#scorers)\n- [Settings](#settings)\n\
         - [Built-in policies](#built-in-policies)\n\n## Examples\n\n",
    );
    examples(&mut page);
    page.push_str("\n## Filters\n\nIn the order in which they are asked.\n");
    let mut stage = "";
    for (place, filter) in FILTERS.iter().enumerate() {
        if stage != stage_of(filter) {
            stage = stage_of(filter);
            let _ = write!(page, "\n### {stage}\n");
        }
        describe_filter(&mut page, place + 1, filter);
    }
    page.push_str("\n## Scorers\n\nA value is 0 to 1, kept in millionths.\n");
    SCORERS.iter().for_each(|scorer| describe_scorer(&mut page, scorer));
    page.push_str(
        "\n## Settings\n\n| Key | Default | Accepted | What it does |\n|---|---|---|---|\n",
    );
    for setting in settings() {
        let (default, accepted) = (setting.default, setting.accepted);
        let _ =
            writeln!(page, "| `{}` | {default} | {accepted} | {} |", setting.key, setting.about);
    }
    builtin_policies(&mut page);
    page
}

fn examples(page: &mut String) {
    let capacity = plain_node("a").capacity.unwrap_or_default();
    let _ = writeln!(
        page,
        "Every example was run. It has nodes `a` and `b`, empty and alike, as is any further node \
         that a result names;\neach has {} and was heard of just now. The request asks for\n{}. \
         Below stands what differs from that, as it stands in JSON, and what came out.\nThe time \
         is {} (2026-01-01).",
        capacity,
        plain_request(1).resources,
        ExampleSetup::NOW.0
    );
}

const fn stage_of(filter: &Filter) -> &'static str {
    match filter.test {
        FilterTest::Request(_) => "The request alone",
        FilterTest::Node(_) => "The node alone",
        FilterTest::Static(_) => "Facts against the request",
        FilterTest::Neighbour(_) => "Other instances",
        FilterTest::Load(_) => "Room",
    }
}

const fn yes_or_no(so: bool) -> &'static str {
    if so { "yes" } else { "no" }
}

fn describe_filter(page: &mut String, number: usize, filter: &Filter) {
    let _ = write!(
        page,
        "\n#### {number}. `{}`\n\nA node passes if {}.\n\n- Code: `{}`: {}\n- Remedy: {}\n\
         - Waiting may help: {}\n- May be switched off: {}\n",
        filter.name,
        filter.rule,
        filter.code,
        filter.means,
        filter.remedy,
        yes_or_no(filter.transient),
        yes_or_no(filter.is_optional()),
    );
    list_settings(page, filter.settings);
    if let Some((given, evidence)) = filter_example(filter.example, filter.name) {
        let _ = writeln!(page, "- Example: {} ⇒ `a` is removed: {evidence}", given.join("; "));
    }
}

fn describe_scorer(page: &mut String, scorer: &Scorer) {
    let looks_at = match scorer.kind {
        ScorerKind::Facts(_) => "facts and the time",
        ScorerKind::Load(_) => "what is used on the node, before the instance comes",
        ScorerKind::Sparse(_) => "where others are",
        ScorerKind::Zone(_) => "the node's zone",
        ScorerKind::Dense(_) | ScorerKind::Blocks(_) => "what is used on the node, and the request",
        ScorerKind::Relative(_) => "all nodes that passed the filters, together",
    };
    let _ = write!(
        page,
        "\n### `{}`\n\nIt {}.\n\n- Value: {}\n- Looks at: {looks_at}\n",
        scorer.name, scorer.about, scorer.formula
    );
    if !scorer.notes.is_empty() {
        let _ = writeln!(page, "- Note: {}", scorer.notes);
    }
    list_settings(page, scorer.settings);
    if let Some((given, values)) = scorer_example(scorer.example, scorer.name) {
        let given = if given.is_empty() { "as above".to_owned() } else { given.join("; ") };
        let values = values.iter().map(|(node, value)| format!("`{node}` {}", decimal(*value)));
        let values = values.collect::<Vec<_>>().join(", ");
        let _ = writeln!(page, "- Example: {given} ⇒ {values}");
    }
    let weights = BUILTIN_POLICIES.iter().filter_map(|name| {
        let policy = Policy::builtin(name).ok()?;
        let mut weights = policy.all_weights.iter();
        let weight = weights.find(|weight| weight.scorer.scorer().name == scorer.name)?;
        let step = |&(from, weight): &(u32, u32)| match from {
            0 => decimal(weight * 1000),
            _ => format!("{} from load {}", decimal(weight * 1000), decimal(from * 1000)),
        };
        let steps: Vec<String> = weight.steps.iter().map(step).collect();
        Some(format!("{} in `{name}`", steps.join(", ")))
    });
    let weights = weights.collect::<Vec<_>>().join(", ");
    let weights = if weights.is_empty() { "no built-in policy" } else { &weights };
    let _ = writeln!(page, "- Weight: {weights}");
}

fn list_settings(page: &mut String, keys: &[&str]) {
    if keys.is_empty() {
        return;
    }
    let all = settings();
    let each = keys.iter().filter_map(|key| {
        let setting = all.iter().find(|setting| setting.key == *key)?;
        Some(format!("`{key}`, by default {}", setting.default))
    });
    let _ = writeln!(page, "- Settings: {}", each.collect::<Vec<_>>().join("; "));
}

/// Millionths as a decimal.
fn decimal(ppm: u32) -> String {
    let fraction = format!("{:06}", ppm % PPM);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{}{dot}{fraction}", ppm / PPM)
}

fn builtin_policies(page: &mut String) {
    page.push_str("\n## Built-in policies\n");
    for (name, (about, text)) in BUILTIN_POLICIES.iter().zip(BUILTINS) {
        let _ = write!(page, "\n### `{name}`\n\n{about}\n\n```toml{text}```\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_every_filter_is_removed_by_that_filter() {
        for filter in FILTERS {
            let shown = filter_example(filter.example, filter.name);
            let (given, evidence) = shown.unwrap_or_else(|| panic!("{}", filter.name));
            assert!(!given.is_empty() && !evidence.is_empty(), "{}", filter.name);
        }
    }

    #[test]
    fn the_example_of_every_scorer_tells_nodes_apart() {
        for scorer in SCORERS {
            let shown = scorer_example(scorer.example, scorer.name);
            let (_, values) = shown.unwrap_or_else(|| panic!("{}", scorer.name));
            let least = values.iter().map(|(_, value)| value).min();
            let most = values.iter().map(|(_, value)| value).max();
            assert!(least < most, "{}: {values:?}", scorer.name);
        }
    }

    #[test]
    fn every_setting_that_is_read_exists_and_every_one_of_theirs_is_read() {
        let all: Vec<&str> = settings().iter().map(|setting| setting.key).collect();
        let read = FILTERS.iter().flat_map(|filter| filter.settings);
        let read: Vec<&str> =
            read.chain(SCORERS.iter().flat_map(|scorer| scorer.settings)).copied().collect();
        for key in &read {
            assert!(all.contains(key), "{key} is no setting");
        }
        for key in all {
            let of_theirs = (key.starts_with("filters.") && key != "filters.off")
                || key.starts_with("options.");
            assert!(!of_theirs || read.contains(&key), "nothing says that it reads {key}");
        }
    }

    #[test]
    fn values_are_written_as_decimals() {
        for (value, text) in [(0, "0"), (PPM, "1"), (333_333, "0.333333"), (250_000, "0.25")] {
            assert_eq!(decimal(value), text);
        }
    }
}
