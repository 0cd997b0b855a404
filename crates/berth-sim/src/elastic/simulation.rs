//! The nodes and instances of a day, and what happens to them under either rule.
//!
//! Every node's room is kept here, by the engine's arithmetic, and in the engine's fleet; each minute
//! both are compared with the sum of the instances.

use std::collections::HashMap;
use std::sync::Arc;

use berth_engine::elastic::{
    Account, ElasticSettings, Free, Holding, Overcommit, Permit, PermitContext, PermitDecision,
    PermitRequest, Size, Sums, WatermarkRule, decide_permit, watermark_free,
};
use berth_engine::{
    Amounts, Elastic, Engine, InstanceId, InstanceRequest, NodeFacts, NodeId, Room, Timestamp,
};

use super::day::{self, Shape};
use super::{Options, Outcome};
use crate::{NOW, SeededRng, SimulationError};

/// Targets of migrations have ids of their own, above those of all instances.
const TARGETS: u128 = 1 << 64;

pub(super) struct Host {
    pub(super) id: NodeId,
    pub(super) facts: NodeFacts,
    pub(super) room: Room,
    pub(super) watermark: WatermarkRule,
    /// The instances that run here, in order.
    pub(super) instances: Vec<usize>,
    /// Migrations from and to here.
    pub(super) busy: u32,
}

impl Host {
    pub(super) fn below_watermark(&self) -> Free {
        watermark_free(&self.facts, &self.room.used, self.watermark)
    }
}

/// A migration under way.
#[derive(Clone, Copy)]
pub(super) struct MigrationInProgress {
    pub(super) to: usize,
    pub(super) ends: u32,
    /// What is held for it where it goes; nothing where the rule holds nothing.
    pub(super) held: Option<Size>,
}

pub(super) struct SimulatedInstance {
    pub(super) id: InstanceId,
    pub(super) shape: Shape,
    pub(super) request: Arc<InstanceRequest>,
    pub(super) host: usize,
    pub(super) permit: Permit,
    pub(super) load_permille: u32,
    pub(super) moving: Option<MigrationInProgress>,
    /// Nodes that it left, and in which minute.
    pub(super) left: Vec<(usize, u32)>,
    pub(super) moves: u32,
    pub(super) failures: u32,
    /// When it may be moved again, in seconds.
    pub(super) rests_until: i64,
    pub(super) moved_at: Option<i64>,
}

impl SimulatedInstance {
    pub(super) fn amounts(&self, charge: Size) -> Amounts {
        charge.within(self.request.resources)
    }

    /// Its load as reported by its agent, in thousandths of a core.
    pub(super) fn load_milli(&self) -> u32 {
        self.shape.size(self.shape.max_units).cpu_milli / 1000 * self.load_permille
    }

    pub(super) fn target_id(&self) -> InstanceId {
        InstanceId::from_u128(self.id.0.as_u128() + TARGETS)
    }
}

pub(super) struct Simulation {
    pub(super) engine: Engine,
    pub(super) hosts: Vec<Host>,
    pub(super) instances: Vec<SimulatedInstance>,
    pub(super) by_name: HashMap<NodeId, usize>,
    pub(super) minute: u32,
    pub(super) report: Outcome,
    pub(super) settings: ElasticSettings,
    /// Instances that are being moved.
    pub(super) migrating: Vec<usize>,
    copy_mib_s: u32,
    failing_permille: u32,
    backoff_s: i64,
    cooldown_s: i64,
    seed: u64,
}

impl Simulation {
    /// The state at midnight: every instance has its wanted size, placed one by one.
    pub(super) fn new(options: &Options) -> Result<Self, SimulationError> {
        let shapes = day::shapes(options);
        let settings = options.policy.elastic().clone();
        let mut engine = Engine::new(options.policy.clone());
        let mut hosts = Vec::new();
        for facts in day::nodes(options, &shapes) {
            engine.fleet_mut().add_node(&facts)?;
            hosts.push(Host {
                id: facts.id.clone(),
                room: Room::of(&facts),
                watermark: settings.on(&facts).watermark,
                instances: Vec::new(),
                busy: 0,
                facts,
            });
        }
        let by_name = hosts.iter().enumerate().map(|(at, host)| (host.id.clone(), at)).collect();
        let mut simulation = Self {
            engine,
            hosts,
            instances: Vec::new(),
            by_name,
            minute: 0,
            report: Outcome::default(),
            settings,
            migrating: Vec::new(),
            copy_mib_s: options.copy_mib_s.max(1),
            failing_permille: options.failing_permille,
            backoff_s: options.migration.backoff_s.into(),
            cooldown_s: options.migration.cooldown_s.into(),
            seed: options.seed,
        };
        for (number, shape) in (0..).zip(shapes) {
            simulation.place(number, shape)?;
        }
        Ok(simulation)
    }

