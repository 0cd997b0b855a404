//! Pacing: a tenant that asks again at once each time it is turned away waits a little for the answer.
//!
//! To be turned away costs the server next to nothing, but not nothing: a few clients that ask again without
//! a pause, hundreds of times a second, take the time of those who are served. A pause of their connection is
//! all that slows them down. The first rejections come at once, so that who heeds `Retry-After` never waits
//! for one. This must never hold up a request that is let in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_control::caller::Caller;
use http::StatusCode;
use rustc_hash::FxHashMap;

/// Rejections in a row that a tenant gets at once.
const AT_ONCE: u32 = 20;

/// How long a further one takes.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers that wait at the same time; further ones are given at once.
pub(crate) const HELD_MAX: usize = 1024;

/// How often each tenant was turned away since it was last let in.
#[derive(Default)]
pub(crate) struct Pacing {
    in_a_row: Mutex<FxHashMap<String, u32>>,
    held: AtomicUsize,
}

/// An answer that waits.
struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pacing {
    /// Counts the answer to a placement of a tenant, and lets it wait if it is one rejection too many.
    pub(crate) async fn pace(&self, caller: &Caller, status: StatusCode) {
        let Some(tenant) = caller.tenants().and_then(<[String]>::first) else { return };
        if !self.is_too_fast(tenant, status == StatusCode::TOO_MANY_REQUESTS) {
            return;
        }
        let held = self.held.fetch_add(1, Ordering::Relaxed);
        let _held = Held(&self.held);
        if held < HELD_MAX {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_too_fast(&self, tenant: &str, was_turned_away: bool) -> bool {
        let mut in_a_row = self.in_a_row.lock().unwrap_or_else(PoisonError::into_inner);
        if !was_turned_away {
            in_a_row.remove(tenant);
            return false;
        }
        let count = match in_a_row.get_mut(tenant) {
            Some(count) => count,
            None => in_a_row.entry(tenant.to_owned()).or_default(),
        };
        *count = count.saturating_add(1);
        *count > AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_slowed_down_until_it_is_let_in_and_no_other_is() {
        let pacing = Pacing::default();
        let turned_away = |tenant| pacing.is_too_fast(tenant, true);
        assert!((0..AT_ONCE).all(|_| !turned_away("loud")));
        assert!(turned_away("loud") && turned_away("loud"));
        assert!(!turned_away("quiet") && !pacing.is_too_fast("quiet", false));
        assert!(!pacing.is_too_fast("loud", false));
        assert!((0..AT_ONCE).all(|_| !turned_away("loud")));
        assert!(turned_away("loud"));
        assert!(!pacing.is_too_fast("loud", false));
        assert!(pacing.in_a_row.lock().unwrap().is_empty(), "who is let in takes no memory");
    }
}
