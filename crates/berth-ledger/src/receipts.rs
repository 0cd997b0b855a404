//! Verifying the chains of receipts: every decision is present, unaltered and in order.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::database::{ChainRow, Database, ReceiptPlace, ReceiptRow};
use crate::encoding::{hex, is_storable};
use crate::error::{Fault, LedgerError};
use crate::ledger::Ledger;
use crate::model::{Claim, DecisionOutcome, DecisionRecord, Micros, link, unpack_decisions};

/// Receipts read at once.
const STEP: i64 = 500;

/// What is wrong with a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum ChainFault {
    /// A receipt is missing.
    Missing {
        /// The chain.
        chain: String,
        /// Its number.
        n: i64,
    },
    /// A receipt was altered.
    Altered {
        /// The chain.
        chain: String,
        /// Its number.
        n: i64,
    },
    /// A receipt does not hold as many decisions as it states, or cannot be read.
    Unreadable {
        /// The chain.
        chain: String,
        /// Its number.
        n: i64,
    },
    /// A chain does not end where its row says.
    WrongEnd {
        /// The chain.
        chain: String,
    },
    /// A chain that another names is missing, shorter or altered.
    LostChain {
        /// The chain that is wrong.
        chain: String,
        /// The chain that names it.
        named_by: String,
    },
}

impl fmt::Display for ChainFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { chain, n } => write!(f, "receipt {chain}/{n} is missing"),
            Self::Altered { chain, n } => write!(f, "receipt {chain}/{n} was altered"),
            Self::Unreadable { chain, n } => write!(f, "receipt {chain}/{n} cannot be read"),
            Self::WrongEnd { chain } => write!(f, "chain {chain} does not end where its row says"),
            Self::LostChain { chain, named_by } => {
                write!(f, "chain {chain}, named by chain {named_by}, is missing or was altered")
            }
        }
    }
}

/// What a walk over all chains found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Chains walked.
    pub chains: u64,
    /// Receipts in them.
    pub receipts: u64,
    /// Decisions in those.
    pub decisions: u64,
    /// What is wrong.
    pub faults: Vec<ChainFault>,
    /// The head of every chain, in hexadecimal: kept elsewhere, it proves that nothing was cut off.
    pub heads: BTreeMap<String, String>,
}

/// A decision and where it is.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Its id: chain, receipt and place.
    pub id: String,
    /// When it was committed, by the database's clock.
    pub at: Micros,
    /// What was decided.
    pub record: DecisionRecord,
}

