//! Documents, policies and the audit log.

use berth_engine::limits::table;

use super::UnitOfWork;
use super::rows::{AuditRow, DocumentRow, PolicyRow, RequestRow, StoredAnswer};
use crate::model::{
    Answer, Audited, ClaimKey, EventBody, Expect, Grant, IfUnanswered, Outcome, RefusalReason,
    Scheduling, Text, Verdict,
};

impl UnitOfWork {
    /// Applies an operation, and adds an audit entry if it changed anything.
    pub(super) fn apply_audited(&mut self, by: &Audited) -> Answer {
        let events = self.events.len();
        let answer = self.apply(&by.op);
        // A repeated step returns the same status and logs no event.
        let has_events = self.events.len() > events;
        let changed = match &answer {
            Answer::Plan(Verdict::Granted(_)) | Answer::Outcome(Outcome::Done) => true,
            Answer::Claim(Ok(_)) | Answer::Permit(_) => has_events,
            Answer::Reaped(reaped) => !reaped.is_empty(),
            Answer::Drifts(drifts) => !drifts.is_empty(),
            Answer::Plan(Verdict::Conflict(_) | Verdict::Refused(_))
            | Answer::Repeated(_)
            | Answer::Claim(Err(_))
            | Answer::Outcome(_) => false,
        };
        if changed {
            let subject = match &answer {
                Answer::Plan(Verdict::Granted(grant)) if by.subject.is_empty() => {
                    describe_grant(grant)
                }
                _ => Text::clone(&by.subject),
            };
            // Noted once for each, also where one acts on behalf of another.
            self.rows.audit.push(AuditRow {
                actor: replace_nul(&by.actor),
                origin: replace_nul(&by.origin),
                action: replace_nul(&by.action),
                subject: replace_nul(&subject),
                request_id: by.request_id.as_ref().map(replace_nul),
            });
        }
        answer
    }

    /// Applies an operation unless its request has been answered, and stores the ticket as its answer.
    pub(super) fn apply_unanswered(&mut self, request: &IfUnanswered) -> Answer {
        let key = (Text::clone(&request.request_id), Text::clone(&request.tenant));
        let ticket = request.ticket.as_ref();
        if let Some(row) = self.rows.requests.get(&key) {
            let is_same = ticket.is_none_or(|ticket| ticket.request_hash == row.body_hash);
            match &row.answer {
                StoredAnswer::Granted(grant) => return Answer::Repeated(grant.clone()),
                StoredAnswer::Ticket { closed: None } if is_same => {}
                StoredAnswer::Ticket { closed: Some(_) } if is_same => {
                    return Answer::Outcome(Outcome::Stale { current: None });
                }
                StoredAnswer::Status(_) | StoredAnswer::Ticket { .. } => {
                    let request_id = key.0;
                    return Answer::Plan(Verdict::Refused(RefusalReason::RequestIdReused {
                        request_id,
                    }));
                }
            }
        }
        let answer = self.apply(&request.op);
        if let (Answer::Outcome(Outcome::Done), Some(ticket)) = (&answer, ticket) {
            let row = RequestRow {
                body_hash: ticket.request_hash,
                answer: StoredAnswer::Ticket { closed: ticket.closed.clone() },
                at: ticket.kept_from,
            };
            self.rows.requests.set(&key, Some(row));
            self.keep();
        }
        answer
    }

    pub(super) fn put_document(
        &mut self,
        kind: &Text,
        id: &Text,
        body: &str,
        expect: Expect,
    ) -> Outcome {
        for (field, value) in [("kind", &**kind), ("id", &**id)] {
            if value.is_empty() {
                return Outcome::Impossible(format!("a document's {field} is empty; give it one"));
            }
        }
        // Bodies may be secret, so only names are shown.
        if [&**kind, &**id, body].into_iter().any(|text| text.contains('\0')) {
            let why = format!("document {kind:?} {id:?} contains a NUL character; leave it out");
            return Outcome::Impossible(why);
        }
        let key = (Text::clone(kind), Text::clone(id));
        let current = self.rows.documents.get(&key).map(|row| row.rev);
        if !expect.holds(current) {
            return Outcome::Stale { current };
        }
        if self.rows.documents.get(&key).is_some_and(|row| row.body == body) {
            return Outcome::Unchanged;
        }
        let rev = current.unwrap_or(0) + 1;
        let row = DocumentRow { rev, body: body.to_owned(), at: self.rows.now };
        self.rows.documents.set(&key, Some(row));
        let (document, id) = key;
        self.events.push(EventBody::DocumentChanged { document, id, revision: Some(rev) });
        Outcome::Done
    }

