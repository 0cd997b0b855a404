//! What operators and agents define: nodes, groups, volumes, pools, quotas, workloads, policies.

use berth_engine::limits::Limited as _;
use berth_engine::{
    Amounts, FactChange, FactLayer, Group, MeasuredLoad, NodeFacts, NodeId, NodeState, Room,
};

use super::UnitOfWork;
use super::rows::{
    ClassRow, DocumentRow, FactsRow, GroupRow, NodeRow, PoolRow, TenantRow, generation_of,
    removed_generation_key,
};
use crate::model::{
    DecisionOutcome, DecisionRecord, EventBody, Expect, Op, Outcome, Pool, QuarantinedTicket,
    Quota, Text, UnmetDemand, Workload,
};

/// The key under which equal unmet demand is counted.
pub(crate) fn shape(demand: &UnmetDemand) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [&demand.tenant, &demand.code, &demand.spec] {
        hasher.update(part.as_bytes());
        hasher.update(&[0]);
    }
    hasher.finalize().to_hex().chars().take(32).collect()
}

impl UnitOfWork {
    pub(super) fn administer(&mut self, op: &Op) -> Outcome {
        if let Some(name) = name_of(op).filter(|name| name.contains('\0')) {
            return Outcome::Impossible(format!("{name:?} contains a NUL character; leave it out"));
        }
        if let Some(tenant) = self.tenant_in_removal(op) {
            return Outcome::TenantRemoving(tenant);
        }
        let outcome = match op {
            Op::PutGroup(group) => self.put_group(group),
            Op::RemoveGroup(group) => self.remove_group(group),
            Op::PutVolume(volume) => self.put_volume(volume),
            Op::RemoveVolume(volume) => self.remove_volume(volume),
            Op::MarkVolume { volume, moving_to } => self.mark_volume(volume, moving_to.as_ref()),
            Op::PutPool(pool) => self.put_pool(pool),
            Op::RemovePool(pool) => self.remove_pool(pool),
            Op::PutQuota { tenant, quota } => self.put_quota(tenant, quota),
            Op::RemoveQuota(tenant) => self.remove_quota(tenant),
            Op::PutWorkload { workload, expect } => self.put_workload(workload, *expect),
            Op::RemoveWorkload { tenant, name, expect } => {
                self.remove_workload(tenant, name, *expect)
            }
            Op::SetScheduling(scheduling) => self.set_scheduling(scheduling),
            Op::PutSecrets { tenant, env, version } => {
                self.put_secrets(tenant.as_ref(), env, version.as_ref())
            }
            Op::PutPolicy { name, hash, body } => self.put_policy(name, hash, body),
            Op::ActivatePolicy { name, hash, body, expect } => {
                self.activate_policy(name, hash, body, expect.as_deref())
            }
            Op::PutDocument { kind, id, body, expect } => {
                self.put_document(kind, id, body, *expect)
            }
            Op::RemoveDocument { kind, id, expect } => self.remove_document(kind, id, *expect),
            Op::QuarantineTicket(ticket) => {
                let QuarantinedTicket { tenant, ticket, excess } = ticket.clone();
                self.events.push(EventBody::TicketQuarantined { tenant, ticket, excess });
                Outcome::Done
            }
            Op::Record(decisions) => self.record(decisions),
            Op::Demand(demand) => self.count_demand(demand),
            Op::StartTenantRemoval(start) => self.start_tenant_removal(start),
            Op::EndTenantRemoval { tenant, quarantine_s } => {
                self.end_tenant_removal(tenant, *quarantine_s)
            }
            _ => self.administer_node(op),
        };
        match outcome {
            Outcome::Impossible(_) | Outcome::TenantRemoving(_) | Outcome::Stale { .. } => {
                self.undo(self.events.len());
            }
            Outcome::Done | Outcome::Unchanged => self.keep(),
        }
        outcome
    }

