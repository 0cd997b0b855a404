//! One transaction from beginning to end, retried after conflicts.
//!
//! Every write goes through [`run`]; no other code begins a transaction that writes claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::database::{Database, NewReceipt, NewSegment};
use crate::encoding::hex;
use crate::error::{Fault, LedgerError};
use crate::model::{
    Answer, EventBody, Micros, Op, REFUSALS, Text, Verdict, link, pack_decisions, pack_events,
};
use crate::unit_of_work::{UnitOfWork, UnlockedReads, required_keys, unlocked_read_keys};

/// Attempts at one transaction that conflicts with others.
const ATTEMPTS_MAX: u32 = 50;

/// Conflicts after which a transaction runs alone. At the stricter levels of isolation the first of
/// several to commit fails all others, so one of them could lose every time.
const CONFLICTS_BEFORE_ALONE: u32 = 12;

/// Retries of transactions, for metrics and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// Serialization failures, deadlocks and busy databases.
    pub conflicts: u64,
    /// Unique keys that already existed.
    pub duplicates: u64,
    /// Failed guards in the database: each is a bug.
    pub guards: u64,
    /// Connections lost.
    pub lost: u64,
}

/// What a transaction did.
pub(crate) struct TransactionResult {
    /// One answer per operation, in order.
    pub(crate) answers: Vec<Answer>,
    /// What was committed, in order: one transaction, or two where plans were checked again.
    pub(crate) commits: Vec<CommitRecord>,
}

/// What one transaction committed.
#[derive(Clone, Debug)]
pub struct CommitRecord {
    /// The writer's chain, which the segment in the log bears too.
    pub origin: Text,
    /// When, by the database's clock; its segment in the log bears the same time.
    pub at: Micros,
    /// What happened, in order.
    pub events: Vec<EventBody>,
}

/// A writer's chain of receipts.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) id: Text,
    /// Receipts so far; the number of the next one.
    length: i64,
    head: Vec<u8>,
    /// Whether it is in the database already.
    exists: bool,
    /// Whether a commit may have happened whose answer was lost. It stays set until the chain
    /// was read: the caller may have given up before the database was reachable again.
    uncertain: bool,
}

impl Chain {
    fn new(id: String) -> Self {
        let id = Text::from(id);
        Self { id, length: 0, head: Vec::new(), exists: false, uncertain: false }
    }
}

/// The highest fence that was given out, as far as a process knows: by itself, or by others whose
/// events it has read. A fence must rise for one instance from node to node, also if the database's
/// clock was put back since the instance was last placed.
#[derive(Debug, Default)]
pub(crate) struct HighestFence(AtomicI64);

impl HighestFence {
    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&self, fence: i64) {
        self.0.fetch_max(fence, Ordering::Relaxed);
    }
}

/// The chains of one writer: refusals have one of their own, since they are kept for a shorter time.
#[derive(Clone, Debug)]
pub(crate) struct WriterChains {
    decisions: Chain,
    refusals: Chain,
    /// Shared by all writers of a process.
    pub(crate) highest_fence: Arc<HighestFence>,
}

impl WriterChains {
    pub(crate) fn new() -> Self {
        let id = format!("{:016x}", fastrand::u64(..));
        let refusals = Chain::new(format!("{id}{REFUSALS}"));
        Self { decisions: Chain::new(id), refusals, highest_fence: Arc::default() }
    }

    /// The writer's name, which its events bear.
    pub(crate) const fn origin(&self) -> &Text {
        &self.decisions.id
    }

    pub(crate) fn set_uncertain(&mut self) {
        (self.decisions.uncertain, self.refusals.uncertain) = (true, true);
    }
}

/// How long a transaction is retried while the database is unreachable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryBudget(pub(crate) Duration);

/// A moment, to measure from; it decides nothing that is stored.
#[allow(clippy::disallowed_methods, reason = "measures how long operations take")]
pub(crate) fn tick() -> Instant {
    Instant::now()
}

