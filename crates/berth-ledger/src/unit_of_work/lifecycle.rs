//! A claim's life after it was granted: renewed, bound, activated, resized, moved, released, reaped.
//!
//! Each step is conditional on tenant, fence, state and lease, by the database's clock.

use std::sync::Arc;

use berth_engine::elastic::{Permit, Size};
use berth_engine::{InstanceId, InstanceRequest, NodeId, exceeds_host};

use super::UnitOfWork;
use super::charge::{ChargeError, ChargeMode, charge_tenant_use, claim_of};
use super::migrate::{give_slot, set_size};
use super::rows::{RequestKey, RequestRow, StoredAnswer};
use crate::model::{
    Adopt, Advance, Claim, ClaimHoldings, ClaimKey, ClaimRejection, ClaimState, ClaimStatus,
    EventBody, Guard, Micros, Move, NodeVersion, PlannedClaim, RefusalReason, Release, Resize,
    Role, Spec, Step, StopMember, Text, half_hash_of,
};

type ClaimResult = Result<ClaimStatus, ClaimRejection>;

/// The answer about a claim that a caller named by tenant and fence.
pub(super) fn authorize<'a>(
    claim: Option<&'a Claim>,
    key: ClaimKey,
    tenant: Option<&Text>,
    fence: Option<i64>,
) -> Result<&'a Claim, ClaimRejection> {
    let claim = claim.ok_or(ClaimRejection::NoClaim(key))?;
    if let Some(asked) = tenant.filter(|asked| **asked != claim.tenant) {
        return Err(ClaimRejection::NotOwner { key, asked: Text::clone(asked) });
    }
    match fence {
        Some(presented) if presented != claim.fence => {
            Err(ClaimRejection::StaleFence { key, presented, current: claim.fence })
        }
        Some(_) | None => Ok(claim),
    }
}

/// A claim as it stands.
pub(super) fn claim_status(claim: &Claim) -> ClaimStatus {
    ClaimStatus {
        instance: claim.key.instance,
        role: claim.key.role,
        node: claim.node.clone(),
        state: Some(claim.state),
        fence: claim.fence,
        lease_until: claim.lease_until,
        amounts: claim.amounts,
    }
}

/// A claim that is gone.
fn released_status(claim: &Claim) -> ClaimStatus {
    ClaimStatus { state: None, lease_until: None, ..claim_status(claim) }
}

/// A hash of what a retry must repeat.
fn body_hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&u64::try_from(part.len()).unwrap_or(0).to_be_bytes());
        hasher.update(part);
    }
    half_hash_of(&hasher)
}

impl UnitOfWork {
    /// Renews, binds or activates.
    pub(super) fn advance(&mut self, advance: &Advance) -> ClaimResult {
        let now = self.rows.now;
        let (key, tenant) = (advance.key, advance.tenant.as_ref());
        let claim = authorize(self.rows.claims.get(&key), key, tenant, Some(advance.fence))?;
        let (step, found) = (advance.step, claim.state);
        if step.is_done(found) {
            return Ok(claim_status(claim));
        }
        if !found.may_become(step.next_state()) {
            let wanted = step.required_state();
            return Err(ClaimRejection::WrongState { key, found, wanted });
        }
        if found == ClaimState::Held {
            check_lease(claim, now)?;
        }
        let lease_until = match step {
            Step::Renew { lease_s } => Some(now.plus_seconds(lease_s.into())),
            Step::Bind | Step::Activate => None,
        };
        self.rows.claims.edit(&key, |claim| {
            claim.enter(step.next_state());
            claim.lease_until = lease_until;
        });
        self.push_state_event(key);
        self.keep();
        self.rows.claims.get(&key).map(claim_status).ok_or(ClaimRejection::NoClaim(key))
    }

    pub(super) fn push_state_event(&mut self, key: ClaimKey) {
        let Some(claim) = self.rows.claims.get(&key) else { return };
        self.events.push(EventBody::State {
            instance_id: key.instance,
            role: key.role,
            node_id: claim.node.clone(),
            state: claim.state,
            tenant: Text::clone(&claim.tenant),
            fence: claim.fence,
            lease_until: claim.lease_until,
        });
    }