    fn place(&mut self, number: u32, shape: Shape) -> Result<(), SimulationError> {
        let load_permille = shape.load_permille(0);
        let size = shape.size(shape.wanted_units(load_permille));
        let id = InstanceId::from_u128(u128::from(number) + 1);
        let none = Amounts::default();
        let (min, max) = (shape.size(shape.min_units), shape.size(shape.max_units));
        let mut elastic = Elastic::new(min.within(none), max.within(none));
        elastic.compute_unit = Some(shape.unit);
        let tenant = format!("tenant-{}", shape.tenant);
        let mut request = InstanceRequest::new(id, &tenant, size.within(none));
        request.elastic = Some(elastic);
        let placed = self.engine.try_place(&request, NOW)?.ok_or(SimulationError::Full(number))?;
        let host = self.by_name.get(&placed.node).copied();
        let host = host.ok_or(SimulationError::Full(number))?;
        let instance = SimulatedInstance {
            id,
            shape,
            request: Arc::new(request),
            host,
            permit: Permit::placed(size, Overcommit::NONE),
            load_permille,
            moving: None,
            left: Vec::new(),
            moves: 0,
            failures: 0,
            rests_until: 0,
            moved_at: None,
        };
        self.engine.fleet_mut().claim(&instance.request, &placed.node)?;
        let room = &mut self.hosts[host].room;
        room.used.charge(&instance.amounts(instance.permit.charge()), false, 1);
        self.hosts[host].instances.push(self.instances.len());
        self.instances.push(instance);
        Ok(())
    }

    pub(super) const fn start_minute(&mut self, minute: u32) {
        self.minute = minute;
    }

    /// The time of day, in seconds.
    pub(super) fn now_s(&self) -> i64 {
        i64::from(self.minute) * 60
    }

    /// Every instance whose load requires another size requests it; denied requests are repeated.
    pub(super) fn request_permits(&mut self) -> Result<(), SimulationError> {
        let count = self.instances.len();
        // No instance is always the first.
        let first = self.minute as usize * 7919 % count.max(1);
        for number in (first..count).chain(0..first) {
            let instance = &mut self.instances[number];
            instance.load_permille = instance.shape.load_permille(self.minute);
            let size = instance.shape.size(instance.shape.wanted_units(instance.load_permille));
            // An instance that has its wanted size sends no further request.
            let permit = &instance.permit;
            if size != permit.granted || size != permit.wanted {
                self.request_permit(number, size)?;
            }
        }
        Ok(())
    }

    fn request_permit(&mut self, number: usize, size: Size) -> Result<(), SimulationError> {
        let now = self.now_s();
        let instance = &mut self.instances[number];
        let host = &mut self.hosts[instance.host];
        let context = PermitContext {
            unit: instance.shape.unit,
            grants: self.settings.grants,
            min: instance.shape.size(instance.shape.min_units),
            max: instance.shape.size(instance.shape.max_units),
            frozen: instance.moving.is_some(),
            whole_units: true,
            host_cpu_milli: None,
            node: Free::on(&host.room),
            quota: Free::UNLIMITED,
            below_watermark: host.below_watermark(),
            now,
        };
        let request =
            PermitRequest { load_milli: Some(instance.load_milli()), ..PermitRequest::new(size) };
        let PermitDecision { permit, .. } = decide_permit(&instance.permit, &request, &context)?;
        self.report.requests += 1;
        if permit.granted != size {
            self.report.denials += 1;
        }
        let (before, after) = (instance.permit.charge(), permit.charge());
        instance.permit = permit;
        if before != after {
            let (before, after) = (instance.amounts(before), instance.amounts(after));
            host.room.used.charge(&before, false, -1);
            host.room.used.charge(&after, false, 1);
            self.engine.fleet_mut().resize(instance.id, after);
        }
        Ok(())
    }

