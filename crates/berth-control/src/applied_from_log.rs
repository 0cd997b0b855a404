//! Which of this server's own commits the log has delivered already, and what they are ahead of.
//!
//! Own commits come by two ways: reported by the writer, at once, and from the log, later. The order of
//! the log is the truth: a report that comes after the log is not applied, or it would undo what others
//! wrote in between. And until the log has come to a report that was applied, what others wrote before it
//! is not applied over it. Claims have fences and nodes generations for that; sizes of instances, loads of
//! nodes and everything that operators define have nothing that all of its events tell, and are counted here.

use berth_engine::NodeId;
use berth_ledger::{ClaimKey, CommitRecord, EventBody, Micros, Text};
use rustc_hash::{FxHashMap, FxHashSet};

/// Own segments that are remembered as applied from the log.
pub(crate) const APPLIED: usize = 65_536;

/// Segments of our own writers that the log delivered before the writers reported them.
#[derive(Default)]
pub(crate) struct AppliedFromLog {
    by_log: FxHashSet<(Text, Micros)>,
    by_writer: FxHashSet<(Text, Micros)>,
}

impl AppliedFromLog {
    /// Notes a segment of the log. Returns whether its writer reported it before.
    pub(crate) fn note_segment(&mut self, origin: &Text, at: Micros) -> bool {
        let key = (Text::clone(origin), at);
        let is_reported = self.by_writer.remove(&key);
        if !is_reported {
            if self.by_log.len() >= APPLIED {
                self.by_log.clear();
            }
            self.by_log.insert(key);
        }
        is_reported
    }

    /// Notes a writer's report. Returns whether the log delivered it before.
    pub(crate) fn note_report(&mut self, report: &CommitRecord) -> bool {
        let key = (Text::clone(&report.origin), report.at);
        let is_applied = self.by_log.remove(&key);
        if !is_applied {
            if self.by_writer.len() >= APPLIED {
                self.by_writer.clear();
            }
            self.by_writer.insert(key);
        }
        is_applied
    }
}

/// Something that changes without a fence or a generation that would put two changes in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum UnorderedRow {
    /// How large the instance of a claim is.
    Size(ClaimKey),
    /// How busy a node is.
    Load(NodeId),
    Group(Text),
    Volume(Text),
    Secrets(Option<Text>, Text),
    Workload(Text, Text),
    /// Which policy is in force.
    Policy,
}

impl UnorderedRow {
    fn of(event: &EventBody) -> Option<Self> {
        match event {
            EventBody::Resized { instance_id, role, .. } => {
                Some(Self::Size(ClaimKey { instance: *instance_id, role: *role }))
            }
            EventBody::Permit { instance_id, .. } | EventBody::Bounds { instance_id, .. } => {
                Some(Self::Size(ClaimKey::primary(*instance_id)))
            }
            EventBody::NodeLoad { node_id, .. } => Some(Self::Load(node_id.clone())),
            EventBody::GroupChanged { group } => Some(Self::Group(Text::from(&*group.id))),
            EventBody::GroupRemoved { group_id } => Some(Self::Group(group_id.clone())),
            EventBody::VolumeChanged { volume } => Some(Self::Volume(Text::from(&*volume.id))),
            EventBody::VolumeRemoved { volume_id } => Some(Self::Volume(volume_id.clone())),
            EventBody::SecretsChanged { tenant, env, .. } => {
                Some(Self::Secrets(tenant.clone(), env.clone()))
            }
            EventBody::WorkloadChanged { tenant, name, .. } => {
                Some(Self::Workload(tenant.clone(), name.clone()))
            }
            EventBody::PolicyChanged { .. } => Some(Self::Policy),
            _ => None,
        }
    }
}

/// How often each of these was changed by own commits that the log has not come to yet.
#[derive(Default)]
pub(crate) struct AheadOfLog {
    fresh: FxHashMap<UnorderedRow, u32>,
    /// Those from before the last seal: when the log has passed that, nothing of them can be ahead of it.
    sealed: FxHashMap<UnorderedRow, u32>,
}

impl AheadOfLog {
    /// Notes a change that a writer reported, and that was applied.
    pub(crate) fn note_report(&mut self, event: &EventBody) {
        if let Some(row) = UnorderedRow::of(event) {
            *self.fresh.entry(row).or_default() += 1;
        }
    }

    /// Whether an event of the log is older than what is known, since an own change that was applied comes
    /// later in the log. Of an own one that was reported it is noted that the log has come to it.
    pub(crate) fn is_ahead_of(&mut self, event: &EventBody, is_reported: bool) -> bool {
        if self.fresh.is_empty() && self.sealed.is_empty() {
            return false;
        }
        let Some(row) = UnorderedRow::of(event) else { return false };
        if is_reported {
            // The older ones come first.
            for counts in [&mut self.sealed, &mut self.fresh] {
                let Some(count) = counts.get_mut(&row) else { continue };
                *count -= 1;
                if *count == 0 {
                    counts.remove(&row);
                }
                break;
            }
        }
        self.fresh.contains_key(&row) || self.sealed.contains_key(&row)
    }

    /// Sets what is here apart, until the log has passed it.
    pub(crate) fn seal(&mut self) {
        for (row, count) in std::mem::take(&mut self.fresh) {
            *self.sealed.entry(row).or_default() += count;
        }
    }

    /// The log has passed what was set apart: of that nothing can be ahead of it, whatever was counted.
    pub(crate) fn purge(&mut self) {
        self.sealed.clear();
    }

    /// Whether anything must be set apart.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use berth_engine::{Amounts, InstanceId};
    use berth_ledger::Role;

    use super::*;

    fn resized(memory_mib: u32) -> EventBody {
        EventBody::Resized {
            instance_id: InstanceId::from_u128(1),
            role: Role::Primary,
            node_id: NodeId::new("n1"),
            tenant: Text::from("acme"),
            fence: Some(1),
            resources: Amounts::new(100, memory_mib),
        }
    }

    #[test]
    fn what_others_wrote_before_an_own_change_is_not_applied_over_it() {
        let mut ahead = AheadOfLog::default();
        assert!(!ahead.is_ahead_of(&resized(1), false), "nothing of our own");
        ahead.note_report(&resized(2));
        ahead.note_report(&resized(3));
        assert!(ahead.is_ahead_of(&resized(1), false), "of another server, before ours");
        assert!(ahead.is_ahead_of(&resized(2), true), "our first; the second is known");
        assert!(ahead.is_ahead_of(&resized(4), false), "between ours");
        assert!(!ahead.is_ahead_of(&resized(3), true), "our last");
        assert!(!ahead.is_ahead_of(&resized(5), false), "after ours");
    }

    #[test]
    fn what_the_log_has_passed_holds_nothing_up_for_ever() {
        let mut ahead = AheadOfLog::default();
        // Reported after a snapshot that has it already: the log never comes to it.
        ahead.note_report(&resized(2));
        assert!(ahead.has_fresh());
        ahead.seal();
        ahead.note_report(&resized(3));
        assert!(ahead.is_ahead_of(&resized(1), false));
        ahead.purge();
        assert!(ahead.is_ahead_of(&resized(1), false), "noted after the seal");
        assert!(!ahead.is_ahead_of(&resized(3), true));
    }
}
