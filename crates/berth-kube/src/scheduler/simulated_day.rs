//! A simulated day of elastic virtual machines, through the scheduler's core.
//!
//! Permits, relief and placement are those of the service; only the API server, the agents, the controller of
//! migrations and the loads are simulated. Reads no clock: the same options give the same day.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::Timestamp;
use berth_engine::elastic::{Permit, PermitRequest, Size};
use berth_sim::SeededRng;
use berth_sim::elastic::{DayLoad, InstanceLoad, Options, Outcome};
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::oneshot;

use super::core::SchedulerCore;
use super::drain::DrainTracker;
use super::messages::{Action, ActionResult, Change, Message, PermitWriteResult, SyncStatus};
use super::metrics::Metrics;
use super::queue::Moment;
use crate::cluster::elastic::permits::{AgentRequest, PermitTarget, PermitWrite};
use crate::cluster::elastic::relief::{Departure, Leaver};
use crate::cluster::elastic::source::PERMIT;
use crate::cluster::pod::Key;
use crate::cluster::{MissingRequests, Settings};
use crate::wire::PermitCall;

const NAMESPACE: &str = "day";
/// Queue entries that are tried at a time.
const BATCH: usize = 256;

/// The day cannot begin.
#[derive(Debug, Error)]
pub enum SimulatedDayError {
    /// A machine has no node at midnight.
    #[error("there is no room for instance {0}; use more nodes")]
    Full(String),
    /// An object is not one of its kind.
    #[error("failed to make an object of the simulated day")]
    Object(#[from] serde_json::Error),
}

/// A migration under way.
#[derive(Debug)]
struct Move {
    name: String,
    pod: String,
    to: Option<Arc<str>>,
    ends: Option<u32>,
}

/// A machine.
#[derive(Debug)]
struct Machine {
    unit: Size,
    min: Size,
    max: Size,
    pod: String,
    node: Option<Arc<str>>,
    /// What its agent was granted.
    granted: Size,
    /// What it asked for last.
    asked: Size,
    permit: Option<Permit>,
    moving: Option<Move>,
    /// Nodes that it left, and when.
    left: Vec<(Arc<str>, u32)>,
    moves: u32,
}

struct Day<'a> {
    options: &'a Options,
    load: DayLoad,
    core: SchedulerCore,
    machines: Vec<Machine>,
    /// Machines by the names of their pods.
    by_pod: BTreeMap<String, usize>,
    minute: u32,
    version: u64,
    actions: Vec<Action>,
    outcome: Outcome,
}

/// Simulates a day.
///
/// # Errors
/// When there is no room for the machines at the start.
pub fn simulate_elastic_day(options: &Options) -> Result<Outcome, SimulatedDayError> {
    let mut day = Day::new(options)?;
    for minute in 0..options.hours.saturating_mul(60) {
        day.minute = minute;
        day.finish_migrations()?;
        day.request_permits()?;
        day.run_core()?;
        day.audit();
    }
    let moves: Vec<u32> = day.machines.iter().map(|it| it.moves).collect();
    Ok(day.outcome.finish(options, "kubernetes", &moves))
}

fn vm_name(number: usize) -> String {
    format!("vm-{number}")
}

/// The number of a machine from its name.
fn number_of(vm: &str) -> Option<usize> {
    vm.strip_prefix("vm-")?.parse().ok()
}

