//! From text to tree.
//!
//! ```text
//! any   = all { "or" all }
//! all   = one { "and" one }
//! one   = "not" one | "(" any ")" | "has" attribute | attribute operator value
//!       | attribute "in" "(" value { "," value } ")"
//! ```

use super::{Attribute, Comparison, Expr, NodeSelector, Operator, SelectorError, Value};

const ATTRIBUTES: &str = "id, zone, rack, capacity_type, platform_version, hardware_class, \
                          virtual, label:KEY, trait:KEY";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Symbol(&'static str),
    End,
}

/// Words that mean something in a selector and so must be quoted as values.
const KEYWORDS: [&str; 5] = ["and", "or", "not", "in", "has"];

fn is_keyword(word: &str) -> bool {
    KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word))
}

fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || "-_.:/@+%*?".contains(character)
}

/// A text as it stands in a selector: plain where that reads back, else between quotes.
pub(super) fn quote(text: &str) -> String {
    if !text.is_empty() && text.chars().all(is_plain) && !is_keyword(text) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Operators as they are written, longest first; `==` is understood as `=`.
const SYMBOLS: [(&str, &str); 11] = [
    ("==", "="),
    ("!=", "!="),
    ("<=", "<="),
    (">=", ">="),
    ("=", "="),
    ("<", "<"),
    (">", ">"),
    ("~", "~"),
    ("(", "("),
    (")", ")"),
    (",", ","),
];

pub(super) fn parse(text: &str) -> Result<Expr, SelectorError> {
    if text.len() > NodeSelector::MAX_BYTES {
        return Err(SelectorError {
            text: text.chars().take(40).collect(),
            at: NodeSelector::MAX_BYTES,
            found: format!("{} bytes", text.len()),
            accepted: format!("at most {} bytes", NodeSelector::MAX_BYTES),
        });
    }
    let mut parser = Parser { text, tokens: tokens(text)?, place: 0, depth: 0, terms: 0 };
    let expr = parser.any()?;
    match parser.peek() {
        Token::End => Ok(expr),
        Token::Word(_) | Token::Quoted(_) | Token::Symbol(_) => {
            Err(parser.unexpected("and, or, or the end"))
        }
    }
}

fn tokens(text: &str) -> Result<Vec<(Token, usize)>, SelectorError> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(first) = text[start..].chars().next() {
        if first.is_whitespace() {
            start += first.len_utf8();
            continue;
        }
        let rest = &text[start..];
        let symbol = SYMBOLS.iter().find(|(written, _)| rest.starts_with(written));
        let (token, length) = match symbol {
            Some((written, meaning)) => (Token::Symbol(meaning), written.len()),
            None if matches!(first, '"' | '\'') => {
                let (inner, length) = quoted(text, start)?;
                (Token::Quoted(inner), length)
            }
            None => word(text, start)?,
        };
        found.push((token, start));
        start += length;
    }
    found.push((Token::End, text.len()));
    Ok(found)
}

/// A word, whose key after a colon or dot may be quoted: `label:"two words"`.
fn word(text: &str, start: usize) -> Result<(Token, usize), SelectorError> {
    let rest = &text[start..];
    let length = rest.find(|c: char| !is_plain(c)).unwrap_or(rest.len());
    let (plain, after) = rest.split_at(length);
    if plain.ends_with([':', '.']) && after.starts_with(['"', '\'']) {
        let (key, more) = quoted(text, start + length)?;
        return Ok((Token::Word(format!("{plain}{key}")), length + more));
    }
    if length > 0 {
        return Ok((Token::Word(plain.to_owned()), length));
    }
    Err(SelectorError {
        text: text.to_owned(),
        at: start,
        found: rest.chars().take(1).collect(),
        accepted: "an attribute, an operator or a value; a value with other characters than \
                   letters, digits and - _ . : / @ + % * ? is quoted"
            .to_owned(),
    })
}

