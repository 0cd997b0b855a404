//! The grammar of affinity expressions.
//!
//! ```text
//! rule  = key op ["~"] value ["@" scope]
//! op    = "==" | "!="          the first "==" anywhere, else the first "!="
//! key   = letter or "_", then any of letters, digits, "-", "_", "."
//! value = one or more of letters, digits, space, tab and  - : _ . * / ( ) ? + [ ] \ ^ $ | , { }
//! scope = "node" | "rack" | "zone"
//! ```
//!
//! Letters and digits are ASCII. White space around a part is dropped, except that `~` touches the
//! operator and the scope touches its `@`. `@` is no value character, so a scope needs no escape.
//!
//! The parser must never guess: text it does not fully understand is an error that names the part,
//! what was found there and what would be accepted.

use super::error::AffinityError;
use super::pattern::{Pattern, RegexRefusal};
use super::{Operator, Rule, Strength, Subject, Topology};

/// The longest expression, in bytes. It bounds the work a request can ask of the parser.
pub const MAX_EXPRESSION_BYTES: usize = 1024;

/// The characters a value may hold besides ASCII letters, digits, space and tab. `=`, `!` and `~`
/// are left out so that a mistyped operator is found. Line ends are left out so that an expression
/// is one line in a log.
pub(super) const VALUE_PUNCTUATION: &str = r"-:_.*/()?+[]\^$|,{}";

/// How much of an expression that is too long is repeated in the error.
const SHOWN_CHARS: usize = 60;

/// Reads one expression, left to right, so that the first wrong part is the one reported.
pub(super) fn parse(expression: &str) -> Result<Rule, AffinityError> {
    check_length(expression)?;
    let (key, operator, rest) = split_operator(expression)?;
    let subject = parse_subject(expression, key)?;
    let (strength, rest) = match rest.strip_prefix('~') {
        Some(rest) => (Strength::Soft, rest),
        None => (Strength::Hard, rest),
    };
    let (value, scope) = split_scope(expression, rest)?;
    let pattern = parse_pattern(expression, value)?;
    Ok(Rule::new(subject, operator, strength, pattern, scope))
}

fn check_length(expression: &str) -> Result<(), AffinityError> {
    if expression.len() <= MAX_EXPRESSION_BYTES {
        return Ok(());
    }
    Err(AffinityError::TooLong {
        start: expression.chars().take(SHOWN_CHARS).collect(),
        length_bytes: expression.len(),
    })
}

/// `==` wins over an earlier `!=`, as in the language this one is compatible with.
fn split_operator(expression: &str) -> Result<(&str, Operator, &str), AffinityError> {
    for operator in [Operator::Same, Operator::Different] {
        if let Some((key, rest)) = expression.split_once(operator.symbol()) {
            return Ok((key, operator, rest));
        }
    }
    Err(AffinityError::Operator {
        expression: expression.to_owned(),
        found: operator_like(expression).to_owned(),
    })
}

/// The first run of characters that people use as operators, such as `=~`.
fn operator_like(expression: &str) -> &str {
    let is_symbol = |character: char| "=!~<>".contains(character);
    let from_symbol = expression.find(is_symbol).map_or("", |start| &expression[start..]);
    let end = from_symbol.find(|character| !is_symbol(character)).unwrap_or(from_symbol.len());
    &from_symbol[..end]
}

fn parse_subject(expression: &str, key: &str) -> Result<Subject, AffinityError> {
    match key.trim() {
        "instance" | "container" => Ok(Subject::Instance),
        "workload" => Ok(Subject::Workload),
        "image" => Ok(Subject::Image),
        tag if is_key(tag) => Ok(Subject::Tag(tag.to_owned())),
        other => {
            Err(AffinityError::Key { expression: expression.to_owned(), found: other.to_owned() })
        }
    }
}

fn is_key(text: &str) -> bool {
    let starts_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts_well && text.chars().all(|other| other.is_ascii_alphanumeric() || "-_.".contains(other))
}

/// Cuts `@scope` off the end. Without one, the scope is the node.
fn split_scope<'a>(expression: &str, text: &'a str) -> Result<(&'a str, Topology), AffinityError> {
    let text = text.trim();
    let Some((value, name)) = text.rsplit_once('@') else {
        return Ok((text, Topology::default()));
    };
    let scope = Topology::from_name(name).ok_or_else(|| AffinityError::Scope {
        expression: expression.to_owned(),
        found: name.to_owned(),
    })?;
    Ok((value.trim_end(), scope))
}

fn parse_pattern(expression: &str, value: &str) -> Result<Pattern, AffinityError> {
    if value.is_empty() {
        return Err(AffinityError::ValueMissing { expression: expression.to_owned() });
    }
    if let Some(refused) = value.chars().find(|character| !is_value_character(*character)) {
        return Err(AffinityError::ValueCharacter {
            expression: expression.to_owned(),
            found: value.to_owned(),
            refused,
        });
    }
    Pattern::new(value).map_err(|refusal| regex_error(expression, value, refusal))
}