    /// Operations on a node itself, and what agents report.
    fn administer_node(&mut self, op: &Op) -> Outcome {
        match op {
            Op::PutNode { facts, layer, expect } => {
                self.if_generation(&facts.id, *expect, |work| work.put_node(facts, *layer))
            }
            Op::ChangeFacts { node, change, create, expect } => {
                self.if_generation(node, *expect, |work| {
                    work.change_facts(node, change, create.as_deref())
                })
            }
            Op::SetNodeState { node, state, expect } => {
                self.if_generation(node, *expect, |work| work.set_state(node, *state))
            }
            Op::SetHealth { node, degraded, expect } => {
                self.if_generation(node, *expect, |work| work.set_health(node, degraded.as_ref()))
            }
            Op::RemoveNode { node, expect } => {
                self.if_generation(node, *expect, |work| work.remove_node(node))
            }
            Op::SetReserve { node, reserve } => self.set_reserve(node, *reserve),
            Op::Heartbeats(heard) => {
                // A server whose clock is ahead must not make a node seem alive for as long: the
                // latest heartbeat counts.
                let now_s = self.rows.now.0.div_euclid(1_000_000);
                let heard = heard.iter().map(|(node, at)| (node.clone(), (*at).min(now_s)));
                self.rows.heartbeats.extend(heard);
                Outcome::Done
            }
            Op::SetLoads(loads) => self.set_loads(loads),
            Op::RefuseReport { node, instance, code } => {
                let (node_id, code) = (node.clone(), Text::clone(code));
                let event = EventBody::ReportRefused { node_id, instance_id: *instance, code };
                self.events.push(event);
                Outcome::Done
            }
            _ => Outcome::Unchanged,
        }
    }

    fn record(&mut self, decisions: &[DecisionRecord]) -> Outcome {
        for decision in decisions {
            let list = match decision.outcome {
                DecisionOutcome::Granted(_) => &mut self.decisions,
                DecisionOutcome::Refused { .. } => &mut self.refusals,
            };
            list.push(decision.clone());
        }
        Outcome::Done
    }

    /// Does something to a node whose facts are in the generation that was expected.
    fn if_generation(
        &mut self,
        node: &NodeId,
        expect: Option<i64>,
        act: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let current = self.rows.nodes.get(node).map(|row| row.constraint_gen);
        match expect {
            // One that is not there has no generation, and the first is 1.
            Some(expected) if expected != current.unwrap_or(0) => Outcome::Stale { current },
            Some(_) | None => act(self),
        }
    }

    /// Sets what the host keeps by the policy. More may be used than there is from then on; nothing
    /// is taken away for it, and nothing grows until it holds.
    fn set_reserve(&mut self, node: &NodeId, reserve: Option<Amounts>) -> Outcome {
        let Some(old) = self.rows.facts.get(node) else { return Outcome::Unchanged };
        if old.facts.policy_reserve == reserve {
            return Outcome::Unchanged;
        }
        let facts = NodeFacts { policy_reserve: reserve, ..old.facts.clone() };
        let limits = Room::of(&facts).limits;
        let mut constraint_gen = 0;
        self.rows.nodes.edit(node, |row| {
            row.room.limits = limits;
            row.constraint_gen += 1;
            constraint_gen = row.constraint_gen;
        });
        self.rows.facts.set(node, Some(FactsRow { facts: facts.clone() }));
        self.events.push(EventBody::NodeChanged { constraint_gen, facts: Box::new(facts) });
        Outcome::Done
    }

    /// Records how busy nodes are. It changes no guard, so that no plan is refused for it.
    fn set_loads(&mut self, loads: &[(NodeId, Option<MeasuredLoad>)]) -> Outcome {
        let mut outcome = Outcome::Unchanged;
        for (node, load) in loads {
            let known = self.rows.facts.get(node).is_some_and(|row| row.facts.load != *load);
            if !known {
                continue;
            }
            self.rows.facts.edit(node, |row| row.facts.load = *load);
            self.events.push(EventBody::NodeLoad { node_id: node.clone(), load: *load });
            outcome = Outcome::Done;
        }
        outcome
    }

