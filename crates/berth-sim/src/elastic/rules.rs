//! The two rules by which instances are moved: the engine's plan, and the seed's queue.

use std::sync::Arc;

use berth_engine::elastic::{Free, ReliefInstance, ReliefPlan};
use berth_engine::{InstanceRequest, NodeId};

use super::Options;
use super::simulation::{Host, Simulation};
use crate::SimulationError;

/// An instance does not return to a node that it left within this time.
const NO_RETURN_MIN: u32 = 24 * 60;

/// For how long an instance counts as recently moved.
const RECENT_S: i64 = 6 * 3600;

/// How often an agent of the seed requests a permit in a minute.
const SEED_REQUESTS: u32 = 4;

impl Simulation {
    /// Berth's rule: plans for every node under pressure, within the caps, and holds each target.
    pub(super) fn relieve(&mut self, options: &Options) -> Result<(), SimulationError> {
        let caps = &options.migration;
        for host in self.under_pressure() {
            let under_way = u32::try_from(self.migrating.len()).unwrap_or(u32::MAX);
            let here = caps.per_node.saturating_sub(self.hosts[host].busy);
            let most = here.min(caps.fleet.saturating_sub(under_way));
            if most == 0 {
                continue;
            }
            let plan = self.plan(host, most as usize, caps.per_node);
            self.report.migrations.without_place += plan.without_target.len() as u64;
            for planned in plan.moves {
                let here = self.hosts[host].instances.iter();
                let mut number =
                    here.copied().filter(|&n| self.instances[n].id == planned.instance);
                let to = self.by_name.get(&planned.to).copied();
                if let (Some(number), Some(to)) = (number.next(), to) {
                    self.start(number, to, true)?;
                }
            }
        }
        Ok(())
    }

    fn plan(&mut self, host: usize, most: usize, per_node: u32) -> ReliefPlan {
        let account = self.account(host);
        if !account.must_shed() {
            return ReliefPlan::default();
        }
        let instances: Vec<ReliefInstance> =
            self.hosts[host].instances.iter().map(|&number| self.relief_instance(number)).collect();
        let Self { engine, hosts, by_name, .. } = self;
        let of = |node: &NodeId| by_name.get(node).and_then(|&at| hosts.get(at));
        let nothing = Free { cpu: -1, memory: -1 };
        let below = |node: &NodeId| of(node).map_or(nothing, Host::below_watermark);
        let closed = |node: &NodeId| of(node).is_none_or(|host| host.busy >= per_node);
        let now = Self::engine_time();
        engine.plan_relief(&hosts[host].id, &account, &instances, &below, &closed, most, now)
    }

    fn relief_instance(&self, number: usize) -> ReliefInstance {
        let (instance, now) = (&self.instances[number], self.now_s());
        let age = instance.moved_at.map_or(RECENT_S, |at| (now - at).min(RECENT_S));
        let recent = (RECENT_S - age) * 1_000_000 / RECENT_S;
        let half_life = self.settings.pressure_half_life_s;
        let left = instance.left.iter().filter(|(_, at)| self.minute - at <= NO_RETURN_MIN);
        let mut excluded: Vec<NodeId> = left.map(|(at, _)| self.hosts[*at].id.clone()).collect();
        excluded.sort_unstable();
        excluded.dedup();
        let request = if excluded.is_empty() {
            Arc::clone(&instance.request)
        } else {
            let request = InstanceRequest::clone(&instance.request);
            Arc::new(InstanceRequest { excluded_nodes: excluded, ..request })
        };
        ReliefInstance {
            id: instance.id,
            request,
            charge: instance.permit.charge(),
            pressure: instance.permit.charged_pressure(now, half_life),
            copy_mib: instance.permit.granted.memory_mib,
            load_milli: Some(instance.load_milli()),
            priority: 0,
            movable: instance.moving.is_none() && now >= instance.rests_until,
            moved_recently_ppm: u32::try_from(recent).unwrap_or(0),
        }
    }

    /// The seed's rule: when the first instance of a node's queue by load requests a permit and its node
    /// is under pressure, it moves to where an ordinary placement would put it. No target is held.
    pub(super) fn relieve_by_seed_rule(
        &mut self,
        options: &Options,
    ) -> Result<(), SimulationError> {
        for host in self.under_pressure() {
            for _ in 0..SEED_REQUESTS {
                let mut first = self.first_of_queue(host);
                for number in self.hosts[host].instances.clone() {
                    if first != Some(number) {
                        continue;
                    }
                    if !self.account(host).must_shed() {
                        break;
                    }
                    self.start_seed_migration(number, options.seed_holds)?;
                    first = self.first_of_queue(host);
                }
            }
        }
        Ok(())
    }

    /// The instance with the lowest load on a node that is not being moved.
    fn first_of_queue(&self, host: usize) -> Option<usize> {
        let instances = self.hosts[host].instances.iter().copied();
        let waiting = instances.filter(|&number| self.instances[number].moving.is_none());
        waiting.min_by_key(|&number| (self.instances[number].load_milli(), number))
    }

    fn start_seed_migration(&mut self, number: usize, holds: bool) -> Result<(), SimulationError> {
        let instance = &self.instances[number];
        let mut target = InstanceRequest::clone(&instance.request);
        (target.id, target.elastic) = (instance.target_id(), None);
        target.resources = instance.amounts(instance.permit.charge());
        target.excluded_nodes = vec![self.hosts[instance.host].id.clone()];
        let placed = self.engine.try_place(&target, Self::engine_time())?;
        let to = placed.and_then(|placed| self.by_name.get(&placed.node).copied());
        match to {
            Some(to) => self.start(number, to, holds)?,
            None => self.report.migrations.without_place += 1,
        }
        Ok(())
    }
}
