//! A day of elastic instances: permits, pressure and migrations, minute by minute.
//!
//! Permits, accounts and plans are the engine's own; only loads, agents and copying are simulated. The
//! same day is simulated with Berth's rule and with the seed's, so that only the rule differs. Nothing
//! here reads a clock: the same options give the same day.

mod day;
mod report;
mod rules;
mod simulation;

#[cfg(test)]
mod tests;

use berth_engine::elastic::{MigrationSettings, Size};
use berth_engine::{NodeFacts, Policy, PolicyError};

pub use report::{Migrations, NodeMinutes, Outcome, PerInstance};

use crate::SimulationError;
use day::Shape;
use simulation::Simulation;

/// The rule by which instances are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The engine's plan: the cheapest set, to places that are held first.
    Berth,
    /// The seed's: the one with the lowest load, to where a placement puts it, without holding the place.
    Seed,
}

impl Rule {
    const fn name(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Seed => "seed",
        }
    }
}

/// The nodes of a day, and the load of its instances, for simulations elsewhere.
#[derive(Clone, Debug)]
pub struct DayLoad {
    shapes: Vec<Shape>,
    nodes: Vec<NodeFacts>,
}

/// What an instance needs at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceLoad {
    /// How large it wants to be.
    pub size: Size,
    /// Its load, in thousandths of the most that it can be.
    pub permille: u32,
    /// The same in thousandths of a core, as its agent reports it.
    pub load_milli: u32,
}

impl DayLoad {
    /// The load of a day.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let shapes = day::shapes(options);
        let nodes = day::nodes(options, &shapes);
        Self { shapes, nodes }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[NodeFacts] {
        &self.nodes
    }

    /// The compute unit, the minimum and the maximum of each instance.
    pub fn instances(&self) -> impl Iterator<Item = (Size, Size, Size)> {
        self.shapes.iter().map(|it| (it.unit, it.size(it.min_units), it.size(it.max_units)))
    }

    /// What an instance needs in a minute; absent: there is no such instance.
    #[must_use]
    pub fn at(&self, instance: usize, minute: u32) -> Option<InstanceLoad> {
        let shape = self.shapes.get(instance)?;
        let permille = shape.load_permille(minute);
        let load_milli = shape.size(shape.max_units).cpu_milli / 1000 * permille;
        Some(InstanceLoad { size: shape.size(shape.wanted_units(permille)), permille, load_milli })
    }
}

/// How targets are chosen, the same for both rules. CPU is never overcommitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPolicy {
    /// The seed's own curve: the nearer to four fifths full, the better.
    Tent,
    /// As even as possible.
    Even,
}

const EVEN: &str = r#"
name = "even"
[filters]
cpu = "hard"
[scores]
cpu-pressure = 2
memory-spread = 2
"#;

impl TargetPolicy {
    /// The policy that chooses targets.
    ///
    /// # Errors
    /// Never, unless the engine's policy format changes.
    pub fn policy(self) -> Result<Policy, PolicyError> {
        match self {
            Self::Tent => Policy::builtin("neon"),
            Self::Even => Policy::from_toml(EVEN),
        }
    }
}

/// Options of the simulated day.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many nodes.
    pub nodes: u32,
    /// How many instances.
    pub instances: u32,
    /// How many hours.
    pub hours: u32,
    /// The seed of all loads.
    pub seed: u64,
    /// How full nodes are on the average of a whole day, in percent of their watermark.
    pub fill_percent: u32,
    /// How fast memory is copied, in MiB a second.
    pub copy_mib_s: u32,
    /// How many of a thousand migrations fail at random.
    pub failing_permille: u32,
    /// Whether the seed's rule holds a place from the start of a migration after all.
    pub seed_holds: bool,
    /// How targets are chosen.
    pub policy: Policy,
    /// Limits of Berth's rule.
    pub migration: MigrationSettings,
}

impl Options {
    /// A whole day with these nodes and instances, and defaults for the rest.
    #[must_use]
    pub fn new(nodes: u32, instances: u32, seed: u64, policy: Policy) -> Self {
        let migration = policy.elastic().migration;
        Self {
            nodes,
            instances,
            hours: 24,
            seed,
            fill_percent: 75,
            copy_mib_s: 128,
            failing_permille: 5,
            seed_holds: false,
            policy,
            migration,
        }
    }
}

/// Simulates a day.
///
/// # Errors
/// When the fleet has no room for the instances at the start.
pub fn simulate_day(options: &Options, rule: Rule) -> Result<Outcome, SimulationError> {
    let mut simulation = Simulation::new(options)?;
    let minutes = options.hours.saturating_mul(60);
    for minute in 0..minutes {
        simulation.start_minute(minute);
        simulation.finish_migrations()?;
        simulation.request_permits()?;
        match rule {
            Rule::Berth => simulation.relieve(options)?,
            Rule::Seed => simulation.relieve_by_seed_rule(options)?,
        }
        simulation.audit();
    }
    Ok(simulation.report.finish(options, rule.name(), &simulation.moves_of_each()))
}