    fn put_node(&mut self, stated: &NodeFacts, layer: FactLayer) -> Outcome {
        if let Err(invalid) = stated.validate() {
            return Outcome::Impossible(invalid.to_string());
        }
        self.rows.heartbeats.insert(stated.id.clone(), stated.heartbeat_at.0);
        let old = self.rows.facts.get(&stated.id).map(|row| &row.facts);
        match stated.clone().restated(old, layer) {
            Ok(facts) => self.store_facts(&facts),
            Err(invalid) => Outcome::Impossible(invalid.to_string()),
        }
    }

    fn change_facts(
        &mut self,
        node: &NodeId,
        change: &FactChange,
        create: Option<&NodeFacts>,
    ) -> Outcome {
        let known = self.rows.facts.get(node).map(|row| &row.facts);
        let Some(old) = known.or(create) else { return unknown("node", node.as_str()) };
        match old.changed(change) {
            Ok(facts) => self.store_facts(&facts),
            Err(invalid) => Outcome::Impossible(invalid.to_string()),
        }
    }

    /// Stores the facts in effect, and what follows from them.
    fn store_facts(&mut self, facts: &NodeFacts) -> Outcome {
        if let Err(invalid) = facts.validate() {
            return Outcome::Impossible(invalid.to_string());
        }
        // Two layers that are within the limits may be beyond them together.
        if let Err(excess) = facts.check_stored() {
            return Outcome::Impossible(excess.to_string());
        }
        let same = self.rows.facts.get(&facts.id).is_some_and(|old| {
            let aged = NodeFacts { heartbeat_at: facts.heartbeat_at, ..old.facts.clone() };
            aged == *facts
        });
        if same {
            return Outcome::Unchanged;
        }
        let old = self.rows.nodes.get(&facts.id);
        if let Some(old) = old
            && old.room.used.instances > 0
            && (old.zone.as_deref(), old.rack.as_deref())
                != (facts.zone.as_deref(), facts.rack.as_deref())
        {
            return Outcome::Impossible(format!(
                "node {} has {} instances that count in its zone and rack; drain it before it moves",
                facts.id, old.room.used.instances
            ));
        }
        let mut room = Room::of(facts);
        room.used = old.map(|old| old.room.used).unwrap_or_default();
        let first = self.removed_generation() + 1;
        let constraint_gen = old.map_or(first, |old| old.constraint_gen + 1);
        let row = NodeRow {
            state: facts.state,
            known: facts.capacity.is_some(),
            zone: facts.zone.as_deref().map(Text::from),
            rack: facts.rack.as_deref().map(Text::from),
            constraint_gen,
            rules_gen: old.map_or(0, |old| old.rules_gen),
            fence: old.map_or(0, |old| old.fence),
            room,
        };
        self.rows.nodes.set(&facts.id, Some(row));
        self.rows.facts.set(&facts.id, Some(FactsRow { facts: facts.clone() }));
        self.put_classes(facts);
        let facts = Box::new(facts.clone());
        self.events.push(EventBody::NodeChanged { constraint_gen, facts });
        Outcome::Done
    }

    /// Classes the facts state, and classes still in use though no longer stated.
    fn put_classes(&mut self, facts: &NodeFacts) {
        let on_node = |(key, row): (&(NodeId, Text), &ClassRow)| {
            (key.0 == facts.id).then(|| (key.clone(), row.used))
        };
        let old: Vec<((NodeId, Text), i64)> =
            self.rows.classes.iter().filter_map(on_node).collect();
        for (key, used) in &old {
            if !facts.extra.contains_key(&*key.1) {
                let row = (*used > 0).then_some(ClassRow { limit: 0, used: *used });
                self.rows.classes.set(key, row);
            }
        }
        for (class, &limit) in &facts.extra {
            let key = (facts.id.clone(), Text::from(class.as_str()));
            let used = self.rows.classes.get(&key).map_or(0, |row| row.used);
            self.rows.classes.set(&key, Some(ClassRow { limit: limit.into(), used }));
        }
    }

