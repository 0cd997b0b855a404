//! Charging a claim to everything it touches, and taking it off again: the only code that changes
//! a counter, apart from resizing, which moves what is charged, and the reconciler.

use berth_engine::elastic::{Permit, Size};
use berth_engine::{Amounts, GroupKind, InstanceRequest, NodeId, NodeState, class_lack};

use super::UnitOfWork;
use super::rows::{NodeRow, TenantRow, ValueRow};
use crate::model::{
    Allocation, Claim, ClaimHoldings, ClaimKey, ClaimState, EventBody, GroupPlace, Guard,
    HeldValue, PlannedClaim, Pool, RefusalReason, Role, Text,
};

/// Why a claim was not charged.
pub(super) enum ChargeError {
    /// A guard failed.
    Guard(Guard),
    /// Planning again would not help.
    Refused(RefusalReason),
}

impl From<Guard> for ChargeError {
    fn from(guard: Guard) -> Self {
        Self::Guard(guard)
    }
}

/// Whether guards are checked, or an existing instance is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChargeMode {
    /// Every guard must pass.
    Guarded,
    /// Recorded without a check.
    Recorded,
}

impl UnitOfWork {
    /// Charges a planned claim to its groups, node, classes, tenant, volumes, pools and slot.
    /// Returns what it holds in addition to its amounts, and its fence.
    pub(super) fn charge(
        &mut self,
        planned: &PlannedClaim,
        tenant: &Text,
        mode: ChargeMode,
    ) -> Result<(Option<Box<ClaimHoldings>>, i64), ChargeError> {
        let row = self.rows.nodes.get(&planned.node);
        let row = row.ok_or_else(|| Guard::UnknownNode(planned.node.clone()))?;
        if mode == ChargeMode::Guarded {
            check_node(planned, row)?;
            self.check_rules(planned, row)?;
            self.check_neighbours(planned)?;
            self.check_view(planned, tenant)?;
        }
        let request = &planned.request;
        let mut holdings = ClaimHoldings::default();
        for group in &request.groups {
            holdings.groups.push(self.join_group(planned, group, mode)?);
        }
        for (class, &wanted) in request.extra.iter().filter(|(_, wanted)| **wanted > 0) {
            self.charge_class(planned, class, wanted, mode)?;
            holdings.classes.insert(class.clone(), wanted);
        }
        self.charge_tenant(planned, tenant, mode)?;
        for volume in &request.volumes {
            holdings.volumes.push(self.attach(planned, tenant, volume, mode)?);
        }
        if let Some(slot) = &planned.slot {
            holdings.slot_predecessors = self.take_slot(planned, slot)?;
            holdings.slot = Some(slot.clone());
        }
        for pool in &planned.pools {
            holdings.values.push(self.take_value(pool, tenant, planned.key)?);
        }
        let neighbours = planned.neighbours.iter().map(|(node, _)| node);
        for node in std::iter::once(&planned.node).chain(neighbours) {
            if let Some(row) = self.rows.nodes.get(node) {
                let before = (row.fence, row.rules_gen);
                self.generations_before.entry(node.clone()).or_insert(before);
            }
        }
        let (now, highest_fence) = (self.rows.now.0, self.highest_fence);
        let mut fence = 0;
        let has_rules = planned.has_hard_rules();
        self.rows.nodes.edit(&planned.node, |row| {
            row.room.used.charge(&planned.demand.amounts, planned.demand.capped, 1);
            // The clock, so that it rises across nodes; more than any other that is known, so that it
            // does even if the clock was put back.
            row.fence = now.max(row.fence + 1).max(highest_fence + 1);
            row.rules_gen += i64::from(has_rules);
            fence = row.fence;
        });
        for (neighbour, _) in planned.neighbours.iter().filter(|_| has_rules) {
            self.rows.nodes.edit(neighbour, |row| row.rules_gen += 1);
        }
        Ok(((holdings != ClaimHoldings::default()).then(|| Box::new(holdings)), fence))
    }

    /// Uncharges a claim and deletes it.
    pub(super) fn discharge(&mut self, claim: &Claim, reason: &Text) {
        self.uncharge(claim);
        self.rows.claims.set(&claim.key, None);
        self.events.push(EventBody::Released {
            instance_id: claim.key.instance,
            role: claim.key.role,
            node_id: claim.node.clone(),
            tenant: Text::clone(&claim.tenant),
            fence: claim.fence,
            reason: Text::clone(reason),
        });
    }

