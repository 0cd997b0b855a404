//! Applying what others committed.
//!
//! A server alone on its ledger has nothing to follow: it knows what it committed itself. Once
//! another writer's events were seen, every event is applied, its own ones too, since only their
//! order says which of two is the newer.
//!
//! When a connection was lost, a commit may have happened whose answer was lost, so that neither the
//! planner nor the caller knows of it. Then the fleet is loaded again.

use berth_engine::{Policy, Timestamp};
use berth_ledger::{Event, Ledger, LedgerError, SnapshotItem, Text, WriterPosition};

use super::planner::Planner;
use super::{CatalogSender, Message};
use crate::catalog::CatalogUpdate;
use crate::fleet_replica::FleetReplica;

/// Loads the fleet as the ledger has it, and sends the same to the catalogue.
pub(super) fn load(
    ledger: &Ledger,
    policy: Policy,
    catalog_sender: &CatalogSender,
) -> Result<FleetReplica, LedgerError> {
    let mut replica = FleetReplica::new(policy);
    catalog_sender.send(|| CatalogUpdate::Begin);
    replica.cursor = ledger.snapshot(|item: SnapshotItem| {
        if catalog_sender.is_connected() {
            catalog_sender.send(|| CatalogUpdate::Load(item.clone()));
        }
        replica.load(item)
    })?;
    catalog_sender.send(|| CatalogUpdate::Loaded);
    Ok(replica)
}

/// Events read at once.
const PAGE: usize = 5000;

/// Reads of events between two reads of heartbeats.
const HEARTBEATS_EVERY: u64 = 40;

/// Tombstones that wait to be purged.
pub(super) struct SealedTombstones {
    /// When they were sealed.
    mark: WriterPosition,
    /// Whether the message was sent after which they are purged.
    sent: bool,
}

impl Planner {
    /// Reads others' events; after an error, the next call tries again.
    pub(super) fn follow(&mut self) {
        let lost = self.ledger.stats().retries.lost;
        if lost == self.lost {
            if self.follow_to_end().1 {
                self.advance_gc();
            }
        } else if self.reload_snapshot() {
            self.lost = lost;
        }
        self.follows += 1;
        if let Some(metrics) = &self.metrics {
            metrics.loop_ran("planner");
        }
        if self.follows.is_multiple_of(HEARTBEATS_EVERY) {
            self.refresh_heartbeats();
        }
    }

    /// Reads the heartbeats that any server received: they are too many for the log.
    fn refresh_heartbeats(&mut self) {
        let Ok(heard) = self.ledger.heartbeats_since(self.heard_until) else { return };
        for (node, at) in &heard {
            // Heard in the same second again, at worst.
            self.heard_until = self.heard_until.max(*at);
            self.replica.engine().fleet_mut().heartbeat(node, Timestamp(*at));
        }
        self.catalog_sender.send(|| CatalogUpdate::Heartbeats(heard));
    }

    /// Applies all events there are. Returns whether others' were among them.
    pub(super) fn follow_now(&mut self) -> bool {
        self.follow_to_end().0
    }

    /// The same, and whether the end of the log was reached.
    fn follow_to_end(&mut self) -> (bool, bool) {
        let mut has_others = false;
        loop {
            match self.page() {
                Ok(Some(others)) => has_others |= others,
                Ok(None) => return (has_others, true),
                Err(LedgerError::CursorTooOld { .. } | LedgerError::CursorInFuture { .. }) => {
                    self.reload_snapshot();
                    return (true, false);
                }
                Err(_) => return (has_others, false),
            }
        }
    }

    /// Purges tombstones of claims once their allocation cannot be reported any more, neither by the
    /// log, which was just read to its end, nor by our own writers.
    ///
    /// Current tombstones are sealed. By the next time the log has passed them. The writers have
    /// reported all they had committed by then once the ledger says so; those reports are in the inbox
    /// before the message that is sent now.
    fn advance_gc(&mut self) {
        match &mut self.sealed {
            None => {
                if self.replica.seal_tombstones() {
                    self.seals += 1;
                    self.sealed =
                        Some(SealedTombstones { mark: self.ledger.writer_position(), sent: false });
                }
            }
            Some(sealed) if !sealed.sent && self.ledger.is_observed(&sealed.mark) => {
                sealed.sent = true;
                // The planner itself receives it.
                let _ = self.inbox.send(Message::SealReached(self.seals));
            }
            Some(_) => {}
        }
    }

    /// The message of [`Planner::advance_gc`] has come through.
    pub(super) fn finish_gc(&mut self, seal: u64) {
        // A replica that was reloaded since may have sealed other claims.
        if seal == self.seals && self.sealed.take().is_some_and(|sealed| sealed.sent) {
            self.replica.purge_tombstones();
            self.catalog_sender.send(|| CatalogUpdate::EndOfLog);
        }
    }

    /// One page of events; absent at the end of the log.
    fn page(&mut self) -> Result<Option<bool>, LedgerError> {
        let segments = self.ledger.segments_after(self.replica.cursor, PAGE)?;
        let Some(last) = segments.last() else { return Ok(None) };
        let end = last.first + last.count - 1;
        let is_own = |origin: &Text| self.ledger.origins().contains(origin);
        let others = segments.iter().any(|segment| !is_own(&segment.origin));
        self.multi_writer |= others;
        if self.multi_writer {
            for segment in &segments {
                let corrupt = |error: serde_json::Error| LedgerError::Corrupt(error.to_string());
                let mut events: Vec<Event> = segment.events().map_err(corrupt)?;
                events.retain(|event| event.seq > self.replica.cursor);
                for event in &events {
                    self.replica.apply(&event.body)?;
                }
                let bodies = || events.into_iter().map(|event| event.body).collect();
                self.catalog_sender.send(|| CatalogUpdate::Events(segment.at, bodies()));
            }
        }
        self.replica.cursor = end;
        Ok(Some(others))
    }

    /// Reloads everything, when the log does not reach back to where we were or lacks what we missed.
    /// Returns whether it could be read.
    fn reload_snapshot(&mut self) -> bool {
        let policy = self.replica.engine().policy().clone();
        let Ok(mut fresh) = load(&self.ledger, policy, &self.catalog_sender) else { return false };
        fresh.remember(&self.replica);
        self.replica = fresh;
        self.reload_explainer();
        // What was set apart is not set apart in this one.
        self.sealed = None;
        true
    }
}