/// Applies operations in one transaction. Each is all or nothing inside it.
///
/// A refused plan is checked once more for repeats: it may be a retry of one that was granted, and
/// conflict with its own claims. Most plans are granted and need no second check.
pub(crate) fn run(
    tables: &mut dyn Database,
    chains: &mut WriterChains,
    ops: &[Op],
    retry_budget: RetryBudget,
    retries: &mut Retries,
) -> Result<TransactionResult, LedgerError> {
    let (mut done, check_repeats) = transact(tables, chains, ops, retry_budget, retries, false)?;
    let turned_away = |answer: &Answer| {
        matches!(answer, Answer::Plan(Verdict::Conflict(_) | Verdict::Refused(_)))
    };
    let places: Vec<usize> = (0..ops.len())
        .filter(|&place| !check_repeats && turned_away(&done.answers[place]))
        .collect();
    if places.is_empty() {
        return Ok(done);
    }
    let conflicts: Vec<Op> = places.iter().map(|&place| ops[place].clone()).collect();
    match transact(tables, chains, &conflicts, retry_budget, retries, true) {
        Ok((second, _)) => {
            for (place, answer) in places.into_iter().zip(second.answers) {
                done.answers[place] = answer;
            }
            done.commits.extend(second.commits);
            Ok(done)
        }
        // What was committed must be reported; the other plans are made and checked again.
        Err(_) if !done.commits.is_empty() => Ok(done),
        Err(error) => Err(error),
    }
}

/// One transaction, retried until it commits. Returns whether it looked for earlier answers.
fn transact(
    tables: &mut dyn Database,
    chains: &mut WriterChains,
    ops: &[Op],
    retry_budget: RetryBudget,
    retries: &mut Retries,
    mut check_repeats: bool,
) -> Result<(TransactionResult, bool), LedgerError> {
    let (mut tries, mut conflicts, began) = (0, 0, tick());
    loop {
        let alone = conflicts >= CONFLICTS_BEFORE_ALONE;
        let resolved = resolve_chain(tables, &mut chains.decisions)
            .and_then(|()| resolve_chain(tables, &mut chains.refusals));
        let attempted = resolved.and_then(|()| {
            let mut next = chains.clone();
            attempt(tables, &mut next, ops, check_repeats, alone).map(|done| (done, next))
        });
        let fault = match attempted {
            Ok((done, next)) => {
                *chains = next;
                return Ok((done, check_repeats));
            }
            Err(fault) => fault,
        };
        tables.rollback();
        tries += 1;
        match &fault {
            Fault::Fatal(_) | Fault::StorageFull(_) => return Err(fault.into_error(tries)),
            Fault::Disconnected(_) => {
                retries.lost += 1;
                // Whether the commit happened is unknown: look before writing again.
                check_repeats = true;
                chains.set_uncertain();
                // A database that does not answer uses up the budget as one that refuses does.
                let left = retry_budget.0.saturating_sub(began.elapsed());
                let pause = Duration::from_millis(50).min(left);
                if pause.is_zero() {
                    return Err(fault.into_error(tries));
                }
                thread::sleep(pause);
                // If it fails, so does the next attempt.
                let _ = tables.reconnect();
                continue;
            }
            Fault::Duplicate(_) => {
                retries.duplicates += 1;
                // A second one may be a chain's own row: a commit that became visible late.
                if check_repeats {
                    chains.set_uncertain();
                }
                check_repeats = true;
            }
            Fault::Retry(_) => {
                retries.conflicts += 1;
                conflicts += 1;
                thread::sleep(Duration::from_micros(fastrand::u64(0..2000)));
            }
            Fault::Guard(_) => retries.guards += 1,
        }
        if tries >= ATTEMPTS_MAX {
            return Err(fault.into_error(tries));
        }
    }
}