    /// Takes a claim off everything it touches.
    pub(super) fn uncharge(&mut self, claim: &Claim) {
        self.rows.nodes.edit(&claim.node, |row| {
            row.room.used.charge(&claim.amounts, claim.capped, -1);
        });
        self.rows.tenants.edit(&claim.tenant, |tenant| charge_tenant_use(tenant, claim, -1));
        let Some(holdings) = claim.holdings.as_deref() else { return };
        for place in &holdings.groups {
            self.leave_group(place, claim.key);
        }
        for (class, &amount) in &holdings.classes {
            let key = (claim.node.clone(), Text::from(class.as_str()));
            self.rows.classes.edit(&key, |class| class.used -= i64::from(amount));
        }
        for volume in &holdings.volumes {
            let other = |key: ClaimKey| self.rows.claims.get(&key).is_some();
            // While it has a second claim, the instance keeps what only it may use.
            let keeps = Role::ALL
                .into_iter()
                .map(|role| ClaimKey { role, ..claim.key })
                .any(|key| key != claim.key && other(key));
            self.rows.volumes.edit(volume, |row| {
                if row.attached_to == Some(claim.key.instance) && !keeps {
                    row.attached_to = None;
                }
            });
        }
        if let Some(slot) = &holdings.slot {
            self.leave_slot(claim.key, slot, &holdings.slot_predecessors);
        }
        for held in &holdings.values {
            self.give_back(held, claim.key);
        }
    }

    /// The event of a claim that was granted or recorded.
    pub(super) fn allocated(&self, claim: &Claim, planned: Option<&PlannedClaim>) -> Allocation {
        let raised = planned.filter(|planned| planned.has_hard_rules());
        let nodes = raised.into_iter().flat_map(|planned| {
            std::iter::once(&planned.node).chain(planned.neighbours.iter().map(|(node, _)| node))
        });
        let rules =
            nodes.filter_map(|node| Some((node.clone(), self.rows.nodes.get(node)?.rules_gen)));
        Allocation {
            instance_id: claim.key.instance,
            role: claim.key.role,
            node_id: claim.node.clone(),
            fence: claim.fence,
            state: claim.state,
            lease_until: claim.lease_until,
            overlay_ipv6: claim.overlay_ipv6().map(str::to_owned),
            values: claim
                .holdings
                .as_deref()
                .map(|holdings| holdings.values.clone())
                .unwrap_or_default(),
            resources: claim.amounts,
            release_id: claim.release_id.clone(),
            secrets_version_id: claim.secrets_version.clone(),
            spec_hash: claim.spec.digest().to_owned(),
            name: claim.name.clone(),
            slot: claim.slot(),
            adopted: false,
            moved_from: None,
            permit: claim.permit.clone(),
            rules: rules.collect(),
            spec_no: 0,
            spec: Some(claim.spec.clone()),
        }
    }

    /// Fence and generation of rules of a node before the current operation touched it.
    fn generations_of(&self, node: &NodeId, row: &NodeRow) -> (i64, i64) {
        self.generations_before.get(node).copied().unwrap_or((row.fence, row.rules_gen))
    }

    /// No claim with a hard rule about others was granted here since the plan was made.
    fn check_rules(&self, planned: &PlannedClaim, row: &NodeRow) -> Result<(), Guard> {
        let planned_gen = planned.node_version.rules_gen;
        if self.generations_of(&planned.node, row).1 == planned_gen {
            return Ok(());
        }
        Err(Guard::RulesChanged { now: row.now(&planned.node), planned_gen })
    }

    /// A hard rule about others holds only if no instance was placed since it was evaluated. A later
    /// claim finds the rules generation of the node raised, and is planned again.
    fn check_neighbours(&self, planned: &PlannedClaim) -> Result<(), ChargeError> {
        if !planned.has_hard_rules() {
            return Ok(());
        }
        let own = std::iter::once((&planned.node, planned.node_version.fence));
        let others = planned.neighbours.iter().map(|(node, fence)| (node, *fence));
        for (node, fence) in own.chain(others) {
            let Some(row) = self.rows.nodes.get(node) else {
                return Err(Guard::UnknownNode(node.clone()).into());
            };
            if self.generations_of(node, row).0 != fence {
                let now = row.now(node);
                return Err(Guard::RulesChanged {
                    now,
                    planned_gen: planned.node_version.rules_gen,
                }
                .into());
            }
        }
        Ok(())
    }

