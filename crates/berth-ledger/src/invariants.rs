//! What cannot happen, checked where it would be noticed first: [`invariant!`](crate::invariant) and
//! [`invariant_ok!`](crate::invariant_ok).
//!
//! A violation is a bug. It is counted by name, logged with its context, and a panic where debug assertions are
//! on, so that a test fails; a released server goes on. Nothing here decides anything: what to do about a
//! violation is up to the code that checks. It must never be used for what callers, databases or a server that
//! stops can cause.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are logged of one invariant in each [`LOG_PERIOD`].
const LOG_LINES_MAX: u32 = 5;

/// How long [`LOG_LINES_MAX`] lines have to do.
const LOG_PERIOD: Duration = Duration::from_mins(1);

/// Most bytes of a context that are kept and logged.
const CONTEXT_BYTES_MAX: usize = 2000;

/// Checks a condition that always holds. Returns whether it does, so that the caller can refuse what it was about to
/// do. Otherwise the violation is counted under the name and logged with the fields, which are any values that
/// implement [`Debug`](std::fmt::Debug); they are evaluated only then.
///
/// ```
/// # use berth_ledger::invariant;
/// # let (members, capacity) = (2, 3);
/// if !invariant!(members <= capacity, "group_fits_its_domain", members, capacity) {
///     return;
/// }
/// ```
#[macro_export]
macro_rules! invariant {
    ($condition:expr, $name:literal $(, $field:ident $(= $value:expr)?)* $(,)?) => {{
        const SITE: $crate::invariants::Site = $crate::invariants::Site::new($name, file!(), line!());
        let holds: bool = $condition;
        if !holds {
            $crate::invariants::report(
                &SITE,
                &[$((stringify!($field), &$crate::__field!($field $(, $value)?) as &dyn ::std::fmt::Debug)),*],
            );
        }
        holds
    }};
}

/// The value of a `Result` that is always `Ok`, or of an `Option` that always has one. Otherwise the violation
/// is counted and logged as by [`invariant!`](crate::invariant), with the error.
///
/// ```
/// # use berth_ledger::invariant_ok;
/// let text = invariant_ok!(serde_json::to_string(&[1, 2]), "numbers_are_json").unwrap_or_default();
/// # assert_eq!(text, "[1,2]");
/// ```
#[macro_export]
macro_rules! invariant_ok {
    ($result:expr, $name:literal $(, $field:ident $(= $value:expr)?)* $(,)?) => {{
        const SITE: $crate::invariants::Site = $crate::invariants::Site::new($name, file!(), line!());
        match $crate::invariants::Infallible::into_value($result) {
            Ok(value) => Some(value),
            Err(error) => {
                $crate::invariants::report(
                    &SITE,
                    &[
                        ("error", &error as &dyn ::std::fmt::Debug),
                        $((stringify!($field), &$crate::__field!($field $(, $value)?) as &dyn ::std::fmt::Debug)),*
                    ],
                );
                None
            }
        }
    }};
}

/// A field of a context: its value, or the variable of its name.
#[doc(hidden)]
#[macro_export]
macro_rules! __field {
    ($field:ident, $value:expr) => {
        $value
    };
    ($field:ident) => {
        $field
    };
}

/// Where an invariant is checked.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    name: &'static str,
    file: &'static str,
    line: u32,
}

impl Site {
    /// The check of an invariant, whose name must be in `snake_case`: it is a label of a metric. Made by the macros.
    #[must_use]
    pub const fn new(name: &'static str, file: &'static str, line: u32) -> Self {
        assert!(
            is_snake_case(name),
            "the name of an invariant is in snake_case, of at most 60 characters"
        );
        Self { name, file, line }
    }
}

const fn is_snake_case(name: &str) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > 60 || !bytes[0].is_ascii_lowercase() {
        return false;
    }
    let mut at = 0;
    while at < bytes.len() {
        if !matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'_') {
            return false;
        }
        at += 1;
    }
    true
}

/// What [`invariant_ok!`](crate::invariant_ok) takes.
pub trait Infallible {
    /// What it always is.
    type Value;
    /// What it never is.
    type Error: fmt::Debug;

    /// The value.
    ///
    /// # Errors
    /// Never, unless the invariant is violated.
    fn into_value(self) -> Result<Self::Value, Self::Error>;
}