    fn set_state(&mut self, node: &NodeId, state: NodeState) -> Outcome {
        // What was wrong with a node that falls silent may still be wrong when it returns.
        let reason = self.rows.facts.get(node).and_then(|row| row.facts.state_reason.as_deref());
        let reason = reason.filter(|_| state == NodeState::Lost).map(Text::from);
        self.write_state(node, state, reason)
    }

    fn set_health(&mut self, node: &NodeId, degraded: Option<&Text>) -> Outcome {
        let Some(row) = self.rows.facts.get(node) else { return unknown("node", node.as_str()) };
        let is_by_agent = row.facts.state_reason.is_some();
        let state = match (row.facts.state, degraded) {
            (NodeState::Active | NodeState::Lost, Some(_)) => NodeState::Degraded,
            (NodeState::Degraded, Some(_)) if is_by_agent => NodeState::Degraded,
            (NodeState::Degraded, None) if is_by_agent => NodeState::Active,
            (NodeState::Lost, None) => NodeState::Active,
            _ => return Outcome::Unchanged,
        };
        self.write_state(node, state, degraded.cloned())
    }

    fn write_state(&mut self, node: &NodeId, state: NodeState, reason: Option<Text>) -> Outcome {
        let Some(row) = self.rows.nodes.get(node) else { return unknown("node", node.as_str()) };
        let known = self.rows.facts.get(node).and_then(|row| row.facts.state_reason.as_deref());
        if row.state == state && known == reason.as_deref() {
            return Outcome::Unchanged;
        }
        if !row.state.may_become(state) {
            let (from, to) = (row.state.name(), state.name());
            return Outcome::Impossible(format!(
                "node {node} is {from} and cannot become {to}; from any state it can become active, cordoned or draining"
            ));
        }
        let constraint_gen = row.constraint_gen + 1;
        self.rows.nodes.edit(node, |row| {
            row.state = state;
            row.constraint_gen = constraint_gen;
        });
        self.rows.facts.edit(node, |row| {
            row.facts.state = state;
            row.facts.state_reason = reason.as_deref().map(str::to_owned);
        });
        let node_id = node.clone();
        self.events.push(EventBody::NodeState { node_id, state, constraint_gen, reason });
        Outcome::Done
    }

    fn remove_node(&mut self, node: &NodeId) -> Outcome {
        let Some(row) = self.rows.nodes.get(node) else { return Outcome::Unchanged };
        let instances = row.room.used.instances;
        if instances > 0 {
            return Outcome::Impossible(format!(
                "node {node} still has {instances} instances; drain it or release them first"
            ));
        }
        let constraint_gen = row.constraint_gen;
        self.raise_removed_generation(constraint_gen);
        self.rows.nodes.set(node, None);
        self.rows.facts.set(node, None);
        let classes: Vec<(NodeId, Text)> =
            self.rows.classes.iter().map(|(key, _)| key.clone()).collect();
        for key in classes.iter().filter(|key| key.0 == *node) {
            self.rows.classes.set(key, None);
        }
        let (node_id, constraint_gen) = (node.clone(), Some(constraint_gen));
        self.events.push(EventBody::NodeRemoved { node_id, constraint_gen });
        Outcome::Done
    }

    /// The highest generation that a node or workload had which is gone.
    fn removed_generation(&self) -> i64 {
        let raised = self.rows.documents.get(&removed_generation_key());
        let raised = raised.map_or(0, |row| generation_of(&row.body));
        raised.max(self.rows.removed_generation)
    }

    /// Notes the generation of something that is removed: what takes its name starts above it, or a
    /// server that has read of neither would take the new one for the old.
    fn raise_removed_generation(&mut self, generation: i64) {
        let key = removed_generation_key();
        let old = self.rows.documents.get(&key);
        if old.is_some_and(|row| generation_of(&row.body) >= generation) {
            return;
        }
        let rev = old.map_or(0, |row| row.rev) + 1;
        let row = DocumentRow { rev, body: generation.to_string(), at: self.rows.now };
        self.rows.documents.set(&key, Some(row));
    }