    fn join_group(
        &mut self,
        planned: &PlannedClaim,
        group: &str,
        mode: ChargeMode,
    ) -> Result<GroupPlace, ChargeError> {
        let group = Text::from(group);
        let node = self.rows.nodes.get(&planned.node);
        let Some((row, node)) = self.rows.groups.get(&group).zip(node) else {
            // A found instance may name an undefined group; there is no counter then.
            return match mode {
                ChargeMode::Guarded => Err(Guard::UnknownGroup(group).into()),
                ChargeMode::Recorded => Ok(GroupPlace { group, domain: None }),
            };
        };
        let domain = node.domain(&planned.node, row.group.topology);
        let counter = domain.clone().map(|domain| (Text::clone(&group), domain));
        if let Some(counter) = &counter
            && !self.locked_groups.contains(&group)
            && !self.locked_domains.contains(counter)
        {
            self.must_restart = true;
        }
        let count = |key: &(Text, Text)| self.rows.domains.get(key).copied().unwrap_or(0);
        let members = counter.as_ref().map_or(0, count);
        let hard = row.group.strength == berth_engine::affinity::Strength::Hard;
        let together = row.group.kind == GroupKind::Together;
        let limit = i64::from(row.group.limit());
        let at_home = row.home.is_none() || row.home == domain;
        let fits = members < limit && (!together || (domain.is_some() && at_home));
        // A node without a rack shares no rack: it counts nowhere and is never too full.
        let counts_nowhere = domain.is_none() && !together;
        if hard && mode == ChargeMode::Guarded && !fits && !counts_nowhere {
            let home = row.home.clone();
            return Err(Guard::Group { group, domain, members, limit, home }.into());
        }
        let seeds = together && row.home.is_none() && domain.is_some();
        if seeds {
            let home = domain.clone();
            self.rows.groups.edit(&group, |row| row.home = home);
        }
        if let Some(counter) = counter {
            self.rows.domains.set(&counter, Some(members + 1));
        }
        self.rows.members.set(&(Text::clone(&group), planned.key), Some(()));
        Ok(GroupPlace { group, domain })
    }

    fn leave_group(&mut self, place: &GroupPlace, key: ClaimKey) {
        self.rows.members.set(&(Text::clone(&place.group), key), None);
        let Some(domain) = &place.domain else { return };
        let counter = (Text::clone(&place.group), Text::clone(domain));
        let members = self.rows.domains.get(&counter).copied().unwrap_or(0);
        self.rows.domains.set(&counter, (members > 1).then(|| members - 1));
        let emptied = members <= 1;
        // A group that stays together has all its members in one domain.
        if emptied && self.rows.groups.get(&place.group).is_some_and(|g| g.home == place.domain) {
            self.rows.groups.edit(&place.group, |row| row.home = None);
        }
    }

    fn charge_class(
        &mut self,
        planned: &PlannedClaim,
        class: &str,
        wanted: u32,
        mode: ChargeMode,
    ) -> Result<(), ChargeError> {
        let key = (planned.node.clone(), Text::from(class));
        let (limit, used) = self.rows.classes.get(&key).map_or((0, 0), |row| (row.limit, row.used));
        if mode == ChargeMode::Guarded
            && let Some(lack) = class_lack(class, wanted, used, limit)
        {
            return Err(Guard::Class { node: planned.node.clone(), lack }.into());
        }
        let row = super::rows::ClassRow { limit, used: used + i64::from(wanted) };
        self.rows.classes.set(&key, Some(row));
        Ok(())
    }

