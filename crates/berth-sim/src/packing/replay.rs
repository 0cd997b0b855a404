//! The replay of a trace under one policy. The engine decides what fits and, except for simple rules,
//! where; plain sums kept here check every placement. For the engine time stands still: the nodes of a
//! trace send no heartbeats.

use std::collections::HashMap;

use berth_engine::{
    Amounts, ClaimError, Engine, InstanceId, InstanceRequest, InvalidNode, InvalidRequest, NodeId,
    NodeState, Policy, PolicyError,
};
use thiserror::Error;

use super::bound::volume_bound;
use super::chooser::{Chooser, Kind};
use super::fleet::{FleetNode, engine_name, engine_with};
use super::outcome::{Outcome, Sample, placement_digest};
use super::peers::Peer;
use super::sums::FleetSums;
use super::trace::{Action, Demand, Trace};
use crate::{NOW, SeededRng};

/// How often the fleet is recorded.
const SAMPLES: usize = 240;

/// How often stranded capacity is measured.
const STRANDED_SAMPLES: usize = 60;

/// Everything fits as far as this policy is concerned, and all nodes are equal: for the simple rules.
const NO_SCORES: &str = "name = 'no-scores'\n[filters]\ncpu = 'hard'";

/// A replay that could not go on; a defect of this crate, except where a node is unknown.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A node that the engine refuses.
    #[error("a node of the fleet is not valid")]
    Node(#[from] InvalidNode),
    /// A request that the engine refuses.
    #[error("instance {instance} of the trace is not valid")]
    Request {
        /// Its number.
        instance: usize,
        /// Why.
        source: InvalidRequest,
    },
    /// A placement that the engine refuses to record.
    #[error("a placement could not be recorded")]
    Claim(#[from] ClaimError),
    /// The policy for simple rules.
    #[error("the policy without scores is not valid")]
    Policy(#[from] PolicyError),
    /// A node that is lost or back, and not in the fleet.
    #[error("the trace loses or returns node {name:?}, which is not in the fleet")]
    UnknownNode {
        /// Its name.
        name: String,
    },
}

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// For rules that draw.
    pub seed: u64,
}

/// Replays a trace on a fleet. `progress` is called now and then with the number of events replayed.
///
/// # Errors
/// When the trace names a node that is not in the fleet, or an amount is beyond the engine's limits.
pub fn replay(
    trace: &Trace,
    nodes: &[FleetNode],
    chooser: &Chooser,
    options: Options,
    mut progress: impl FnMut(usize),
) -> Result<Outcome, ReplayError> {
    let mut replay = Replay::new(trace, nodes, chooser, options)?;
    let every = (trace.events.len() / SAMPLES).max(1);
    let stranded_every = (trace.events.len() / STRANDED_SAMPLES).max(1);
    for (number, event) in trace.events.iter().enumerate() {
        replay.advance(event.time);
        replay.apply(&event.action)?;
        if number % stranded_every == 0 {
            replay.sums.measure_stranded();
        }
        if number % every == 0 {
            replay.record_sample();
            progress(number);
        }
    }
    replay.record_sample();
    progress(trace.events.len());
    Ok(replay.finish(trace, nodes))
}

/// Where an instance is, and how large.
#[derive(Clone, Copy)]
struct Held {
    node: usize,
    demand: Demand,
}

struct Replay<'a> {
    trace: &'a Trace,
    kind: &'a Kind,
    engine: Engine,
    rng: SeededRng,
    names: HashMap<&'a str, usize>,
    /// The node at each position of the engine's columns.
    by_position: Vec<usize>,
    held: Vec<Option<Held>>,
    sums: FleetSums,
    now: u64,
    node_seconds: u128,
    outcome: Outcome,
}

