//! Why a selector was refused: the place, what was found there, and what is accepted.

use std::fmt;

use super::Span;

/// A text that is no selector. Shown with the text and a mark below the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectError {
    /// The whole text.
    pub text: String,
    /// The place.
    pub at: Span,
    /// What was found there.
    pub found: String,
    /// What is accepted there.
    pub accepted: String,
    /// What was probably meant.
    pub suggestion: Option<String>,
}

impl std::error::Error for SelectError {}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "selector: found {}", self.found)?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, " (did you mean {suggestion}?)")?;
        }
        writeln!(f, "; accepted is {}", self.accepted)?;
        // One line, whatever was typed, so that the mark is below its place.
        let shown: String =
            self.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let count =
            |from: usize, to: usize| self.text.get(from..to).map_or(0, |part| part.chars().count());
        let before = count(0, self.at.start);
        let marked = count(self.at.start, self.at.end).max(1);
        writeln!(f, "  {shown}")?;
        write!(f, "  {}{}", " ".repeat(before), "^".repeat(marked))
    }
}
