//! Relief: which elastic pods leave a node under pressure, and where to.
//!
//! The engine chooses the cheapest set and its targets. Here its candidates are described, and what the rules
//! of Kubernetes exclude is excluded. Nothing is started.

use std::sync::Arc;

use berth_engine::elastic::{
    Account, Free, MigrationSettings, ReliefInstance, ReliefMove, ReliefPlan, Size,
};
use berth_engine::{NodeId, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};

use super::account::{below_watermark, elastic_on};
use super::migrations::{recency_ppm, vm_key};
use crate::cluster::Cluster;
use crate::cluster::disruption_budgets::BudgetVerdict;
use crate::cluster::eligibility::has_bit;
use crate::cluster::engine_types;
use crate::cluster::filters::first_failure;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::pod_store::PodEntry;

/// How a pod leaves its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its virtual machine is migrated.
    Migrate {
        /// The machine.
        vm: Key,
    },
    /// It is evicted, and recreated by its controller.
    Evict,
}

/// A pod that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    /// The pod.
    pub pod: Key,
    /// Its uid.
    pub uid: Arc<str>,
    /// The node it leaves.
    pub from: Arc<str>,
    /// Where it fits.
    pub to: Arc<str>,
    /// What that frees.
    pub frees: Size,
    /// How it leaves.
    pub departure: Departure,
}

/// What is under way beyond what objects show, and what must be left alone.
#[derive(Clone, Debug, Default)]
pub struct ReliefLimits {
    /// Departures from and to each node that no object shows yet.
    pub open: FxHashMap<Arc<str>, u32>,
    /// Departures in total that no object shows yet.
    pub open_total: u32,
    /// What is held on nodes for pods that are on their way there.
    pub held: FxHashMap<Arc<str>, Size>,
    /// Pods and virtual machines that are left alone.
    pub resting: FxHashSet<Key>,
}

/// What a pass over all nodes decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReliefPass {
    /// Pods that leave.
    pub leavers: Vec<Leaver>,
    /// Nodes under pressure.
    pub pressured: usize,
    /// Pods that would help but fit nowhere.
    pub without_target: usize,
    /// Nodes under pressure that no pod leaves, and why.
    pub stuck: Vec<StuckNode>,
}

/// A node under pressure that no pod leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckNode {
    /// The node.
    pub node: Arc<str>,
    /// Pods that would help but fit nowhere.
    pub without_target: usize,
    /// What should leave it.
    pub excess: Size,
}

impl Cluster {
    /// Migrations of this scheduler to delete; the flag says whether their target did not start in time.
    #[must_use]
    pub fn expired_migrations(&self, now: i64) -> Vec<(Key, bool)> {
        let limits = self.settings.policy.elastic().migration;
        self.elastic.migrations.expired(&self.settings.scheduler, limits, now)
    }

    /// Plans to bring every node under its watermark, within the policy's limits.
    pub fn plan_relief(&mut self, extra: &ReliefLimits, now: Timestamp) -> ReliefPass {
        let limits = self.settings.policy.elastic().migration;
        let mut pass = ReliefPass::default();
        let pressured = self.pressured_nodes(now.0);
        pass.pressured = pressured.len();
        if pressured.is_empty() || !limits.enabled {
            return pass;
        }
        let (mut open, mut open_total) = self.open_departures(extra);
        let mut held = self.held_for_targets(extra);
        let name =
            |(index, _): &(usize, Account)| Some(Arc::clone(&self.nodes.get(*index)?.node.name));
        let names: Vec<Arc<str>> = pressured.iter().filter_map(name).collect();
        for (index, account) in &pressured {
            let Some(from) = self.nodes.get(*index).map(|it| Arc::clone(&it.node.name)) else {
                continue;
            };
            let here = limits.per_node.saturating_sub(open.get(&from).copied().unwrap_or(0));
            let most = here.min(limits.fleet.saturating_sub(open_total));
            if most == 0 {
                continue;
            }
            let is_full = |(_, it): &(&Arc<str>, &u32)| **it >= limits.per_node;
            let full = open.iter().filter(is_full).map(|(node, _)| Arc::clone(node));
            let closed: FxHashSet<Arc<str>> = names.iter().cloned().chain(full).collect();
            let plan = self.plan_node(*index, account, extra, &held, &closed, most, now);
            pass.without_target += plan.without_target.len();
            let leavers = self.leavers_of(*index, &from, &plan);
            if leavers.is_empty() && !open.contains_key(&from) {
                let (node, excess) = (Arc::clone(&from), account.excess());
                let without_target = plan.without_target.len();
                pass.stuck.push(StuckNode { node, without_target, excess });
            }
            for leaver in leavers {
                // Several may have chosen one target.
                if open.get(&leaver.to).is_some_and(|it| *it >= limits.per_node) {
                    continue;
                }
                open_total += 1;
                for node in [&leaver.from, &leaver.to] {
                    *open.entry(Arc::clone(node)).or_default() += 1;
                }
                let before = held.entry(Arc::clone(&leaver.to)).or_default();
                *before = before.plus(leaver.frees);
                pass.leavers.push(leaver);
            }
        }
        pass
    }

