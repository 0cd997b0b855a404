//! Taking in what the log reader sends, and going on with requests that waited for it.
//!
//! The order of the log is the truth. What this server committed itself is applied as soon as its
//! writers report it, and once more from the log where others write too; a report that comes later
//! than the log is not applied, or it would undo what others wrote in between.

use std::sync::Arc;

use berth_engine::{Fleet, InstanceRequest, Timestamp};
use berth_ledger::{
    Answer, Claim, ClaimKey, CommitRecord, Conflict, Grant, LedgerError, WriterPosition,
};

use super::Message;
use super::log_reader::{LogPage, PageSegment, PassResult};
use super::moving::PendingMove;
use super::pending_plan::PendingPlan;
use super::planner::Planner;
use crate::applied_from_log::{AheadOfLog, AppliedFromLog};
use crate::catalog::CatalogUpdate;
use crate::fleet_replica::FleetReplica;
use crate::metrics::LoopFailure;

/// Tombstones that wait to be purged.
pub(super) struct SealedTombstones {
    /// When they were sealed.
    mark: WriterPosition,
    /// Whether the message was sent after which they are purged.
    sent: bool,
}

/// What goes on when the log has been read.
pub(super) enum AfterPass {
    /// A request to plan, whatever was found.
    Plan(Box<PendingPlan>),
    /// A request that found no room: planned again if there is news, else refused.
    NoRoom(Box<PendingPlan>, Vec<Arc<InstanceRequest>>),
    /// A plan that the ledger did not grant.
    Conflict(Box<PendingPlan>, Box<Conflict>),
    /// A move that the ledger did not grant, and whether that was for its node.
    MoveConflict(Box<PendingMove>, bool),
    /// A move that found no place: planned again if there is news, else refused.
    MoveNoRoom(Box<PendingMove>, Box<InstanceRequest>),
    /// Somebody who waits until the catalogue has what others wrote.
    CatchUp(tokio::sync::oneshot::Sender<()>),
}

/// Something that waits for a pass of the log reader.
pub(super) struct ParkedWork {
    ticket: u64,
    /// Segments of others that had been applied when it was parked.
    others_before: u64,
    then: AfterPass,
}

/// What goes on when claims have been read.
pub(super) enum AfterLookup {
    /// A request that was granted at an earlier time is answered.
    Granted(Box<PendingPlan>, Grant),
    /// A move that was not granted, or at an earlier time, is answered or planned again.
    Move(Box<PendingMove>, Box<Result<Answer, LedgerError>>),
}

impl Planner {
    /// Has something go on when the log has been read to its end as of now.
    pub(super) fn park(&mut self, reap: bool, then: AfterPass) {
        let ticket = self.log_reader.request_pass(reap);
        self.parked.push(ParkedWork { ticket, others_before: self.others_applied, then });
    }

    /// Applies what one of our own writers committed.
    pub(super) fn apply_report(&mut self, report: &CommitRecord) {
        if self.multi_writer && self.applied_from_log.note_report(report) {
            return;
        }
        for event in &report.events {
            if self.multi_writer {
                self.ahead_of_log.note_report(event);
            }
            self.apply_event(event);
        }
    }

    /// Applies part of the log.
    pub(super) fn apply_page(&mut self, page: LogPage) {
        self.log_reader.acknowledge();
        self.multi_writer |= page.has_others;
        let origins = self.ledger.clone();
        for PageSegment { at, origin, mut events } in page.segments {
            let is_reported = if origins.origins().contains(&origin) {
                self.applied_from_log.note_segment(&origin, at)
            } else {
                self.others_applied += 1;
                false
            };
            events.retain(|event| event.seq > self.replica.cursor);
            for event in &events {
                if !self.ahead_of_log.is_ahead_of(&event.body, is_reported) {
                    self.apply_event(&event.body);
                }
            }
        }
        self.replica.cursor = page.end;
    }

    /// Applies an event. If it cannot be applied, the fleet is loaded again: it has the result.
    fn apply_event(&mut self, event: &berth_ledger::EventBody) {
        if let Err(error) = self.replica.apply(event) {
            tracing::error!(%error, ?event, "failed to apply an event; reloading the fleet");
            if let Some(metrics) = &self.metrics {
                metrics.loop_failed("planner", LoopFailure::Error);
            }
            self.log_reader.request_reload();
        }
    }

    /// A pass of the log reader is over: who waited for it goes on.
    pub(super) fn pass_ended(&mut self, result: &PassResult) {
        if result.at_end {
            self.advance_gc();
        }
        // After sealing: tombstones are purged after a pass that started later.
        self.log_reader.acknowledge();
        if let Some(metrics) = &self.metrics {
            metrics.loop_ran("planner");
        }
        let (ready, waiting) =
            std::mem::take(&mut self.parked).into_iter().partition(|it| it.ticket <= result.ticket);
        self.parked = waiting;
        for ParkedWork { others_before, then, .. } in ready {
            let has_news = self.others_applied > others_before || result.reaped;
            self.resume(then, has_news);
        }
        self.update_explainer();
    }

