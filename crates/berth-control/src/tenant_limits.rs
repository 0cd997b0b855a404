//! How much a tenant may ask for: one token bucket for each tenant and kind of request.
//!
//! A bucket fills at the configured rate, up to what comes in within the configured burst, or within
//! a day. A request takes what it costs, and waits outside while the bucket has less. Refusals and
//! events are paid for afterwards: they are not known before. Operators and the server's own work are
//! not limited.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::error::{ControlError, ControlResult, ErrorKind};
use crate::metrics::Metrics;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// Instances to place.
    Placements,
    /// Instances of dry runs.
    DryRuns,
    /// Requests that are put in the queue.
    Tickets,
    /// Refusals, each of which is explained and stored.
    Refusals,
    /// Explanations of requests and decisions, which are derived on request.
    Explanations,
    /// Events that are written to the log on behalf of a tenant.
    Events,
}

impl LimitKind {
    const ALL: [Self; 6] = [
        Self::Placements,
        Self::DryRuns,
        Self::Tickets,
        Self::Refusals,
        Self::Explanations,
        Self::Events,
    ];

    /// As metrics and the configuration name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Placements => "placements",
            Self::DryRuns => "dry_runs",
            Self::Tickets => "tickets",
            Self::Refusals => "refusals",
            Self::Explanations => "explanations",
            Self::Events => "events_per_day",
        }
    }
}

/// What one tenant may ask for, in a second unless it says otherwise; zero: as much as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRates {
    /// Instances to place.
    pub placements: usize,
    /// Instances of dry runs.
    pub dry_runs: usize,
    /// Requests that are put in the queue.
    pub tickets: usize,
    /// Refusals, of which a batch counts as several.
    pub refusals: usize,
    /// Explanations of requests and decisions, of which one that reads a long log counts as several.
    pub explanations: usize,
    /// Events that are written on its behalf in a day.
    pub events_per_day: usize,
    /// How long a tenant that asked for nothing may save up.
    pub burst: Duration,
}

impl Default for TenantRates {
    fn default() -> Self {
        Self {
            placements: 5000,
            dry_runs: 1000,
            tickets: 200,
            refusals: 20,
            explanations: 5,
            events_per_day: 2_000_000,
            burst: Duration::from_secs(10),
        }
    }
}

impl TenantRates {
    /// What is allowed, in the unit of its setting.
    fn allowed(&self, kind: LimitKind) -> u32 {
        let allowed = match kind {
            LimitKind::Placements => self.placements,
            LimitKind::DryRuns => self.dry_runs,
            LimitKind::Tickets => self.tickets,
            LimitKind::Refusals => self.refusals,
            LimitKind::Explanations => self.explanations,
            LimitKind::Events => self.events_per_day,
        };
        u32::try_from(allowed).unwrap_or(u32::MAX)
    }

    /// Thousandths of a token that come in within a second.
    fn income_per_s(&self, kind: LimitKind) -> i64 {
        let allowed = i64::from(self.allowed(kind)) * TOKEN;
        match kind {
            LimitKind::Events if allowed > 0 => (allowed / DAY_S).max(1),
            _ => allowed,
        }
    }
}

/// Thousandths of a token.
const TOKEN: i64 = 1000;

/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// Tenants whose buckets are kept; full ones are dropped beyond that.
pub(crate) const KEPT: usize = 4096;

/// One bucket: what was left in it, and when.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: i64,
    at: Instant,
}

impl Bucket {
    const fn full(capacity: i64, at: Instant) -> Self {
        Self { left: capacity, at }
    }

    /// Adds what came in since.
    fn fill(&mut self, income_per_s: i64, capacity: i64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_micros();
        let elapsed = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let income = elapsed.saturating_mul(income_per_s) / 1_000_000;
        self.left = self.left.saturating_add(income);
        if self.left >= capacity {
            (self.left, self.at) = (capacity, now);
            return;
        }
        // What is less than can be counted comes in later.
        let counted_us = income.saturating_mul(1_000_000) / income_per_s.max(1);
        self.at += Duration::from_micros(counted_us.unsigned_abs());
    }
}

/// The buckets of all tenants.
#[derive(Default)]
pub struct TenantLimits {
    buckets: Mutex<FxHashMap<String, FxHashMap<LimitKind, Bucket>>>,
}