/// The text between quotes, and how long it is with them. A backslash takes the next as it is.
fn quoted(text: &str, start: usize) -> Result<(String, usize), SelectorError> {
    let mut inner = String::new();
    let mut characters = text[start..].char_indices();
    let quote = characters.next().map_or('"', |(_, quote)| quote);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => inner.extend(characters.next().map(|(_, next)| next)),
            _ if character == quote => return Ok((inner, at + 1)),
            _ => inner.push(character),
        }
    }
    let accepted = format!("a closing {quote}");
    Err(SelectorError { text: text.to_owned(), at: text.len(), found: String::new(), accepted })
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, usize)>,
    place: usize,
    depth: usize,
    terms: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.place).map_or(&Token::End, |(token, _)| token)
    }

    fn takes_keyword(&mut self, keyword: &str) -> bool {
        let here = matches!(self.peek(), Token::Word(word) if word.eq_ignore_ascii_case(keyword));
        self.place += usize::from(here);
        here
    }

    fn takes_symbol(&mut self, symbol: &str) -> bool {
        let here = matches!(self.peek(), Token::Symbol(found) if *found == symbol);
        self.place += usize::from(here);
        here
    }

    fn unexpected(&self, accepted: &str) -> SelectorError {
        let at = self.tokens.get(self.place).map_or(self.text.len(), |(_, at)| *at);
        let found = match self.peek() {
            Token::Word(text) | Token::Quoted(text) => text.clone(),
            Token::Symbol(symbol) => (*symbol).to_owned(),
            Token::End => String::new(),
        };
        SelectorError { text: self.text.to_owned(), at, found, accepted: accepted.to_owned() }
    }

    fn any(&mut self) -> Result<Expr, SelectorError> {
        let mut parts = vec![self.all()?];
        while self.takes_keyword("or") {
            parts.push(self.all()?);
        }
        Ok(Expr::any(parts))
    }

    fn all(&mut self) -> Result<Expr, SelectorError> {
        let mut parts = vec![self.one()?];
        while self.takes_keyword("and") {
            parts.push(self.one()?);
        }
        Ok(Expr::all(parts))
    }

    fn one(&mut self) -> Result<Expr, SelectorError> {
        self.depth += 1;
        if self.depth > NodeSelector::MAX_DEPTH {
            return Err(self.unexpected(&format!("at most {} levels", NodeSelector::MAX_DEPTH)));
        }
        let expr = if self.takes_keyword("not") {
            Expr::Not(Box::new(self.one()?))
        } else if self.takes_symbol("(") {
            let inner = self.any()?;
            if !self.takes_symbol(")") {
                return Err(self.unexpected("and, or, or a closing )"));
            }
            inner
        } else if self.takes_keyword("has") {
            let (attribute, operator) = (self.attribute()?, Operator::Has);
            self.count_term()?;
            Expr::Comparison(Comparison { attribute, operator, values: Vec::new() })
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn count_term(&mut self) -> Result<(), SelectorError> {
        self.terms += 1;
        if self.terms <= NodeSelector::MAX_TERMS {
            return Ok(());
        }
        Err(self.unexpected(&format!("at most {} terms", NodeSelector::MAX_TERMS)))
    }

    fn attribute(&mut self) -> Result<Attribute, SelectorError> {
        let accepted = || format!("one of {ATTRIBUTES}");
        let Token::Word(name) = self.peek() else {
            return Err(self.unexpected(&accepted()));
        };
        let attribute = match (name.as_str(), name.split_once([':', '.'])) {
            ("id" | "node" | "name", _) => Attribute::Id,
            ("zone", _) => Attribute::Zone,
            ("rack", _) => Attribute::Rack,
            ("capacity_type" | "capacity", _) => Attribute::CapacityType,
            ("platform_version", _) => Attribute::PlatformVersion,
            ("hardware_class", _) => Attribute::HardwareClass,
            ("virtual" | "is_virtual", _) => Attribute::Virtual,
            (_, Some(("label", key))) if !key.is_empty() => Attribute::Label(key.to_owned()),
            (_, Some(("trait", key))) if !key.is_empty() => Attribute::Trait(key.to_owned()),
            _ => return Err(self.unexpected(&accepted())),
        };
        self.place += 1;
        Ok(attribute)
    }

    fn comparison(&mut self) -> Result<Expr, SelectorError> {
        let attribute = self.attribute()?;
        let operators = operators(&attribute);
        let operator = match self.peek() {
            Token::Symbol(symbol) => operators.iter().find(|by| by.symbol() == *symbol),
            Token::Word(word) if word.eq_ignore_ascii_case("in") => Some(&Operator::In),
            Token::Word(_) | Token::Quoted(_) | Token::End => None,
        };
        let Some(&operator) = operator else {
            let symbols: Vec<&str> = operators.iter().map(|by| by.symbol()).collect();
            return Err(self.unexpected(&format!("{} after {attribute}", symbols.join(", "))));
        };
        self.place += 1;
        let mut values = Vec::new();
        if operator == Operator::In {
            if !self.takes_symbol("(") {
                return Err(self.unexpected("( and a list of values"));
            }
            values.push(self.value(&attribute, operator)?);
            while self.takes_symbol(",") {
                values.push(self.value(&attribute, operator)?);
            }
            if !self.takes_symbol(")") {
                return Err(self.unexpected("a comma and another value, or a closing )"));
            }
        } else {
            values.push(self.value(&attribute, operator)?);
        }
        Ok(Expr::Comparison(Comparison { attribute, operator, values }))
    }

    fn value(&mut self, attribute: &Attribute, by: Operator) -> Result<Value, SelectorError> {
        self.count_term()?;
        let text = match self.peek() {
            Token::Word(word) if is_keyword(word) => None,
            Token::Word(text) | Token::Quoted(text) => Some(text.clone()),
            Token::Symbol(_) | Token::End => None,
        };
        let Some(text) = text else {
            return Err(self.unexpected(&format!("a value for {attribute}")));
        };
        let read = match attribute {
            _ if by == Operator::Like => Ok(Value::Text(text)),
            Attribute::Id
            | Attribute::Zone
            | Attribute::Rack
            | Attribute::Label(_)
            | Attribute::Trait(_) => Ok(Value::Text(text)),
            Attribute::CapacityType if ["on-demand", "spot"].contains(&&*text) => {
                Ok(Value::Text(text))
            }
            Attribute::CapacityType => Err("on-demand or spot"),
            Attribute::HardwareClass => {
                text.parse().map(Value::Number).map_err(|_| "a whole number")
            }
            Attribute::PlatformVersion => version(&text).ok_or("a version, as in 7.1"),
            Attribute::Virtual => switch(&text).ok_or("true or false"),
        };
        let value =
            read.map_err(|accepted| self.unexpected(&format!("{accepted}, for {attribute}")))?;
        self.place += 1;
        Ok(value)
    }
}

fn version(text: &str) -> Option<Value> {
    let (major, minor) = text.split_once('.')?;
    Some(Value::Version(major.parse().ok()?, minor.parse().ok()?))
}

fn switch(text: &str) -> Option<Value> {
    match text {
        "true" | "yes" | "on" => Some(Value::Switch(true)),
        "false" | "no" | "off" => Some(Value::Switch(false)),
        _ => None,
    }
}

/// The operators that mean something for an attribute.
fn operators(attribute: &Attribute) -> &'static [Operator] {
    use Operator::{Above, AtLeast, AtMost, Below, Equal, In, Like, NotEqual};
    match attribute {
        Attribute::Id
        | Attribute::Zone
        | Attribute::Rack
        | Attribute::CapacityType
        | Attribute::Label(_)
        | Attribute::Trait(_) => &[Equal, NotEqual, Like, In],
        Attribute::PlatformVersion | Attribute::HardwareClass => {
            &[Equal, NotEqual, Below, AtMost, Above, AtLeast, In]
        }
        Attribute::Virtual => &[Equal, NotEqual, In],
    }
}
