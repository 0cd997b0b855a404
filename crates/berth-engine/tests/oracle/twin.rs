//! Engine and oracle side by side: every change goes to both, every answer is compared.

use berth_engine::policy::Policy;
use berth_engine::{
    BootOutcome, Engine, Group, InstanceId, InstanceRequest, MeasuredLoad, NodeFacts, NodeId,
    NodeState, PlaceError, Refusal, Reuse, Timestamp, Volume,
};

use super::decide::{Answer, Why, decide};
use super::fixes;
use super::model::World;
use super::random::{ENVS, GROUPS, Rng, START, VOLUMES, group, volume};

/// The two of them.
pub struct Twin {
    pub engine: Engine,
    pub world: World,
    pub now: Timestamp,
}

impl Twin {
    /// An empty fleet with the groups that requests may name.
    pub fn new(policy: Policy) -> Self {
        Self { engine: Engine::new(policy), world: World::default(), now: START }
    }

    /// Groups, volumes and secrets, so that whatever a request names exists.
    pub fn furnish(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xf0);
        for id in GROUPS {
            self.put_group(group(id, rng.next()));
        }
        for id in VOLUMES {
            let volume = volume(id, rng.next(), &self.world.nodes);
            self.put_volume(volume);
        }
        for env in ENVS {
            self.set_secrets(env, rng.chance(70));
        }
    }

    pub fn add_node(&mut self, facts: &NodeFacts) {
        self.engine.fleet_mut().add_node(facts).expect("storable facts");
        self.world.put_node(facts.clone());
    }

    pub fn remove_node(&mut self, id: &NodeId) -> bool {
        let (removed, expected) =
            (self.engine.fleet_mut().remove_node(id), self.world.remove_node(id));
        assert_eq!(removed, expected, "removing {id}");
        removed
    }

    pub fn claim(&mut self, request: &InstanceRequest, node: &NodeId) {
        self.engine.fleet_mut().claim(request, node).expect("a known node and a new instance");
        self.world.claim(request, node);
    }

    pub fn release(&mut self, id: InstanceId) {
        let from = self.engine.fleet_mut().release(id);
        let expected = self.world.release(id).map(|(_, node)| node);
        assert_eq!(from, expected, "releasing {id}");
    }

    pub fn heartbeat(&mut self, id: &NodeId, at: Timestamp) {
        self.engine.fleet_mut().heartbeat(id, at);
        self.world.heartbeat(id, at);
    }

    pub fn set_load(&mut self, id: &NodeId, load: Option<MeasuredLoad>) {
        self.engine.fleet_mut().set_load(id, load);
        self.world.set_load(id, load);
    }

    pub fn record_boot(&mut self, id: &NodeId, outcome: BootOutcome) {
        self.engine.fleet_mut().record_boot(id, outcome.clone());
        self.world.record_boot(id, outcome);
    }

    pub fn set_state(&mut self, id: &NodeId, state: NodeState) {
        self.engine.fleet_mut().set_state(id, state);
        self.world.set_state(id, state);
    }

    pub fn put_group(&mut self, group: Group) {
        self.engine.fleet_mut().put_group(group.clone());
        self.world.put_group(group);
    }

    pub fn put_volume(&mut self, volume: Volume) {
        self.engine.fleet_mut().put_volume(volume.clone());
        self.world.put_volume(volume);
    }

    pub fn set_secrets(&mut self, env: &str, present: bool) {
        self.engine.fleet_mut().set_secrets(env, present);
        self.world.secrets.insert(env.to_owned(), present);
    }

    pub fn set_free_addresses(&mut self, free: Option<u64>) {
        self.engine.fleet_mut().set_free_addresses(free);
        self.world.free_addresses = free;
    }

    /// Asks both and compares; returns where the instance would go.
    pub fn place(
        &mut self,
        request: &InstanceRequest,
        reuse: Reuse,
    ) -> Result<Option<NodeId>, String> {
        let expected = decide(&self.world, self.engine.policy(), request, self.now);
        let found = self.engine.place_with(request, self.now, reuse);
        match (found, expected) {
            (Ok(placed), Answer::Placed { node, score }) => {
                if placed.node == node && placed.score == score {
                    return Ok(Some(node));
                }
                let found = format!("{} with {}", placed.node, placed.score);
                Err(self.complain(request, reuse, &found, &format!("{node} with {score}")))
            }
            (Err(PlaceError::Refused(refusal)), Answer::Refused(why)) => {
                let problem = self.compare_refusals(request, &refusal, &why).err();
                problem.map_or(Ok(None), |problem| {
                    Err(self.complain(request, reuse, &problem, "see above"))
                })
            }
            (Ok(placed), Answer::Refused(why)) => {
                let found = format!("{} with {}", placed.node, placed.score);
                Err(self.complain(request, reuse, &found, &format!("{why:?}")))
            }
            (Err(error), expected) => {
                let found = match error {
                    PlaceError::Refused(refusal) => refusal.to_string(),
                    PlaceError::Invalid(invalid) => invalid.to_string(),
                };
                Err(self.complain(request, reuse, &found, &format!("{expected:?}")))
            }
        }
    }

    fn compare_refusals(
        &self,
        request: &InstanceRequest,
        refusal: &Refusal,
        why: &Why,
    ) -> Result<(), String> {
        let counts = refusal.counts.iter().map(|count| (count.filter.clone(), count.removed));
        let nearest = refusal.nearest.iter().map(|miss| {
            let node = miss.node.clone().expect("operators see nodes");
            (miss.filter.clone(), node, miss.evidence.shortfall().map(i128::from))
        });
        let found = Why {
            filter: refusal.filter.clone(),
            counts: counts.collect(),
            nearest: nearest.collect(),
            best_relaxation: refusal.best_relaxation.clone(),
        };
        if found != *why {
            return Err(format!("refusal\n  {found:?}\noracle\n  {why:?}"));
        }
        let removed: usize = refusal.counts.iter().map(|count| count.removed).sum();
        if removed != self.world.nodes.len() || refusal.nodes != removed {
            return Err(format!("{removed} counted of {} nodes", self.world.nodes.len()));
        }
        let code = |name: &str| {
            let named = berth_engine::filter::FILTERS.iter().find(|f| f.name == name);
            named.map_or("", |filter| filter.code)
        };
        if refusal.code != refusal.filter.as_deref().map_or("no_nodes_active", code) {
            return Err(format!("{} is not of {:?}", refusal.code, refusal.filter));
        }
        let policy = self.engine.policy();
        fixes::check(&self.world, policy, request, &refusal.fixes, self.now)?;
        fixes::try_out(&self.engine, request, &refusal.fixes, self.now)
    }

    fn complain(
        &self,
        request: &InstanceRequest,
        reuse: Reuse,
        found: &str,
        expected: &str,
    ) -> String {
        let table = self.engine.clone().explain(request, self.now);
        let winner = table.ok().and_then(|table| table.winner);
        let policy = self.engine.policy().to_json();
        format!(
            "at {:?} with {reuse:?}\nengine: {found}\noracle: {expected}\nexplain: {winner:?}\n\
             request {request:?}\npolicy {policy}\nplaced {:?}\nnodes {:?}",
            self.now,
            self.world
                .placed
                .iter()
                .map(|(request, node)| (request, node.as_str()))
                .collect::<Vec<_>>(),
            self.world.nodes.iter().map(|n| (n.id.as_str(), &n.zone, &n.rack)).collect::<Vec<_>>(),
        )
    }
}
