//! Pages for people: rendered here, without scripts.
//!
//! A page is a frame around parts. A part is a template with its own data that does not depend on
//! its position, so that other pages can use it too.

mod choice;
mod decision;
mod docs;
mod fleet;
mod frame;
mod grid;
mod problem_codes;
mod queue;
mod recent_decisions;
mod request_panel;
mod totals;
mod workloads;

pub(crate) use decision::DecisionPage;
#[cfg(test)]
pub(crate) use docs::assert_complete;
pub(crate) use docs::docs_page;
pub(crate) use fleet::{RECENT_DECISIONS, fleet_page};
pub(crate) use frame::{ErrorPage, STYLE, SignInPage, html};
pub(crate) use problem_codes::ProblemPage;

/// A share in whole percent, for text and bars; nothing of nothing is nothing.
fn percent(part: i64, whole: i64) -> i64 {
    if whole <= 0 { if part > 0 { 100 } else { 0 } } else { part.saturating_mul(100) / whole }
}

/// How long ago, in words.
fn ago(at: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.as_second() - at.as_second();
    if seconds <= 0 {
        "now".to_owned()
    } else {
        format!("{} ago", berth_api::units::duration(seconds))
    }
}

/// A number with a thin gap at every third digit, so that large ones can be read.
fn count(number: impl TryInto<i64>) -> String {
    let number: i64 = number.try_into().unwrap_or(i64::MAX);
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + 4);
    if number < 0 {
        text.push('-');
    }
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A word for one, or for any other number.
fn plural(number: i64, one: &'static str, many: &'static str) -> &'static str {
    if number == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(count(7_u32), "7");
        assert_eq!(count(1_234_567_i64), "1\u{202f}234\u{202f}567");
        assert_eq!(count(-1000_i64), "-1\u{202f}000");
        assert_eq!((percent(1, 3), percent(0, 0), percent(3, 0), percent(5, 4)), (33, 0, 100, 125));
    }
}
