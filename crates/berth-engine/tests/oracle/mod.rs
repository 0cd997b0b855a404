//! A plain, slow oracle of what the engine should answer, and generators of things to ask.
//!
//! It knows nothing of the engine's insides. It keeps facts and requests as they were given and
//! looks at everything for every question: no columns, no indexes, nothing remembered. Where it
//! and the engine disagree, one of them is wrong.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "several test files share this module, and each uses a part of it"
)]

pub mod decide;
pub mod filters;
pub mod fixes;
pub mod model;
pub mod policies;
pub mod random;
pub mod requests;
pub mod scores;
pub mod slots;
pub mod twin;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

/// The usual settings; `PROPTEST_CASES` counts, and without it there are this many cases.
#[allow(clippy::disallowed_methods, reason = "the person who runs the tests says how many cases")]
pub fn config(regressions: &'static str, cases: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        cases: if asked { usual.cases } else { cases },
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        max_shrink_iters: 2000,
        ..usual
    }
}