impl TenantLimits {
    /// Takes what a request costs.
    ///
    /// # Errors
    /// When a tenant asks for more than it may; the error says when to ask again.
    pub(crate) fn admit(
        &self,
        rates: &TenantRates,
        metrics: &Metrics,
        request: &LimitedRequest<'_>,
    ) -> ControlResult<()> {
        let &LimitedRequest { caller, tenant, kind, cost } = request;
        if !caller.is_tenant() {
            return Ok(());
        }
        let now = Instant::now();
        let wait = self.take(rates, tenant, kind, cost, now);
        // Refusals were paid for when they were made; who owes for them waits.
        let asks_to_place = matches!(kind, LimitKind::Placements | LimitKind::DryRuns);
        let debt = asks_to_place
            .then(|| self.take(rates, tenant, LimitKind::Refusals, 0, now))
            .flatten()
            .map(|wait| (LimitKind::Refusals, wait));
        let Some((kind, wait)) = wait.map(|wait| (kind, wait)).or(debt) else { return Ok(()) };
        metrics.limited(kind.name());
        Err(too_many(rates, kind, wait))
    }

    /// Charges a tenant for what it has caused.
    pub(crate) fn charge(&self, rates: &TenantRates, tenant: &str, kind: LimitKind, cost: usize) {
        let cost = tokens(cost);
        self.with_bucket(rates, tenant, kind, Instant::now(), |bucket, _| {
            bucket.left = bucket.left.saturating_sub(cost);
        });
    }

    /// Takes tokens out of a bucket, or says how long to wait until they can be taken. What costs more
    /// than the bucket holds is let in when it is full, and leaves a debt.
    fn take(
        &self,
        rates: &TenantRates,
        tenant: &str,
        kind: LimitKind,
        cost: usize,
        now: Instant,
    ) -> Option<Duration> {
        let cost = tokens(cost);
        self.with_bucket(rates, tenant, kind, now, |bucket, capacity| {
            let needed = cost.min(capacity);
            if bucket.left >= needed {
                bucket.left = bucket.left.saturating_sub(cost);
                return None;
            }
            let missing = u64::try_from(needed.saturating_sub(bucket.left)).unwrap_or(u64::MAX);
            let income_per_s = rates.income_per_s(kind).max(1).unsigned_abs();
            let wait_ms = missing.saturating_mul(1000).div_ceil(income_per_s);
            Some(Duration::from_millis(wait_ms.max(1)))
        })?
    }

    fn with_bucket<T>(
        &self,
        rates: &TenantRates,
        tenant: &str,
        kind: LimitKind,
        now: Instant,
        act: impl FnOnce(&mut Bucket, i64) -> T,
    ) -> Option<T> {
        let income_per_s = rates.income_per_s(kind);
        if income_per_s == 0 {
            return None;
        }
        let capacity = capacity(rates, kind);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= KEPT && !buckets.contains_key(tenant) {
            drop_full(&mut buckets, rates, now);
        }
        let of_tenant = buckets.entry(tenant.to_owned()).or_default();
        let bucket = of_tenant.entry(kind).or_insert_with(|| Bucket::full(capacity, now));
        bucket.fill(income_per_s, capacity, now);
        Some(act(bucket, capacity))
    }
}

/// A request that may be one too many.
pub(crate) struct LimitedRequest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) tenant: &'a str,
    pub(crate) kind: LimitKind,
    pub(crate) cost: usize,
}

fn tokens(cost: usize) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX / TOKEN).saturating_mul(TOKEN)
}

/// What a bucket holds at most: what comes in within the burst, and never less than one request needs.
fn capacity(rates: &TenantRates, kind: LimitKind) -> i64 {
    if kind == LimitKind::Events {
        return i64::from(rates.allowed(kind)) * TOKEN;
    }
    let burst_ms = i64::try_from(rates.burst.as_millis()).unwrap_or(i64::MAX);
    // Thousandths of a token in a millisecond are tokens in a second.
    i64::from(rates.allowed(kind)).saturating_mul(burst_ms).max(TOKEN)
}

fn drop_full(
    buckets: &mut FxHashMap<String, FxHashMap<LimitKind, Bucket>>,
    rates: &TenantRates,
    now: Instant,
) {
    buckets.retain(|_, of_tenant| {
        LimitKind::ALL.iter().any(|kind| {
            of_tenant.get_mut(kind).is_some_and(|bucket| {
                let capacity = capacity(rates, *kind);
                bucket.fill(rates.income_per_s(*kind), capacity, now);
                bucket.left < capacity
            })
        })
    });
}

