//! `berth simulate`: simulations in memory with the real engine, to evaluate a rule before a fleet
//! depends on it. It uses no server.

mod condition;
mod replay;
mod report;
mod source;
mod tune;

use std::time::Instant;

use anyhow::bail;
use berth_sim::elastic::{Options, Outcome, Rule, TargetPolicy, simulate_day};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

pub(crate) use condition::Condition;
pub(crate) use replay::{choosers, outcome_table, replay_all, tenths_of_milli};
pub(crate) use source::{FleetArgs, Source, files_named, nodes_with_spare};
pub(crate) use tune::Tune;

/// The simulations.
#[derive(Subcommand)]
pub(crate) enum Simulate {
    /// Simulate a day of instances that grow and shrink: permits, pressure and migrations.
    ///
    /// The same day runs under Berth's rule and under that of the autoscaling scheduler that it follows:
    /// the instance with the lowest load leaves, without a reserved place. Fails if a node was ever
    /// oversold, or if Berth's rule ever moved an instance back.
    ///
    /// Example: berth simulate elastic --nodes 1000 --instances 20000 --json
    Elastic(ElasticDay),
    /// Replay traces of arrivals under policies and simple rules, side by side.
    ///
    /// A trace is a CSV file with the columns time, event, vm_id, cpu_milli and memory_mib, plain or
    /// compressed with gzip; the events of a server; an export of a ledger; or made up. An event is create,
    /// delete, resize, spot-reclaim, node-lost, node-reboot or node-back. CPU is a hard limit under every
    /// policy. Fails if a node ever held more than it has.
    ///
    /// Example: berth simulate replay events.csv --nodes nodes.csv --policy pack --html report.html
    Replay(replay::Replay),
}

impl Simulate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Elastic(day) => day.run(),
            Self::Replay(replay) => replay.run(),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Rules {
    Berth,
    Seed,
    /// Berth's rule and the seed's.
    Both,
    /// Berth's rule, carried out by the scheduler for Kubernetes.
    Kubernetes,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlaceRule {
    /// The curve of the autoscaling scheduler: nodes are filled to four fifths.
    Tent,
    /// As even as possible.
    Even,
}

/// Options of `berth simulate elastic`.
#[derive(Args)]
pub(crate) struct ElasticDay {
    /// Number of nodes, which are as large as the instances need.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    nodes: u32,
    /// Number of instances.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    instances: u32,
    /// Number of hours, from midnight.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=168))]
    hours: u32,
    /// Seed; the same seed gives the same day.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rule that moves instances.
    #[arg(long, value_enum, default_value_t = Rules::Both)]
    rule: Rules,
    /// Rule that chooses nodes.
    #[arg(long, value_enum, default_value_t = PlaceRule::Tent)]
    places: PlaceRule,
    /// Average usage of nodes, in percent of their watermark.
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(10..=100))]
    fill: u32,
    /// Reserve places at the start of migrations under the seed's rule too.
    #[arg(long)]
    seed_holds: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The outcome of one rule, and how long the simulation took.
#[derive(Serialize)]
struct DayResult {
    #[serde(flatten)]
    outcome: Outcome,
    wall_ms: u64,
}

#[derive(Serialize)]
struct Report {
    nodes: u32,
    instances: u32,
    hours: u32,
    seed: u64,
    days: Vec<DayResult>,
}

