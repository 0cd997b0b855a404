//! Why a node takes nothing although no operator said so.

use berth_engine::NodeState;

use super::entries::NodeEntry;

impl NodeEntry {
    /// Why the node is lost, degraded or joining, and what makes it active; absent in other states.
    #[must_use]
    pub fn state_message(&self) -> Option<String> {
        let id = &self.facts.id;
        match (self.facts.state, self.facts.state_reason.as_deref()) {
            (NodeState::Lost, _) => {
                let at = jiff::Timestamp::from_second(self.heard_at()).ok();
                let silence = match at.filter(|_| self.heard_at() > 0) {
                    Some(at) => format!("no heartbeat since {at}"),
                    None => "no heartbeat yet".to_owned(),
                };
                Some(format!(
                    "{silence}; the next heartbeat brings it back: see whether the host is up, and \
                     whether its agent runs and reaches a server"
                ))
            }
            (NodeState::Degraded, Some(reason)) => Some(format!(
                "its agent reports: {reason}; it is active again when the agent no longer does"
            )),
            (NodeState::Degraded | NodeState::Joining, _) => {
                Some(format!("registered so; make it active with: berth nodes uncordon {id}"))
            }
            (NodeState::Active | NodeState::Cordoned | NodeState::Draining, _) => None,
        }
    }
}