/// Reads how long the chain is, where that is uncertain.
fn resolve_chain(tables: &mut dyn Database, chain: &mut Chain) -> Result<(), Fault> {
    if !chain.uncertain {
        return Ok(());
    }
    if let Some(row) = tables.chains()?.into_iter().find(|row| row.id == chain.id) {
        chain.exists = true;
        chain.length = row.length;
        chain.head = row.head;
    }
    chain.uncertain = false;
    Ok(())
}

fn attempt(
    tables: &mut dyn Database,
    chains: &mut WriterChains,
    ops: &[Op],
    check_repeats: bool,
    alone: bool,
) -> Result<TransactionResult, Fault> {
    let wanted = unlocked_read_keys(ops, check_repeats);
    let exclusive = alone || required_keys(ops, &UnlockedReads::default(), check_repeats).exclusive;
    tables.begin(exclusive)?;
    let unlocked =
        if wanted.is_empty() { UnlockedReads::default() } else { tables.read_unlocked(&wanted)? };
    let mut keys = required_keys(ops, &unlocked, check_repeats);
    keys.exclusive |= exclusive;
    let rows = tables.lock(&keys)?;
    // A chain begins with a receipt of its own, so its first decisions are in the second.
    let chain = &chains.decisions;
    let receipt = format!("{}/{}", chain.id, chain.length.max(1));
    let mut work = UnitOfWork::new(rows, &keys, receipt, chains.highest_fence.get());
    let answers: Vec<Answer> = ops.iter().map(|op| work.apply(op)).collect();
    if work.must_restart {
        return Err(Fault::Duplicate("rows changed while they were looked at".to_owned()));
    }
    tables.flush(&work.rows)?;
    record(tables, chains, &mut work)?;
    tables.commit()?;
    work.events.iter().filter_map(EventBody::fence).for_each(|it| chains.highest_fence.raise(it));
    let origin = Text::clone(chains.origin());
    let commit = CommitRecord { origin, at: work.rows.now, events: work.events };
    let commits = if commit.events.is_empty() { Vec::new() } else { vec![commit] };
    Ok(TransactionResult { answers, commits })
}

/// Appends the events and receipts of the work.
fn record(
    tables: &mut dyn Database,
    chains: &mut WriterChains,
    work: &mut UnitOfWork,
) -> Result<(), Fault> {
    let at = work.rows.now;
    let segment = match work.events.len() {
        0 => None,
        count => Some(NewSegment {
            count: i64::try_from(count).unwrap_or(i64::MAX),
            at,
            origin: Text::clone(chains.origin()),
            body: pack_events(&mut work.events)?,
        }),
    };
    let mut receipts = Vec::new();
    let lists =
        [(&mut chains.decisions, &mut work.decisions), (&mut chains.refusals, &mut work.refusals)];
    for (chain, decisions) in lists {
        if decisions.is_empty() {
            continue;
        }
        if !chain.exists {
            let body = genesis(tables)?;
            tables.add_chain(&chain.id, at)?;
            receipts.push(chain.receipt(body, 0, at));
            chain.exists = true;
        }
        let count = i64::try_from(decisions.len()).unwrap_or(i64::MAX);
        receipts.push(chain.receipt(pack_decisions(decisions), count, at));
    }
    if segment.is_some() || !receipts.is_empty() {
        tables.append(segment.as_ref(), &receipts)?;
    }
    Ok(())
}

/// The first receipt of a chain names the chains before it, so that none can disappear unnoticed.
fn genesis(tables: &mut dyn Database) -> Result<String, Fault> {
    let mut before = serde_json::Map::new();
    for chain in tables.chains()?.into_iter().take(64) {
        let end = serde_json::json!([chain.length, hex(&chain.head)]);
        before.insert(chain.id.to_string(), end);
    }
    Ok(serde_json::json!({ "chains": before }).to_string())
}

impl Chain {
    fn receipt(&mut self, body: String, count: i64, at: Micros) -> NewReceipt {
        let n = self.length;
        let hash = link(&self.head, &self.id, n, &body);
        self.length += 1;
        self.head = hash.to_vec();
        NewReceipt { chain: Text::clone(&self.id), n, at, hash, count, body }
    }
}