    fn charge_tenant(
        &mut self,
        planned: &PlannedClaim,
        tenant: &Text,
        mode: ChargeMode,
    ) -> Result<(), ChargeError> {
        let Some(row) = self.rows.tenants.get(tenant) else { return Ok(()) };
        let is_guarded = mode == ChargeMode::Guarded;
        if is_guarded && row.removal.is_some() {
            return Err(ChargeError::Refused(RefusalReason::TenantRemoving(Text::clone(tenant))));
        }
        // An instance that moves is not one more, nor larger: its second claim counts for no quota.
        if planned.key.role != Role::Primary {
            return Ok(());
        }
        let wanted = &planned.demand.amounts;
        let quota = &row.quota;
        let limits = [
            ("instances", row.instances, 1, quota.instances),
            ("memory_mib", row.memory, wanted.memory_mib.into(), quota.memory_mib),
            ("cpu_milli", row.cpu, wanted.cpu_milli.into(), quota.cpu_milli),
            ("disk_mib", row.disk, wanted.disk_mib.into(), quota.disk_mib),
        ];
        for (resource, used, wanted, limit) in limits {
            if let Some(limit) = limit
                && is_guarded
                && wanted > 0
                && used + wanted > limit
            {
                let tenant = Text::clone(tenant);
                return Err(ChargeError::Refused(RefusalReason::Quota {
                    tenant,
                    resource,
                    used,
                    wanted,
                    limit,
                }));
            }
        }
        self.rows.tenants.edit(tenant, |row| {
            row.cpu += i64::from(wanted.cpu_milli);
            row.memory += i64::from(wanted.memory_mib);
            row.disk += i64::from(wanted.disk_mib);
            row.instances += 1;
        });
        Ok(())
    }

    fn attach(
        &mut self,
        planned: &PlannedClaim,
        tenant: &Text,
        volume: &str,
        mode: ChargeMode,
    ) -> Result<Text, ChargeError> {
        let volume = Text::from(volume);
        let row = self.rows.volumes.get(&volume).filter(|row| row.is_for(tenant));
        let Some(row) = row else {
            return match mode {
                ChargeMode::Guarded => Err(Guard::UnknownVolume(volume).into()),
                ChargeMode::Recorded => Ok(volume),
            };
        };
        let instance = planned.key.instance;
        if mode == ChargeMode::Guarded {
            if row.home != planned.node {
                let home = row.home.clone();
                return Err(Guard::VolumeHome { volume, home }.into());
            }
            if let Some(by) = row.attached_to.filter(|by| *by != instance) {
                return Err(Guard::VolumeInUse { volume, by }.into());
            }
            if let Some(to) = row.moving_to.clone() {
                // What it would write now would not be copied.
                return Err(ChargeError::Refused(RefusalReason::VolumeMoving { volume, to }));
            }
        }
        self.rows.volumes.edit(&volume, |row| {
            row.attached_to.get_or_insert(instance);
        });
        Ok(volume)
    }

    fn take_value(
        &mut self,
        pool: &Text,
        tenant: &Text,
        key: ClaimKey,
    ) -> Result<HeldValue, ChargeError> {
        if let Some(assumed) = self.assumed_pools.iter().find(|assumed| assumed.id == *pool) {
            return self.take_assumed(&assumed.clone(), tenant);
        }
        // A pool of another tenant is as if it were not there.
        let found = self.rows.pools.get(pool).filter(|row| row.pool.is_open_to(tenant));
        let Some(row) = found else {
            return Err(ChargeError::Refused(RefusalReason::UnknownPool(Text::clone(pool))));
        };
        let kind = row.pool.kind;
        let free = self.rows.free_values.get_mut(pool).and_then(Vec::pop);
        let Some(value) = free else {
            return Err(ChargeError::Refused(self.pool_exhausted(&row.pool, pool)));
        };
        self.taken_values.push((Text::clone(pool), value));
        let held = ValueRow { authorize: key, released_at: None };
        self.rows.values.set(&(Text::clone(pool), value), Some(held));
        let searched = row.pool.is_searched();
        let (first, last) = (row.pool.first, row.pool.last);
        if searched {
            let next = if value >= last { first } else { value + 1 };
            self.rows.pools.edit(pool, |row| row.next = next);
        }
        Ok(HeldValue { pool: Text::clone(pool), value: kind.write(value) })
    }

