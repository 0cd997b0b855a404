//! Many clients that claim at the same time: a start that all wait for, retries, and a stopwatch.
//!
//! Knows nothing of SQL, and never counts a claim as granted unless its commit was confirmed.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

/// After so many conflicts a claim is given up.
const TRIES_MAX: u32 = 200;

/// The longest pause before the second try; it doubles with each further one up to the limit.
const FIRST_PAUSE_US: u64 = 500;
const PAUSE_US_MAX: u64 = 16_000;

/// One unit on one node.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) id: i64,
    pub(super) node: i64,
}

/// What the database said to one try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Refused,
    /// Turned away because of somebody else, not for want of room.
    Conflict,
}

/// One client with a connection of its own.
pub(super) trait Claimant: Send {
    fn claim(&mut self, claim: Claim) -> anyhow::Result<Answer>;
}

/// What all clients together are to do.
pub(super) struct Load {
    pub(super) requests: u64,
    pub(super) nodes: u64,
    pub(super) retries: bool,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) granted: u64,
    pub(super) refused: u64,
    /// Requests that got no answer but conflicts.
    pub(super) failed: u64,
    /// Tries that ended in a conflict.
    pub(super) aborts: u64,
    pub(super) elapsed: Duration,
    /// From the first try to the last answer of each request, shortest first.
    pub(super) latencies: Vec<Duration>,
}

/// Puts all requests to the database, from all clients at once.
pub(super) fn run(claimants: Vec<Box<dyn Claimant>>, load: &Load) -> anyhow::Result<Tally> {
    let barrier = Barrier::new(claimants.len());
    let next = AtomicU64::new(0);
    let outcomes: Vec<anyhow::Result<(Instant, Instant, Tally)>> = thread::scope(|scope| {
        let workers: Vec<_> = (1..)
            .zip(claimants)
            .map(|(seed, claimant)| {
                let mut worker = Worker { claimant, load, random: seed, tally: Tally::default() };
                let (barrier, next) = (&barrier, &next);
                scope.spawn(move || {
                    barrier.wait();
                    let start = now();
                    worker.work(next)?;
                    Ok((start, now(), worker.tally))
                })
            })
            .collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|_| Err(anyhow!("a client panicked")))
        };
        workers.into_iter().map(join).collect()
    });
    let mut tally = Tally::default();
    let mut span: Option<(Instant, Instant)> = None;
    for outcome in outcomes {
        let (start, end, part) = outcome?;
        span = Some(span.map_or((start, end), |(from, to)| (from.min(start), to.max(end))));
        tally.granted += part.granted;
        tally.refused += part.refused;
        tally.failed += part.failed;
        tally.aborts += part.aborts;
        tally.latencies.extend(part.latencies);
    }
    tally.elapsed = span.map_or(Duration::ZERO, |(from, to)| to.duration_since(from));
    tally.latencies.sort_unstable();
    Ok(tally)
}

struct Worker<'a> {
    claimant: Box<dyn Claimant>,
    load: &'a Load,
    random: u64,
    tally: Tally,
}

impl Worker<'_> {
    fn work(&mut self, next: &AtomicU64) -> anyhow::Result<()> {
        loop {
            let request = next.fetch_add(1, Ordering::Relaxed);
            if request >= self.load.requests {
                return Ok(());
            }
            let claim = Claim {
                id: i64::try_from(request)?,
                node: i64::try_from(scramble(request) % self.load.nodes)?,
            };
            let start = now();
            let answer = self.claim(claim).with_context(|| format!("claim {request}"))?;
            self.tally.latencies.push(start.elapsed());
            match answer {
                Answer::Granted => self.tally.granted += 1,
                Answer::Refused => self.tally.refused += 1,
                Answer::Conflict => self.tally.failed += 1,
            }
        }
    }

    fn claim(&mut self, claim: Claim) -> anyhow::Result<Answer> {
        let mut pause_us = FIRST_PAUSE_US;
        for tries in 1.. {
            let answer = self.claimant.claim(claim)?;
            if answer != Answer::Conflict {
                return Ok(answer);
            }
            self.tally.aborts += 1;
            if !self.load.retries || tries == TRIES_MAX {
                break;
            }
            // Those who met must not meet again, so each waits for a time of its own.
            self.random = scramble(self.random);
            thread::sleep(Duration::from_micros(self.random % pause_us));
            pause_us = (pause_us * 2).min(PAUSE_US_MAX);
        }
        Ok(Answer::Conflict)
    }
}

/// SplitMix64: the same numbers in every run, without a pattern that a table could favour.
fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}
