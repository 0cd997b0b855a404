//! How large an instance may be: the engine's arithmetic, on rows that are locked.
//!
//! A growth is a claim like any other: it is charged to node and tenant in the transaction that
//! records it, and the node's guard is checked once more in the database.

use berth_engine::elastic::{
    Free, Permit, PermitContext, PermitDecision, Size, WatermarkRule, decide_permit,
};
use berth_engine::{Amounts, NodeId, Room};

use super::UnitOfWork;
use super::charge::charge_tenant_use;
use super::rows::{NodeRow, TenantRow};
use crate::model::{
    Bounds, Claim, ClaimKey, ClaimRejection, ClaimState, EventBody, Guard, PermitAnswer,
    PermitBasis, PermitOperation, RefusalReason, Spec, Text,
};

type PermitResult = Result<PermitAnswer, ClaimRejection>;

impl UnitOfWork {
    /// Answers a request for a permit.
    pub(super) fn permit(&mut self, ask: &PermitOperation) -> PermitResult {
        let key = ClaimKey::primary(ask.instance);
        let claim = super::lifecycle::authorize(
            self.rows.claims.get(&key),
            key,
            ask.tenant.as_ref(),
            ask.fence,
        )?;
        // An agent knows nothing of instances on other nodes.
        if ask.node.as_ref().is_some_and(|node| *node != claim.node) {
            return Err(ClaimRejection::NoClaim(key));
        }
        let found = claim.state;
        if matches!(found, ClaimState::Held | ClaimState::Releasing) {
            return Err(ClaimRejection::WrongState { key, found, wanted: "binding or active" });
        }
        let claim = claim.clone();
        self.require_node(&claim.node);
        let (Some(permit), Some((min, max))) = (claim.permit.as_deref(), bounds(&claim)) else {
            return Err(ClaimRejection::NotElastic(key));
        };
        let Some(row) = self.rows.nodes.get(&claim.node) else {
            return Err(ClaimRejection::NoClaim(key));
        };
        if let Some(basis) = &ask.basis {
            self.check_permit_basis(basis, &claim.node, row)
                .map_err(|guard| ClaimRejection::Guard(Box::new(guard)))?;
        }
        let target = self.rows.claims.get(&ClaimKey::target(ask.instance));
        let moving_to = target.filter(|it| is_held_for_migration(it)).map(|it| it.node.clone());
        let terms = PermitContext {
            unit: ask.unit,
            grants: ask.grants,
            min,
            max,
            frozen: moving_to.is_some(),
            whole_units: ask.whole_units,
            host_cpu_milli: ask.host_cpu_milli,
            node: Free::on(&row.room),
            quota: self.rows.tenants.get(&claim.tenant).map_or(Free::UNLIMITED, quota_left),
            below_watermark: free_below_watermark(&row.room, ask.watermark),
            now: self.rows.now.seconds(),
        };
        if ask.rigid_while_moving && terms.frozen && ask.wish.size != permit.granted {
            return Err(ClaimRejection::Moving(key));
        }
        let decided = decide_permit(permit, &ask.wish, &terms)?;
        Ok(self.record_permit(&claim, permit, decided, moving_to))
    }

    /// The rules that a permit is decided by are those of the policy in force, and of the node as it is.
    fn check_permit_basis(
        &self,
        basis: &PermitBasis,
        node: &NodeId,
        row: &NodeRow,
    ) -> Result<(), Guard> {
        self.check_policy(&basis.policy)?;
        let planned_gen = match &basis.node {
            Some((known, generation)) if known == node => *generation,
            // It was elsewhere, or is not known there at all.
            _ => 0,
        };
        if row.constraint_gen == planned_gen {
            return Ok(());
        }
        Err(Guard::Changed { now: row.now(node), planned_gen })
    }

    /// Charges the decided size, and logs an event if it changed.
    fn record_permit(
        &mut self,
        claim: &Claim,
        before: &Permit,
        decided: PermitDecision,
        moving_to: Option<berth_engine::NodeId>,
    ) -> PermitAnswer {
        let PermitDecision { permit, repeated, found_larger } = decided;
        let charged = permit.charge().within(claim.amounts);
        if !repeated {
            self.change_charge(claim, charged);
            let resized =
                Claim { amounts: charged, permit: Some(Box::new(permit)), ..claim.clone() };
            self.rows.claims.set(&claim.key, Some(resized));
            // A request that changes nothing but sequence and load needs no event.
            let news = Permit { seq: before.seq, load_milli: before.load_milli, ..permit };
            if news != *before || charged != claim.amounts {
                self.push_permit_event(claim, charged, permit);
            }
            self.keep();
        }
        PermitAnswer {
            node: claim.node.clone(),
            tenant: Text::clone(&claim.tenant),
            fence: claim.fence,
            permit,
            charged,
            repeated,
            found_larger,
            moving_to,
        }
    }

    fn push_permit_event(&mut self, claim: &Claim, charged: Amounts, permit: Permit) {
        self.events.push(EventBody::Permit {
            instance_id: claim.key.instance,
            node_id: claim.node.clone(),
            tenant: Text::clone(&claim.tenant),
            fence: claim.fence,
            resources: charged,
            permit: Box::new(permit),
        });
    }