    fn put_group(&mut self, group: &Group) -> Outcome {
        if group.id.is_empty() {
            return Outcome::Impossible("a group's id is empty; give it a name".to_owned());
        }
        if group.max_per_domain == Some(0) {
            let why = format!("group {}: max_per_domain is 0; give at least 1", group.id);
            return Outcome::Impossible(why);
        }
        let id = Text::from(group.id.as_str());
        let home = match self.rows.groups.get(&id) {
            Some(row) if row.group == *group => return Outcome::Unchanged,
            // Otherwise defining a group under a name that another tenant just took would take it over.
            Some(row) if row.group.tenant != group.tenant => {
                return Outcome::Impossible(format!(
                    "group {id} has another owner; remove it first, or choose another name"
                ));
            }
            Some(row) => {
                let same_shape =
                    row.group.topology == group.topology && row.group.kind == group.kind;
                if !same_shape && self.rows.domains.iter().any(|(key, _)| key.0 == id) {
                    return Outcome::Impossible(format!(
                        "group {id} has members; kind and topology can change only while it is empty"
                    ));
                }
                row.home.clone()
            }
            None => None,
        };
        self.rows.groups.set(&id, Some(GroupRow { group: group.clone(), home }));
        self.events.push(EventBody::GroupChanged { group: group.clone() });
        Outcome::Done
    }

    fn remove_group(&mut self, group: &Text) -> Outcome {
        if self.rows.groups.get(group).is_none() {
            return Outcome::Unchanged;
        }
        if self.rows.members.iter().any(|(key, ())| key.0 == *group) {
            let why = format!("group {group} has members; release them first");
            return Outcome::Impossible(why);
        }
        self.rows.groups.set(group, None);
        self.events.push(EventBody::GroupRemoved { group_id: group.clone() });
        Outcome::Done
    }

    fn put_pool(&mut self, pool: &Pool) -> Outcome {
        let next = match self.rows.pools.get(&pool.id) {
            Some(old) if old.pool == *pool => return Outcome::Unchanged,
            Some(old) if old.pool.kind != pool.kind => {
                let why = format!("pool {} holds {}s; make another", pool.id, old.pool.kind.name());
                return Outcome::Impossible(why);
            }
            Some(old) if pool.first <= old.next && old.next <= pool.last => old.next,
            Some(_) | None => pool.first,
        };
        self.rows.pools.set(&pool.id, Some(PoolRow { pool: pool.clone(), next }));
        let pool_id = pool.id.clone();
        self.events.push(EventBody::PoolChanged { pool_id, present: true });
        Outcome::Done
    }

    fn remove_pool(&mut self, pool: &Text) -> Outcome {
        if self.rows.pools.get(pool).is_none() {
            return Outcome::Unchanged;
        }
        if self.rows.pools_in_use.contains(pool) {
            let why = format!("values of pool {pool} are in use; release their claims first");
            return Outcome::Impossible(why);
        }
        self.rows.pools.set(pool, None);
        self.events.push(EventBody::PoolChanged { pool_id: pool.clone(), present: false });
        Outcome::Done
    }

    fn put_quota(&mut self, tenant: &Text, quota: &Quota) -> Outcome {
        if self.rows.tenants.get(tenant).is_some_and(|row| row.quota == *quota) {
            return Outcome::Unchanged;
        }
        let mut row = TenantRow { quota: *quota, ..TenantRow::default() };
        for (_, claim) in self.rows.claims.iter().filter(|(_, claim)| claim.tenant == *tenant) {
            super::charge::charge_tenant_use(&mut row, claim, 1);
        }
        self.rows.tenants.set(tenant, Some(row));
        self.events.push(EventBody::QuotaChanged { tenant: tenant.clone() });
        Outcome::Done
    }

    fn remove_quota(&mut self, tenant: &Text) -> Outcome {
        // The row of a tenant that is being removed is not about limits: those are gone.
        if self.rows.tenants.get(tenant).is_none_or(|row| row.removal.is_some()) {
            return Outcome::Unchanged;
        }
        self.rows.tenants.set(tenant, None);
        self.events.push(EventBody::QuotaChanged { tenant: tenant.clone() });
        Outcome::Done
    }

