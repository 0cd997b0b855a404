//! Random fleets that are nearly full, and what is asked of them.

use berth_engine::{Amounts, Batch, BatchMode, InstanceRequest, NodeId, NodeState};

use crate::oracle::decide::{Answer, decide};
use crate::oracle::policies::policy;
use crate::oracle::random::{Rng, Wildness, node};
use crate::oracle::requests::request;
use crate::oracle::twin::Twin;

/// A fleet and the seeds of what is asked of it.
pub(crate) struct Scene {
    pub(crate) seed: u64,
    pub(crate) twin: Twin,
    wild: Wildness,
    /// Instances so far; each gets the next number.
    number: u64,
    /// Whether it has hundreds of nodes.
    is_large: bool,
}

/// One scene of so many has hundreds of nodes.
const SCENES_PER_LARGE: u64 = 40;

impl Scene {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9) ^ 0xe8);
        let wild = Wildness(rng.pick(&[1, 2, 5, 15, 30]));
        let mut twin = Twin::new(policy(rng.next()));
        let is_large = seed % SCENES_PER_LARGE == SCENES_PER_LARGE - 1;
        let nodes = match is_large {
            true => 200 + rng.below(801),
            false => rng.pick(&[1, 2, 3, 6, 12, 25]),
        };
        for number in 0..nodes {
            let mut facts = node(rng.next(), wild, twin.now);
            if is_large {
                // There are too few random names.
                facts.id = NodeId::new(&format!("{}-{number:03}", facts.id));
            }
            if rng.chance(10) {
                facts.state = rng.pick(&[NodeState::Cordoned, NodeState::Draining]);
            }
            twin.add_node(&facts);
        }
        twin.furnish(rng.next());
        let mut scene = Self { seed, twin, wild, number: 0, is_large };
        // Of a large fleet fewer, or the oracle takes too long.
        let residents = if is_large { 400 } else { rng.below(3 * nodes + 1) };
        for _ in 0..residents {
            scene.settle(rng.next());
        }
        scene
    }

    pub(crate) const fn is_large(&self) -> bool {
        self.is_large
    }

    /// How many requests and batches are asked of it.
    pub(crate) const fn questions(&self) -> u64 {
        if self.is_large { 2 } else { 6 }
    }

    /// An instance that came earlier, where there was room for it; some were put where they are
    /// by hand.
    fn settle(&mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        let resident = self.drawn(rng.next(), rng.pick(&[1, 1, 2]));
        let now = self.twin.now;
        if self.is_large {
            // Asking the oracle each time would take too long; what it says is compared elsewhere.
            if let Ok(placed) = self.twin.engine.place(&resident, now) {
                self.twin.claim(&resident, &placed.node);
            }
            return;
        }
        let (world, policy) = (&self.twin.world, self.twin.engine.policy());
        let node = match decide(world, policy, &resident, now) {
            Answer::Placed { node, .. } => Some(node),
            Answer::Refused(_) if rng.chance(20) => Some(rng.pick(&world.nodes).id),
            Answer::Refused(_) => None,
        };
        if let Some(node) = node {
            self.twin.claim(&resident, &node);
        }
    }

    fn drawn(&mut self, shape: u64, scale: u32) -> InstanceRequest {
        self.number += 1;
        let mut request = request(shape, self.number, self.wild);
        let Amounts { cpu_milli, memory_mib, disk_mib, bandwidth_mbps } = request.resources;
        request.resources = Amounts {
            cpu_milli: cpu_milli * scale,
            memory_mib: memory_mib * scale,
            disk_mib: disk_mib * scale,
            bandwidth_mbps: bandwidth_mbps * scale,
        };
        if scale > 1 {
            request.elastic = None;
        }
        request
    }

    /// The `number`th single request.
    pub(crate) fn request(&mut self, number: u64) -> InstanceRequest {
        let mut rng = Rng::new(self.seed.wrapping_mul(31) ^ (number << 40) ^ 0x51);
        let scale = rng.pick(&[1, 2, 4, 8]);
        self.drawn(rng.next(), scale)
    }

    /// The `number`th batch: of one shape, now and then of two, and rarely of up to twenty.
    pub(crate) fn batch(&mut self, number: u64) -> Batch {
        let mut rng = Rng::new(self.seed.wrapping_mul(37) ^ (number << 40) ^ 0xba);
        let shapes: Vec<u64> = (0..20).map(|_| rng.next()).collect();
        let kinds = match rng.below(100) {
            0..70 => 1,
            70..92 => 2,
            _ => 3 + rng.below(18),
        };
        let scale = rng.pick(&[1, 1, 2, 4]);
        let count = rng.pick(&[2, 3, 5, 8, 13, 30, 30, 60]);
        let members = (0..count).map(|_| {
            let shape = rng.pick(&shapes[..kinds]);
            self.drawn(shape, scale)
        });
        let members: Vec<InstanceRequest> = members.collect();
        let least = 1 + rng.below(members.len());
        let mode = rng.pick(&[
            BatchMode::AllOrNothing,
            BatchMode::AllOrNothing,
            BatchMode::AtLeast(least),
            BatchMode::BestEffort,
        ]);
        let mut batch = Batch::new(members).with_mode(mode);
        // Long searches for the impossible are tested elsewhere.
        batch.search_budget = 500;
        batch
    }
}