    pub(super) fn remove_document(&mut self, kind: &Text, id: &Text, expect: Expect) -> Outcome {
        let key = (Text::clone(kind), Text::clone(id));
        let current = self.rows.documents.get(&key).map(|row| row.rev);
        if !expect.holds(current) {
            return Outcome::Stale { current };
        }
        if current.is_none() {
            return Outcome::Unchanged;
        }
        self.rows.documents.set(&key, None);
        let (document, id) = key;
        self.events.push(EventBody::DocumentChanged { document, id, revision: None });
        Outcome::Done
    }

    /// Stores why a workload cannot be scheduled, and logs when that begins, changes or ends.
    pub(super) fn set_scheduling(&mut self, scheduling: &Scheduling) -> Outcome {
        let (kind, id) = scheduling.document();
        let known = self.rows.documents.get(&(kind.clone(), id.clone()));
        let known = known.map(|row| Text::from(scheduling_code(&row.body)));
        let (tenant, env) = (scheduling.tenant.clone(), scheduling.env.clone());
        let workload = scheduling.workload.clone();
        match (&scheduling.failing, known) {
            (None, None) => Outcome::Unchanged,
            (None, Some(code)) => {
                let outcome = self.remove_document(&kind, &id, Expect::Any);
                self.events.push(EventBody::SchedulingRecovered { tenant, env, workload, code });
                outcome
            }
            (Some(failing), known) => {
                let outcome = self.put_document(&kind, &id, &failing.body, Expect::Any);
                let is_new = known.as_ref() != Some(&failing.code);
                if outcome == Outcome::Done && is_new {
                    let (code, message) = (failing.code.clone(), failing.message.clone());
                    let event =
                        EventBody::SchedulingFailed { tenant, env, workload, code, message };
                    self.events.push(event);
                }
                outcome
            }
        }
    }

    /// Stores a policy. It is known by its content, so one that is there is the same.
    pub(super) fn put_policy(&mut self, name: &str, hash: &str, body: &str) -> Outcome {
        let key = Text::from(hash);
        if self.rows.policies.get(&key).is_some() {
            return Outcome::Unchanged;
        }
        let (name, body) = (name.to_owned(), body.to_owned());
        let row = PolicyRow { name, body, at: self.rows.now, active: false };
        self.rows.policies.set(&key, Some(row));
        Outcome::Done
    }

    pub(super) fn activate_policy(
        &mut self,
        name: &str,
        hash: &str,
        body: &str,
        expect: Option<&str>,
    ) -> Outcome {
        let key = Text::from(hash);
        let in_force = self.rows.policies.iter().find(|(_, row)| row.active);
        let in_force = in_force.map(|(hash, _)| Text::clone(hash));
        if expect.is_some_and(|expected| in_force.as_deref() != Some(expected)) {
            return Outcome::Stale { current: None };
        }
        if in_force.as_ref() == Some(&key) {
            return Outcome::Unchanged;
        }
        if let Some(other) = &in_force {
            self.quarantine_policy(other);
            self.rows.policies.edit(other, |row| row.active = false);
        }
        let at = self.rows.policies.get(&key).map_or(self.rows.now, |row| row.at);
        let row = PolicyRow { name: name.to_owned(), body: body.to_owned(), at, active: true };
        self.rows.policies.set(&key, Some(row));
        self.rows.activated.push(key);
        self.events.push(EventBody::PolicyChanged {
            name: name.to_owned(),
            hash: hash.to_owned(),
            body: body.to_owned(),
        });
        Outcome::Done
    }

    /// Logs that a policy which is no longer in force was beyond a limit: an earlier version stored it.
    fn quarantine_policy(&mut self, key: &Text) {
        let limit = table::STORED_POLICY_BYTES;
        let Some(row) = self.rows.policies.get(key).filter(|row| row.body.len() > limit) else {
            return;
        };
        let bytes = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        self.events.push(EventBody::PolicyQuarantined {
            name: row.name.clone(),
            hash: key.to_string(),
            bytes: bytes(row.body.len()),
            limit: bytes(limit),
        });
    }
}

/// The code in what is kept of a workload; empty where an earlier version kept none.
fn scheduling_code(body: &str) -> String {
    #[derive(serde::Deserialize)]
    struct CodeField {
        code: String,
    }
    serde_json::from_str(body).map(|kept: CodeField| kept.code).unwrap_or_default()
}

/// What a grant did, in a few words.
fn describe_grant(grant: &Grant) -> Text {
    let Some(first) = grant.claims.first() else { return Text::default() };
    let key = ClaimKey { instance: first.instance, role: first.role };
    let more = grant.claims.len() - 1;
    Text::from(match more {
        0 => format!("node {} won, claim {key}", first.node),
        more => format!("node {} won, claim {key} and {more} more", first.node),
    })
}

/// A text as every database can store it: an action is audited whatever its name.
fn replace_nul(text: &Text) -> Text {
    if text.contains('\0') {
        return Text::from(text.replace('\0', "\u{fffd}"));
    }
    Text::clone(text)
}