    /// Ends a claim: at once while it is held or when its end is confirmed, else once it is.
    pub(super) fn release(&mut self, release: &Release) -> ClaimResult {
        let id = (release.request_id.clone(), release.tenant.clone().unwrap_or_default());
        let confirmed = [u8::from(release.confirmed)];
        let hash = body_hash(&[b"release", release.key.instance.0.as_bytes(), &confirmed]);
        if let Some(answer) = self.repeated(&id, hash) {
            return answer;
        }
        let (key, tenant) = (release.key, release.tenant.as_ref());
        let claim = authorize(self.rows.claims.get(&key), key, tenant, release.fence)?;
        let claim = claim.clone();
        self.require_node(&claim.node);
        let answer = if claim.state == ClaimState::Held || release.confirmed {
            self.discharge(&claim, &release.reason);
            released_status(&claim)
        } else {
            if claim.state != ClaimState::Releasing {
                self.rows.claims.edit(&key, |claim| claim.enter(ClaimState::Releasing));
                self.push_state_event(key);
            }
            ClaimStatus { state: Some(ClaimState::Releasing), ..claim_status(&claim) }
        };
        self.store_answer(id, hash, answer.clone());
        self.keep();
        Ok(answer)
    }

    /// Ends a member's claim, if its workload is as it was and enough other members run.
    pub(super) fn stop_member(&mut self, stop: &StopMember) -> ClaimResult {
        let stopped = self.rows.claims.get(&stop.release.key);
        // One that is gone, or is being stopped already, takes nothing away.
        let is_running = stopped.is_some_and(|claim| claim.state == ClaimState::Active);
        self.check_availability(&stop.guard, is_running)
            .map_err(|guard| ClaimRejection::Guard(Box::new(guard)))?;
        self.release(&stop.release)
    }

    /// Changes what a claim is charged. Growth is guarded, shrinking is not.
    pub(super) fn resize(&mut self, resize: &Resize) -> ClaimResult {
        let id = (resize.request_id.clone(), resize.tenant.clone().unwrap_or_default());
        let wanted = resize.amounts.named().map(|(_, value, _)| value.to_be_bytes());
        let hash = body_hash(&[b"resize", resize.key.instance.0.as_bytes(), &wanted.concat()]);
        if let Some(answer) = self.repeated(&id, hash) {
            return answer;
        }
        if resize.amounts.memory_mib == 0 {
            let why = "memory_mib is 0; give at least 1".to_owned();
            return Err(ClaimRejection::Refused(RefusalReason::Malformed(why)));
        }
        let (key, tenant) = (resize.key, resize.tenant.as_ref());
        let claim = authorize(self.rows.claims.get(&key), key, tenant, resize.fence)?.clone();
        if claim.state == ClaimState::Held {
            check_lease(&claim, self.rows.now)?;
        }
        if claim.state == ClaimState::Releasing {
            let (found, wanted) = (claim.state, "held, binding or active");
            return Err(ClaimRejection::WrongState { key, found, wanted });
        }
        let request = stored_request(&claim)?;
        self.require_node(&claim.node);
        if let Err(rejected) = self.check_growth(&claim, resize) {
            self.undo(self.events.len());
            return Err(rejected);
        }
        let mut resized = claim.clone();
        resized.amounts = resize.amounts;
        resized.spec = Spec::of(&InstanceRequest { resources: resize.amounts, ..request });
        self.events.push(EventBody::Resized {
            instance_id: key.instance,
            role: key.role,
            node_id: claim.node.clone(),
            tenant: Text::clone(&claim.tenant),
            fence: Some(claim.fence),
            resources: resize.amounts,
        });
        let answer = claim_status(&resized);
        self.rows.claims.set(&key, Some(resized));
        self.store_answer(id, hash, answer.clone());
        self.keep();
        Ok(answer)
    }

