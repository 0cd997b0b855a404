//! Reads a ledger's log from its first event and says at every step which rule was broken, by rules
//! of its own: it shares no code with what it checks.

use std::collections::BTreeMap;

use berth_engine::{CapacityType, InstanceId, NodeId, NodeState};
use berth_ledger::{Allocation, ClaimState, EventBody, Ledger, Role};
use serde_json::Value;

/// A workload as the log last told of it, and as it was before.
#[derive(Clone, Debug, Default)]
struct WorkloadVersion {
    replicas: i64,
    body: Value,
}

#[derive(Clone, Debug)]
struct SlotHolder {
    workload: String,
    revision: i64,
    slot: i64,
    node: NodeId,
    fence: i64,
    state: ClaimState,
}

/// What the log has told so far, and what was wrong.
#[derive(Default)]
pub(crate) struct Auditor {
    nodes: BTreeMap<NodeId, (NodeState, CapacityType)>,
    workloads: BTreeMap<String, (WorkloadVersion, WorkloadVersion)>,
    members: BTreeMap<InstanceId, SlotHolder>,
    /// Nodes whose members may be let go whatever the rules of availability say.
    pub(crate) excused: Vec<NodeId>,
    /// Broken rules, with the number of the event.
    pub(crate) broken: Vec<String>,
    /// Grants and voluntary releases that were checked.
    pub(crate) checked: (u64, u64),
    cursor: i64,
}

impl Auditor {
    /// Reads what was logged since the last time.
    pub(crate) fn read(&mut self, ledger: &Ledger) {
        loop {
            let page = ledger.events_after(self.cursor, 1000).unwrap();
            if page.events.is_empty() {
                return;
            }
            for event in page.events {
                self.cursor = event.seq;
                self.take(event.seq, event.body);
            }
        }
    }

    /// Takes in one event.
    pub(crate) fn take(&mut self, seq: i64, body: EventBody) {
        match body {
            EventBody::NodeChanged { facts, .. } => {
                self.nodes.insert(facts.id.clone(), (facts.state, facts.capacity_type));
            }
            EventBody::NodeState { node_id, state, .. } => {
                if let Some(node) = self.nodes.get_mut(&node_id) {
                    node.0 = state;
                }
            }
            EventBody::WorkloadChanged { name, workload: Some(row), .. } => {
                let body = serde_json::from_str(&row.body).unwrap();
                let told = WorkloadVersion { replicas: row.replicas, body };
                let known = self.workloads.entry(name.to_string()).or_default();
                known.1 = std::mem::replace(&mut known.0, told);
            }
            EventBody::Allocated(allocated) if allocated.role == Role::Primary => {
                self.granted(seq, &allocated);
            }
            EventBody::State { instance_id, role: Role::Primary, state, fence, .. } => {
                self.went_on(seq, instance_id, state, fence);
            }
            EventBody::Released { instance_id, role: Role::Primary, fence, .. }
                if self.members.get(&instance_id).is_some_and(|it| it.fence == fence) =>
            {
                self.members.remove(&instance_id);
            }
            _ => {}
        }
    }

    fn of<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = &'a SlotHolder> + 'a {
        self.members.values().filter(move |member| member.workload == workload)
    }

    fn granted(&mut self, seq: i64, allocated: &Allocation) {
        let Some(slot) = allocated.slot else { return };
        let request = allocated.spec.as_ref().unwrap().request().unwrap();
        let name = request.workload.clone().unwrap();
        self.checked.0 += 1;
        let mut wrong = Vec::new();
        let (state, class) = self.nodes[&allocated.node_id];
        if state != NodeState::Active {
            wrong.push(format!("{name} was put on a node that is {}", state.name()));
        }
        let same_slot =
            self.of(&name).filter(|it| (it.revision, it.slot) == (slot.revision, slot.slot));
        let rivals: Vec<&SlotHolder> =
            same_slot.filter(|it| it.state != ClaimState::Releasing).collect();
        if rivals.len() > 1 {
            wrong.push(format!("slot {} of {name} has {} already", slot.slot, rivals.len()));
        }
        if !request.volumes.is_empty() && self.of(&name).next().is_some() {
            wrong.push(format!("{name} has a volume and a member already"));
        }
        if !request.groups.is_empty()
            && self.of(&name).any(|member| member.node == allocated.node_id)
        {
            wrong.push(format!("{name} must be apart, and is on {} already", allocated.node_id));
        }
        if let Some((now, before)) = self.workloads.get(&name) {
            let fits = [now, before].into_iter().any(|told| class_fits(told, slot.slot, class));
            if !fits {
                wrong.push(format!("slot {} of {name} is on {}", slot.slot, class.name()));
            }
        }
        self.broken.extend(wrong.into_iter().map(|wrong| format!("event {seq}: {wrong}")));
        self.members.insert(
            allocated.instance_id,
            SlotHolder {
                workload: name,
                revision: slot.revision,
                slot: slot.slot,
                node: allocated.node_id.clone(),
                fence: allocated.fence,
                state: allocated.state,
            },
        );
    }

    fn went_on(&mut self, seq: i64, id: InstanceId, state: ClaimState, fence: i64) {
        let Some(member) = self.members.get_mut(&id).filter(|it| it.fence == fence) else { return };
        let was = std::mem::replace(&mut member.state, state);
        let (name, node) = (member.workload.clone(), member.node.clone());
        let slot = (member.revision, member.slot);
        if (was, state) != (ClaimState::Active, ClaimState::Releasing) {
            return;
        }
        self.checked.1 += 1;
        if self.excused.contains(&node)
            || self.nodes.get(&node).is_some_and(|it| it.0 == NodeState::Lost)
        {
            return;
        }
        let Some((now, before)) = self.workloads.get(&name) else { return };
        // A change that was made at the same time may not have been known yet.
        let floor = floor(now).min(floor(before));
        let slots: std::collections::BTreeSet<(i64, i64)> = self
            .of(&name)
            .filter(|it| it.state == ClaimState::Active)
            .map(|it| (it.revision, it.slot))
            .collect();
        let left = i64::try_from(slots.len()).unwrap();
        // Where another runs in the same slot, nothing was lost.
        if left < floor && !slots.contains(&slot) {
            let what = format!("event {seq}: {name} has {left} left that run, not {floor}");
            self.broken.push(what);
        }
    }
}

/// How many must run at least.
fn floor(told: &WorkloadVersion) -> i64 {
    if told.body.is_null() || told.body["deleting"] == true {
        return 0;
    }
    let template = &told.body["template"];
    // With a volume the old one goes first.
    if template["volumes"].as_array().is_some_and(|volumes| !volumes.is_empty()) {
        return 0;
    }
    let rolling = &told.body["rolling"];
    let missing = rolling["max_unavailable"].as_i64().unwrap_or(0);
    let missing = if rolling["strategy"] == "recreate" { told.replicas } else { missing };
    told.replicas - missing
}

/// Whether a slot may be on this kind of node.
fn class_fits(told: &WorkloadVersion, slot: i64, class: CapacityType) -> bool {
    let rule = &told.body["capacity"];
    if !rule.is_object() || rule["enabled"] == false || rule["mode"] != "strict" {
        return true;
    }
    let limit = rule["max_on_demand"].as_i64().unwrap_or(i64::MAX);
    (slot < limit) == (class == CapacityType::OnDemand)
}