impl<'a> Replay<'a> {
    fn new(
        trace: &'a Trace,
        nodes: &'a [FleetNode],
        chooser: &'a Chooser,
        options: Options,
    ) -> Result<Self, ReplayError> {
        let policy = match &chooser.kind {
            Kind::Policy(policy) => (**policy).clone(),
            Kind::Peer(_) => Policy::from_toml(NO_SCORES)?,
        };
        let engine = engine_with(nodes, policy)?;
        let mut by_position = vec![0; engine.fleet().position_count()];
        for node in 0..nodes.len() {
            if let Some(position) = engine.fleet().position_of(&NodeId::new(&engine_name(node))) {
                by_position[position] = node;
            }
        }
        let names = nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at));
        Ok(Self {
            trace,
            kind: &chooser.kind,
            engine,
            rng: SeededRng::new(options.seed),
            names: names.collect(),
            by_position,
            held: vec![None; trace.demands.len()],
            sums: FleetSums::new(nodes, &trace.demands),
            now: trace.events.first().map_or(0, |event| event.time),
            node_seconds: 0,
            outcome: Outcome { policy: chooser.name.clone(), ..Outcome::default() },
        })
    }

    /// Lets time pass until an event.
    fn advance(&mut self, time: u64) {
        let passed = u128::from(time.saturating_sub(self.now));
        self.node_seconds += u128::from(self.sums.in_use()) * passed;
        self.now = time;
    }

    fn apply(&mut self, action: &Action) -> Result<(), ReplayError> {
        match action {
            Action::Create(instance) => self.create(*instance),
            Action::Delete(instance) => {
                self.release(*instance);
                Ok(())
            }
            Action::Resize(instance, demand) => {
                self.resize(*instance, *demand);
                Ok(())
            }
            Action::SpotReclaim(instance) => self.reclaim(*instance),
            Action::NodeLost(name) => self.lose_node(name),
            Action::NodeReboot(name) => {
                let node = self.set_state(name, NodeState::Cordoned)?;
                let restarted = self.instances_on(node).len() as u64;
                self.outcome.restarted += restarted;
                Ok(())
            }
            Action::NodeBack(name) => self.set_state(name, NodeState::Active).map(|_| ()),
        }
    }

    fn create(&mut self, instance: usize) -> Result<(), ReplayError> {
        let demand = self.trace.demands[instance];
        let node = self.place(&self.request_of(instance, demand), instance, demand)?;
        self.outcome.arrived += 1;
        self.outcome.placements.push(node.and_then(|node| u32::try_from(node).ok()));
        if node.is_some() {
            self.outcome.placed += 1;
            return Ok(());
        }
        let placed = self.outcome.placed;
        self.outcome.placed_before_first_rejection.get_or_insert(placed);
        self.outcome.rejected += 1;
        self.outcome.rejected_cpu_milli += u64::from(demand.cpu_milli);
        self.outcome.rejected_memory_mib += u64::from(demand.memory_mib);
        Ok(())
    }

    /// Chooses a node and claims it; none if the instance fits nowhere.
    fn place(
        &mut self,
        request: &InstanceRequest,
        instance: usize,
        demand: Demand,
    ) -> Result<Option<usize>, ReplayError> {
        let chosen = match self.kind {
            Kind::Policy(_) => self.engine.try_place(request, NOW).map(|placement| {
                placement.and_then(|placement| {
                    let position = self.engine.fleet().position_of(&placement.node)?;
                    self.by_position.get(position).copied()
                })
            }),
            Kind::Peer(peer) => self.choose_by_rule(*peer, request, demand),
        };
        let chosen = chosen.map_err(|source| ReplayError::Request { instance, source })?;
        let Some(node) = chosen else { return Ok(None) };
        self.engine.fleet_mut().claim(request, &NodeId::new(&engine_name(node)))?;
        self.outcome.violations += u64::from(!self.sums.charge(node, demand));
        self.held[instance] = Some(Held { node, demand });
        self.outcome.peak_nodes = self.outcome.peak_nodes.max(self.sums.in_use());
        Ok(Some(node))
    }

    fn choose_by_rule(
        &mut self,
        peer: Peer,
        request: &InstanceRequest,
        demand: Demand,
    ) -> Result<Option<usize>, berth_engine::InvalidRequest> {
        let all = vec![u64::MAX; self.engine.fleet().position_count().div_ceil(64)];
        let mut best: Option<(i128, u32, usize)> = None;
        let (sums, by_position, rng) = (&self.sums, &self.by_position, &mut self.rng);
        self.engine.for_each_candidate(request, NOW, &all, |position, _, rank| {
            let Some(node) = by_position.get(position).copied() else { return };
            let cost = (peer.cost(&sums.view(node), demand, rng), rank, node);
            if best.is_none_or(|best| cost < best) {
                best = Some(cost);
            }
        })?;
        Ok(best.map(|(_, _, node)| node))
    }

    /// Ends an instance; without effect if it is not placed.
    fn release(&mut self, instance: usize) -> Option<Held> {
        let held = self.held[instance].take()?;
        self.engine.fleet_mut().release(instance_id(instance));
        self.sums.discharge(held.node, held.demand);
        Some(held)
    }

    /// Grows or shrinks an instance where it is. One that does not fit stays as it was.
    fn resize(&mut self, instance: usize, demand: Demand) {
        let Some(held) = self.held[instance] else { return };
        let request = self.request_of(instance, demand);
        let node = NodeId::new(&engine_name(held.node));
        let fits =
            self.engine.as_if_released(request.id, |engine| engine.check(&request, &node, NOW));
        if fits.is_err() {
            self.outcome.resizes_refused += 1;
            return;
        }
        self.engine.fleet_mut().resize(request.id, request.resources);
        self.sums.discharge(held.node, held.demand);
        self.outcome.violations += u64::from(!self.sums.charge(held.node, demand));
        self.held[instance] = Some(Held { demand, ..held });
    }

    /// Takes a node out, and places its instances on others, in the order in which they arrived.
    fn lose_node(&mut self, name: &str) -> Result<(), ReplayError> {
        let node = self.set_state(name, NodeState::Lost)?;
        for instance in self.instances_on(node) {
            let Some(held) = self.release(instance) else { continue };
            let request = self.request_of(instance, held.demand);
            match self.place(&request, instance, held.demand)? {
                Some(_) => self.outcome.displaced += 1,
                None => self.outcome.displaced_without_place += 1,
            }
        }
        Ok(())
    }

    /// Moves an instance to another node than its own; it ends if there is none.
    fn reclaim(&mut self, instance: usize) -> Result<(), ReplayError> {
        let Some(held) = self.release(instance) else { return Ok(()) };
        let mut request = self.request_of(instance, held.demand);
        request.excluded_nodes.push(NodeId::new(&engine_name(held.node)));
        match self.place(&request, instance, held.demand)? {
            Some(_) => self.outcome.reclaimed += 1,
            None => self.outcome.reclaimed_without_place += 1,
        }
        Ok(())
    }

    /// What is on a node, in the order in which it arrived.
    fn instances_on(&self, node: usize) -> Vec<usize> {
        let on_node = |held: &Option<Held>| held.is_some_and(|held| held.node == node);
        (0..self.held.len()).filter(|instance| on_node(&self.held[*instance])).collect()
    }

    fn set_state(&mut self, name: &str, state: NodeState) -> Result<usize, ReplayError> {
        let node = self.node_named(name)?;
        self.engine.fleet_mut().set_state(&NodeId::new(&engine_name(node)), state);
        Ok(node)
    }

    fn request_of(&self, instance: usize, demand: Demand) -> InstanceRequest {
        let amounts = Amounts::new(demand.cpu_milli, demand.memory_mib).with_disk(demand.disk_mib);
        let (id, tenant) = (instance_id(instance), self.trace.tenant(instance));
        // A trace without disks means none, not the engine's default.
        InstanceRequest { resources: amounts, ..InstanceRequest::new(id, tenant, amounts) }
    }

    fn node_named(&self, name: &str) -> Result<usize, ReplayError> {
        let node = self.names.get(name).copied();
        node.ok_or_else(|| ReplayError::UnknownNode { name: name.to_owned() })
    }

    fn record_sample(&mut self) {
        let [cpu_permille, memory_permille] = self.sums.used_permille();
        self.outcome.samples.push(Sample {
            time: self.now,
            nodes_in_use: self.sums.in_use(),
            cpu_permille,
            memory_permille,
            rejected: self.outcome.rejected,
        });
    }

    fn finish(self, trace: &Trace, nodes: &[FleetNode]) -> Outcome {
        let mut outcome = self.outcome;
        let mean = |node_seconds: u128| {
            let span = u128::from(trace.span().max(1));
            u64::try_from(node_seconds * 1000 / span).unwrap_or(u64::MAX)
        };
        let bound = volume_bound(trace, nodes);
        outcome.nodes = nodes.len() as u64;
        outcome.mean_nodes_milli = mean(self.node_seconds);
        outcome.never_used_nodes = self.sums.never_used();
        outcome.stranded_cpu_ppm = self.sums.stranded_ppm();
        outcome.bound_peak_nodes = bound.peak_nodes;
        outcome.bound_mean_nodes_milli = mean(bound.node_seconds);
        outcome.digest = placement_digest(&outcome.placements);
        outcome
    }
}

fn instance_id(instance: usize) -> InstanceId {
    InstanceId::from_u128(instance as u128 + 1)
}