    fn put_workload(&mut self, workload: &Workload, expect: Expect) -> Outcome {
        let (tenant, name) = (workload.tenant.as_str(), workload.name.as_str());
        let key = (Text::from(tenant), Text::from(name));
        let current = self.rows.workloads.get(&key).map(|stored| stored.revision);
        if !expect.holds(current) {
            return Outcome::Stale { current };
        }
        if self.rows.workloads.get(&key) == Some(workload) {
            return Outcome::Unchanged;
        }
        let mut workload = workload.clone();
        if current.is_none() {
            // Nobody may be granting a member as if there were no workload of that name.
            self.must_restart |= !self.exclusive;
            workload.revision = workload.revision.max(self.removed_generation() + 1);
        }
        self.rows.workloads.set(&key, Some(workload.clone()));
        let (tenant, name) = key;
        let revision = Some(workload.revision);
        let workload = Some(Box::new(workload));
        self.events.push(EventBody::WorkloadChanged { tenant, name, revision, workload });
        Outcome::Done
    }

    fn remove_workload(&mut self, tenant: &Text, name: &Text, expect: Expect) -> Outcome {
        let key = (tenant.clone(), name.clone());
        let current = self.rows.workloads.get(&key).map(|stored| stored.revision);
        if !expect.holds(current) {
            return Outcome::Stale { current };
        }
        if self.rows.workloads_in_use.contains(&key) {
            let why =
                format!("workload {name} of {tenant} still has instances; release them first");
            return Outcome::Impossible(why);
        }
        let Some(version) = current else { return Outcome::Unchanged };
        self.raise_removed_generation(version);
        self.rows.workloads.set(&key, None);
        let (tenant, name) = key;
        let (revision, workload) = (None, None);
        self.events.push(EventBody::WorkloadChanged { tenant, name, revision, workload });
        Outcome::Done
    }

    fn put_secrets(
        &mut self,
        tenant: Option<&Text>,
        env: &Text,
        version: Option<&Text>,
    ) -> Outcome {
        let key = (tenant.cloned().unwrap_or_default(), env.clone());
        if self.rows.secrets.get(&key) == version {
            return Outcome::Unchanged;
        }
        self.rows.secrets.set(&key, version.cloned());
        let (tenant, env, version) = (tenant.cloned(), key.1, version.cloned());
        self.events.push(EventBody::SecretsChanged { tenant, env, version });
        Outcome::Done
    }

    fn count_demand(&mut self, demand: &UnmetDemand) -> Outcome {
        let (key, now) = (shape(demand), self.rows.now.0);
        let old = self.rows.demand.get(&key);
        let row = UnmetDemand {
            times: old.map_or(0, |old| old.times) + demand.times,
            first_at: old.map_or(now, |old| old.first_at),
            last_at: now,
            ..demand.clone()
        };
        self.rows.demand.set(&key, Some(row));
        Outcome::Done
    }
}

/// The name that an operation gives to something new.
fn name_of(op: &Op) -> Option<&str> {
    match op {
        Op::PutNode { facts, .. } => Some(facts.id.as_str()),
        Op::ChangeFacts { node, .. } => Some(node.as_str()),
        Op::PutGroup(group) => Some(&group.id),
        Op::PutVolume(volume) => Some(&volume.id),
        Op::PutPool(pool) => Some(&pool.id),
        Op::PutQuota { tenant, .. } => Some(tenant),
        Op::PutWorkload { workload, .. } => Some(&workload.name),
        Op::PutSecrets { env, .. } => Some(env),
        Op::PutPolicy { name, .. } | Op::ActivatePolicy { name, .. } => Some(name),
        _ => None,
    }
}

pub(super) fn unknown(what: &str, id: &str) -> Outcome {
    Outcome::Impossible(format!("{what} {id:?} is not known; register it first"))
}