    /// Nodes that pods should leave, the fullest first.
    fn pressured_nodes(&self, now: i64) -> Vec<(usize, Account)> {
        let mut found: Vec<(i64, usize, Account)> = Vec::new();
        for (index, node) in self.nodes.present() {
            let free = below_watermark(node);
            // Most nodes are below their watermark: the exact account is not needed.
            if (free.cpu >= 0 && free.memory > 0) || elastic_on(node, &self.pods).next().is_none() {
                continue;
            }
            let account = self.account_of(node, now);
            if account.must_shed() {
                found.push((free.cpu.min(free.memory / 4), index, account));
            }
        }
        found.sort_by_key(|(free, index, _)| (*free, *index));
        found.into_iter().map(|(_, index, account)| (index, account)).collect()
    }

    /// Departures under way from and to each node, and in total.
    fn open_departures(&self, extra: &ReliefLimits) -> (FxHashMap<Arc<str>, u32>, u32) {
        let (mut open, mut total) = (extra.open.clone(), extra.open_total);
        for (_, migration) in self.elastic.migrations.iter().filter(|(_, it)| it.is_active()) {
            total += 1;
            for node in [&migration.source, &migration.target].into_iter().flatten() {
                *open.entry(Arc::clone(node)).or_default() += 1;
            }
        }
        (open, total)
    }

    /// What is held on targets of migrations whose pods are not there yet.
    fn held_for_targets(&self, extra: &ReliefLimits) -> FxHashMap<Arc<str>, Size> {
        let mut held = extra.held.clone();
        for (key, migration) in self.elastic.migrations.iter().filter(|(_, it)| it.is_active()) {
            let Some(target) = &migration.target else { continue };
            let pod = migration.target_pod.as_ref().and_then(|name| {
                let key = Key { namespace: Arc::clone(&key.namespace), name: Arc::clone(name) };
                self.pods.by_name(&key)
            });
            if pod.is_some_and(|it| it.assigned.is_some()) {
                continue;
            }
            let vm = Key { namespace: Arc::clone(&key.namespace), name: Arc::clone(&migration.vm) };
            let runs = |it: &&PodEntry| vm_key(&it.pod).as_ref() == Some(&vm);
            let charge = self.pods.iter().filter(runs).find_map(|it| it.permit);
            let before = held.entry(Arc::clone(target)).or_default();
            *before = before.plus(charge.map(|it| it.charge()).unwrap_or_default());
        }
        held
    }

    #[expect(clippy::too_many_arguments, reason = "each is a limit of its own")]
    fn plan_node(
        &mut self,
        index: usize,
        account: &Account,
        extra: &ReliefLimits,
        held: &FxHashMap<Arc<str>, Size>,
        closed: &FxHashSet<Arc<str>>,
        most: u32,
        now: Timestamp,
    ) -> ReliefPlan {
        let instances = self.relief_instances(index, extra, now.0);
        let Some(node) = self.nodes.get(index) else { return ReliefPlan::default() };
        let id = engine_types::node_id(&node.node.name);
        let Self { engine, nodes, .. } = self;
        let nothing = Free { cpu: -1, memory: -1 };
        let below = |node: &NodeId| {
            let entry = nodes.index_of(node.as_str()).and_then(|it| nodes.get(it));
            let held = held.get(node.as_str()).copied().unwrap_or_default();
            entry.map_or(nothing, |it| below_watermark(it).recharged(Size::ZERO, held))
        };
        let is_closed = |node: &NodeId| closed.contains(node.as_str());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        engine.plan_relief(&id, account, &instances, &below, &is_closed, most, now)
    }

    /// The elastic pods of a node as candidates for leaving it.
    fn relief_instances(
        &mut self,
        index: usize,
        extra: &ReliefLimits,
        now: i64,
    ) -> Vec<ReliefInstance> {
        let Some(node) = self.nodes.get(index) else { return Vec::new() };
        let entries: Vec<PodEntry> = elastic_on(node, &self.pods).cloned().collect();
        let mut instances = Vec::new();
        for entry in entries {
            let Some(permit) = entry.permit else { continue };
            let settings = self.settings.policy.elastic();
            let (limits, half_life) = (settings.migration, settings.pressure_half_life_s);
            let pressure = permit.charged_pressure(now, half_life);
            let vm = vm_key(&entry.pod);
            let rests = vm.iter().chain([&entry.pod.key]).any(|it| extra.resting.contains(it));
            let movable = !rests && self.departure(&entry, now).is_some();
            let recent = match vm {
                Some(vm) => self.elastic.migrations.recency_ppm(&vm, limits, now),
                None => recency_ppm(entry.pod.created, limits, now),
            };
            let mut request = engine_types::instance_request(&entry);
            if movable {
                request.excluded_nodes = self.excluded_nodes(&entry, now);
            }
            instances.push(ReliefInstance {
                id: entry.pod.id,
                request: Arc::new(request),
                charge: permit.charge(),
                pressure,
                copy_mib: permit.granted.memory_mib,
                load_milli: permit.load_milli,
                priority: entry.pod.priority,
                movable,
                moved_recently_ppm: recent,
            });
        }
        instances
    }