    /// A value of a pool as a dry run assumes it.
    fn take_assumed(&mut self, pool: &Pool, tenant: &Text) -> Result<HeldValue, ChargeError> {
        let id = Text::clone(&pool.id);
        if !pool.is_open_to(tenant) {
            return Err(ChargeError::Refused(RefusalReason::UnknownPool(id)));
        }
        let key = pool.assumed_key();
        let Some(value) = self.rows.free_values.get_mut(&key).and_then(Vec::pop) else {
            return Err(ChargeError::Refused(self.pool_exhausted(pool, &key)));
        };
        self.taken_values.push((key, value));
        Ok(HeldValue { pool: id, value: pool.kind.write(value) })
    }

    /// A pool of which a plan would take more than is free. The search was for as many as the plan
    /// needs, so what it has taken so far is all that was free.
    fn pool_exhausted(&self, pool: &Pool, key: &Text) -> RefusalReason {
        let taken = self.taken_values.iter().filter(|(of, _)| of == key).count();
        RefusalReason::PoolExhausted {
            pool: Text::clone(&pool.id),
            addresses: pool.kind != crate::model::PoolKind::Number,
            free: taken,
            size: pool.size(),
        }
    }

    fn give_back(&mut self, held: &HeldValue, key: ClaimKey) {
        let value = held.number();
        let value = crate::invariant_ok!(value, "held_value_is_a_number", held, claim = key);
        let Some(value) = value else { return };
        // Rests, so that no one gets it while caches still point at its last holder.
        let resting = ValueRow { authorize: key, released_at: Some(self.rows.now) };
        self.rows.values.set(&(Text::clone(&held.pool), value), Some(resting));
    }
}

/// What a plan may rest on: the node as it was seen, and room for one more.
fn check_node(planned: &PlannedClaim, row: &NodeRow) -> Result<(), Guard> {
    let (node_version, now) = (&planned.node_version, || row.now(&planned.node));
    if row.constraint_gen != node_version.constraint_gen {
        return Err(Guard::Changed { now: now(), planned_gen: node_version.constraint_gen });
    }
    let open = match row.state {
        // Whether a degraded node is eligible is up to the policy, which the planner applied.
        NodeState::Active | NodeState::Degraded => row.known,
        NodeState::Joining | NodeState::Cordoned | NodeState::Draining | NodeState::Lost => false,
    };
    if !open {
        return Err(Guard::NotSchedulable(now()));
    }
    match row.room.first_lack(&planned.demand) {
        Some(lack) => Err(Guard::Room { now: now(), lack }),
        None => Ok(()),
    }
}

/// Adds or takes off one claim of a tenant. An instance counts once, by its primary claim, however many
/// places it has while it moves.
pub(super) fn charge_tenant_use(tenant: &mut TenantRow, claim: &Claim, sign: i64) {
    if claim.key.role != Role::Primary {
        return;
    }
    tenant.cpu += sign * i64::from(claim.amounts.cpu_milli);
    tenant.memory += sign * i64::from(claim.amounts.memory_mib);
    tenant.disk += sign * i64::from(claim.amounts.disk_mib);
    tenant.instances += sign;
}

/// The permit of an elastic instance when it is placed: what it was placed with.
pub(super) fn permit_of(request: &InstanceRequest, charged: &Amounts) -> Option<Permit> {
    let elastic = request.elastic.as_ref()?;
    let size = elastic.using.unwrap_or_else(|| Size::of(charged));
    Some(Permit::placed(size, elastic.overcommit_permille))
}

/// A claim of a plan, charged.
pub(super) fn claim_of(
    planned: &PlannedClaim,
    tenant: &Text,
    request_id: &Text,
    (holdings, fence): (Option<Box<ClaimHoldings>>, i64),
    now: crate::model::Micros,
) -> Claim {
    Claim {
        key: planned.key,
        node: planned.node.clone(),
        tenant: Text::clone(tenant),
        workload: planned.request.workload.as_deref().map(Text::from),
        state: ClaimState::Held,
        amounts: planned.demand.amounts,
        capped: planned.demand.capped,
        lease_until: None,
        fence,
        request_id: Text::clone(request_id),
        batch: None,
        name: planned.request.name.as_deref().map(Text::from),
        spec: planned.spec.clone(),
        holdings,
        release_id: planned.release_id.clone(),
        secrets_version: planned.secrets_version.clone(),
        created_at: now,
        permit: permit_of(&planned.request, &planned.demand.amounts).map(Box::new),
    }
}