impl ElasticDay {
    fn run(self) -> anyhow::Result<()> {
        let places = match self.places {
            PlaceRule::Tent => TargetPolicy::Tent,
            PlaceRule::Even => TargetPolicy::Even,
        };
        let options = Options {
            hours: self.hours,
            fill_percent: self.fill,
            seed_holds: self.seed_holds,
            ..Options::new(self.nodes, self.instances, self.seed, places.policy()?)
        };
        let rules: &[Option<Rule>] = match self.rule {
            Rules::Berth => &[Some(Rule::Berth)],
            Rules::Seed => &[Some(Rule::Seed)],
            Rules::Both => &[Some(Rule::Berth), Some(Rule::Seed)],
            Rules::Kubernetes => &[None],
        };
        let mut days = Vec::new();
        for rule in rules {
            let start = now();
            let outcome = match rule {
                Some(rule) => simulate_day(&options, *rule)?,
                None => berth_kube::scheduler::simulate_elastic_day(&options)?,
            };
            let wall_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            days.push(DayResult { outcome, wall_ms });
        }
        let (nodes, instances, hours) = (self.nodes, self.instances, self.hours);
        let report = Report { nodes, instances, hours, seed: self.seed, days };
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print!("{report}");
        }
        check(&report)
    }
}

#[expect(clippy::disallowed_methods, reason = "the wall time is part of the report")]
fn now() -> Instant {
    Instant::now()
}

/// Fails if an invariant was violated.
fn check(report: &Report) -> anyhow::Result<()> {
    for DayResult { outcome, .. } in &report.days {
        if outcome.violations > 0 {
            bail!(
                "under the rule of {} nodes were oversold, or not the sum of their instances, for {} \
                 node-minutes; accepted is 0",
                outcome.rule,
                outcome.violations
            );
        }
        let ping_pong = outcome.migrations.ping_pong;
        if outcome.rule != "seed" && ping_pong > 0 {
            bail!("Berth's rule moved instances back {ping_pong} times; accepted is 0");
        }
    }
    Ok(())
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} nodes, {} elastic instances, {} hours, seed {}",
            self.nodes, self.instances, self.hours, self.seed
        )?;
        let mut row = |name: &str, value: &dyn Fn(&DayResult) -> String| {
            write!(f, "{name:<34}")?;
            for day in &self.days {
                write!(f, " {:>12}", value(day))?;
            }
            writeln!(f)
        };
        row("", &|day| day.outcome.rule.to_owned())?;
        row("mean fill, % of watermark", &|day| tenths(day.outcome.mean_fill_permille))?;
        row("peak fill of the fleet, %", &|day| tenths(day.outcome.peak_fill_permille))?;
        type Count = fn(&Outcome) -> u64;
        let counts: [(&str, Count); 17] = [
            ("node-minutes above watermark, CPU", |day| day.node_minutes_above.cpu),
            ("  memory", |day| day.node_minutes_above.memory),
            ("  either", |day| day.node_minutes_above.either),
            ("node-minutes over-full", |day| day.node_minutes_above.over_full),
            ("permit requests", |day| day.requests),
            ("  not granted in full", |day| day.denials),
            ("denied unit-minutes", |day| day.denied_unit_minutes),
            ("migrations started", |day| day.migrations.started),
            ("  done", |day| day.migrations.done),
            ("  failed, no room at arrival", |day| day.migrations.failed_no_room),
            ("  failed otherwise", |day| day.migrations.failed_otherwise),
            ("without a place", |day| day.migrations.without_place),
            ("GiB copied", |day| day.migrations.copied_gib),
            ("ping-pong, same day", |day| day.migrations.ping_pong),
            ("  within an hour", |day| day.migrations.ping_pong_within_hour),
            ("violations", |day| day.violations),
            ("migrations per instance, p99", |day| day.per_instance.p99.into()),
        ];
        for (name, count) in counts {
            row(name, &|day| count(&day.outcome).to_string())?;
        }
        row("  mean", &|day| thousandths(day.outcome.per_instance.mean_milli))?;
        row("  max", &|day| day.outcome.per_instance.max.to_string())?;
        row("wall time, s", &|day| thousandths(day.wall_ms))
    }
}

fn tenths(permille: u64) -> String {
    format!("{}.{}", permille / 10, permille % 10)
}

fn thousandths(milli: u64) -> String {
    format!("{}.{:03}", milli / 1000, milli % 1000)
}