    /// The account of a node, as of now.
    pub(super) fn account(&self, host: usize) -> Account {
        let host = &self.hosts[host];
        let holdings = host.instances.iter().map(|&number| {
            let instance = &self.instances[number];
            Holding {
                charge: instance.permit.charge(),
                permit: Some(instance.permit),
                leaving: instance.moving.is_some(),
            }
        });
        let sums = Sums::of(holdings, self.now_s(), self.settings.pressure_half_life_s);
        Account::of(&host.facts, &host.room.used, host.watermark, &sums)
    }

    /// Nodes that may have to be relieved, the fullest above its watermark first.
    pub(super) fn under_pressure(&self) -> Vec<usize> {
        let above = |at: usize| {
            let free = self.hosts[at].below_watermark();
            let calm = free.cpu >= 0 && free.memory > 0;
            (!calm).then(|| (free.cpu.min(free.memory / 4), at))
        };
        let mut hosts: Vec<(i64, usize)> = (0..self.hosts.len()).filter_map(above).collect();
        hosts.sort_unstable();
        hosts.into_iter().map(|(_, at)| at).collect()
    }

    /// An instance begins to be copied to another node, where its place is held, or is not.
    pub(super) fn start(
        &mut self,
        number: usize,
        to: usize,
        hold: bool,
    ) -> Result<(), SimulationError> {
        let instance = &mut self.instances[number];
        let charge = instance.permit.charge();
        if hold {
            let mut target = InstanceRequest::clone(&instance.request);
            (target.id, target.elastic) = (instance.target_id(), None);
            target.resources = instance.amounts(charge);
            self.engine.fleet_mut().claim(&target, &self.hosts[to].id)?;
            self.hosts[to].room.used.charge(&target.resources, false, 1);
        }
        // A busy instance writes while it is copied, and what it writes is copied again.
        let copy_mib = u64::from(instance.permit.granted.memory_mib);
        let copied = copy_mib * u64::from(1000 + instance.load_permille) / 1000;
        let minutes = copied.div_ceil(u64::from(self.copy_mib_s) * 60).max(1);
        let ends = self.minute + u32::try_from(minutes).unwrap_or(u32::MAX / 2);
        instance.moving = Some(MigrationInProgress { to, ends, held: hold.then_some(charge) });
        instance.moves += 1;
        self.hosts[instance.host].busy += 1;
        self.hosts[to].busy += 1;
        self.migrating.push(number);
        self.report.migrations.started += 1;
        self.report.copied_mib += copied;
        Ok(())
    }

    /// Ends the migrations whose time has come, in the order in which they began.
    pub(super) fn finish_migrations(&mut self) -> Result<(), SimulationError> {
        let minute = self.minute;
        let due =
            |number: &usize| self.instances[*number].moving.is_none_or(|one| one.ends <= minute);
        let (due, rest): (Vec<usize>, Vec<usize>) = self.migrating.iter().partition(|n| due(n));
        self.migrating = rest;
        for number in due {
            self.finish(number)?;
        }
        Ok(())
    }

    fn finish(&mut self, number: usize) -> Result<(), SimulationError> {
        let instance = &mut self.instances[number];
        let Some(moving) = instance.moving.take() else { return Ok(()) };
        let amounts = instance.amounts(instance.permit.charge());
        self.hosts[instance.host].busy -= 1;
        let target = &mut self.hosts[moving.to];
        target.busy -= 1;
        if let Some(held) = moving.held {
            target.room.used.charge(&instance.amounts(held), false, -1);
            self.engine.fleet_mut().release(instance.target_id());
        }
        let draw =
            SeededRng::new(self.seed ^ (number as u64) << 24 ^ u64::from(self.minute)).draw();
        let breaks = draw % 1000 < u64::from(self.failing_permille);
        let free = Free::on(&target.room);
        let has_room = free.cpu >= i64::from(amounts.cpu_milli)
            && free.memory >= i64::from(amounts.memory_mib + target.room.overhead_mib);
        if breaks || !has_room {
            let failed = &mut self.report.migrations;
            if breaks {
                failed.failed_otherwise += 1;
            } else {
                failed.failed_no_room += 1;
            }
            let longer = self.backoff_s << instance.failures.min(10);
            instance.failures += 1;
            instance.rests_until = i64::from(self.minute) * 60 + longer;
            return Ok(());
        }
        target.room.used.charge(&amounts, false, 1);
        target.instances.push(number);
        target.instances.sort_unstable();
        let source = &mut self.hosts[instance.host];
        source.room.used.charge(&amounts, false, -1);
        source.instances.retain(|other| *other != number);
        let mut request = InstanceRequest::clone(&instance.request);
        (request.resources, request.elastic) = (amounts, None);
        self.engine.fleet_mut().release(instance.id);
        self.engine.fleet_mut().claim(&request, &self.hosts[moving.to].id)?;
        self.record_arrival(number, moving.to);
        Ok(())
    }

