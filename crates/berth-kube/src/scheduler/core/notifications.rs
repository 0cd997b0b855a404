//! Publishes why a pod cannot be scheduled, without repeating itself.

use std::sync::Arc;

use super::{LastNotice, Notice, NoticeContent, SchedulerCore};
use crate::cluster::PodState;
use crate::cluster::outcome::Refusal;
use crate::cluster::pod::Key;
use crate::scheduler::messages::{Action, UnschedulableNotice};
use crate::scheduler::queue::{Millis, Moment};

/// The same reason is published again after this time.
const REPEAT_MS: Millis = 5 * 60_000;
/// The same reason with other numbers is published again after this time.
const REPEAT_CHANGED_MS: Millis = 30_000;

/// The code of a pod that has a node and could not be bound to it: another node would not help.
pub(super) const BIND_FAILED: &str = "bind_failed";

impl From<&Refusal> for NoticeContent {
    fn from(refusal: &Refusal) -> Self {
        Self { text: refusal.text(), shape: refusal.shape.clone() }
    }
}

impl From<&str> for NoticeContent {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), shape: None }
    }
}

impl SchedulerCore {
    pub(super) fn notify_refusal(
        &mut self,
        uid: &Arc<str>,
        refusal: &Refusal,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let summary = (refusal.code.as_str(), refusal.line.as_str());
        self.notify_pod(uid, &refusal.pod, summary, || refusal.into(), now, actions);
    }

    /// Publishes a reason on every pending member of a gang.
    pub(super) fn notify_gang(
        &mut self,
        gang: &Key,
        summary: (&str, &str),
        content: &NoticeContent,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let members = self.gangs.get(gang).into_iter().flat_map(|it| it.keys());
        // Some members may be reserved, and about to be bound.
        let pending = |uid: &Arc<str>| {
            let record = self.pods.get(uid).filter(|it| it.state == PodState::Pending)?;
            Some((record.key.clone(), Arc::clone(uid)))
        };
        let mut members: Vec<(Key, Arc<str>)> = members.filter_map(pending).collect();
        members.sort();
        for (key, uid) in members {
            self.notify_pod(&uid, &key, summary, || content.clone(), now, actions);
        }
    }

    /// Publishes notices that were deferred and are due, of pods that still wait.
    pub(super) fn flush_deferred_notices(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.deferred_notices.is_empty() {
            return;
        }
        let due = self.deferred_notices.extract_if(|_, (due, _)| *due <= now.millis);
        let mut due: Vec<(Arc<str>, Notice)> = due.map(|(uid, (_, it))| (uid, it)).collect();
        due.sort_by(|a, b| a.0.cmp(&b.0));
        for (uid, Notice { code, line, content }) in due {
            let waits = self.pods.get(&uid).filter(|it| it.state == PodState::Pending);
            if let Some(key) = waits.map(|it| it.key.clone()) {
                self.notify_pod(&uid, &key, (&code, &line), || content, now, actions);
            }
        }
    }

    /// Publishes why a pod cannot be scheduled, unless the same was published recently.
    pub(super) fn notify_pod(
        &mut self,
        uid: &Arc<str>,
        pod: &Key,
        (code, line): (&str, &str),
        content: impl FnOnce() -> NoticeContent,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let last = self.last_notices.get(uid);
        let is_due = last.is_none_or(|last| {
            let elapsed = now.millis.saturating_sub(last.at);
            let interval = match (last.code == code, last.line == line) {
                (true, true) => REPEAT_MS,
                (true, false) => REPEAT_CHANGED_MS,
                (false, _) => 0,
            };
            elapsed >= interval
        });
        if !is_due {
            // News is published as soon as it may be, even if the pod is not tried again by then.
            let at = last.filter(|it| it.line != line).map(|it| it.at);
            if let Some(due) = at.map(|at| at.saturating_add(REPEAT_CHANGED_MS)) {
                let notice = Notice { code: code.into(), line: line.into(), content: content() };
                self.deferred_notices.insert(Arc::clone(uid), (due, notice));
            } else {
                self.deferred_notices.remove(uid);
            }
            return;
        }
        self.deferred_notices.remove(uid);
        let first = last.is_none();
        let last = LastNotice { code: code.to_owned(), line: line.to_owned(), at: now.millis };
        self.last_notices.insert(Arc::clone(uid), last);
        let version = self.pods.get(uid).and_then(|record| record.version);
        let (pod, uid) = (pod.clone(), Arc::clone(uid));
        let reason = if code == BIND_FAILED { "SchedulerError" } else { "Unschedulable" };
        let NoticeContent { text: message, shape } = content();
        let notice = UnschedulableNotice { pod, uid, reason, message, shape, version, first };
        actions.push(Action::NotifyUnschedulable(notice));
    }
}
