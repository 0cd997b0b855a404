//! What an agent tells whoever watches it: one line each, on standard error.

use std::io::Write;

/// Prints a line with the time before it.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::agent::say::line(format_args!($($words)*))
    };
}

pub(super) use say;

/// Prints one line. An agent nobody listens to any more goes on with its work.
pub(super) fn line(words: std::fmt::Arguments<'_>) {
    let clock = jiff::Timestamp::now().strftime("%H:%M:%SZ");
    // In one piece, so that lines of several writers stay whole.
    let _ = std::io::stderr().write_all(format!("{clock} {words}\n").as_bytes());
}