    fn record_arrival(&mut self, number: usize, to: usize) {
        let now = self.now_s();
        let instance = &mut self.instances[number];
        instance.left.push((instance.host, self.minute));
        let back =
            instance.left.iter().filter(|(host, _)| *host == to).map(|(_, left)| *left).max();
        let done = &mut self.report.migrations;
        done.done += 1;
        if let Some(left) = back {
            done.ping_pong += 1;
            done.ping_pong_within_hour += u64::from(self.minute - left <= 60);
        }
        instance.host = to;
        instance.failures = 0;
        instance.moved_at = Some(now);
        instance.rests_until = now + self.cooldown_s;
    }

    /// How often each instance began to be moved.
    pub(super) fn moves_of_each(&self) -> Vec<u32> {
        self.instances.iter().map(|instance| instance.moves).collect()
    }

    /// The time that is passed to the engine; no decision here depends on it.
    pub(super) const fn engine_time() -> Timestamp {
        NOW
    }

    /// Counts the minute and checks the invariants.
    pub(super) fn audit(&mut self) {
        let mut sums = vec![(0i64, 0i64, 0u32); self.hosts.len()];
        let mut add = |host: usize, charge: Size| {
            let sum = &mut sums[host];
            sum.0 += i64::from(charge.cpu_milli);
            sum.1 += i64::from(charge.memory_mib);
            sum.2 += 1;
        };
        for instance in &self.instances {
            add(instance.host, instance.permit.charge());
            if let Some(MigrationInProgress { to, held: Some(held), .. }) = instance.moving {
                add(to, held);
            }
            let lacks = instance.permit.wanted.less(instance.permit.granted);
            let unit = instance.shape.unit;
            let units = (lacks.cpu_milli / unit.cpu_milli).max(lacks.memory_mib / unit.memory_mib);
            self.report.denied_unit_minutes += u64::from(units);
        }
        let (mut reserved, mut marks) = ((0i64, 0i64), (0i64, 0i64));
        for (host, sum) in self.hosts.iter().zip(sums) {
            let account =
                Account::of(&host.facts, &host.room.used, host.watermark, &Sums::default());
            let free = account.below_watermark();
            let above = &mut self.report.node_minutes_above;
            above.cpu += u64::from(free.cpu < 0);
            above.memory += u64::from(free.memory < 0);
            above.either += u64::from(free.cpu < 0 || free.memory < 0);
            above.over_full += u64::from(account.is_over());
            let used = &host.room.used;
            let is_sum = (used.cpu, used.memory, used.instances) == sum;
            let in_fleet = self.engine.fleet().usage(&host.id).is_some_and(|usage| {
                (usage.cpu_milli.used, usage.memory_mib.used) == (used.cpu, host.room.memory_used())
            });
            self.report.violations += u64::from(!is_sum || !in_fleet || account.is_over());
            reserved = (reserved.0 + account.cpu.reserved, reserved.1 + account.memory.reserved);
            marks = (marks.0 + account.cpu.watermark, marks.1 + account.memory.watermark);
        }
        let permille = |reserved: i64, mark: i64| reserved * 1000 / mark.max(1);
        let fill = permille(reserved.0, marks.0).max(permille(reserved.1, marks.1));
        self.report.record_fill(u64::try_from(fill).unwrap_or(0));
    }
}