fn too_many(rates: &TenantRates, kind: LimitKind, wait: Duration) -> ControlError {
    let what = match kind {
        LimitKind::Placements => "instances to place",
        LimitKind::DryRuns => "instances in dry runs",
        LimitKind::Tickets => "requests to queue",
        LimitKind::Refusals => "requests that were refused",
        LimitKind::Explanations => "explanations",
        LimitKind::Events => "events in the log",
    };
    let (name, allowed) = (kind.name(), rates.allowed(kind));
    let detail = match kind {
        LimitKind::Events => format!("limits.{name} allows this tenant {allowed} {what} a day"),
        _ => {
            let burst_s = rates.burst.as_secs();
            format!("limits.{name} allows this tenant {allowed} {what} a second over {burst_s} s")
        }
    };
    let title = "the tenant asks for too much at a time";
    let seconds = u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1);
    ControlError::new(ErrorKind::LimitReached, "rate_limited", title, detail).retry_after(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> TenantRates {
        let burst = Duration::from_secs(10);
        let (placements, dry_runs, tickets, refusals) = (10, 0, 1, 2);
        let (explanations, events_per_day) = (1, 864_000);
        TenantRates { placements, dry_runs, tickets, refusals, explanations, events_per_day, burst }
    }

    fn take(limits: &TenantLimits, kind: LimitKind, cost: usize, now: Instant) -> Option<Duration> {
        limits.take(&rates(), "acme", kind, cost, now)
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (limits, start) = (TenantLimits::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(take(&limits, LimitKind::Placements, 1, start), None);
        }
        let wait = take(&limits, LimitKind::Placements, 1, start);
        assert_eq!(wait, Some(Duration::from_millis(100)));
        let later = start + Duration::from_secs(2);
        assert_eq!(take(&limits, LimitKind::Placements, 20, later), None);
        assert!(take(&limits, LimitKind::Placements, 1, later).is_some());
    }

    #[test]
    fn a_request_costs_its_instances_and_a_larger_one_than_the_bucket_is_paid_for_later() {
        let (limits, start) = (TenantLimits::default(), Instant::now());
        assert_eq!(take(&limits, LimitKind::Placements, 1000, start), None);
        let wait = take(&limits, LimitKind::Placements, 1, start);
        assert_eq!(wait, Some(Duration::from_millis(90_100)), "900 are owed at 10 a second");
    }

    #[test]
    fn tenants_do_not_share_and_a_rate_of_zero_limits_nothing() {
        let (limits, start) = (TenantLimits::default(), Instant::now());
        assert_eq!(take(&limits, LimitKind::Tickets, 10, start), None);
        assert!(take(&limits, LimitKind::Tickets, 1, start).is_some());
        assert_eq!(limits.take(&rates(), "other", LimitKind::Tickets, 10, start), None);
        for _ in 0..10_000 {
            assert_eq!(take(&limits, LimitKind::DryRuns, 100, start), None);
        }
    }

    #[test]
    fn events_are_allowed_by_the_day_and_paid_for_afterwards() {
        let (limits, start) = (TenantLimits::default(), Instant::now());
        assert_eq!(take(&limits, LimitKind::Events, 864_000, start), None, "all of a day at once");
        let wait = take(&limits, LimitKind::Events, 1, start);
        assert_eq!(wait, Some(Duration::from_millis(100)), "ten come in within a second");
        limits.charge(&rates(), "acme", LimitKind::Events, 864_000);
        let wait = take(&limits, LimitKind::Events, 0, start).unwrap_or_default();
        assert!(wait > Duration::from_secs(86_000), "a day is owed: {wait:?}");
        assert_eq!(limits.take(&rates(), "other", LimitKind::Events, 0, start), None);
    }

    #[test]
    fn a_bucket_that_is_looked_at_often_fills_as_fast_as_one_that_is_not() {
        let (limits, start) = (TenantLimits::default(), Instant::now());
        let mut rates = rates();
        rates.events_per_day = 864;
        assert_eq!(limits.take(&rates, "acme", LimitKind::Events, 864, start), None);
        // A hundredth of a token a second: less than can be counted in between.
        for looks in 1..=600 {
            let at = start + Duration::from_millis(150 * looks);
            limits.take(&rates, "acme", LimitKind::Events, 864, at);
        }
        let later = start + Duration::from_secs(100);
        assert_eq!(limits.take(&rates, "acme", LimitKind::Events, 1, later), None);
    }

    #[test]
    fn full_buckets_are_dropped_when_there_are_many_tenants() {
        let (limits, start) = (TenantLimits::default(), Instant::now());
        assert_eq!(take(&limits, LimitKind::Placements, 50, start), None);
        for number in 0..2 * KEPT {
            let tenant = format!("tenant-{number}");
            let later = start + Duration::from_millis(u64::try_from(number).unwrap_or(0));
            limits.take(&rates(), &tenant, LimitKind::Placements, 1, later);
        }
        let kept = limits.buckets.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert!(kept <= KEPT + 1, "{kept}");
    }
}
