//! From text to tree, whatever attributes there are.
//!
//! ```text
//! any   = all { "or" all }
//! all   = one { "and" one }
//! one   = "not" one | "(" any ")" | "has" attribute | attribute operator value
//!       | attribute "in" "(" value { "," value } ")"
//! ```

use std::marker::PhantomData;
use std::ops::Range;

use super::SelectorError;
use super::error::ExpectedInput;
use super::grammar::{Attribute, Comparison, Expr, Operator, is_keyword, is_plain};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Symbol(&'static str),
    End,
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

impl<A: Attribute> Expr<A> {
    /// Reads a selector.
    ///
    /// # Errors
    /// Points at the place, and names what was found and what is accepted there.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > A::MAX_BYTES {
            let (found, expected) = (text.len(), format!("at most {} bytes", A::MAX_BYTES));
            let text: String = text.chars().take(40).collect();
            let (at, found) = (0..text.len(), format!("{found} bytes"));
            return Err(SelectorError { text, at, found, expected: expected.into() });
        }
        let attributes = PhantomData::<A>;
        let mut parser =
            Parser { text, tokens: tokens(text)?, place: 0, depth: 0, terms: 0, attributes };
        let expr = parser.any()?;
        if *parser.peek() != Token::End {
            return Err(parser.unexpected("and, or, or the end"));
        }
        Ok(expr)
    }
}

fn tokens(text: &str) -> Result<Vec<(Token, Range<usize>)>, SelectorError> {
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
        found.push((token, start..start + length));
        start += length;
    }
    found.push((Token::End, text.len()..text.len()));
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
    let character = rest.chars().next().unwrap_or(' ');
    let suggestion = match character {
        '&' => Some("and"),
        '|' => Some("or"),
        '!' => Some("not or !="),
        _ => None,
    };
    let expected = ExpectedInput::from(
        "an attribute, an operator or a value; a value that holds other characters than letters, \
         digits and - _ . : / @ + % * ? is written between quotes",
    );
    Err(SelectorError {
        text: text.to_owned(),
        at: start..start + character.len_utf8(),
        found: format!("{:?}", character.to_string()),
        expected: expected.or_rather(suggestion.map(str::to_owned)),
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
    Err(SelectorError {
        text: text.to_owned(),
        at: start..text.len(),
        found: "the end within quotes".to_owned(),
        expected: format!("a closing {quote}").into(),
    })
}

struct Parser<'a, A> {
    text: &'a str,
    tokens: Vec<(Token, Range<usize>)>,
    place: usize,
    depth: usize,
    terms: usize,
    attributes: PhantomData<A>,
}

impl<A: Attribute> Parser<'_, A> {
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

    /// The current token is not what is expected.
    fn unexpected(&self, expected: impl Into<ExpectedInput>) -> SelectorError {
        let end = self.text.len()..self.text.len();
        let at = self.tokens.get(self.place).map_or(end, |(_, at)| at.clone());
        let found = match self.text.get(at.clone()) {
            Some(part) if !part.is_empty() => format!("{part:?}"),
            _ => "the end".to_owned(),
        };
        SelectorError { text: self.text.to_owned(), at, found, expected: expected.into() }
    }

    fn any(&mut self) -> Result<Expr<A>, SelectorError> {
        let mut parts = vec![self.all()?];
        while self.takes_keyword("or") {
            parts.push(self.all()?);
        }
        Ok(Expr::any(parts))
    }

    fn all(&mut self) -> Result<Expr<A>, SelectorError> {
        let mut parts = vec![self.one()?];
        while self.takes_keyword("and") {
            parts.push(self.one()?);
        }
        Ok(Expr::all(parts))
    }

    fn one(&mut self) -> Result<Expr<A>, SelectorError> {
        self.depth += 1;
        if self.depth > A::MAX_DEPTH {
            return Err(self.unexpected(format!("at most {} levels", A::MAX_DEPTH)));
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
        if self.terms <= A::MAX_TERMS {
            return Ok(());
        }
        Err(self.unexpected(format!("at most {} terms", A::MAX_TERMS)))
    }

    fn attribute(&mut self) -> Result<A, SelectorError> {
        let attribute = match self.peek() {
            Token::Word(name) if !is_keyword(name) => A::by_name(name),
            _ => Err(format!("an attribute, not, has or (; attributes are {}", A::names()).into()),
        };
        let attribute = attribute.map_err(|expected| self.unexpected(expected))?;
        self.place += 1;
        Ok(attribute)
    }

    fn comparison(&mut self) -> Result<Expr<A>, SelectorError> {
        let attribute = self.attribute()?;
        let operators = attribute.operators();
        let operator = match self.peek() {
            Token::Symbol(symbol) => operators.iter().find(|by| by.symbol() == *symbol),
            Token::Word(word) if word.eq_ignore_ascii_case("in") => Some(&Operator::In),
            Token::Word(_) | Token::Quoted(_) | Token::End => None,
        };
        let Some(&operator) = operator else {
            let symbols: Vec<&str> = operators.iter().map(|by| by.symbol()).collect();
            return Err(self.unexpected(format!("{} after {attribute}", symbols.join(", "))));
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

    fn value(&mut self, attribute: &A, operator: Operator) -> Result<A::Value, SelectorError> {
        self.count_term()?;
        let text = match self.peek() {
            Token::Word(word) if is_keyword(word) => {
                let accepted = format!("a value for {attribute}; {word:?} as a value needs quotes");
                return Err(self.unexpected(accepted));
            }
            Token::Word(text) | Token::Quoted(text) => text,
            Token::Symbol(_) | Token::End => {
                return Err(self.unexpected(format!("a value for {attribute}")));
            }
        };
        let value = attribute.read_value(text, operator).map_err(|expected| {
            let accepted = format!("{}, for {attribute}", expected.accepted);
            self.unexpected(ExpectedInput { accepted, ..expected })
        })?;
        self.place += 1;
        Ok(value)
    }
}
