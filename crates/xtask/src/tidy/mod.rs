//! `cargo xtask tidy`: the house rules that neither rustfmt nor clippy can check.
//!
//! Looks at every file that git tracks or would track. It reports and never edits.

mod layers;
mod source;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The page that shows the way through the crates. Each crate's README shows its modules.
const MAP: &str = "docs/architecture.md";

/// One breach of a rule; the path is known to the caller.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    line: usize,
    message: String,
}

impl Violation {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// Checks the whole repository and prints each breach as `path:line: message`.
pub(crate) fn run() -> ExitCode {
    match check_repository() {
        Ok((files, 0)) => {
            println!("tidy: {files} files, all clean");
            ExitCode::SUCCESS
        }
        Ok((files, violations)) => {
            eprintln!("tidy: {files} files, {violations} violations");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns how many files were read and how many breaches were found.
fn check_repository() -> io::Result<(usize, usize)> {
    let root = PathBuf::from(git(Path::new("."), &["rev-parse", "--show-toplevel"])?.trim_end());
    let listing = git(&root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let mut paths: Vec<&str> = listing.split_terminator('\0').collect();
    // A path in a merge conflict is listed once for each side.
    paths.sort_unstable();
    paths.dedup();

    let mut files = 0;
    let mut violations = 0;
    let mut report = |path: &str, found: Vec<Violation>| {
        violations += found.len();
        for Violation { line, message } in found {
            println!("{path}:{line}: {message}");
        }
    };
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for path in paths {
        let on_disk = root.join(path);
        // Deleted files are still listed until the deletion is staged; links are checked as targets.
        if !on_disk.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        files += 1;
        let bytes = std::fs::read(&on_disk)?;
        report(path, check_file(path, &bytes));
        if (path.starts_with("crates/") || path == MAP)
            && let Ok(text) = String::from_utf8(bytes)
        {
            texts.insert(path.to_owned(), text);
        }
    }
    for (path, found) in check_layers(&texts) {
        report(&path, found);
    }
    Ok((files, violations))
}

/// Checks that dependencies point down: between crates, and between the modules of each crate.
fn check_layers(texts: &BTreeMap<String, String>) -> Vec<(String, Vec<Violation>)> {
    let mut found = Vec::new();
    let crates: BTreeSet<String> = texts
        .keys()
        .filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
        .map(str::to_owned)
        .collect();
    let of_crates = format!("crates/{}", layers::FILE);
    let text = texts.get(&of_crates).map_or("", String::as_str);
    let (between_crates, mut wrong) = layers::Layers::parse(text);
    wrong.extend(between_crates.check_names(&crates));
    found.push((of_crates, wrong));
    let map = texts.get(MAP).map_or("", String::as_str);
    found.push((MAP.to_owned(), missing_from_page(map, &crates)));
    for name in &crates {
        let manifest = format!("crates/{name}/Cargo.toml");
        let text = &texts[&manifest];
        found.push((manifest, layers::check_manifest(&between_crates, name, text)));
        found.extend(check_modules(texts, name));
    }
    found
}

fn check_modules(texts: &BTreeMap<String, String>, name: &str) -> Vec<(String, Vec<Violation>)> {
    let source = format!("crates/{name}/src/");
    let files: Vec<(&str, &str, &str)> = texts
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .filter_map(|(path, text)| Some((path.as_str(), path.strip_prefix(&source)?, &**text)))
        .collect();
    let modules: BTreeSet<String> = files
        .iter()
        .filter_map(|(_, below, _)| layers::module_of(below))
        .map(str::to_owned)
        .collect();
    let listing = format!("crates/{name}/{}", layers::FILE);
    let listed = texts.get(&listing).map_or("", String::as_str);
    let (parsed, mut wrong) = layers::Layers::parse(listed);
    wrong.extend(parsed.check_names(&modules));
    let root = texts.get(&format!("{source}lib.rs")).map_or("", String::as_str);
    let exports = layers::root_exports(root);
    let page = format!("crates/{name}/README.md");
    let text = texts.get(&page).map_or("", String::as_str);
    let mut found = vec![(listing, wrong), (page, missing_from_page(text, &modules))];
    for (path, below, text) in files {
        let violations = layers::check_source(&parsed, &exports, below, text);
        found.push((path.to_owned(), violations));
    }
    found
}

fn check_file(path: &str, bytes: &[u8]) -> Vec<Violation> {
    let is_rust = path.ends_with(".rs");
    let Ok(content) = std::str::from_utf8(bytes) else {
        return if is_rust { vec![Violation::new(1, "is not UTF-8")] } else { Vec::new() };
    };
    let mut violations = Vec::new();
    if !path.ends_with("Cargo.lock") && !content.contains('\0') {
        violations.extend(text::machine_paths(content));
    }
    if is_rust {
        violations.extend(text::length(content));
        if is_crate_source(path) {
            violations.extend(text::module_comment(content));
        }
        violations.extend(source::check(content));
    }
    violations.sort_by_key(|violation| violation.line);
    violations
}

/// Names that a page does not mention in code style.
fn missing_from_page(page: &str, names: &BTreeSet<String>) -> Vec<Violation> {
    let is_missing = |name: &&String| !page.contains(&format!("`{name}`"));
    let missing = names.iter().filter(is_missing);
    missing.map(|name| Violation::new(1, format!("`{name}` is missing from this map"))).collect()
}

/// Whether a path is of the form `crates/<name>/src/...`.
fn is_crate_source(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.next().is_some() && parts.next() == Some("src")
}

fn git(directory: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("git").current_dir(directory).args(arguments).output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("git {}: {}", arguments[0], reason.trim())));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crate_sources_need_a_module_comment() {
        let needs = |path: &str| !check_file(path, b"fn f() {}\n").is_empty();
        assert!(needs("crates/berth-engine/src/plan/mod.rs"));
        assert!(!needs("crates/berth-engine/benches/instructions.rs"));
        assert!(!needs("crates/berth-engine/tests/digest.rs"));
    }

    #[test]
    fn a_crate_or_module_that_is_missing_from_the_map_is_a_violation() {
        let names: BTreeSet<String> = ["feed", "queue"].map(str::to_owned).into();
        assert_eq!(missing_from_page("`queue` and `feed`", &names), []);
        let expected = [Violation::new(1, "`queue` is missing from this map")];
        assert_eq!(missing_from_page("a queue, and `feed`", &names), expected);
    }

    #[test]
    fn violations_of_one_file_are_in_line_order() {
        let content = "//! A.\nfn f() {\n    todo!()\n}\nfn g() {\n    dbg!(1);\n}\n";
        let lines: Vec<usize> = check_file("crates/a/src/lib.rs", content.as_bytes())
            .iter()
            .map(|violation| violation.line)
            .collect();
        assert_eq!(lines, [3, 6]);
    }

    #[test]
    fn binary_files_pass_and_rust_must_be_text() {
        assert_eq!(check_file("logo.png", &[0xff, 0x00]), []);
        assert_eq!(check_file("a.rs", &[0xff]), [Violation::new(1, "is not UTF-8")]);
    }
}