impl Ledger {
    /// Walks every chain and finds any altered or missing receipt.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn verify(&self) -> Result<Verification, LedgerError> {
        self.read(|tables| {
            let mut walk = ChainWalk::default();
            let chains = tables.chains()?;
            for chain in &chains {
                walk.chain(tables, chain)?;
            }
            walk.compare(&chains);
            Ok(walk.found)
        })
    }

    /// One decision by its id.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn decision(&self, id: &str) -> Result<Option<Decision>, LedgerError> {
        let Some((chain, n, place)) = parse_decision_id(id) else { return Ok(None) };
        self.read(|tables| {
            let receipts = tables.receipts(chain, n, 1)?;
            let Some(receipt) = receipts.into_iter().find(|receipt| receipt.n == n) else {
                return Ok(None);
            };
            let decision = decisions(&receipt)?.into_iter().nth(place);
            Ok(decision.map(|record| Decision { id: id.to_owned(), at: receipt.at, record }))
        })
    }

    /// The decision that placed the instance of a claim. A claim and its receipt are written in one
    /// transaction and have its time, and a claim keeps that time when it moves: so the decision is
    /// found as long as its receipt is kept, after the stored answer to its request is gone.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn decision_of(&self, claim: &Claim) -> Result<Option<Decision>, LedgerError> {
        let at = claim.created_at;
        let granted = |record: &DecisionRecord| match &record.outcome {
            DecisionOutcome::Granted(placed) => {
                placed.iter().any(|placed| placed.instance == claim.key.instance)
            }
            DecisionOutcome::Refused { .. } => false,
        };
        // No id of a chain sorts after it.
        let mut until = ReceiptPlace { at: at.0, chain: "~".to_owned(), n: i64::MAX };
        loop {
            let receipts = self.read(|tables| tables.receipts_until(&until, 1))?;
            let Some(receipt) = receipts.into_iter().find(|receipt| receipt.at == at) else {
                return Ok(None);
            };
            let records = decisions(&receipt).map_err(|fault| fault.into_error(1))?;
            let numbered = records.into_iter().enumerate();
            if let Some((place, record)) = numbered.into_iter().find(|(_, it)| granted(it)) {
                let id = format!("{}/{}/{place}", receipt.chain, receipt.n);
                return Ok(Some(Decision { id, at, record }));
            }
            // Another writer committed in the same microsecond.
            until = ReceiptPlace { at: at.0, chain: receipt.chain.to_string(), n: receipt.n - 1 };
        }
    }

    /// Decisions of all chains, newest first, from before this one on: its time in microseconds and
    /// its id. A page goes on where the last one ended whatever is decided meanwhile.
    ///
    /// # Errors
    /// When `before` names no decision, or the database cannot be read.
    pub fn decisions(
        &self,
        before: Option<(i64, String)>,
        limit: usize,
    ) -> Result<Vec<Decision>, LedgerError> {
        let (mut until, mut first_place) = match &before {
            // No id of a chain sorts after it.
            None => (ReceiptPlace { at: i64::MAX, chain: "~".to_owned(), n: i64::MAX }, usize::MAX),
            Some((at, id)) => {
                let parts = parse_decision_id(id);
                let (chain, n, place) =
                    parts.ok_or_else(|| LedgerError::InvalidCursor { cursor: id.clone() })?;
                (ReceiptPlace { at: *at, chain: chain.to_owned(), n }, place)
            }
        };
        let mut found = Vec::new();
        while found.len() < limit {
            // Of the first receipt, some may have been given out before: then there is a next round.
            let wanted = limit - found.len();
            let receipts = self.read(|tables| tables.receipts_until(&until, wanted))?;
            let Some(last) = receipts.last() else { break };
            let next = ReceiptPlace { at: last.at.0, chain: last.chain.to_string(), n: last.n - 1 };
            for receipt in &receipts {
                let here = (receipt.at.0, &*receipt.chain, receipt.n);
                let cut = here == (until.at, until.chain.as_str(), until.n);
                let most = if cut { first_place } else { usize::MAX };
                let records = decisions(receipt).map_err(|fault| fault.into_error(1))?;
                let numbered = records.into_iter().enumerate().take(most);
                let mut numbered: Vec<(usize, DecisionRecord)> = numbered.collect();
                numbered.reverse();
                found.extend(numbered.into_iter().map(|(place, record)| Decision {
                    id: format!("{}/{}/{place}", receipt.chain, receipt.n),
                    at: receipt.at,
                    record,
                }));
            }
            (until, first_place) = (next, usize::MAX);
        }
        found.truncate(limit);
        Ok(found)
    }

    /// The latest decisions of every chain, newest receipts first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn recent_decisions(&self, most: usize) -> Result<Vec<Decision>, LedgerError> {
        self.read(|tables| {
            let mut found = Vec::new();
            for chain in tables.chains()?.iter().take(16) {
                let from = (chain.length - i64::try_from(most).unwrap_or(STEP).min(STEP)).max(0);
                for receipt in tables.receipts(&chain.id, from, STEP)?.iter().rev() {
                    for (place, record) in decisions(receipt)?.into_iter().enumerate().rev() {
                        let id = format!("{}/{}/{place}", chain.id, receipt.n);
                        found.push(Decision { id, at: receipt.at, record });
                    }
                    if found.len() >= most {
                        break;
                    }
                }
            }
            found.truncate(most);
            Ok(found)
        })
    }
}

