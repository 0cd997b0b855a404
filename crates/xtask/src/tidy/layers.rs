//! Dependencies point one way: between the top-level modules of a crate, and between crates.
//!
//! `crates/NAME/LAYERS` lists the modules of a crate, one layer a line, lowest first; `crates/LAYERS`
//! lists the crates. What is on one line may use only what is on lower lines. Every module and every
//! crate stands in its file once. Tests may look anywhere.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::{Item, UseTree};

/// The file that lists layers.
pub(super) const FILE: &str = "LAYERS";

/// The layers that a file lists: names with their layer, counted from below.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layers(BTreeMap<String, usize>);

impl Layers {
    /// Reads a file of layers. Text after `#` is a comment.
    pub(super) fn parse(content: &str) -> (Self, Vec<Violation>) {
        let mut layers = BTreeMap::new();
        let mut violations = Vec::new();
        for (number, line) in (1..).zip(content.lines()) {
            let names = line.split_once('#').map_or(line, |(names, _)| names);
            for name in names.split_whitespace() {
                if layers.insert(name.to_owned(), number).is_some() {
                    violations.push(Violation::new(number, format!("{name} is listed twice")));
                }
            }
        }
        (Self(layers), violations)
    }

    /// Names that are listed but do not exist, and names that exist but are not listed.
    pub(super) fn check_names(&self, existing: &BTreeSet<String>) -> Vec<Violation> {
        let missing = existing.iter().filter(|name| !self.0.contains_key(*name));
        let missing = missing.map(|name| Violation::new(1, format!("{name} is in no layer")));
        let gone = self.0.iter().filter(|(name, _)| !existing.contains(*name));
        let gone = gone.map(|(name, line)| Violation::new(*line, format!("{name} does not exist")));
        missing.chain(gone).collect()
    }

    /// The breach, if `user` must not use `used`.
    fn check_edge(&self, user: &str, used: &str, line: usize) -> Option<Violation> {
        let (from, to) = (self.0.get(user)?, self.0.get(used)?);
        let allowed = user == used || to < from;
        (!allowed).then(|| {
            Violation::new(line, format!("{user} uses {used}, which is not in a lower layer"))
        })
    }
}

/// The top-level module that a path below `src/` belongs to; absent for the crate's root and for
/// files of tests.
pub(super) fn module_of(path: &str) -> Option<&str> {
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| *part == "tests" || *part == "tests.rs") {
        return None;
    }
    let module = parts.first()?.trim_end_matches(".rs");
    (!matches!(module, "lib" | "main")).then_some(module)
}

/// What the root of a crate exports under another path: names with the module that has them.
pub(super) fn root_exports(root: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    let Ok(file) = syn::parse_file(root) else { return exports };
    for item in file.items {
        if let Item::Use(item) = item
            && let UseTree::Path(path) = &item.tree
        {
            collect_exports(&path.ident.to_string(), &path.tree, &mut exports);
        }
    }
    exports
}

fn collect_exports(module: &str, tree: &UseTree, exports: &mut BTreeMap<String, String>) {
    match tree {
        UseTree::Path(path) => collect_exports(module, &path.tree, exports),
        UseTree::Name(name) => drop(exports.insert(name.ident.to_string(), module.to_owned())),
        UseTree::Rename(name) => drop(exports.insert(name.rename.to_string(), module.to_owned())),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| collect_exports(module, tree, exports));
        }
        _ => {}
    }
}

/// Checks one source file, whose path is below `src/`.
pub(super) fn check_source(
    layers: &Layers,
    exports: &BTreeMap<String, String>,
    path: &str,
    content: &str,
) -> Vec<Violation> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let Ok(tokens) = content.parse::<TokenStream>() else { return Vec::new() };
    let mut uses = Vec::new();
    find_uses(tokens, depth_of(path), &mut uses);
    let mut violations: Vec<Violation> = Vec::new();
    for (name, line) in uses {
        let used = exports.get(&name).map_or(name.as_str(), String::as_str);
        violations.extend(layers.check_edge(module, used, line));
    }
    violations
}

/// How many `super` lead from a file's module to the root of the crate.
fn depth_of(path: &str) -> usize {
    let parts = path.split('/').count();
    if path.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// Finds what is named at the root of the crate: after `crate::`, or after enough `super::`.
fn find_uses(tokens: TokenStream, depth: usize, uses: &mut Vec<(String, usize)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    // How many `super` or whether `crate` led to the present place of a path.
    let mut climbed: Option<usize> = None;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Ident(name) if name == "crate" => climbed = Some(depth),
            TokenTree::Ident(name) if name == "super" => {
                climbed = Some(climbed.map_or(1, |steps| steps + 1));
            }
            TokenTree::Ident(name) => {
                if climbed == Some(depth) && is_path(&tokens, at - 1) {
                    uses.push((name.to_string(), name.span().start().line));
                }
                climbed = None;
                if name == "mod" && is_for_tests(&tokens, at - 1) {
                    at += 2;
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == ':' => {}
            TokenTree::Punct(_) | TokenTree::Literal(_) => climbed = None,
            TokenTree::Group(group) => {
                if climbed == Some(depth) && group.delimiter() == Delimiter::Brace {
                    uses.extend(group_heads(group));
                } else {
                    find_uses(group.stream(), depth, uses);
                }
                climbed = None;
            }
        }
    }
}

/// Whether the token before is the second colon of a path.
fn is_path(tokens: &[TokenTree], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| tokens.get(before));
    matches!(before, Some(TokenTree::Punct(mark)) if mark.as_char() == ':')
}

