//! What policies are tried on: pieces of traces, each on fleets of several sizes, as it was and perturbed.
//! What is learned from, what is chosen by and what is judged by are different times.

use super::super::bound::volume_bound;
use super::super::fleet::FleetNode;
use super::super::trace::{Action, Demand, Trace, TraceEvent};
use super::TuneSource;
use crate::SeededRng;

/// Pieces of each trace, in the order of time; as many events in each.
const LEARNING: usize = 6;
const CHOOSING: usize = 3;
const JUDGING: usize = 6;
const PIECES: usize = LEARNING + CHOOSING + JUDGING;

/// Nodes in addition to the volume of a piece, in percent. Those to judge by include others than those
/// that were learned from.
const LEARNED_SPARES: [u64; 2] = [2, 6];
const UNSEEN_SPARES: [u64; 3] = [1, 4, 8];

/// Of so many instances one is left out of a perturbed trace, and one comes twice.
const PERTURBED: u64 = 8;

/// A replay to judge policies by.
pub(super) struct Case {
    pub(super) trace: Trace,
    pub(super) nodes: Vec<FleetNode>,
    /// The piece it comes from: cases of one piece are alike, and count as one observation.
    pub(super) block: usize,
}

/// All cases, by what they are for.
#[derive(Default)]
pub(super) struct Cases {
    pub(super) learning: Vec<Case>,
    pub(super) choosing: Vec<Case>,
    pub(super) judging: Vec<Case>,
}

impl Cases {
    pub(super) fn of(sources: &[TuneSource<'_>], seed: u64) -> Self {
        let mut cases = Self::default();
        for (number, source) in sources.iter().enumerate() {
            for piece in 0..PIECES {
                let block = number * PIECES + piece;
                let events = source.trace.events.len();
                let range = events * piece / PIECES..events * (piece + 1) / PIECES;
                let trace = cut(source.trace, range);
                let perturbed = perturb(&trace, seed ^ (block as u64) << 8);
                let (cases, spares) = if piece < LEARNING {
                    (&mut cases.learning, &LEARNED_SPARES[..])
                } else if piece < LEARNING + CHOOSING {
                    (&mut cases.choosing, &UNSEEN_SPARES[..])
                } else {
                    (&mut cases.judging, &UNSEEN_SPARES[..])
                };
                for trace in [trace, perturbed] {
                    if trace.demands.is_empty() || trace.span() == 0 {
                        continue;
                    }
                    for spare in spares {
                        let nodes = fleet_for(&trace, source.nodes, *spare);
                        cases.push(Case { trace: trace.clone(), nodes, block });
                    }
                }
            }
        }
        cases
    }
}

/// A piece of a trace. What runs at its start arrives then, in the order in which it once arrived. Nodes
/// are neither lost nor restarted: fleets differ in size.
fn cut(trace: &Trace, range: std::ops::Range<usize>) -> Trace {
    let mut sizes = trace.demands.clone();
    let mut running = vec![false; sizes.len()];
    for event in &trace.events[..range.start] {
        match event.action {
            Action::Create(instance) => running[instance] = true,
            Action::Delete(instance) => running[instance] = false,
            Action::Resize(instance, demand) => sizes[instance] = demand,
            Action::SpotReclaim(_)
            | Action::NodeLost(_)
            | Action::NodeReboot(_)
            | Action::NodeBack(_) => {}
        }
    }
    let mut piece = Numbering { trace: Trace::default(), number_of: vec![None; sizes.len()] };
    let start = trace.events.get(range.start).map_or(0, |event| event.time);
    for (instance, _) in running.iter().enumerate().filter(|(_, runs)| **runs) {
        piece.begin(trace, instance, sizes[instance], start);
    }
    for event in &trace.events[range] {
        match event.action {
            Action::Create(instance) => {
                piece.begin(trace, instance, trace.demands[instance], event.time);
            }
            Action::Delete(instance) => piece.push(event.time, instance, Action::Delete),
            Action::SpotReclaim(instance) => piece.push(event.time, instance, Action::SpotReclaim),
            Action::Resize(instance, demand) => {
                piece.push(event.time, instance, |number| Action::Resize(number, demand));
            }
            Action::NodeLost(_) | Action::NodeReboot(_) | Action::NodeBack(_) => {}
        }
    }
    piece.trace
}

/// The same trace with some instances left out, and as many twice.
fn perturb(trace: &Trace, seed: u64) -> Trace {
    let mut rng = SeededRng::new(seed);
    let copies: Vec<usize> = trace
        .demands
        .iter()
        .map(|_| match rng.below(PERTURBED) {
            0 => 0,
            1 => 2,
            _ => 1,
        })
        .collect();
    let new = || Numbering { trace: Trace::default(), number_of: vec![None; copies.len()] };
    let (mut first, mut second) = (new(), vec![None; copies.len()]);
    for event in &trace.events {
        let Some(instance) = instance_of(&event.action) else { continue };
        for copy in 0..copies[instance] {
            // One numbering for both copies, so that all are in one trace.
            if copy == 1 {
                std::mem::swap(&mut first.number_of, &mut second);
            }
            match event.action {
                Action::Create(_) => {
                    first.begin(trace, instance, trace.demands[instance], event.time);
                }
                Action::Resize(_, demand) => {
                    first.push(event.time, instance, |number| Action::Resize(number, demand));
                }
                Action::SpotReclaim(_) => first.push(event.time, instance, Action::SpotReclaim),
                _ => first.push(event.time, instance, Action::Delete),
            }
            if copy == 1 {
                std::mem::swap(&mut first.number_of, &mut second);
            }
        }
    }
    first.trace
}

const fn instance_of(action: &Action) -> Option<usize> {
    match action {
        Action::Create(instance)
        | Action::Delete(instance)
        | Action::SpotReclaim(instance)
        | Action::Resize(instance, _) => Some(*instance),
        Action::NodeLost(_) | Action::NodeReboot(_) | Action::NodeBack(_) => None,
    }
}

/// A trace made from another, whose instances get numbers of their own.
struct Numbering {
    trace: Trace,
    number_of: Vec<Option<usize>>,
}

impl Numbering {
    fn begin(&mut self, from: &Trace, instance: usize, demand: Demand, time: u64) {
        let number = self.trace.demands.len();
        self.trace.demands.push(demand);
        self.trace.tenant_of.push(from.tenant_of.get(instance).copied().unwrap_or(0));
        if self.trace.tenants.is_empty() {
            self.trace.tenants.clone_from(&from.tenants);
        }
        self.number_of[instance] = Some(number);
        self.trace.events.push(TraceEvent { time, action: Action::Create(number) });
    }

    fn push(&mut self, time: u64, instance: usize, action: impl Fn(usize) -> Action) {
        if let Some(number) = self.number_of[instance] {
            self.trace.events.push(TraceEvent { time, action: action(number) });
        }
    }
}

/// As many nodes as a trace needs by volume, and some percent more; at most those that there are.
fn fleet_for(trace: &Trace, nodes: &[FleetNode], spare: u64) -> Vec<FleetNode> {
    let needed = volume_bound(trace, nodes).peak_nodes;
    let count = usize::try_from((needed * (100 + spare)).div_ceil(100)).unwrap_or(usize::MAX);
    nodes[..count.clamp(1, nodes.len())].to_vec()
}