    fn resume(&mut self, then: AfterPass, has_news: bool) {
        match then {
            AfterPass::Plan(pending) => self.plan(*pending),
            AfterPass::CatchUp(reached) => self.pass_barrier(reached),
            AfterPass::NoRoom(pending, _) if has_news => self.plan(*pending),
            AfterPass::NoRoom(pending, instances) => {
                self.leave_decision(*pending, instances);
            }
            AfterPass::Conflict(pending, conflict) => self.plan_after_conflict(*pending, &conflict),
            AfterPass::MoveConflict(moving, is_about_node) => {
                self.move_after_conflict(*moving, is_about_node);
            }
            AfterPass::MoveNoRoom(moving, _) if has_news => self.plan_move(*moving),
            AfterPass::MoveNoRoom(moving, asked) => self.explain_refused_move(*moving, *asked),
        }
    }

    /// Applies heartbeats that any server received.
    pub(super) fn apply_heartbeats(&mut self, heard: &[(berth_engine::NodeId, i64)]) {
        self.log_reader.acknowledge();
        for (node, at) in heard {
            self.replica.engine().fleet_mut().heartbeat(node, Timestamp(*at));
        }
    }

    /// Claims were read, for an answer that waits for them.
    pub(super) fn claims_read(
        &mut self,
        claims: Result<Vec<Claim>, LedgerError>,
        then: AfterLookup,
    ) {
        self.log_reader.acknowledge();
        match claims {
            Ok(claims) => {
                for claim in &claims {
                    // A claim of a move was taken off its node in memory, whatever its fence.
                    let applied = match &then {
                        AfterLookup::Granted(..) => self.replica.apply_claim(claim),
                        AfterLookup::Move(..) => self.replica.restore_claim(claim),
                    };
                    if applied.is_err() {
                        self.log_reader.request_reload();
                    }
                }
            }
            // Where its claims are is in the ledger, and must not stay unknown here.
            Err(_) => self.log_reader.request_reload(),
        }
        match then {
            AfterLookup::Granted(pending, grant) => pending.granted(grant),
            AfterLookup::Move(moving, answer) => self.finish_move(*moving, *answer),
        }
    }

    /// Answers a request that was granted at an earlier time. Its claims may be gone or elsewhere, and
    /// if the answer to our own commit was lost, they are not known here yet.
    pub(super) fn answer_earlier_grant(&mut self, pending: PendingPlan, grant: Grant) {
        let keys = grant.claims.iter().filter_map(|claim| {
            let key = ClaimKey { instance: claim.instance, role: claim.role };
            (!self.replica.is_known(key, claim.fence)).then_some(key)
        });
        let keys: Vec<ClaimKey> = keys.collect();
        if keys.is_empty() {
            pending.granted(grant);
            return;
        }
        self.log_reader.look_up(keys, AfterLookup::Granted(Box::new(pending), grant));
    }

    /// Takes over a fleet that was loaded, with a copy of it for the explainer.
    pub(super) fn replace_fleet(&mut self, fresh: FleetReplica, copy: Box<Fleet>) {
        let replaced = std::mem::replace(&mut self.replica, fresh);
        self.reload_explainer(copy, Box::new(replaced));
        // What was sealed is not sealed in this one.
        self.sealed = None;
        self.multi_writer = true;
        self.applied_from_log = AppliedFromLog::default();
        self.ahead_of_log = AheadOfLog::default();
        self.others_applied += 1;
        self.log_reader.acknowledge();
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
                if self.replica.seal_tombstones() | self.ahead_of_log.has_fresh() {
                    self.ahead_of_log.seal();
                    self.seals += 1;
                    self.sealed =
                        Some(SealedTombstones { mark: self.ledger.writer_position(), sent: false });
                }
            }
            Some(sealed) if !sealed.sent && self.ledger.is_observed(&sealed.mark) => {
                sealed.sent = true;
                let sent = self.inbox.send(Message::SealReached(self.seals));
                berth_ledger::invariant_ok!(sent, "planner_receives_its_own_messages");
            }
            Some(_) => {}
        }
    }

    /// The message of [`Planner::advance_gc`] has come through.
    pub(super) fn finish_gc(&mut self, seal: u64) {
        // A replica that was reloaded since may have sealed other claims.
        if seal == self.seals && self.sealed.take().is_some_and(|sealed| sealed.sent) {
            self.replica.purge_tombstones();
            self.ahead_of_log.purge();
            self.catalog_sender.send(|| CatalogUpdate::TombstonesPassed);
        }
    }
}