    /// Charges the difference to node and tenant, if there is room for what grows.
    fn check_growth(&mut self, claim: &Claim, resize: &Resize) -> Result<(), ClaimRejection> {
        let (old, new) = (claim.amounts, resize.amounts);
        let row = self.rows.nodes.get(&claim.node);
        let unknown = || ClaimRejection::Guard(Box::new(Guard::UnknownNode(claim.node.clone())));
        let row = row.ok_or_else(unknown)?;
        let grown = resize.host_cpu_milli.filter(|_| new.cpu_milli > old.cpu_milli);
        let beyond_host = grown.and_then(|host| exceeds_host(new.cpu_milli, host));
        let lack = || row.room.lack_of_growth(&old, &new, resize.cpu_hard);
        if let Some(lack) = beyond_host.or_else(lack) {
            let now = row.now(&claim.node);
            return Err(ClaimRejection::Guard(Box::new(Guard::Room { now, lack })));
        }
        self.rows.nodes.edit(&claim.node, |row| {
            row.room.used.charge(&old, claim.capped, -1);
            row.room.used.charge(&new, claim.capped, 1);
        });
        self.resize_tenant(claim, resize)
    }

    fn resize_tenant(&mut self, claim: &Claim, resize: &Resize) -> Result<(), ClaimRejection> {
        if claim.key.role != Role::Primary {
            return Ok(());
        }
        let mut resized = claim.clone();
        resized.amounts = resize.amounts;
        self.rows.tenants.edit(&claim.tenant, |tenant| {
            charge_tenant_use(tenant, claim, -1);
            charge_tenant_use(tenant, &resized, 1);
        });
        let Some(tenant) = self.rows.tenants.get(&claim.tenant) else { return Ok(()) };
        let (old, new, quota) = (claim.amounts, resize.amounts, &tenant.quota);
        let limits = [
            ("memory_mib", old.memory_mib, new.memory_mib, tenant.memory, quota.memory_mib),
            ("cpu_milli", old.cpu_milli, new.cpu_milli, tenant.cpu, quota.cpu_milli),
            ("disk_mib", old.disk_mib, new.disk_mib, tenant.disk, quota.disk_mib),
        ];
        for (resource, old, new, used, limit) in limits {
            let wanted = i64::from(new) - i64::from(old);
            if let Some(limit) = limit.filter(|limit| wanted > 0 && used > *limit) {
                let (tenant, used) = (claim.tenant.clone(), used - wanted);
                let by = RefusalReason::Quota { tenant, resource, used, wanted, limit };
                return Err(ClaimRejection::Refused(by));
            }
        }
        Ok(())
    }

    /// Moves an instance: off one node and onto the other, or nothing.
    pub(super) fn relocate(&mut self, to: &Move) -> ClaimResult {
        let id = (to.request_id.clone(), Text::default());
        let instance = to.to.key.instance;
        let node = to.to.node.as_str().as_bytes();
        let hash = body_hash(&[b"move", instance.0.as_bytes(), node]);
        if let Some(answer) = self.repeated(&id, hash) {
            return answer;
        }
        let key = ClaimKey::primary(instance);
        let source = authorize(self.rows.claims.get(&key), key, None, to.fence)?.clone();
        if source.state == ClaimState::Held {
            check_lease(&source, self.rows.now)?;
        }
        let held = self.rows.claims.get(&ClaimKey::target(instance));
        if to.restart && held.is_some_and(super::permit::is_held_for_migration) {
            // Its agents are migrating it; it must not be stopped meanwhile.
            return Err(ClaimRejection::Moving(key));
        }
        if to.restart && source.state == ClaimState::Releasing {
            // No one wants it started anywhere.
            let (found, wanted) = (source.state, "held, binding or active");
            return Err(ClaimRejection::WrongState { key, found, wanted });
        }
        if to.restart && self.rows.claims.get(&ClaimKey::source(instance)).is_some() {
            // It may still run in the place that it left before.
            return Err(ClaimRejection::Moving(key));
        }
        if let Some(guard) = &to.guard {
            let checked = self.check_availability(guard, source.state == ClaimState::Active);
            checked.map_err(|guard| ClaimRejection::Guard(Box::new(guard)))?;
        }
        self.require_node(&source.node);
        let target = self.rows.claims.get(&ClaimKey::target(instance)).cloned();
        let events = self.events.len();
        let moved = match target {
            Some(target) if target.node == to.to.node => Ok(self.promote(&source, &target)),
            Some(_) | None => self.transfer(&source, &to.to, to.restart),
        };
        match moved {
            Ok(answer) => {
                self.store_answer(id, hash, answer.clone());
                self.keep();
                Ok(answer)
            }
            Err(rejected) => {
                self.undo(events);
                Err(rejected)
            }
        }
    }