/// Chain, receipt and place of a decision's id.
fn parse_decision_id(id: &str) -> Option<(&str, i64, usize)> {
    let mut parts = id.split('/');
    let (chain, n, place) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && !chain.is_empty() && is_storable([chain]);
    whole.then_some((chain, n.parse().ok()?, place.parse().ok()?))
}

fn decisions(receipt: &ReceiptRow) -> Result<Vec<DecisionRecord>, Fault> {
    if receipt.count == 0 { Ok(Vec::new()) } else { Ok(unpack_decisions(&receipt.body)?) }
}

/// What one chain records of others: their length and head when it began.
type NamedChain = (String, String, i64, String);

#[derive(Default)]
struct ChainWalk {
    found: Verification,
    named: Vec<NamedChain>,
    /// Hashes at places that others may name.
    hashes: BTreeMap<(String, i64), String>,
}

impl ChainWalk {
    fn chain(&mut self, tables: &mut dyn Database, chain: &ChainRow) -> Result<(), Fault> {
        let (mut next, mut head) = (chain.base, chain.base_hash.clone());
        let id = chain.id.to_string();
        self.found.chains += 1;
        loop {
            let receipts = tables.receipts(&chain.id, next, STEP)?;
            if receipts.is_empty() {
                break;
            }
            for receipt in receipts {
                while next < receipt.n {
                    self.found.faults.push(ChainFault::Missing { chain: id.clone(), n: next });
                    next += 1;
                }
                let expected = link(&head, &chain.id, receipt.n, &receipt.body);
                if expected.as_slice() != receipt.hash {
                    let fault = ChainFault::Altered { chain: id.clone(), n: receipt.n };
                    self.found.faults.push(fault);
                }
                self.count(&id, &receipt);
                self.hashes.insert((id.clone(), receipt.n + 1), hex(&receipt.hash));
                // From the stored hash on, so that one fault is reported once.
                head = receipt.hash;
                next = receipt.n + 1;
            }
        }
        while next < chain.length {
            self.found.faults.push(ChainFault::Missing { chain: id.clone(), n: next });
            next += 1;
        }
        if head != chain.head || next != chain.length {
            self.found.faults.push(ChainFault::WrongEnd { chain: id.clone() });
        }
        self.found.heads.insert(id, hex(&chain.head));
        Ok(())
    }

    fn count(&mut self, chain: &str, receipt: &ReceiptRow) {
        self.found.receipts += 1;
        if receipt.n == 0 {
            self.read_genesis(chain, &receipt.body);
            return;
        }
        let counted = i64::try_from(decisions(receipt).map_or(0, |all| all.len()));
        if counted != Ok(receipt.count) {
            let fault = ChainFault::Unreadable { chain: chain.to_owned(), n: receipt.n };
            self.found.faults.push(fault);
        }
        self.found.decisions += u64::try_from(receipt.count).unwrap_or(0);
    }

    fn read_genesis(&mut self, chain: &str, body: &str) {
        let parsed: Option<serde_json::Value> = serde_json::from_str(body).ok();
        let chains = parsed.as_ref().and_then(|body| body.get("chains")?.as_object());
        for (other, end) in chains.into_iter().flatten() {
            let length = end.get(0).and_then(serde_json::Value::as_i64).unwrap_or(0);
            let head = end.get(1).and_then(serde_json::Value::as_str).unwrap_or("");
            self.named.push((chain.to_owned(), other.clone(), length, head.to_owned()));
        }
    }

    /// Compares what chains record of each other with what is stored.
    fn compare(&mut self, chains: &[ChainRow]) {
        for (named_by, chain, length, head) in &self.named {
            let row = chains.iter().find(|row| *row.id == **chain);
            let holds = row.is_some_and(|row| {
                let same = || self.hashes.get(&(chain.clone(), *length)) == Some(head);
                // What retention dropped can no longer be compared.
                row.length >= *length && (*length <= row.base || same())
            });
            if !holds {
                let (chain, named_by) = (chain.clone(), named_by.clone());
                self.found.faults.push(ChainFault::LostChain { chain, named_by });
            }
        }
    }
}
