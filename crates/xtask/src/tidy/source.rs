//! Rules about Rust source: length of functions, macros that mark unfinished work.
//!
//! Reads tokens, not text, so that a comment or a string may name what the code may not use.

use super::Violation;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Ident};

const FUNCTION_LINES_MAX: usize = 70;
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Checks one source file; one that does not parse is a violation by itself.
pub(super) fn check(content: &str) -> Vec<Violation> {
    let tokens: TokenStream = match content.parse() {
        Ok(tokens) => tokens,
        Err(error) => return vec![does_not_parse(error.span(), &error)],
    };
    let mut violations = Vec::new();
    unfinished_macros(tokens, &mut violations);
    match syn::parse_file(content) {
        Ok(file) => {
            let mut functions = LongFunctions { violations };
            functions.visit_file(&file);
            functions.violations
        }
        Err(error) => {
            violations.push(does_not_parse(error.span(), &error));
            violations
        }
    }
}

fn does_not_parse(span: Span, error: &dyn std::error::Error) -> Violation {
    Violation::new(span.start().line, format!("does not parse: {error}"))
}

/// Finds `name!(...)` for the forbidden names, also inside the arguments of other macros.
fn unfinished_macros(tokens: TokenStream, violations: &mut Vec<Violation>) {
    // The last two tokens: a name, and whether an exclamation mark followed it.
    let mut called: Option<(Ident, bool)> = None;
    for token in tokens {
        called = match token {
            TokenTree::Ident(name) => Some((name, false)),
            TokenTree::Punct(mark) if mark.as_char() == '!' => called.map(|(name, _)| (name, true)),
            TokenTree::Group(group) => {
                if let Some((name, true)) = called
                    && let Some(unfinished) = UNFINISHED_MACROS.iter().find(|other| name == *other)
                {
                    let line = name.span().start().line;
                    violations.push(Violation::new(line, format!("`{unfinished}!` is left in")));
                }
                unfinished_macros(group.stream(), violations);
                None
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => None,
        };
    }
}

/// Visits functions with a body. Closures belong to the function around them, and the contents of a
/// macro such as `proptest!` are not visited.
struct LongFunctions {
    violations: Vec<Violation>,
}

impl LongFunctions {
    fn measure(&mut self, attributes: &[Attribute], name: &Ident, body: &Block) {
        if attributes.iter().any(is_test) {
            return;
        }
        let braces = body.brace_token.span;
        let (open, close) = (braces.open().start().line, braces.close().start().line);
        let lines = close.saturating_sub(open + 1);
        if lines > FUNCTION_LINES_MAX {
            self.violations.push(Violation::new(
                name.span().start().line,
                format!("body of `{name}` has {lines} lines, limit {FUNCTION_LINES_MAX}"),
            ));
        }
    }
}

impl<'ast> Visit<'ast> for LongFunctions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.attrs, &function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.attrs, &function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.measure(&function.attrs, &function.sig.ident, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// Whether an attribute is `#[test]` or a runtime's own, such as `#[tokio::test]`.
fn is_test(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|segment| segment.ident == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(before: &str, lines: usize) -> String {
        format!("{before} fn long() {{\n{}}}\n", "    step();\n".repeat(lines))
    }

    #[test]
    fn a_body_may_have_70_lines_and_no_more() {
        assert_eq!(check(&function("", 70)), []);
        let expected = [Violation::new(1, "body of `long` has 71 lines, limit 70")];
        assert_eq!(check(&function("", 71)), expected);
    }

    #[test]
    fn methods_and_trait_defaults_are_measured_too() {
        for container in ["impl Node", "trait Scorer"] {
            let content = format!("{container} {{\n{}}}\n", function("", 71));
            assert_eq!(check(&content).len(), 1, "{container}");
        }
    }

    #[test]
    fn tests_and_macro_contents_may_be_long() {
        assert_eq!(check(&function("#[test]", 200)), []);
        assert_eq!(check(&function("#[tokio::test]", 200)), []);
        assert_eq!(check(&format!("proptest! {{\n{}}}\n", function("", 200))), []);
    }

    #[test]
    fn unfinished_work_is_found_in_code_but_not_in_comments_or_strings() {
        let cases = [
            ("fn f() { todo!() }", 1),
            ("fn f() { std::unimplemented!(\"later\") }", 1),
            ("fn f() { assert!(dbg!(true)); }", 1),
            ("// todo!()\nfn f() {}", 0),
            ("fn f() -> &'static str { \"dbg!(x)\" }", 0),
            ("fn f(todo: bool) -> bool { todo != (false) }", 0),
            ("fn f(todo: bool) -> bool { !todo }", 0),
        ];
        for (content, expected) in cases {
            assert_eq!(check(content).len(), expected, "{content}");
        }
    }

    #[test]
    fn source_that_does_not_parse_is_reported_with_its_line() {
        for content in ["fn f() {}\nfn {}\n", "fn f() {}\n}\n"] {
            let violations = check(content);
            assert_eq!(violations.len(), 1, "{content}");
            assert_eq!(violations[0].line, 2, "{content}");
        }
    }
}
