//! The fleet as of some events, kept so that decisions can be derived after the log before them was cut.
//!
//! A snapshot is stored as documents: a header, and parts of compressed lines, each a row as a fleet takes
//! it in. It is stored whole or it does not count. Snapshots are made by the upkeep of the ledger, never on
//! the way of a request; what they say is as good as the ledger was when they were made, and is not part of
//! the receipts that `berth verify` checks.

use std::io::{BufRead as _, BufReader, Read, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use berth_engine::{Amounts, Group, InstanceId, NodeFacts, NodeId, Volume};
use berth_ledger::{
    Claim, ClaimHoldings, ClaimKey, ClaimState, Expect, Ledger, LedgerError, Micros, NodeVersion,
    Op, Role, SnapshotItem, Spec, Text, Workload,
};
use serde::{Deserialize, Serialize};

use crate::fleet_replica::FleetReplica;

/// Documents that name a snapshot and count its parts.
const HEADER: &str = "fleet_snapshot";

/// Documents that have its content.
const PART: &str = "fleet_snapshot_part";

/// Snapshots in the time that events are kept.
const PER_RETENTION: i64 = 8;

/// Compressed bytes of one part.
const PART_BYTES: usize = 3 << 20;

const LEVEL: i32 = 3;

/// Headers read at once; there are never nearly so many.
const HEADERS: usize = 1000;

/// What a header says.
#[derive(Serialize, Deserialize)]
struct Header {
    /// Absent while it is being stored.
    parts: Option<usize>,
}

/// A stored snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FleetSnapshot {
    /// The last event that is in it.
    pub(crate) event: i64,
    parts: Option<usize>,
}

/// One line: a row of the ledger, with what a fleet needs of it.
#[derive(Serialize, Deserialize)]
enum Row {
    Secrets(Option<String>, String, String),
    Group(Group),
    Node(Box<NodeFacts>, i64),
    Volume(Volume),
    Workload { tenant: String, name: String, revision: i64, replicas: i64, body: String },
    Claim(Box<ClaimRow>),
}

#[derive(Serialize, Deserialize)]
struct ClaimRow {
    instance: InstanceId,
    role: Role,
    node: NodeId,
    state: ClaimState,
    amounts: Amounts,
    fence: i64,
    name: Option<String>,
    spec: String,
    holdings: Option<Box<ClaimHoldings>>,
}

impl Row {
    fn of(item: SnapshotItem) -> Option<Self> {
        Some(match item {
            // A decision names its policy, and limits of the ledger are not derived.
            SnapshotItem::Policy(..) | SnapshotItem::Pool(_) | SnapshotItem::Quota(..) => {
                return None;
            }
            SnapshotItem::Secrets(tenant, env, version) => Self::Secrets(
                tenant.as_ref().map(ToString::to_string),
                env.to_string(),
                version.to_string(),
            ),
            SnapshotItem::Group(group) => Self::Group(group),
            SnapshotItem::Node(facts, seen) => Self::Node(facts, seen.constraint_gen),
            SnapshotItem::Volume(volume) => Self::Volume(volume),
            SnapshotItem::Workload(workload) => {
                let Workload { tenant, name, revision, replicas, body } = workload;
                Self::Workload { tenant, name, revision, replicas, body }
            }
            SnapshotItem::Claim(claim) => {
                let Claim { key, node, state, amounts, fence, name, spec, holdings, .. } = *claim;
                let (name, spec) =
                    (name.as_ref().map(ToString::to_string), spec.as_str().to_owned());
                let ClaimKey { instance, role } = key;
                Self::Claim(Box::new(ClaimRow {
                    instance,
                    role,
                    node,
                    state,
                    amounts,
                    fence,
                    name,
                    spec,
                    holdings,
                }))
            }
        })
    }

    fn into_item(self) -> SnapshotItem {
        let text = |text: String| Text::from(text.as_str());
        match self {
            Self::Secrets(tenant, env, version) => {
                SnapshotItem::Secrets(tenant.map(text), text(env), text(version))
            }
            Self::Group(group) => SnapshotItem::Group(group),
            Self::Node(facts, generation) => {
                let seen = NodeVersion::of(&facts, generation, 0, 0);
                SnapshotItem::Node(facts, seen)
            }
            Self::Volume(volume) => SnapshotItem::Volume(volume),
            Self::Workload { tenant, name, revision, replicas, body } => {
                SnapshotItem::Workload(Workload { tenant, name, revision, replicas, body })
            }
            Self::Claim(row) => SnapshotItem::Claim(Box::new(row.into_claim())),
        }
    }
}

impl ClaimRow {
    /// The claim, with what a fleet asks of it: whose it is stands in its specification.
    fn into_claim(self) -> Claim {
        Claim {
            key: ClaimKey { instance: self.instance, role: self.role },
            node: self.node,
            tenant: Text::from(""),
            workload: None,
            state: self.state,
            amounts: self.amounts,
            capped: false,
            lease_until: None,
            fence: self.fence,
            request_id: Text::from(""),
            batch: None,
            name: self.name.as_deref().map(Text::from),
            spec: Spec::stored(self.spec),
            holdings: self.holdings,
            release_id: None,
            secrets_version: None,
            created_at: Micros(0),
            permit: None,
        }
    }
}

fn corrupt(error: impl std::fmt::Display) -> LedgerError {
    LedgerError::Corrupt(format!("a snapshot of the fleet: {error}"))
}