impl<T, E: fmt::Debug> Infallible for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_value(self) -> Self {
        self
    }
}

/// An `Option` without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

impl<T> Infallible for Option<T> {
    type Value = T;
    type Error = Absent;

    fn into_value(self) -> Result<T, Absent> {
        self.ok_or(Absent)
    }
}

/// What a violation does after it was counted and logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// It panics, so that a test fails.
    Panic,
    /// It leaves the rest to the code that checked.
    Continue,
}

/// Whether optimised builds panic too.
static PANICS: AtomicBool = AtomicBool::new(cfg!(debug_assertions));

/// Has violations panic in this process, also in a build without debug assertions: for tests of optimised
/// builds.
pub fn panic_on_violation() {
    PANICS.store(true, Ordering::Relaxed);
}

/// What is known of one invariant that was violated.
#[derive(Default)]
struct Violations {
    count: u64,
    /// The context of the last.
    last: String,
    /// How many tests expect it at the moment.
    expected: u32,
    log: LogBudget,
}

/// How much may still be logged of one invariant.
#[derive(Default)]
struct LogBudget {
    /// When the present period began, and the lines logged in it.
    period: Option<(Instant, u32)>,
    /// Violations since the last line that were not logged.
    suppressed: u64,
}

impl LogBudget {
    /// How many violations were not logged before this one; absent if this one is not to be logged either.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let current = self.period.filter(|(since, _)| now.duration_since(*since) < LOG_PERIOD);
        let (since, lines) = current.unwrap_or((now, 0));
        if lines >= LOG_LINES_MAX {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.period = Some((since, lines + 1));
        Some(std::mem::take(&mut self.suppressed))
    }
}

static REGISTRY: Mutex<BTreeMap<&'static str, Violations>> = Mutex::new(BTreeMap::new());

fn registry() -> MutexGuard<'static, BTreeMap<&'static str, Violations>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An invariant that was violated in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViolatedInvariant {
    /// Its name.
    pub name: &'static str,
    /// How often.
    pub count: u64,
    /// The source line and the context of the last time.
    pub last: String,
}

/// The invariants that were violated since the process started, in order of name.
#[must_use]
pub fn violated() -> Vec<ViolatedInvariant> {
    let registry = registry();
    let found = registry.iter().filter(|(_, violations)| violations.count > 0);
    found
        .map(|(name, Violations { count, last, .. })| ViolatedInvariant {
            name,
            count: *count,
            last: last.clone(),
        })
        .collect()
}

