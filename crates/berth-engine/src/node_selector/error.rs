//! Why a selector was refused.

use thiserror::Error;

/// A text that is no node selector.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} at byte {at} of {text:?}; accepted is {accepted}", describe(.found))]
pub struct SelectorError {
    /// The text, or its beginning.
    pub text: String,
    /// The byte at which it cannot be read.
    pub at: usize,
    /// What was found there; empty: the end.
    pub found: String,
    /// What is accepted there.
    pub accepted: String,
}

fn describe(text: &str) -> String {
    if text.is_empty() { "the selector ends".to_owned() } else { format!("found {text:?}") }
}