    /// Charges node and tenant other amounts for a claim. Whether they may be is decided already.
    pub(super) fn change_charge(&mut self, claim: &Claim, charged: Amounts) {
        if charged == claim.amounts {
            return;
        }
        self.rows.nodes.edit(&claim.node, |row| {
            row.room.used.charge(&claim.amounts, claim.capped, -1);
            row.room.used.charge(&charged, claim.capped, 1);
        });
        let resized = Claim { amounts: charged, ..claim.clone() };
        self.rows.tenants.edit(&claim.tenant, |tenant| {
            charge_tenant_use(tenant, claim, -1);
            charge_tenant_use(tenant, &resized, 1);
        });
    }

    /// Changes the bounds of an instance. What it was granted stands.
    pub(super) fn set_bounds(&mut self, asked: &Bounds) -> PermitResult {
        let key = ClaimKey::primary(asked.instance);
        let claim = super::lifecycle::authorize(
            self.rows.claims.get(&key),
            key,
            asked.tenant.as_ref(),
            None,
        )?;
        let claim = claim.clone();
        self.require_node(&claim.node);
        let Some(permit) = claim.permit.as_deref() else {
            return Err(ClaimRejection::NotElastic(key));
        };
        let mut request = super::lifecycle::stored_request(&claim)?;
        let Some(elastic) = request.elastic.as_mut() else {
            return Err(ClaimRejection::NotElastic(key));
        };
        elastic.min = asked.min.within(elastic.min);
        elastic.max = asked.max.within(elastic.max);
        let (min, max) = (elastic.min, elastic.max);
        let permit = permit.rebound(asked.max);
        let charged = permit.charge().within(claim.amounts);
        let target = self.rows.claims.get(&ClaimKey::target(asked.instance));
        let grows = !Size::of(&claim.amounts).covers(Size::of(&charged));
        if grows && target.is_some_and(is_held_for_migration) {
            // The place that is held for it would be too small.
            return Err(ClaimRejection::Moving(key));
        }
        self.check_bounds_growth(&claim, &charged)?;
        let changed = Claim {
            spec: Spec::of(&request),
            amounts: charged,
            permit: Some(Box::new(permit)),
            ..claim.clone()
        };
        if changed != claim {
            self.change_charge(&claim, charged);
            self.events.push(EventBody::Bounds {
                instance_id: asked.instance,
                node_id: claim.node.clone(),
                tenant: Text::clone(&claim.tenant),
                fence: Some(claim.fence),
                resources: charged,
                permit: Box::new(permit),
                min,
                max,
            });
            self.rows.claims.set(&key, Some(changed));
            self.keep();
        }
        Ok(PermitAnswer {
            node: claim.node.clone(),
            tenant: claim.tenant.clone(),
            fence: claim.fence,
            permit,
            charged,
            repeated: false,
            found_larger: false,
            moving_to: None,
        })
    }

    /// New bounds must not charge more than node and quota allow.
    fn check_bounds_growth(&self, claim: &Claim, charged: &Amounts) -> Result<(), ClaimRejection> {
        let (old, new) = (Size::of(&claim.amounts), Size::of(charged));
        let Some(row) = self.rows.nodes.get(&claim.node) else { return Ok(()) };
        if let Some(lack) = row.room.lack_of_growth(&claim.amounts, charged, true) {
            let now = row.now(&claim.node);
            return Err(ClaimRejection::Guard(Box::new(Guard::Room { now, lack })));
        }
        let Some(tenant) = self.rows.tenants.get(&claim.tenant) else { return Ok(()) };
        let (left, more) = (quota_left(tenant), new.less(old));
        let lacks = [
            ("cpu_milli", more.cpu_milli, left.cpu, tenant.cpu, tenant.quota.cpu_milli),
            ("memory_mib", more.memory_mib, left.memory, tenant.memory, tenant.quota.memory_mib),
        ];
        for (resource, more, left, used, limit) in lacks {
            if let Some(limit) = limit
                && more > 0
                && i64::from(more) > left
            {
                let (tenant, wanted) = (Text::clone(&claim.tenant), i64::from(more));
                let by = RefusalReason::Quota { tenant, resource, used, wanted, limit };
                return Err(ClaimRejection::Refused(by));
            }
        }
        Ok(())
    }
}

/// Whether a second claim is a place that is held for an instance that moves: one that was found in
/// two places has a second claim too.
pub(super) fn is_held_for_migration(target: &Claim) -> bool {
    target.state == ClaimState::Binding
}

/// Between which sizes an instance may be.
fn bounds(claim: &Claim) -> Option<(Size, Size)> {
    let permit = claim.permit.as_deref()?;
    claim.spec.elastic().map(|elastic| elastic.bounds(permit.granted))
}

fn quota_left(tenant: &TenantRow) -> Free {
    let left =
        |limit: Option<i64>, used: i64| limit.map_or(i64::MAX, |limit| limit.saturating_sub(used));
    Free {
        cpu: left(tenant.quota.cpu_milli, tenant.cpu),
        memory: left(tenant.quota.memory_mib, tenant.memory),
    }
}

/// What is left below the watermark. The row knows what may be promised; what others use is taken
/// off that already, so this errs on the side of giving less unasked.
fn free_below_watermark(room: &Room, watermark: WatermarkRule) -> Free {
    let left = |limit: i64, permille: u16, used: i64| {
        let mark = limit.max(0).saturating_mul(permille.into()).checked_div(1000).unwrap_or(0);
        mark.saturating_sub(used)
    };
    Free {
        cpu: left(room.limits.cpu, watermark.cpu_permille, room.used.cpu),
        memory: left(room.limits.memory, watermark.memory_permille, room.memory_used()),
    }
}