    /// How a pod may leave its node now; `None`: it stays.
    fn departure(&self, entry: &PodEntry, now: i64) -> Option<Departure> {
        let (pod, limits) = (&entry.pod, self.settings.policy.elastic().migration);
        let is_ours = *pod.scheduler == *self.settings.scheduler;
        if !is_ours || pod.node.is_none() || pod.deleting || entry.permit_write {
            return None;
        }
        if let Some(vm) = self.vm_of(pod) {
            let key = vm_key(pod)?;
            let migrations = &self.elastic.migrations;
            let rests =
                migrations.active(&key).is_some() || migrations.rest_s(&key, limits, now) > 0;
            let moves = vm.migrates && migrations.is_served() && !rests;
            return moves.then_some(Departure::Migrate { vm: key });
        }
        let is_evictable = is_recreated_elsewhere(pod) && self.may_evict(pod, limits, now);
        is_evictable.then_some(Departure::Evict)
    }

    fn may_evict(&self, pod: &Pod, limits: MigrationSettings, now: i64) -> bool {
        let stays = pod.elastic.as_ref().is_none_or(|it| it.as_ref().is_ok_and(|it| it.stays));
        let age = now.saturating_sub(pod.created);
        limits.evict
            && !stays
            && age >= i64::from(limits.cooldown_s)
            && !matches!(self.budgets.allowed(pod), BudgetVerdict::Violated(_))
    }

    /// Nodes that a pod cannot go to, by the rules of Kubernetes or because it left them.
    fn excluded_nodes(&mut self, entry: &PodEntry, now: i64) -> Vec<NodeId> {
        let mut excluded: Vec<NodeId> = Vec::new();
        if let Some(vm) = vm_key(&entry.pod) {
            excluded.extend(self.elastic.migrations.nodes_left(&vm, now));
        }
        let prepared = self.prepare_pod(entry);
        let eligible =
            self.eligibility.get(&entry.pod.node_requirements, &self.nodes).words.to_vec();
        let in_group = entry.pod.gang.is_some();
        for (index, node) in self.nodes.present() {
            let is_allowed = !in_group
                && has_bit(&eligible, index)
                && match &prepared {
                    Ok(prepared) => {
                        needs_no_check(&entry.pod) || {
                            first_failure(self, prepared, index).is_none()
                        }
                    }
                    Err(_) => false,
                };
            if !is_allowed {
                excluded.push(engine_types::node_id(&node.node.name));
            }
        }
        excluded
    }

    /// The moves of a plan, as pods. The filters have the last word on each target.
    fn leavers_of(&mut self, index: usize, from: &Arc<str>, plan: &ReliefPlan) -> Vec<Leaver> {
        plan.moves.iter().filter_map(|it| self.leaver(index, from, it)).collect()
    }

    fn leaver(&mut self, index: usize, from: &Arc<str>, planned: &ReliefMove) -> Option<Leaver> {
        let entry = {
            let mut on_node = elastic_on(self.nodes.get(index)?, &self.pods);
            on_node.find(|entry| entry.pod.id == planned.instance).cloned()?
        };
        let prepared = self.prepare_pod(&entry).ok()?;
        let target = self.nodes.index_of(planned.to.as_str())?;
        if first_failure(self, &prepared, target).is_some() {
            return None;
        }
        let pod = &entry.pod;
        let departure = match vm_key(pod) {
            Some(vm) => Departure::Migrate { vm },
            None => Departure::Evict,
        };
        Some(Leaver {
            pod: pod.key.clone(),
            uid: Arc::clone(&pod.uid),
            from: Arc::clone(from),
            to: planned.to.as_str().into(),
            frees: planned.frees,
            departure,
        })
    }
}

/// Whether a controller recreates the pod, on any node.
fn is_recreated_elsewhere(pod: &Pod) -> bool {
    pod.owner.as_ref().is_some_and(|it| it.kind != "DaemonSet" && it.kind != "Node")
}

/// Whether labels, taints and room are all that decides where a pod may go.
fn needs_no_check(pod: &Pod) -> bool {
    pod.required_affinity.is_empty()
        && pod.anti_affinity.is_empty()
        && pod.spread.is_empty()
        && pod.ports.is_empty()
        && pod.claims.is_empty()
        && pod.requests.resources.others.is_empty()
}
