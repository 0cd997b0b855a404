//! The value side of an affinity rule: exact text, a glob with `*`, or a regular expression.
//!
//! Matching must never take more than linear time in the text, nor much memory: a pattern comes
//! from a tenant and runs over that tenant's instances inside the planner. That is why regular
//! expressions are size-limited, and why they see bytes instead of Unicode: expressions are ASCII
//! anyway, and a Unicode `\w` compiles to sixty times the size of an ASCII one.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use regex::bytes::{Regex, RegexBuilder};

/// The largest compiled regular expression, in bytes.
///
/// Ordinary patterns need 300 to 8,000. At this limit, the worst pattern found costs about 0.6 ms
/// on a text of 255 characters.
pub const MAX_REGEX_BYTES: usize = 16 * 1024;

/// What an attribute is compared with. Two patterns are equal if their canonical source is.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Exact,
    Glob,
    Regex(Regex),
}

/// Why a regular expression was refused. The parser adds the expression it stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegexRefusal {
    /// It is not a regular expression.
    Syntax(String),
    /// It compiles to more than [`MAX_REGEX_BYTES`].
    TooLarge,
}

impl Pattern {
    /// Decides the kind of a value that the parser has found to be well-formed.
    pub(super) fn new(value: &str) -> Result<Self, RegexRefusal> {
        if let Some(regex) = regex_body(value) {
            let matcher = Matcher::Regex(compile(regex)?);
            return Ok(Self { source: value.to_owned(), matcher });
        }
        if value.contains('*') {
            return Ok(Self { source: collapse_stars(value), matcher: Matcher::Glob });
        }
        Ok(Self { source: value.to_owned(), matcher: Matcher::Exact })
    }

    /// Whether the text fits. Case counts. Exact and glob patterns cover the whole text, a regular
    /// expression any part of it unless it holds `^` or `$`.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        match &self.matcher {
            Matcher::Exact => self.source == text,
            Matcher::Glob => glob_matches(&self.source, text),
            Matcher::Regex(regex) => regex.is_match(text.as_bytes()),
        }
    }

    /// The one text that fits, if there is only one: a key for an index.
    #[must_use]
    pub fn exact(&self) -> Option<&str> {
        matches!(self.matcher, Matcher::Exact).then_some(self.source.as_str())
    }

    /// Whether it is a regular expression, which takes far more memory than its text.
    #[must_use]
    pub fn is_regex(&self) -> bool {
        matches!(self.matcher, Matcher::Regex(_))
    }

    /// The pattern as written in a canonical expression; a regular expression has its slashes.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Pattern {}

impl PartialOrd for Pattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.source.cmp(&other.source)
    }
}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

/// The text between the slashes of `/…/`. An empty one is no pattern, so `//` stays exact text.
fn regex_body(value: &str) -> Option<&str> {
    value.strip_prefix('/')?.strip_suffix('/').filter(|body| !body.is_empty())
}

fn compile(body: &str) -> Result<Regex, RegexRefusal> {
    RegexBuilder::new(body).unicode(false).size_limit(MAX_REGEX_BYTES).build().map_err(|error| {
        match error {
            regex::Error::CompiledTooBig(_) => RegexRefusal::TooLarge,
            other => RegexRefusal::Syntax(one_line(&other.to_string())),
        }
    })
}