fn is_value_character(character: char) -> bool {
    character.is_ascii_alphanumeric()
        || matches!(character, ' ' | '\t')
        || VALUE_PUNCTUATION.contains(character)
}

fn regex_error(expression: &str, value: &str, refusal: RegexRefusal) -> AffinityError {
    let expression = expression.to_owned();
    let found = value.to_owned();
    match refusal {
        RegexRefusal::Syntax(reason) => AffinityError::RegexSyntax { expression, found, reason },
        RegexRefusal::TooLarge => AffinityError::RegexTooLarge { expression, found },
    }
}

#[cfg(test)]
mod tests {
    use super::super::Part;
    use super::*;

    fn refuse(expression: &str) -> AffinityError {
        parse(expression).expect_err(expression)
    }

    #[test]
    fn every_part_is_read() {
        use Operator::{Different, Same};
        use Strength::{Hard, Soft};
        use Topology::{Node, Rack, Zone};
        let tag = |key: &str| Subject::Tag(key.to_owned());
        let table = [
            ("instance==db0", Subject::Instance, Same, Hard, "db0", Node),
            ("container!=~db0", Subject::Instance, Different, Soft, "db0", Node),
            ("workload==~api @node", Subject::Workload, Same, Soft, "api", Node),
            ("image!=/^deb/@zone", Subject::Image, Different, Hard, "/^deb/", Zone),
            ("role==db@rack", tag("role"), Same, Hard, "db", Rack),
            ("role!=~web* \t@zone", tag("role"), Different, Soft, "web*", Zone),
            ("a==b", tag("a"), Same, Hard, "b", Node),
            ("_==b", tag("_"), Same, Hard, "b", Node),
            ("a.b-c_9==b", tag("a.b-c_9"), Same, Hard, "b", Node),
            ("Instance==b", tag("Instance"), Same, Hard, "b", Node),
            ("  a  ==  b c  ", tag("a"), Same, Hard, "b c", Node),
            ("a ==~ b", tag("a"), Same, Soft, "b", Node),
        ];
        for (expression, subject, operator, strength, value, scope) in table {
            let rule = parse(expression).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(rule.subject(), &subject, "{expression}");
            assert_eq!(rule.operator(), operator, "{expression}");
            assert_eq!(rule.strength(), strength, "{expression}");
            assert_eq!(rule.pattern().source(), value, "{expression}");
            assert_eq!(rule.scope(), scope, "{expression}");
        }
    }

    #[test]
    fn the_wrong_part_is_named() {
        let table = [
            // Triton's own examples of what must be refused.
            ("container=~foo", Part::Operator),
            ("container==", Part::Value),
            ("==foo", Part::Key),
            ("container==/a!/", Part::Value),
            ("instance===x", Part::Value),
            // Operators.
            ("", Part::Operator),
            ("role", Part::Operator),
            ("role=db", Part::Operator),
            ("role = = db", Part::Operator),
            // Keys, and `==` winning over an earlier `!=`.
            ("a!=b==c", Part::Key),
            ("a!==c", Part::Key),
            ("9a==b", Part::Key),
            ("-a==b", Part::Key),
            ("a b==c", Part::Key),
            ("é==b", Part::Key),
            // Values.
            ("a==~", Part::Value),
            ("a== ~b", Part::Value),
            ("a==~~b", Part::Value),
            ("a==@rack", Part::Value),
            ("a==b@rack@zone", Part::Value),
            ("a==caf\u{e9}", Part::Value),
            ("a==b\nc", Part::Value),
            ("a==b#c", Part::Value),
            // Scopes.
            ("a==b@", Part::Scope),
            ("a==b@row", Part::Scope),
            ("a==b@Rack", Part::Scope),
            ("a==b@ rack", Part::Scope),
            ("a==bob@example.com", Part::Scope),
            // Regular expressions.
            ("a==/(/", Part::Regex),
            ("a==/*/", Part::Regex),
            ("a==/a{9999}/", Part::Regex),
        ];
        for (expression, part) in table {
            assert_eq!(refuse(expression).part(), part, "{expression:?}");
        }
    }

    #[test]
    fn every_listed_value_character_is_accepted() {
        for character in VALUE_PUNCTUATION.chars().chain("azAZ09".chars()) {
            let expression = format!("a==x{character}y");
            assert!(parse(&expression).is_ok(), "{expression}");
        }
    }

    #[test]
    fn the_length_limit_is_exact() {
        let longest = format!("a=={}", "x".repeat(MAX_EXPRESSION_BYTES - 3));
        assert!(parse(&longest).is_ok());
        let error = refuse(&format!("{longest}x"));
        assert_eq!(error.part(), Part::Expression);
        assert!(error.to_string().contains("1025 bytes, at most 1024"), "{error}");
    }
}