/// Reports a violation. Called by the macros.
///
/// # Panics
/// Where debug assertions are on, unless the violation is expected.
pub fn report(site: &Site, context: &[(&'static str, &dyn fmt::Debug)]) {
    let reaction =
        if PANICS.load(Ordering::Relaxed) { Reaction::Panic } else { Reaction::Continue };
    report_as(site, context, reaction);
}

#[allow(clippy::disallowed_methods, reason = "limits what is logged; it decides nothing")]
fn tick() -> Instant {
    Instant::now()
}

fn report_as(site: &Site, context: &[(&'static str, &dyn fmt::Debug)], reaction: Reaction) {
    let Site { name, file, line } = *site;
    let context = render(context);
    let (count, admitted, is_expected) = {
        let mut registry = registry();
        let known = registry.entry(name).or_default();
        known.count = known.count.saturating_add(1);
        known.last = format!("{file}:{line}: {context}");
        (known.count, known.log.admit(tick()), known.expected > 0)
    };
    if let Some(suppressed) = admitted {
        tracing::error!(
            invariant = name,
            file,
            line,
            context,
            count,
            suppressed,
            "invariant violated"
        );
    }
    // A second panic on a thread that unwinds would end the process.
    if reaction == Reaction::Panic && !is_expected && !std::thread::panicking() {
        panic!("invariant {name} violated at {file}:{line}: {context}");
    }
}

/// The fields as text, cut where it gets too long for a line of a log.
fn render(context: &[(&'static str, &dyn fmt::Debug)]) -> String {
    let mut text = String::new();
    for (place, (field, value)) in context.iter().enumerate() {
        let separator = if place == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{field} = {value:?}");
    }
    if text.len() > CONTEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(CONTEXT_BYTES_MAX));
        text.push('…');
    }
    text
}

/// For tests that break something on purpose: violations of an invariant do not panic as long as this is
/// kept. They are counted and logged as ever.
#[must_use]
pub fn expect_violations(name: &'static str) -> ExpectedViolations {
    let mut registry = registry();
    let known = registry.entry(name).or_default();
    known.expected += 1;
    ExpectedViolations { name, count_before: known.count }
}

/// See [`expect_violations`].
#[derive(Debug)]
pub struct ExpectedViolations {
    name: &'static str,
    count_before: u64,
}

impl ExpectedViolations {
    /// How many there were since.
    #[must_use]
    pub fn count(&self) -> u64 {
        let count = registry().get(self.name).map_or(0, |known| known.count);
        count.saturating_sub(self.count_before)
    }
}

impl Drop for ExpectedViolations {
    fn drop(&mut self) {
        if let Some(known) = registry().get_mut(self.name) {
            known.expected = known.expected.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> Option<ViolatedInvariant> {
        violated().into_iter().find(|it| it.name == name)
    }

    #[test]
    fn a_condition_that_holds_is_neither_counted_nor_evaluates_its_context() {
        let holds = invariant!(1 < 2, "test_holds", seen = unreachable_value());
        assert!(holds);
        assert_eq!(known("test_holds"), None);
    }

    fn unreachable_value() -> u32 {
        panic!("the context of a condition that holds is not evaluated")
    }

    #[test]
    #[should_panic(
        expected = "invariant test_panics violated at crates/berth-ledger/src/invariants.rs:"
    )]
    fn a_violation_panics_in_tests() {
        invariant!(false, "test_panics", node = "n1");
    }

    #[test]
    #[should_panic(expected = "error = Absent, place = 3")]
    fn a_value_that_is_missing_panics_in_tests_with_its_context() {
        let place = 3;
        invariant_ok!(None::<u8>, "test_missing_value", place);
    }

    #[test]
    fn a_violation_is_counted_with_its_context_and_the_code_goes_on_in_a_release() {
        let site = Site::new("test_released", "src/some.rs", 7);
        for fence in [4, 5] {
            report_as(&site, &[("node", &"n1"), ("fence", &fence)], Reaction::Continue);
        }
        let last = "src/some.rs:7: node = \"n1\", fence = 5".to_owned();
        assert_eq!(
            known("test_released"),
            Some(ViolatedInvariant { name: "test_released", count: 2, last })
        );
    }

    #[test]
    fn an_expected_violation_returns_to_the_code_that_checked_it() {
        let expected = expect_violations("test_expected");
        assert!(!invariant!(1 > 2, "test_expected"));
        assert_eq!(invariant_ok!(Err::<u8, _>("no"), "test_expected"), None);
        assert_eq!(invariant_ok!(Ok::<u8, ()>(1), "test_expected"), Some(1));
        assert_eq!(expected.count(), 2);
        drop(expected);
        let again = std::panic::catch_unwind(|| invariant!(false, "test_expected"));
        assert!(again.is_err(), "it panics once it is not expected any more");
    }

    #[test]
    fn a_loop_cannot_fill_the_log_and_what_was_left_out_is_said_later() {
        let (mut log, start) = (LogBudget::default(), tick());
        let admitted: Vec<_> = (0..8).map(|_| log.admit(start)).collect();
        let mut expected = vec![Some(0); 5];
        expected.extend([None; 3]);
        assert_eq!(admitted, expected);
        assert_eq!(log.admit(start + LOG_PERIOD), Some(3));
        assert_eq!(log.admit(start + LOG_PERIOD), Some(0));
    }

    #[test]
    fn a_long_context_is_cut_between_characters() {
        let long = "ä".repeat(CONTEXT_BYTES_MAX);
        let text = render(&[("text", &long)]);
        assert!(text.ends_with('…') && text.len() <= CONTEXT_BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn names_are_labels_of_a_metric() {
        for name in ["a", "slot_of_claim_is_taken", "v2"] {
            assert!(is_snake_case(name), "{name}");
        }
        for name in ["", "Upper", "with space", "with-dash", "2nd", &"x".repeat(61)] {
            assert!(!is_snake_case(name), "{name}");
        }
    }
}
