//! From text to tree.
//!
//! ```text
//! any   = all { "or" all }
//! all   = one { "and" one }
//! one   = "not" one | "(" any ")" | "has" attribute | attribute operator value
//!       | attribute "in" "(" value { "," value } ")"
//! ```

use super::attribute::{Attribute, AttributeError, Kind, closest, resources};
use super::value::{Value, is_keyword, is_plain};
use super::{Comparison, Expr, Operator, SelectError, Span};

/// The longest selector, so that one cannot keep a server busy.
pub const MAX_SELECTOR_BYTES: usize = 4096;

/// The deepest nesting of parentheses and `not`.
pub const MAX_DEPTH: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Symbol(&'static str),
    End,
}

pub(super) fn parse(text: &str) -> Result<Expr, SelectError> {
    if text.len() > MAX_SELECTOR_BYTES {
        return Err(SelectError {
            text: text.chars().take(40).collect(),
            at: Span { start: 0, end: 40 },
            found: format!("{} bytes", text.len()),
            accepted: format!("at most {MAX_SELECTOR_BYTES} bytes"),
            suggestion: None,
        });
    }
    let mut parser = Parser { text, tokens: tokens(text)?, place: 0, depth: 0 };
    let expr = parser.any()?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected("and, or, or the end")),
    }
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

fn tokens(text: &str) -> Result<Vec<(Token, Span)>, SelectError> {
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
                let (inner, length) = read_quoted(text, start)?;
                (Token::Quoted(inner), length)
            }
            None => word(text, start)?,
        };
        found.push((token, Span { start, end: start + length }));
        start += length;
    }
    found.push((Token::End, Span { start: text.len(), end: text.len() }));
    Ok(found)
}

/// A word, whose key after a colon or dot may be quoted: `label:"two words"`.
fn word(text: &str, start: usize) -> Result<(Token, usize), SelectError> {
    let rest = &text[start..];
    let length = rest.find(|c: char| !is_plain(c)).unwrap_or(rest.len());
    let (plain, after) = rest.split_at(length);
    if plain.ends_with([':', '.']) && after.starts_with(['"', '\'']) {
        let (key, more) = read_quoted(text, start + length)?;
        return Ok((Token::Word(format!("{plain}{key}")), length + more));
    }
    if length > 0 {
        return Ok((Token::Word(plain.to_owned()), length));
    }
    let character = rest.chars().next().unwrap_or(' ');
    let suggestion = match character {
        '&' => Some("and".to_owned()),
        '|' => Some("or".to_owned()),
        '!' => Some("not or !=".to_owned()),
        _ => None,
    };
    Err(SelectError {
        text: text.to_owned(),
        at: Span { start, end: start + character.len_utf8() },
        found: format!("{:?}", character.to_string()),
        accepted: "an attribute, an operator, or a value; a value that holds other characters \
                   than letters, digits and - _ . : / @ + % * ? stands between quotes"
            .to_owned(),
        suggestion,
    })
}