fn id_of(event: i64) -> String {
    format!("{event:020}")
}

fn part_id(event: i64, part: usize) -> Text {
    Text::from(format!("{event:020}/{part:05}").as_str())
}

/// The stored snapshots, the oldest first.
fn stored(ledger: &Ledger) -> Result<Vec<FleetSnapshot>, LedgerError> {
    let headers = ledger.documents(HEADER, None, HEADERS)?;
    let read = headers.iter().map(|document| {
        let header: Header = serde_json::from_str(&document.body).map_err(corrupt)?;
        let event = document.id.parse().map_err(corrupt)?;
        Ok(FleetSnapshot { event, parts: header.parts })
    });
    read.collect()
}

/// Stores a snapshot when it is time for one, and removes those that the log does not go on from.
///
/// # Errors
/// When the ledger cannot be read or written.
pub(crate) fn tend(ledger: &Ledger, events_kept: i64) -> Result<(), LedgerError> {
    let (oldest, newest) = (ledger.oldest_event()?, ledger.newest_event()?);
    let (current, outdated): (Vec<_>, Vec<_>) =
        stored(ledger)?.into_iter().partition(|snapshot| snapshot.event + 1 >= oldest);
    for snapshot in outdated {
        remove(ledger, snapshot.event)?;
    }
    // Its own documents are events too.
    let own = |snapshot: &FleetSnapshot| snapshot.parts.map_or(2, |parts| parts + 2);
    let last = current
        .last()
        .map_or(0, |last| last.event.saturating_add(i64::try_from(own(last)).unwrap_or(i64::MAX)));
    if newest - last >= (events_kept / PER_RETENTION).max(1) {
        store(ledger)?;
    }
    Ok(())
}

/// Stores the fleet as it is now.
pub(crate) fn store(ledger: &Ledger) -> Result<FleetSnapshot, LedgerError> {
    let mut parts = Vec::new();
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL).map_err(corrupt)?;
    let event = ledger.snapshot(|item| {
        let Some(row) = Row::of(item) else { return Ok(()) };
        serde_json::to_writer(&mut encoder, &row).map_err(corrupt)?;
        encoder.write_all(b"\n").map_err(corrupt)?;
        if encoder.get_ref().len() >= PART_BYTES {
            parts.push(STANDARD_NO_PAD.encode(std::mem::take(encoder.get_mut())));
        }
        Ok(())
    })?;
    let rest = encoder.finish().map_err(corrupt)?;
    parts.push(STANDARD_NO_PAD.encode(rest));
    let put = |kind: &str, id: Text, body: String| {
        let op = Op::PutDocument { kind: Text::from(kind), id, body, expect: Expect::Any };
        ledger.administer(op).map(drop)
    };
    let header = |parts| serde_json::to_string(&Header { parts }).map_err(corrupt);
    let id = Text::from(id_of(event).as_str());
    let snapshot = FleetSnapshot { event, parts: Some(parts.len()) };
    // Without the number of parts first, so that what is left of one that was interrupted is found.
    put(HEADER, Text::clone(&id), header(None)?)?;
    for (number, body) in parts.into_iter().enumerate() {
        put(PART, part_id(event, number), body)?;
    }
    put(HEADER, id, header(snapshot.parts)?)?;
    tracing::info!(event, parts = snapshot.parts, "stored a snapshot of the fleet");
    Ok(snapshot)
}

fn remove(ledger: &Ledger, event: i64) -> Result<(), LedgerError> {
    let remove = |kind: &str, id: Text| {
        let op = Op::RemoveDocument { kind: Text::from(kind), id, expect: Expect::Any };
        ledger.administer(op).map(drop)
    };
    for number in 0.. {
        let id = part_id(event, number);
        if ledger.document(PART, &id)?.is_none() {
            break;
        }
        remove(PART, id)?;
    }
    // Last, or parts would be left that nothing names.
    remove(HEADER, Text::from(id_of(event).as_str()))
}

/// The newest snapshot of the fleet as it was before an event, from which the log still goes on.
///
/// # Errors
/// When the ledger cannot be read.
pub(crate) fn newest_until(
    ledger: &Ledger,
    event: i64,
) -> Result<Option<FleetSnapshot>, LedgerError> {
    let oldest = ledger.oldest_event()?;
    let usable = stored(ledger)?.into_iter().rev().find(|snapshot| {
        snapshot.parts.is_some() && snapshot.event <= event && snapshot.event + 1 >= oldest
    });
    Ok(usable)
}

impl FleetSnapshot {
    /// Takes the whole fleet into a replica that is empty.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn load(
        &self,
        ledger: &Ledger,
        replica: &mut FleetReplica,
    ) -> Result<(), LedgerError> {
        let mut compressed = Vec::new();
        for number in 0..self.parts.unwrap_or(0) {
            let document = ledger.document(PART, &part_id(self.event, number))?;
            let body = document.ok_or_else(|| corrupt("a part is missing"))?.body;
            compressed.extend(STANDARD_NO_PAD.decode(body).map_err(corrupt)?);
        }
        let decoder = zstd::Decoder::new(compressed.as_slice()).map_err(corrupt)?;
        read_rows(decoder, |row| replica.load(row.into_item()))
    }
}

fn read_rows(
    from: impl Read,
    mut take: impl FnMut(Row) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    for line in BufReader::new(from).lines() {
        take(serde_json::from_str(&line.map_err(corrupt)?).map_err(corrupt)?)?;
    }
    Ok(())
}