    /// The migration target becomes the instance's primary claim.
    fn promote(&mut self, source: &Claim, target: &Claim) -> ClaimStatus {
        let values =
            source.holdings.as_deref().map(|holdings| holdings.values.clone()).unwrap_or_default();
        let mut leaving = source.clone();
        let mut slot = (None, Vec::new());
        if let Some(holdings) = leaving.holdings.as_deref_mut() {
            // Addresses and the slot go along.
            holdings.values.clear();
            slot = holdings.take_slot();
        }
        self.uncharge(&leaving);
        let mut claim = target.clone();
        self.rejoin_groups(&claim);
        claim.key.role = Role::Primary;
        claim.state = source.state;
        claim.lease_until = source.lease_until;
        claim.fence = target.fence.max(source.fence + 1);
        if !values.is_empty() {
            claim.holdings.get_or_insert_default().values = values;
        }
        give_slot(&mut claim, slot);
        // Only now does its tenant pay for it, and no longer for the place that it leaves.
        self.rows.tenants.edit(&claim.tenant, |tenant| charge_tenant_use(tenant, &claim, 1));
        self.rows.claims.set(&target.key, None);
        self.replace_claim(source, claim, None)
    }

    /// Membership in groups is by role: the target's places become the primary's.
    fn rejoin_groups(&mut self, target: &Claim) {
        for place in target.holdings.iter().flat_map(|holdings| &holdings.groups) {
            self.rows.members.set(&(place.group.clone(), target.key), None);
            let key = ClaimKey::primary(target.key.instance);
            self.rows.members.set(&(place.group.clone(), key), Some(()));
        }
    }

    fn transfer(&mut self, source: &Claim, to: &PlannedClaim, restart: bool) -> ClaimResult {
        let leaves = restart && matches!(source.state, ClaimState::Binding | ClaimState::Active);
        let left = leaves.then(|| stored_request(source)).transpose()?;
        let values =
            source.holdings.as_deref().map(|holdings| holdings.values.clone()).unwrap_or_default();
        let mut leaving = source.clone();
        let mut slot = (None, Vec::new());
        if let Some(holdings) = leaving.holdings.as_deref_mut() {
            // Addresses and the slot go along, also while the slot is handed over.
            holdings.values.clear();
            slot = holdings.take_slot();
        }
        // Off first: an instance must not be in its own way.
        self.uncharge(&leaving);
        self.rows.claims.set(&source.key, None);
        let mut planned = to.clone();
        planned.pools.clear();
        planned.key = source.key;
        (planned.slot, planned.takes_over) = (None, None);
        planned.release_id = planned.release_id.or_else(|| source.release_id.clone());
        // With the size it has by now: it may have changed since the move was planned.
        set_size(&mut planned.demand, source.amounts);
        let charged =
            self.charge(&planned, &source.tenant, ChargeMode::Guarded).map_err(rejected)?;
        let now = self.rows.now;
        let mut claim = claim_of(&planned, &source.tenant, &source.request_id, charged, now);
        claim.permit.clone_from(&source.permit);
        claim.spec = source.spec.clone();
        // Secrets that the plan names were checked; those that it had are its own.
        claim.secrets_version = claim.secrets_version.or_else(|| source.secrets_version.clone());
        // Its life goes on in another place.
        claim.state = source.state;
        if restart && source.state == ClaimState::Active {
            claim.enter(ClaimState::Binding);
        }
        claim.lease_until = source.lease_until;
        claim.batch = source.batch;
        claim.created_at = source.created_at;
        claim.fence = claim.fence.max(source.fence + 1);
        if !values.is_empty() {
            claim.holdings.get_or_insert_default().values = values;
        }
        give_slot(&mut claim, slot);
        let answer = self.replace_claim(source, claim, Some(&planned));
        if let Some(request) = left {
            self.leave_behind(source, request);
        }
        Ok(answer)
    }

