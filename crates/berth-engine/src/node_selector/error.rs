//! Why a selector was refused: the place, what was found there, and what is accepted.

use std::fmt;
use std::ops::Range;

/// A text that is no selector. Shown with the text and a mark below the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError {
    /// The text, or its beginning.
    pub text: String,
    /// The place, in bytes.
    pub at: Range<usize>,
    /// What was found there.
    pub found: String,
    /// What is accepted there.
    pub expected: ExpectedInput,
}

/// What is accepted instead of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedInput {
    /// Everything that is accepted.
    pub accepted: String,
    /// What was probably meant.
    pub suggestion: Option<String>,
}

impl ExpectedInput {
    /// The same with what was probably meant.
    #[must_use]
    pub fn or_rather(self, suggestion: Option<String>) -> Self {
        Self { suggestion, ..self }
    }
}

impl From<String> for ExpectedInput {
    fn from(accepted: String) -> Self {
        Self { accepted, suggestion: None }
    }
}

impl From<&str> for ExpectedInput {
    fn from(accepted: &str) -> Self {
        accepted.to_owned().into()
    }
}

impl SelectorError {
    /// For where only one line can be shown.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { text, at, found, expected } = self;
        format!("found {found} at byte {} of {text:?}{expected}", at.start)
    }
}

impl std::error::Error for SelectorError {}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "selector: found {}{}", self.found, self.expected)?;
        // One line, whatever was typed, so that the mark is below its place.
        let shown: String =
            self.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let count = |part: Range<usize>| self.text.get(part).map_or(0, |part| part.chars().count());
        let (before, marked) = (count(0..self.at.start), count(self.at.clone()).max(1));
        write!(f, "  {shown}\n  {}{}", " ".repeat(before), "^".repeat(marked))
    }
}

impl fmt::Display for ExpectedInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(suggestion) = &self.suggestion {
            write!(f, " (did you mean {suggestion}?)")?;
        }
        write!(f, "; accepted is {}", self.accepted)
    }
}
