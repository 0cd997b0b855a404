//! `docs/cli.md` is generated from the commands, so that the two cannot disagree.

use std::fmt::Write as _;
use std::path::Path;

use clap::Command;

/// The text before the commands.
const OPENING: &str = include_str!("reference.md");

/// The whole document.
fn document() -> String {
    let mut command = crate::command();
    command.build();
    let mut text = OPENING.to_owned();
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for noun in command.get_subcommands().filter(shown) {
        write_chapter(&mut text, noun, "berth", 2);
    }
    text
}

fn write_chapter(text: &mut String, command: &Command, above: &str, level: usize) {
    let name = format!("{above} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    let about = about.unwrap_or_default();
    let _ = write!(text, "\n{} {name}\n\n{}\n", "#".repeat(level), sentence(&about));
    options(text, command);
    if let Some(after) = command.get_after_help() {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
    let shown = |below: &&Command| !below.is_hide_set() && below.get_name() != "help";
    for below in command.get_subcommands().filter(shown) {
        write_chapter(text, below, &name, level + 1);
    }
}

fn sentence(text: &str) -> String {
    let end = if text.ends_with(['.', '!', '?']) || text.contains('\n') { "" } else { "." };
    format!("{text}{end}")
}

fn options(text: &mut String, command: &Command) {
    let own = |arg: &&clap::Arg| {
        !arg.is_hide_set()
            && !arg.is_global_set()
            && arg.get_id() != "help"
            && arg.get_id() != "version"
    };
    let mut rows = String::new();
    // The flags of an instance are many, and the same for all commands.
    let of_instance = |arg: &clap::Arg| {
        arg.get_help_heading() == Some("Requirements of each instance")
            && command.get_name() != "place"
    };
    for arg in command.get_arguments().filter(own).filter(|arg| !of_instance(arg)) {
        let name = arg.to_string().replace('|', "\\|");
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
        let default: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match default[..] {
            [] => String::new(),
            _ if arg.get_action().takes_values() => format!(" Default: {}.", default.join(" ")),
            _ => String::new(),
        };
        let help = sentence(&help.replace('|', "\\|"));
        let _ = writeln!(rows, "| {short}`{name}` | {help}{default} |");
    }
    if command.get_arguments().any(of_instance) {
        let words = "Requirements of an instance, as in [berth place](#berth-place).";
        let _ = writeln!(rows, "| `--cpu`, `--memory`, … | {words} |");
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n| Option | Meaning |\n|---|---|\n{rows}");
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the variable says whether to write the file")]
fn the_document_of_the_command_line_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let document = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == document,
        "docs/cli.md is out of date; update it with: UPDATE_DOCS=1 cargo test -p berth document"
    );
}

#[test]
fn every_command_has_an_example() {
    fn find_missing(command: &Command, name: &str, without: &mut Vec<String>) {
        let texts = [command.get_after_help(), command.get_long_about()];
        let has = texts.into_iter().flatten().any(|text| text.to_string().contains("berth "));
        if !has && command.get_name() != "help" {
            without.push(name.to_owned());
        }
        for below in command.get_subcommands() {
            find_missing(below, &format!("{name} {}", below.get_name()), without);
        }
    }
    let mut without = Vec::new();
    let command = crate::command();
    // Benchmarks are for developers.
    for noun in command.get_subcommands().filter(|noun| noun.get_name() != "bench") {
        find_missing(noun, noun.get_name(), &mut without);
    }
    assert!(without.is_empty(), "no example: {without:?}");
}

#[test]
fn the_singular_names_of_nouns_are_aliases() {
    for (alias, name) in [("token", "tokens"), ("policy", "policies")] {
        let command = crate::command();
        let found = command.find_subcommand(alias).map(Command::get_name);
        assert_eq!(found, Some(name));
    }
}

#[test]
fn the_names_of_version_0_1_are_hidden_aliases() {
    let lines = [
        "place --memory 1GiB --tenant acme",
        "explain --memory 1GiB --tenant acme",
        "instances list --tenant acme",
        "claims list --tenant acme",
        "decisions list --tenant acme",
        "workloads list --tenant acme",
        "workloads apply -f web.toml --tenant acme",
        "environments list --tenant acme",
        "environments show live --tenant acme",
        "groups set web --kind apart --tenant acme",
        "volumes set data --home n1 --tenant acme",
        "volumes attachments set db data --tenant acme",
        "volumes attachments show db --tenant acme",
        "volumes attachments remove db --tenant acme",
        "tokens create --role tenant --tenant acme",
    ];
    for line in lines {
        let old = if line.starts_with("tokens") { "--namespace" } else { "--owner" };
        let parse = |line: &str| {
            let words = std::iter::once("berth").chain(line.split(' '));
            crate::command().try_get_matches_from(words)
        };
        assert!(parse(line).is_ok(), "{line}");
        let old_line = line.replace("--tenant", old);
        assert!(parse(&old_line).is_ok(), "{old_line}");
        let help = parse(&format!("{line} --help")).unwrap_err().to_string();
        assert!(!help.contains(old), "{help}");
    }
}