/// Whether `mod`, which stands here, is for tests only.
fn is_for_tests(tokens: &[TokenTree], at: usize) -> bool {
    let is_cfg_test = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.stream().to_string().replace(' ', "") == "cfg(test)",
        _ => false,
    };
    at.checked_sub(1).and_then(|before| tokens.get(before)).is_some_and(is_cfg_test)
}

/// The first names of what is listed in `crate::{…}`.
fn group_heads(group: &Group) -> Vec<(String, usize)> {
    let mut heads = Vec::new();
    let mut is_head = true;
    for token in group.stream() {
        match token {
            TokenTree::Ident(name) if is_head => {
                heads.push((name.to_string(), name.span().start().line));
                is_head = false;
            }
            TokenTree::Punct(mark) if mark.as_char() == ',' => is_head = true,
            _ => {}
        }
    }
    heads
}

/// Checks the `[dependencies]` of a crate. Those for tests may point anywhere.
pub(super) fn check_manifest(layers: &Layers, name: &str, manifest: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut is_product = false;
    for (number, line) in (1..).zip(manifest.lines()) {
        if line.starts_with('[') {
            is_product = line == "[dependencies]";
        } else if is_product {
            let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
            let used = &line[..end.unwrap_or(line.len())];
            violations.extend(layers.check_edge(name, used, number));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, content: &str) -> Vec<String> {
        let (layers, wrong) = Layers::parse("low # the base\nmiddle other\nhigh\n");
        assert_eq!(wrong, []);
        let exports = root_exports("mod high;\npub use high::{Top, inner::Nested as Deep};\n");
        let found = check_source(&layers, &exports, path, content);
        found.into_iter().map(|it| format!("{}: {}", it.line, it.message)).collect()
    }

    #[test]
    fn an_edge_that_points_up_or_sideways_is_a_violation() {
        assert_eq!(check("middle/a.rs", "use crate::low::X;\nuse crate::middle::Y;\n"), [""; 0]);
        assert_eq!(
            check("middle/a.rs", "use crate::low::X;\nuse crate::high::Y;\n"),
            ["2: middle uses high, which is not in a lower layer"]
        );
        assert_eq!(
            check("middle.rs", "use crate::{low::{A, B},\n    other::C};\n"),
            ["2: middle uses other, which is not in a lower layer"]
        );
        assert_eq!(
            check("low.rs", "fn f() {\n    let x = vec![crate::middle::g()];\n}\n"),
            ["2: low uses middle, which is not in a lower layer"]
        );
    }

    #[test]
    fn names_that_the_root_exports_count_for_the_module_that_has_them() {
        let expected = ["1: low uses high, which is not in a lower layer"];
        assert_eq!(check("low.rs", "use crate::Top;\n"), expected);
        assert_eq!(check("low.rs", "use crate::Deep;\n"), expected);
    }

    #[test]
    fn super_reaches_other_modules_too() {
        let expected = ["1: low uses high, which is not in a lower layer"];
        assert_eq!(check("low.rs", "use super::high::A;\n"), expected);
        assert_eq!(check("low/mod.rs", "use super::high::A;\n"), expected);
        assert_eq!(check("low/a.rs", "use super::super::high::A;\n"), expected);
        assert_eq!(check("low/a.rs", "use super::high::A;\n"), [""; 0]);
    }

    #[test]
    fn tests_may_look_anywhere() {
        let content = "#[cfg(test)]\nmod tests {\n    use crate::high::X;\n}\n";
        assert_eq!(check("low.rs", content), [""; 0]);
        assert_eq!(check("low/tests.rs", "use crate::high::X;\n"), [""; 0]);
        assert_eq!(check("low.rs", &content.replace("test)", "unix)")).len(), 1);
    }

    #[test]
    fn every_module_is_listed_once() {
        let (layers, wrong) = Layers::parse("a b\n\nb\nc\n");
        assert_eq!(wrong, [Violation::new(3, "b is listed twice")]);
        let existing = ["a", "b", "d"].map(str::to_owned).into();
        let expected =
            [Violation::new(1, "d is in no layer"), Violation::new(4, "c does not exist")];
        assert_eq!(layers.check_names(&existing), expected);
    }

    #[test]
    fn a_crate_depends_only_on_lower_ones() {
        let (layers, _) = Layers::parse("engine\nledger\nserver\n");
        let manifest = "[dependencies]\nengine.workspace = true\nserde = \"1\"\n\
            server = { workspace = true }\n[dev-dependencies]\nserver.workspace = true\n";
        let found = check_manifest(&layers, "ledger", manifest);
        let message = "ledger uses server, which is not in a lower layer";
        assert_eq!(found, [Violation::new(4, message)]);
    }
}