/// The text between quotes, and how long it is with them. A backslash takes the next as it is.
fn read_quoted(text: &str, start: usize) -> Result<(String, usize), SelectError> {
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
    Err(SelectError {
        text: text.to_owned(),
        at: Span { start, end: text.len() },
        found: "the end within quotes".to_owned(),
        accepted: format!("a closing {quote}"),
        suggestion: None,
    })
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, Span)>,
    place: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.place).map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> Span {
        let end = Span { start: self.text.len(), end: self.text.len() };
        self.tokens.get(self.place).map_or(end, |(_, at)| *at)
    }

    fn advance(&mut self) -> (Token, Span) {
        let current = (self.peek().clone(), self.at());
        self.place += 1;
        current
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

    fn unexpected(&self, accepted: &str) -> SelectError {
        self.error(self.at(), accepted.to_owned(), None)
    }

    fn error(&self, at: Span, accepted: String, suggestion: Option<String>) -> SelectError {
        let found = match self.text.get(at.start..at.end) {
            Some(part) if !part.is_empty() => format!("{part:?}"),
            _ => "the end".to_owned(),
        };
        SelectError { text: self.text.to_owned(), at, found, accepted, suggestion }
    }

    fn any(&mut self) -> Result<Expr, SelectError> {
        let mut parts = vec![self.all()?];
        while self.takes_keyword("or") {
            parts.push(self.all()?);
        }
        Ok(Expr::any(parts))
    }

    fn all(&mut self) -> Result<Expr, SelectError> {
        let mut parts = vec![self.one()?];
        while self.takes_keyword("and") {
            parts.push(self.one()?);
        }
        Ok(Expr::all(parts))
    }

    fn one(&mut self) -> Result<Expr, SelectError> {
        let at = self.at();
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(at, format!("at most {MAX_DEPTH} levels"), None));
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
            let attribute = self.attribute()?;
            self.test(at, attribute, Operator::Has, Vec::new())
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    /// A test that ends with the token before the current one.
    fn test(&self, at: Span, attribute: Attribute, operator: Operator, values: Vec<Value>) -> Expr {
        let last = self.tokens.get(self.place.saturating_sub(1));
        let at = Span { start: at.start, end: last.map_or(at.end, |(_, last)| last.end) };
        Expr::Comparison(Comparison { attribute, operator, values, at })
    }

    fn attribute(&mut self) -> Result<Attribute, SelectError> {
        let name = match self.peek() {
            Token::Word(name) if !is_keyword(name) => name.clone(),
            _ => {
                let accepted = format!(
                    "an attribute, not, has or (; attributes are {}",
                    Attribute::accepted()
                );
                return Err(self.unexpected(&accepted));
            }
        };
        let (_, at) = self.advance();
        Attribute::by_name(&name).map_err(|why| match why {
            AttributeError::Unknown => {
                let accepted = format!("an attribute: {}", Attribute::accepted());
                self.error(at, accepted, Attribute::suggestion(&name))
            }
            AttributeError::NoKey(prefix) => {
                self.error(at, format!("{prefix} with a key, as in {prefix}:name"), None)
            }
            AttributeError::NoResource => {
                let accepted = format!("used. or free. with one of {}", resources(", "));
                self.error(at, accepted, Attribute::suggestion(&name))
            }
        })
    }

    fn comparison(&mut self) -> Result<Expr, SelectError> {
        let start = self.at();
        let attribute = self.attribute()?;
        let accepted = operators(&attribute);
        let listed = || accepted.iter().map(|one| one.symbol()).collect::<Vec<_>>().join(", ");
        let (token, at) = self.advance();
        let operator = match &token {
            Token::Symbol(symbol) => accepted.iter().find(|one| one.symbol() == *symbol),
            Token::Word(word) if word.eq_ignore_ascii_case("in") => Some(&Operator::In),
            Token::Word(_) | Token::Quoted(_) | Token::End => None,
        };
        let Some(&operator) = operator else {
            return Err(self.error(at, format!("{} after {attribute}", listed()), None));
        };
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
        Ok(self.test(start, attribute, operator, values))
    }

    fn value(&mut self, attribute: &Attribute, operator: Operator) -> Result<Value, SelectError> {
        let text = match self.peek() {
            Token::Word(word) if is_keyword(word) => {
                let accepted = format!("a value for {attribute}; {word:?} as a value needs quotes");
                return Err(self.unexpected(&accepted));
            }
            Token::Word(text) | Token::Quoted(text) => text.clone(),
            Token::Symbol(_) | Token::End => {
                return Err(self.unexpected(&format!("a value for {attribute}")));
            }
        };
        let (_, at) = self.advance();
        Value::read(&text, attribute, operator).map_err(|accepted| {
            let suggestion = match attribute.kind() {
                Kind::Word(words) => closest(&text.to_lowercase(), words.iter().copied()),
                _ => None,
            };
            self.error(at, format!("{accepted}, for {attribute}"), suggestion)
        })
    }
}

/// The operators that mean something for an attribute.
fn operators(attribute: &Attribute) -> Vec<Operator> {
    use Operator::{Above, AtLeast, AtMost, Below, Equal, In, Like, NotEqual};
    let ordered = [Below, AtMost, Above, AtLeast];
    let mut accepted = vec![Equal, NotEqual];
    match attribute.kind() {
        Kind::Text | Kind::Version | Kind::Platform => {
            accepted.extend(ordered);
            accepted.push(Like);
        }
        Kind::Word(_) => accepted.push(Like),
        Kind::Switch => {}
        Kind::Count | Kind::Cpu | Kind::Size | Kind::Bandwidth | Kind::Loss | Kind::Date => {
            accepted.extend(ordered)
        }
    }
    accepted.push(In);
    accepted
}

impl Expr {
    /// All of these; what is itself all of some is taken apart.
    pub(super) fn all(parts: Vec<Self>) -> Self {
        let flat = parts.into_iter().flat_map(|part| match part {
            Self::All(inner) => inner,
            other => vec![other],
        });
        Self::one_or(flat.collect(), Self::All)
    }

    /// Any of these; what is itself any of some is taken apart.
    pub(super) fn any(parts: Vec<Self>) -> Self {
        let flat = parts.into_iter().flat_map(|part| match part {
            Self::Any(inner) => inner,
            other => vec![other],
        });
        Self::one_or(flat.collect(), Self::Any)
    }

    fn one_or(mut parts: Vec<Self>, group: fn(Vec<Self>) -> Self) -> Self {
        match (parts.len(), parts.pop()) {
            (1, Some(only)) => only,
            (_, last) => {
                parts.extend(last);
                group(parts)
            }
        }
    }
}