/// The regex crate draws the pattern with a caret over several lines; its last line says why.
fn one_line(report: &str) -> String {
    let last = report.lines().last().unwrap_or(report).trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// `a**b` means `a*b`; one spelling makes the two rules equal.
fn collapse_stars(glob: &str) -> String {
    let mut collapsed = String::with_capacity(glob.len());
    for character in glob.chars() {
        if character != '*' || !collapsed.ends_with('*') {
            collapsed.push(character);
        }
    }
    collapsed
}

/// Anchored match in which only `*` is special, so `.` is a plain dot.
///
/// Taking the leftmost place for each middle piece is safe: an earlier end leaves more text for
/// the pieces that follow, so no backtracking is needed.
fn glob_matches(glob: &str, text: &str) -> bool {
    let Some((prefix, after_prefix)) = glob.split_once('*') else {
        return glob == text;
    };
    let (middle, suffix) = after_prefix.rsplit_once('*').unwrap_or(("", after_prefix));
    let inner = text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
    let Some(mut rest) = inner else {
        return false;
    };
    for piece in middle.split('*') {
        let Some((_, after)) = rest.split_once(piece) else {
            return false;
        };
        rest = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(value: &str) -> Pattern {
        Pattern::new(value).unwrap_or_else(|refusal| panic!("{value}: {refusal:?}"))
    }

    #[test]
    fn a_pattern_matches_by_its_kind() {
        let table = [
            // Exact: the whole text, case counts, nothing is special.
            ("db", "db", true),
            ("db", "DB", false),
            ("db", "db1", false),
            ("a.c", "abc", false),
            ("(a|b)", "(a|b)", true),
            ("//", "//", true),
            ("/", "/", true),
            ("/a", "/a", true),
            // Glob: anchored, only `*` is special.
            ("*", "", true),
            ("*", "anything", true),
            ("web*", "web", true),
            ("web*", "web-1", true),
            ("web*", "my-web", false),
            ("*web", "my-web", true),
            ("*web", "my-web-1", false),
            ("web.*", "web.1", true),
            ("web.*", "webx1", false),
            ("w?b*", "web1", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*ba", "aba", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("a*bc*bc", "abcbc", true),
            ("a*bc*bc", "abc", false),
            ("caf*", "café", true),
            // Regex: unanchored, case counts, `/*…*/` is still a regex.
            ("/eb/", "web-1", true),
            ("/^eb/", "web-1", false),
            ("/EB/", "web-1", false),
            ("/(?i)EB/", "web-1", true),
            (r"/^web-\d{2,3}$/", "web-12", true),
            (r"/^web-\d{2,3}$/", "web-1234", false),
            ("/^(db|cache)$/", "cache", true),
            ("/ab*c/", "ac", true),
            (r"/bob\x40example/", "bob@example", true),
            ("/^[^-]+$/", "café", true),
        ];
        for (value, text, expected) in table {
            assert_eq!(pattern(value).matches(text), expected, "{value:?} on {text:?}");
        }
    }

    #[test]
    fn only_an_exact_pattern_offers_an_index_key() {
        let table = [("db", Some("db")), ("//", Some("//")), ("db*", None), ("/db/", None)];
        for (value, expected) in table {
            assert_eq!(pattern(value).exact(), expected, "{value}");
        }
    }

    #[test]
    fn runs_of_stars_are_one_star_in_globs_only() {
        let table = [("a**b***", "a*b*"), ("**", "*"), ("/a**/", "/a**/"), ("ab", "ab")];
        for (value, expected) in table {
            assert_eq!(pattern(value).source(), expected, "{value}");
        }
        assert_eq!(pattern("a**"), pattern("a*"));
    }

    #[test]
    fn a_bad_regex_is_refused_with_one_line() {
        let table = [
            ("/a(/", "unclosed group"),
            ("/*/", "repetition operator missing expression"),
            ("/[z-a]/", "invalid character class range, the start must be <= the end"),
            (r"/(a)\1/", "backreferences are not supported"),
            ("/(?=a)/", "look-around, including look-ahead and look-behind, is not supported"),
        ];
        for (value, expected) in table {
            let refusal = Pattern::new(value).expect_err(value);
            assert_eq!(refusal, RegexRefusal::Syntax(expected.to_owned()), "{value}");
        }
    }

    #[test]
    fn a_hostile_regex_is_refused_for_its_size() {
        for value in ["/a{100000}/", "/(a{50}){50}/", "/((a{100}){100}){100}/", r"/\w{1,1000}/"] {
            assert_eq!(Pattern::new(value).expect_err(value), RegexRefusal::TooLarge, "{value}");
        }
    }

    #[test]
    fn ordinary_regexes_are_far_below_the_size_limit() {
        for value in [r"/^\w{1,64}$/", "/^.{1,64}$/", r"/^(db|web)-[a-z]{2,8}-\d{1,4}\.eu$/"] {
            pattern(value);
        }
    }

    #[test]
    fn patterns_that_ruin_backtracking_engines_finish() {
        let text = "a".repeat(4_000);
        assert!(!pattern("/^(a+)+$b/").matches(&text));
        assert!(!pattern("*a*a*a*a*a*a*a*a*b").matches(&text));
    }
}
