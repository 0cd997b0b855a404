//! `berth demo`: a first look, in one process and without a server.
//!
//! A simulated fleet, a batch that is placed, a request that is refused, and the advice that the
//! refusal gives, followed. What it prints is what the engine answers; nothing is made up here.

use anyhow::{Context, bail};
use berth_engine::{
    Amounts, Audience, Batch, Engine, Explanation, Fix, Fleet, InstanceId, InstanceRequest,
    PlaceError, Policy, Refusal,
};
use berth_sim::NOW;
use clap::Args;

/// Options of `berth demo`.
#[derive(Args)]
pub(crate) struct Demo {
    /// How many nodes the fleet has.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    nodes: u64,
    /// The policy to decide by: balanced, pack, spread, triton or neon.
    #[arg(long, default_value = "balanced")]
    policy: String,
    /// How many instances the batch has.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
}

impl Demo {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let policy = Policy::builtin(&self.policy)?;
        println!("policy {} (version {})", policy.name(), policy.hash());
        let mut fleet = Fleet::new();
        berth_sim::add_nodes(&mut fleet, self.nodes, 7)?;
        let instances = berth_sim::fill_half(&mut fleet, self.nodes, 7)?;
        println!("{} simulated nodes, about half full with {instances} instances", self.nodes);
        let mut engine = Engine::with_fleet(fleet, policy);
        self.place_batch(&mut engine)?;
        let refusal = refuse_one(&mut engine)?;
        follow_advice(&mut engine, &refusal)
    }

    fn place_batch(&self, engine: &mut Engine) -> anyhow::Result<()> {
        let requests: Vec<InstanceRequest> =
            (0..self.count).map(|number| web(u128::from(number))).collect();
        let first = requests.first().cloned().context("a batch has at least one instance")?;
        println!(
            "\nplace {} instances of web (2 CPU, 4 GiB, 10 GiB disk), all or none",
            self.count
        );
        let explanation = engine.explain(&first, NOW)?;
        let outcome = engine.place_batch(&Batch::new(requests.clone()), NOW)?;
        if outcome.placements.is_empty() {
            for (_, refusal) in &outcome.refused {
                println!("{refusal}");
            }
            bail!("the batch does not fit; try more --nodes or a smaller --count");
        }
        for (request, placement) in requests.iter().zip(&outcome.placements) {
            engine.fleet_mut().claim(request, &placement.node)?;
        }
        let mut nodes: Vec<&str> = outcome.placements.iter().map(|p| p.node.as_str()).collect();
        println!("placed on {}, …", nodes.iter().take(4).copied().collect::<Vec<_>>().join(", "));
        nodes.sort_unstable();
        nodes.dedup();
        println!("{} instances on {} different nodes", outcome.placements.len(), nodes.len());
        print_why(&explanation);
        Ok(())
    }
}

fn web(number: u128) -> InstanceRequest {
    let resources = Amounts::new(2000, 4096).with_disk(10_240);
    let id = InstanceId::from_u128((1 << 70) + number);
    let mut request = InstanceRequest::new(id, "demo", resources);
    request.workload = Some("web".to_owned());
    request.image = Some("image-3".to_owned());
    request.tags.insert("role".to_owned(), "web".to_owned());
    request
}

/// The winner's terms beside the runner-up's.
fn print_why(explanation: &Explanation) {
    let (Some(winner), Some(second)) = (&explanation.winner, &explanation.runner_up) else {
        return;
    };
    println!("\nwhy the first went to {} and not to {}", winner.node, second.node);
    println!("  {:<22}{:>12}{:>14}", "term", winner.node.as_str(), second.node.as_str());
    for (term, other) in winner.terms.iter().zip(&second.terms) {
        let mark = if term.points == other.points { "" } else { "  <-" };
        println!(
            "  {:<22}{:>12}{:>14}{mark}",
            term.scorer,
            points(term.points),
            points(other.points)
        );
    }
    println!("  {:<22}{:>12}{:>14}", "total", points(winner.total), points(second.total));
}

/// Millionths of a point, with four decimals.
fn points(millionths: i64) -> String {
    format!("{}.{:04}", millionths / 1_000_000, millionths % 1_000_000 / 100)
}

/// Asks for more than any node has left.
fn refuse_one(engine: &mut Engine) -> anyhow::Result<Refusal> {
    let request = big();
    println!("\nplace one instance of big (16 CPU, 500 GiB, trait ssd)");
    match engine.place(&request, NOW) {
        Err(PlaceError::Refused(refusal)) => {
            println!("{refusal}");
            let seen = refusal.seen_by(Audience::Tenant("demo"), engine.policy());
            println!("\nits owner reads\n{}", seen.headline());
            Ok(*refusal)
        }
        Err(error) => Err(error.into()),
        Ok(placed) => bail!("it fits on {}; try fewer --nodes", placed.node),
    }
}

fn big() -> InstanceRequest {
    let resources = Amounts::new(16_000, 500 * 1024).with_disk(102_400);
    let mut request = InstanceRequest::new(InstanceId::from_u128(1 << 71), "demo", resources);
    request.traits.insert("ssd".to_owned(), berth_engine::TraitValue::Bool(true));
    request
}

fn follow_advice(engine: &mut Engine, refusal: &Refusal) -> anyhow::Result<()> {
    let shrink = refusal.fixes.iter().find_map(|fix| match fix {
        Fix::Shrink { resources, .. } => Some(*resources),
        Fix::Relax { .. } | Fix::Free { .. } | Fix::Mend { .. } | Fix::AddNode { .. } => None,
    });
    let Some(resources) = shrink else { return Ok(()) };
    let placed = engine.place(&InstanceRequest { resources, ..big() }, NOW)?;
    println!("\nwith the first fix applied it goes to {}", placed.node);
    Ok(())
}