    /// Keeps the place that an instance is restarted elsewhere from, until its agent confirms that it is
    /// stopped: it counts there, and is not started in the new place before. Groups, slot and values are
    /// where it goes.
    fn leave_behind(&mut self, source: &Claim, mut request: InstanceRequest) {
        let classes = source.holdings.as_deref().map(|holdings| holdings.classes.clone());
        let classes = classes.filter(|classes| !classes.is_empty());
        let mut left = source.clone();
        left.key = ClaimKey::source(source.key.instance);
        left.enter(ClaimState::Releasing);
        left.lease_until = None;
        left.permit = None;
        request.groups.clear();
        request.volumes.clear();
        left.spec = Spec::of(&request);
        self.rows.nodes.edit(&left.node, |row| {
            row.room.used.charge(&left.amounts, left.capped, 1);
        });
        for (class, &amount) in classes.iter().flatten() {
            let key = (left.node.clone(), Text::from(class.as_str()));
            self.rows.classes.edit(&key, |class| class.used += i64::from(amount));
        }
        left.holdings =
            classes.map(|classes| Box::new(ClaimHoldings { classes, ..ClaimHoldings::default() }));
        let allocated = self.allocated(&left, None);
        self.events.push(EventBody::Allocated(Box::new(allocated)));
        let key = left.key;
        self.rows.claims.set(&key, Some(left));
    }

    /// Replaces the old claim with the moved one, and logs both.
    fn replace_claim(
        &mut self,
        source: &Claim,
        claim: Claim,
        planned: Option<&PlannedClaim>,
    ) -> ClaimStatus {
        let fence = claim.fence;
        self.rows.nodes.edit(&claim.node, |row| row.fence = row.fence.max(fence));
        self.events.push(EventBody::Released {
            instance_id: source.key.instance,
            role: source.key.role,
            node_id: source.node.clone(),
            tenant: source.tenant.clone(),
            fence: source.fence,
            reason: Text::from("moved"),
        });
        let mut allocated = self.allocated(&claim, planned);
        allocated.moved_from = Some(source.node.clone());
        self.events.push(EventBody::Allocated(Box::new(allocated)));
        let answer = claim_status(&claim);
        self.rows.claims.set(&source.key, Some(claim));
        answer
    }

    /// Records an instance that an agent found.
    pub(super) fn adopt(&mut self, adopt: &Adopt) -> ClaimResult {
        let key = ClaimKey::primary(adopt.request.id);
        let id = (adopt.request_id.clone(), Text::default());
        let node = adopt.node.as_str().as_bytes();
        let hash = body_hash(&[b"adopt", key.instance.0.as_bytes(), node]);
        if let Some(answer) = self.repeated(&id, hash) {
            return answer;
        }
        let roles = [Role::MigrationSource, Role::Primary, Role::MigrationTarget];
        let keys = roles.map(|role| ClaimKey { role, ..key });
        let claims = || keys.iter().filter_map(|key| self.rows.claims.get(key));
        // It is recorded here already, perhaps while it is cleaned up after a migration.
        if let Some(claim) = claims().find(|claim| claim.node == adopt.node) {
            return Ok(claim_status(claim));
        }
        // An agent must not take what belongs to another node.
        if let Some(claim) = claims().next() {
            let node = claim.node.clone();
            return Err(ClaimRejection::Guard(Box::new(Guard::AlreadyPlaced { key, node })));
        }
        let tenant = Text::from(adopt.request.tenant.as_str());
        if self.is_removing(&tenant) {
            return Err(ClaimRejection::Refused(RefusalReason::TenantRemoving(tenant)));
        }
        let permit = adopted_permit(adopt);
        let mut demand = adopt.demand;
        if let Some(permit) = &permit {
            let charged = permit.charge().within(demand.amounts);
            set_size(&mut demand, charged);
        }
        let planned = PlannedClaim {
            key,
            request: Arc::clone(&adopt.request),
            spec: Spec::of(&adopt.request),
            demand,
            node: adopt.node.clone(),
            node_version: NodeVersion::default(),
            neighbours: Vec::new(),
            score: 0,
            pools: Vec::new(),
            slot: None,
            takes_over: None,
            release_id: None,
            secrets_version: None,
            workload_version: None,
            policy: None,
        };
        let charged = self.charge(&planned, &tenant, ChargeMode::Recorded).map_err(rejected)?;
        let now = self.rows.now;
        let mut claim = claim_of(&planned, &tenant, &adopt.request_id, charged, now);
        claim.state = ClaimState::Active;
        claim.permit = permit.map(Box::new);
        let mut allocated = self.allocated(&claim, Some(&planned));
        allocated.adopted = true;
        self.events.push(EventBody::Allocated(Box::new(allocated)));
        let answer = claim_status(&claim);
        self.rows.claims.set(&key, Some(claim));
        self.store_answer(id, hash, answer.clone());
        self.keep();
        Ok(answer)
    }