impl<'a> Day<'a> {
    fn new(options: &'a Options) -> Result<Self, SimulatedDayError> {
        let settings = Settings {
            scheduler: "berth".to_owned(),
            policy: options.policy.clone(),
            missing_requests: MissingRequests::Zero,
            ignored_pod_fields: Vec::new(),
        };
        let metrics = Arc::new(Metrics::new(&mut Registry::default()));
        let status = Arc::new(SyncStatus::new(&[]));
        let core = SchedulerCore::new(settings, DrainTracker::new(1), status, metrics);
        let load = DayLoad::new(options);
        let machine = |(number, (unit, min, max))| Machine {
            unit,
            min,
            max,
            pod: vm_name(number),
            node: None,
            granted: Size::ZERO,
            asked: Size::ZERO,
            permit: None,
            moving: None,
            left: Vec::new(),
            moves: 0,
        };
        let machines: Vec<Machine> = load.instances().enumerate().map(machine).collect();
        let by_pod = (0..machines.len()).map(|number| (vm_name(number), number)).collect();
        let outcome = Outcome::default();
        let (actions, minute, version) = (Vec::new(), 0, 0);
        let mut day =
            Self { options, load, core, machines, by_pod, minute, version, actions, outcome };
        day.begin()?;
        Ok(day)
    }

    /// Midnight: nodes, and machines that are placed one by one.
    fn begin(&mut self) -> Result<(), SimulatedDayError> {
        for facts in self.load.nodes().to_vec() {
            let capacity = facts.capacity.unwrap_or_default();
            let amounts = json!({
                "cpu": format!("{}m", capacity.cpu_milli),
                "memory": format!("{}Mi", capacity.memory_mib), "pods": "10000",
            });
            let node = json!({
                "metadata": {"name": facts.id.as_str()},
                "status": {"capacity": amounts, "allocatable": amounts},
            });
            let node: core::Node = serde_json::from_value(node)?;
            self.send(Message::Change(Change::Node(Box::new(node))))?;
        }
        self.send(Message::Change(Change::MigrationsServed(true)))?;
        self.send(Message::LeadershipChanged(true))?;
        for number in 0..self.machines.len() {
            let Some(need) = self.load.at(number, 0) else { continue };
            let machine = &mut self.machines[number];
            (machine.granted, machine.asked) = (need.size, need.size);
            let vm = self.vm_object(number);
            self.send(Message::Change(Change::Vm(Box::new(vm))))?;
            self.put_pod(number, &vm_name(number), None)?;
            self.run_core()?;
            if self.machines[number].node.is_none() {
                return Err(SimulatedDayError::Full(vm_name(number)));
            }
        }
        Ok(())
    }

    fn now(&self) -> Moment {
        let seconds = u64::from(self.minute) * 60;
        let date = Timestamp(i64::try_from(seconds).unwrap_or(i64::MAX));
        Moment { millis: seconds * 1000, date }
    }

    /// Gives a message to the core, and does what it asks for.
    fn send(&mut self, message: Message) -> Result<(), SimulatedDayError> {
        let (mut actions, now) = (Vec::new(), self.now());
        let _ = self.core.handle_message(message, now, &mut actions);
        self.actions.append(&mut actions);
        self.execute()
    }

    /// Runs passes and schedules, until nothing is left to do.
    fn run_core(&mut self) -> Result<(), SimulatedDayError> {
        loop {
            let now = self.now();
            self.core.refresh_queue(now);
            self.core.schedule_batch(now, BATCH, &mut self.actions);
            let is_idle = self.actions.is_empty();
            self.execute()?;
            if is_idle && !self.core.has_active_entries() {
                return Ok(());
            }
        }
    }