    /// Ends the claims of a node whose lease has ended.
    pub(super) fn reap(&mut self, node: &NodeId) -> Vec<InstanceId> {
        let now = self.rows.now;
        let expired = |claim: &&Claim| {
            let ended = claim.lease_until.is_some_and(|until| until <= now);
            let known = self.claims_read_unlocked.contains(&claim.key);
            claim.node == *node && claim.state == ClaimState::Held && ended && known
        };
        let claims: Vec<Claim> =
            self.rows.claims.iter().map(|(_, claim)| claim).filter(expired).cloned().collect();
        let mut reaped = Vec::with_capacity(claims.len());
        for claim in claims {
            self.events.push(EventBody::LeaseExpired {
                instance_id: claim.key.instance,
                node_id: claim.node.clone(),
                tenant: Text::clone(&claim.tenant),
                expired_at: claim.lease_until.unwrap_or(now),
            });
            self.discharge(&claim, &Text::from("lease_expired"));
            reaped.push(claim.key.instance);
        }
        self.keep();
        reaped.sort_unstable();
        reaped
    }

    /// The first answer to this request, if it was made before.
    fn repeated(&self, id: &RequestKey, hash: [u8; 16]) -> Option<ClaimResult> {
        let row = self.rows.requests.get(id)?;
        Some(match &row.answer {
            StoredAnswer::Status(claim_status) if row.body_hash == hash => Ok(claim_status.clone()),
            StoredAnswer::Status(_) | StoredAnswer::Granted(_) | StoredAnswer::Ticket { .. } => {
                let request_id = id.0.clone();
                Err(ClaimRejection::Refused(RefusalReason::RequestIdReused { request_id }))
            }
        })
    }

    fn store_answer(&mut self, id: RequestKey, body_hash: [u8; 16], answer: ClaimStatus) {
        let answer = StoredAnswer::Status(answer);
        let row = RequestRow { body_hash, answer, at: self.rows.now };
        self.rows.requests.set(&id, Some(row));
    }

    /// A claim that moved since it was read is on a node that was not locked.
    pub(super) fn require_node(&mut self, node: &NodeId) {
        if !self.rows.nodes.is_loaded(node) {
            self.must_restart = true;
        }
    }
}

/// The permit of an elastic instance that was found: no one knows what it was promised.
fn adopted_permit(adopt: &Adopt) -> Option<Permit> {
    let elastic = adopt.request.elastic.as_ref()?;
    let using = elastic.using.unwrap_or_else(|| Size::of(&adopt.demand.amounts));
    let (_, max) = elastic.bounds(using);
    Some(Permit::found(using, max, elastic.overcommit_permille))
}

fn check_lease(claim: &Claim, now: Micros) -> Result<(), ClaimRejection> {
    match claim.lease_until {
        Some(expired_at) if expired_at <= now => {
            Err(ClaimRejection::LeaseExpired { key: claim.key, expired_at, now })
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn rejected(error: ChargeError) -> ClaimRejection {
    match error {
        ChargeError::Guard(guard) => ClaimRejection::Guard(Box::new(guard)),
        ChargeError::Refused(by) => ClaimRejection::Refused(by),
    }
}

/// What a claim's instance asked for. One that cannot be read was damaged in the database: nothing that depends on
/// it is done.
pub(super) fn stored_request(claim: &Claim) -> Result<InstanceRequest, ClaimRejection> {
    claim.spec.request().map_err(|error| {
        let why = format!("the stored request of instance {} cannot be read: {error}", claim.key);
        ClaimRejection::Refused(RefusalReason::Malformed(why))
    })
}