    fn execute(&mut self) -> Result<(), SimulatedDayError> {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Bind(reservation) => self.bind(&reservation.pod.name, &reservation.node)?,
                Action::StorePermit(write) => self.store(*write)?,
                Action::Migrate { leaver, .. } => self.start_migration(*leaver)?,
                Action::DeleteMigration { migration, is_late } => {
                    self.delete_migration(&migration, is_late)?;
                }
                Action::NotifyUnschedulable(notice) if notice.first => {
                    self.outcome.migrations.without_place += u64::from(self.minute > 0);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn vm_object(&mut self, number: usize) -> Value {
        self.version += 1;
        let machine = &self.machines[number];
        let amounts = |of: fn(Size) -> u32, text: fn(u32) -> Value| {
            let (min, max) = (text(of(machine.min)), text(of(machine.max)));
            json!({"min": min, "use": text(of(machine.granted)), "max": max})
        };
        let annotations = machine.permit.as_ref().map(|it| json!(it).to_string());
        json!({
            "metadata": {
                "name": vm_name(number), "namespace": NAMESPACE, "uid": vm_name(number),
                "resourceVersion": self.version.to_string(),
                "labels": {
                    "autoscaling.neon.tech/enabled": "true",
                    "autoscaling.neon.tech/auto-migration-enabled": "true",
                },
                "annotations": {PERMIT: annotations},
            },
            "spec": {"guest": {
                "memorySlotSize": "1Mi",
                "cpus": amounts(|it| it.cpu_milli, |it| json!(format!("{it}m"))),
                "memorySlots": amounts(|it| it.memory_mib, |it| json!(it)),
            }},
        })
    }

    /// A pod of a machine, without a node or on one.
    fn put_pod(
        &mut self,
        number: usize,
        name: &str,
        node: Option<&str>,
    ) -> Result<(), SimulatedDayError> {
        self.version += 1;
        let pod = json!({
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": name,
                "resourceVersion": self.version.to_string(),
                "labels": {"vm.neon.tech/name": vm_name(number)},
            },
            "spec": {"schedulerName": "berth", "nodeName": node, "containers": [{"name": "runner"}]},
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" }},
        });
        self.send(Message::Change(Change::Pod(Box::new(serde_json::from_value(pod)?))))
    }

    fn delete_pod(&mut self, name: &str) -> Result<(), SimulatedDayError> {
        self.by_pod.remove(name);
        self.send(Message::Change(Change::PodDeleted(Key::new(NAMESPACE, name), name.into())))
    }

    fn bind(&mut self, pod: &str, node: &Arc<str>) -> Result<(), SimulatedDayError> {
        let Some(number) = self.by_pod.get(pod).copied() else { return Ok(()) };
        let (minute, load) = (self.minute, self.load.at(number, self.minute));
        let machine = &mut self.machines[number];
        match &mut machine.moving {
            Some(moving) if moving.pod == pod => {
                let permille = load.map_or(0, |it| it.permille);
                let copied =
                    u64::from(machine.granted.memory_mib) * u64::from(1000 + permille) / 1000;
                let minutes = copied.div_ceil(u64::from(self.options.copy_mib_s.max(1)) * 60);
                moving.to = Some(Arc::clone(node));
                moving.ends = Some(minute + u32::try_from(minutes.max(1)).unwrap_or(u32::MAX / 2));
                self.outcome.copied_mib += copied;
                let object = self.migration_object(number, None, "Running");
                self.send(Message::Change(Change::Migration(Box::new(object))))?;
            }
            _ => machine.node = Some(Arc::clone(node)),
        }
        self.put_pod(number, pod, Some(node))
    }

    fn store(&mut self, write: PermitWrite) -> Result<(), SimulatedDayError> {
        let PermitTarget::Vm { vm, .. } = &write.target else { return Ok(()) };
        let Some(number) = number_of(&vm.name) else { return Ok(()) };
        let machine = &mut self.machines[number];
        // Its agent changes the machine as soon as it is answered, or has shrunk it before.
        (machine.permit, machine.granted) = (Some(write.permit), write.permit.granted);
        let vm = Box::new(self.vm_object(number));
        let result = PermitWriteResult::StoredOnVm(vm);
        self.send(Message::ActionCompleted(ActionResult::PermitWritten { uid: write.uid, result }))
    }

    /// Every machine that needs another size asks for it; denied requests are repeated.
    fn request_permits(&mut self) -> Result<(), SimulatedDayError> {
        let count = self.machines.len();
        let first = self.minute as usize * 7919 % count.max(1);
        for number in (first..count).chain(0..first) {
            let Some(need) = self.load.at(number, self.minute) else { continue };
            let machine = &self.machines[number];
            // The agent of a machine that is being moved must not change its size.
            let is_frozen = machine.moving.is_some();
            let is_content = need.size == machine.granted && need.size == machine.asked;
            if !is_frozen && !is_content {
                self.request_permit(number, need)?;
            }
        }
        Ok(())
    }

    fn request_permit(
        &mut self,
        number: usize,
        need: InstanceLoad,
    ) -> Result<(), SimulatedDayError> {
        let machine = &self.machines[number];
        let request =
            PermitRequest { load_milli: Some(need.load_milli), ..PermitRequest::new(need.size) };
        let (reply, mut answer) = oneshot::channel();
        let asked = AgentRequest::new(request, Some(machine.unit));
        let call = PermitCall { pod: Key::new(NAMESPACE, &machine.pod), asked, reply };
        self.send(Message::PermitRequested(call))?;
        self.outcome.requests += 1;
        let machine = &mut self.machines[number];
        machine.asked = need.size;
        match answer.try_recv() {
            Ok(Ok(reply)) => machine.granted = reply.granted,
            // No request is invalid here, and every write succeeds.
            _ => self.outcome.violations += 1,
        }
        if machine.granted != need.size {
            self.outcome.denials += 1;
        }
        Ok(())
    }

    fn migration_object(&self, number: usize, leaver: Option<&Leaver>, phase: &str) -> Value {
        let moving = self.machines[number].moving.as_ref();
        let at = jiff::Timestamp::from_second(self.now().date.0).unwrap_or_default().to_string();
        let source = self.machines[number].node.as_deref();
        let target = leaver.map(|it| &*it.to).or_else(|| moving?.to.as_deref());
        json!({
            "metadata": {
                "name": moving.map(|it| &it.name), "namespace": NAMESPACE, "creationTimestamp": at,
                "labels": {"berth.dev/started-by": "berth"},
                "annotations": {
                    "berth.dev/source-node": source, "berth.dev/target-node": target,
                },
            },
            "spec": {"vmName": vm_name(number)},
            "status": {
                "phase": phase, "targetPodName": moving.map(|it| &it.pod),
                "conditions": [{"lastTransitionTime": at}],
            },
        })
    }

    fn start_migration(&mut self, leaver: Leaver) -> Result<(), SimulatedDayError> {
        let Departure::Migrate { vm } = &leaver.departure else { return Ok(()) };
        let Some(number) = number_of(&vm.name) else { return Ok(()) };
        let machine = &mut self.machines[number];
        machine.moves += 1;
        let (pod, moves) = (vm_name(number), machine.moves);
        let (name, pod) = (format!("{pod}-{moves}"), format!("{pod}-runner-{moves}"));
        machine.moving = Some(Move { name, pod: pod.clone(), to: None, ends: None });
        self.outcome.migrations.started += 1;
        self.by_pod.insert(pod.clone(), number);
        let object = self.migration_object(number, Some(&leaver), "Pending");
        self.send(Message::Change(Change::Migration(Box::new(object))))?;
        self.put_pod(number, &pod, None)
    }

    fn finish_migrations(&mut self) -> Result<(), SimulatedDayError> {
        let is_due = |it: &Machine| {
            it.moving.as_ref().is_some_and(|it| it.ends.is_some_and(|at| at <= self.minute))
        };
        let due = self.machines.iter().enumerate().filter(|(_, it)| is_due(it));
        let due: Vec<usize> = due.map(|(number, _)| number).collect();
        for number in due {
            let draw =
                SeededRng::new(self.options.seed ^ (number as u64) << 24 ^ u64::from(self.minute))
                    .draw();
            let fails = draw % 1000 < u64::from(self.options.failing_permille);
            let object =
                self.migration_object(number, None, if fails { "Failed" } else { "Succeeded" });
            let machine = &mut self.machines[number];
            let Some(Move { pod, to: Some(to), .. }) = machine.moving.take() else { continue };
            let gone = if fails { pod } else { std::mem::replace(&mut machine.pod, pod) };
            if fails {
                self.outcome.migrations.failed_otherwise += 1;
            } else {
                self.outcome.migrations.done += 1;
                let from = machine.node.replace(Arc::clone(&to));
                let back = machine.left.iter().filter(|(node, _)| *node == to);
                if let Some(left) = back.map(|(_, at)| *at).max() {
                    let within_hour = self.minute.saturating_sub(left) <= 60;
                    self.outcome.migrations.ping_pong += 1;
                    self.outcome.migrations.ping_pong_within_hour += u64::from(within_hour);
                }
                machine.left.extend(from.map(|it| (it, self.minute)));
            }
            self.send(Message::Change(Change::Migration(Box::new(object))))?;
            self.delete_pod(&gone)?;
        }
        Ok(())
    }

    fn delete_migration(&mut self, key: &Key, is_late: bool) -> Result<(), SimulatedDayError> {
        let is_it = |it: &Machine| it.moving.as_ref().is_some_and(|it| *it.name == *key.name);
        let found = self.machines.iter().position(is_it).filter(|_| is_late);
        if let Some(number) = found
            && let Some(moving) = self.machines[number].moving.take()
        {
            self.outcome.migrations.failed_no_room += 1;
            self.delete_pod(&moving.pod)?;
        }
        self.send(Message::Change(Change::MigrationDeleted(key.clone())))
    }

    /// Counts the minute, and compares every node's account with the sum of its machines.
    fn audit(&mut self) {
        let mut sums: BTreeMap<Arc<str>, Size> = BTreeMap::new();
        for machine in &self.machines {
            let target = machine.moving.as_ref().and_then(|it| it.to.as_ref());
            for node in machine.node.iter().chain(target) {
                let sum = sums.entry(Arc::clone(node)).or_default();
                *sum = sum.plus(machine.granted);
            }
            let lacks = machine.asked.less(machine.granted);
            let unit = machine.unit;
            let units = (lacks.cpu_milli / unit.cpu_milli.max(1))
                .max(lacks.memory_mib / unit.memory_mib.max(1));
            self.outcome.denied_unit_minutes += u64::from(units);
        }
        let (mut reserved, mut marks) = ((0i64, 0i64), (0i64, 0i64));
        for facts in self.load.nodes() {
            let name = facts.id.as_str();
            let Some(account) = self.core.account(name, self.now()) else {
                self.outcome.violations += 1;
                continue;
            };
            let free = account.below_watermark();
            let above = &mut self.outcome.node_minutes_above;
            above.cpu += u64::from(free.cpu < 0);
            above.memory += u64::from(free.memory < 0);
            above.either += u64::from(free.cpu < 0 || free.memory < 0);
            above.over_full += u64::from(account.is_over());
            let sum = sums.get(name).copied().unwrap_or_default();
            let expected = (i64::from(sum.cpu_milli), i64::from(sum.memory_mib));
            let is_sum = (account.cpu.reserved, account.memory.reserved) == expected;
            self.outcome.violations += u64::from(!is_sum || account.is_over());
            reserved = (reserved.0 + account.cpu.reserved, reserved.1 + account.memory.reserved);
            marks = (marks.0 + account.cpu.watermark, marks.1 + account.memory.watermark);
        }
        let permille = |reserved: i64, mark: i64| reserved * 1000 / mark.max(1);
        let fill = permille(reserved.0, marks.0).max(permille(reserved.1, marks.1));
        self.outcome.record_fill(u64::try_from(fill).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use berth_sim::elastic::TargetPolicy;

    use super::*;

    fn day(seed: u64, hours: u32) -> Outcome {
        let options = Options::new(30, 600, seed, TargetPolicy::Tent.policy().unwrap());
        simulate_elastic_day(&Options { hours, ..options }).unwrap()
    }

    #[test]
    fn nothing_is_granted_twice_and_no_machine_comes_back() {
        let day = day(1, 8);
        assert_eq!((day.violations, day.node_minutes_above.over_full), (0, 0), "{day:?}");
        assert_eq!(day.migrations.ping_pong, 0, "{day:?}");
        assert!(day.migrations.done > 50, "a day without pressure proves nothing: {day:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_day() {
        assert_eq!(day(1, 1), day(1, 1));
    }
}
