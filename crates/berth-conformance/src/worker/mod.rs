//! The worker's side: opens a ledger, waits for the start signal of each round, does its task.
//!
//! It checks nothing; it only reports answers.

mod elastic;
mod soak;
mod steps;

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_control::{Clock, PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{BatchMode, InstanceId, InstanceRequest, NodeId, Policy, Timestamp};
use berth_ledger::{Backend, Conflict, Ledger, Options, Plan, PlannedClaim, Text, Verdict};

use crate::naive::Naive;
use crate::protocol::{
    Claimant, GO, Outcome, PlaceResult, PlaceTask, PlannedPlaceTask, READY, Report, Settings, Task,
};
use crate::timing::{stopwatch, wall_clock_s};

/// A real server's claim path, as far as a worker needs it.
pub(crate) struct Server {
    placer: Placer,
    policy: Policy,
    clock: Clock,
    url: String,
}

enum ClaimPath {
    Server(Box<Server>),
    Naive(Box<Naive>),
}

/// Runs a worker until its standard input ends.
///
/// # Errors
/// When the ledger cannot be opened, or the test sends something that is not a task.
pub fn run(settings: &str) -> anyhow::Result<()> {
    let settings: Settings = serde_json::from_str(settings)?;
    let claim_path = match settings.claimant {
        Claimant::Placer => ClaimPath::Server(Box::new(Server::open(&settings)?)),
        Claimant::Naive => ClaimPath::Naive(Box::new(Naive::open(&settings)?)),
    };
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout());
    let mut send_line = |line: &str| -> anyhow::Result<()> {
        output.write_all(format!("{line}\n").as_bytes())?;
        Ok(output.flush()?)
    };
    send_line(READY)?;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let task: Task = serde_json::from_str(&line).with_context(|| format!("{line:?}"))?;
        send_line(READY)?;
        line.clear();
        input.read_line(&mut line)?;
        if line.trim_end() != GO {
            bail!("{line:?} instead of {GO:?}");
        }
        let report = match &claim_path {
            ClaimPath::Server(server) => server.run_task(&task)?,
            ClaimPath::Naive(naive) => run_naive_task(naive, &task)?,
        };
        send_line(&serde_json::to_string(&report)?)?;
    }
}

fn run_naive_task(naive: &Naive, task: &Task) -> anyhow::Result<Report> {
    match task {
        Task::Idle => Ok(Report::Idle),
        Task::Place(asks) => {
            let placed = asks.iter().map(|ask| timed(|| naive.place(ask))).collect();
            Ok(Report::PlaceResult { placed, retries: 0 })
        }
        other => bail!("naive claims know nothing of {other:?}"),
    }
}

fn timed(act: impl FnOnce() -> Outcome) -> PlaceResult {
    let started = stopwatch();
    let outcome = act();
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    PlaceResult { outcome, micros }
}

impl Server {
    fn open(settings: &Settings) -> anyhow::Result<Self> {
        let policy = Policy::builtin(&settings.policy)?;
        let mut options = PlacerOptions::new(policy.clone());
        options.ledger = Options { isolation: settings.isolation.parse()?, ..Options::default() };
        options.follow_every = Duration::from_millis(settings.follow_every_ms);
        let offset_s = settings.clock_offset_s;
        let clock: Clock = Arc::new(move || Timestamp(wall_clock_s() + offset_s));
        options.clock = Arc::clone(&clock);
        let placer = Placer::start(Backend::parse(&settings.url)?, &options)?;
        Ok(Self { placer, policy, clock, url: settings.url.clone() })
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        self.placer.ledger()
    }

    fn run_task(&self, task: &Task) -> anyhow::Result<Report> {
        Ok(match task {
            Task::Idle => Report::Idle,
            Task::Place(asks) => {
                let placed = asks.iter().map(|ask| timed(|| self.place(ask))).collect();
                self.placed(placed)
            }
            Task::Commit(plans) => {
                let placed = plans.iter().map(|plan| timed(|| self.commit(plan))).collect();
                self.placed(placed)
            }
            Task::Steps(steps) => {
                Report::StepOutcome(steps.iter().map(|order| self.take_step(order)).collect())
            }
            Task::MoveBackAndForth { instance, nodes } => self.move_back_and_forth(instance, nodes),
            Task::MigrateBackAndForth { instance, nodes } => {
                self.migrate_back_and_forth(instance, nodes)
            }
            Task::Churn { like, space, millis } => self.churn(like, *space, *millis)?,
            Task::Soak(ask) => Report::Soaked(Box::new(soak::run(self, ask)?)),
            Task::Clock => Report::Clock((self.clock)().0),
            Task::Mirror { nodes, cursor } => self.mirror(nodes, *cursor)?,
        })
    }

    fn placed(&self, placed: Vec<PlaceResult>) -> Report {
        let retries = self.ledger().stats().retries;
        Report::PlaceResult {
            placed,
            retries: retries.conflicts + retries.duplicates + retries.guards,
        }
    }

    /// The real claim path.
    pub(crate) fn place(&self, ask: &PlaceTask) -> Outcome {
        let tenant = ask.instances.first().map_or("", |instance| &instance.tenant);
        let request = PlaceRequest {
            request_id: Text::from(ask.request_id.as_str()),
            tenant: Text::from(tenant),
            instances: ask.instances.iter().cloned().map(Arc::new).collect(),
            mode: BatchMode::AllOrNothing,
            lease_s: ask.lease_s,
            pools: ask.pools.iter().map(|pool| Text::from(pool.as_str())).collect(),
            ..PlaceRequest::default()
        };
        match self.placer.place(request) {
            PlaceAnswer::Granted(granted) => {
                Outcome::Granted { claims: granted.grant.claims, decision: granted.grant.decision }
            }
            PlaceAnswer::NoRoom(refusals) => {
                Outcome::NoRoom(serde_json::to_value(&refusals).unwrap_or_default())
            }
            PlaceAnswer::Refused(by, _) => Outcome::Refused(by.code().to_owned()),
            PlaceAnswer::Contended(conflict) => contended(&conflict),
            PlaceAnswer::Invalid(invalid) => Outcome::Invalid(invalid.to_string()),
            PlaceAnswer::Busy(_) => Outcome::Unknown("the tenant has too many requests".to_owned()),
            PlaceAnswer::Unknown(error) => Outcome::Unknown(error.to_string()),
        }
    }

    /// An instance on a node, by what this worker's planner knows of the node.
    pub(crate) fn planned(&self, instance: &InstanceRequest, node: &str) -> PlannedClaim {
        let (request, node) = (Arc::new(instance.clone()), NodeId::new(node));
        let wanted = node.clone();
        let seen = self.placer.inspect(move |mirror| mirror.seen(&wanted)).unwrap_or_default();
        PlannedClaim::new(request, &self.policy, node, seen)
    }

    /// The bare ledger: a plan that the test made.
    fn commit(&self, planned: &PlannedPlaceTask) -> Outcome {
        let ask = &planned.ask;
        let pairs = ask.instances.iter().zip(&planned.nodes);
        let claims = pairs.map(|(instance, node)| self.planned(instance, node)).collect();
        let tenant = ask.instances.first().map_or("", |instance| &instance.tenant);
        let mut plan = Plan::new(&ask.request_id, tenant, claims);
        plan.lease_s = ask.lease_s;
        match self.ledger().commit(plan) {
            Ok(Verdict::Granted(grant)) => {
                Outcome::Granted { claims: grant.claims, decision: grant.decision }
            }
            Ok(Verdict::Conflict(conflict)) => contended(&conflict),
            Ok(Verdict::Refused(by)) => Outcome::Refused(by.code().to_owned()),
            Err(error) => Outcome::Unknown(error.to_string()),
        }
    }

    /// Places and releases for a while, as load for others.
    fn churn(&self, like: &InstanceRequest, space: u64, millis: u64) -> anyhow::Result<Report> {
        let (started, mut number) = (stopwatch(), 0u64);
        while started.elapsed() < Duration::from_millis(millis) {
            number += 1;
            let mut instance = like.clone();
            instance.id = id_in(space, number);
            let key = berth_ledger::ClaimKey::primary(instance.id);
            match self.place(&PlaceTask::one(instance)) {
                Outcome::Granted { .. } => {
                    self.ledger().force_release(key, "churn")?;
                }
                Outcome::NoRoom(_) | Outcome::Refused(_) | Outcome::Contended { .. } => {}
                wrong @ (Outcome::Invalid(_) | Outcome::Unknown(_)) => bail!("churn: {wrong:?}"),
            }
        }
        Ok(Report::Churned(number))
    }

    /// What the planner knows, once it has taken in an event; after ten seconds, what it has.
    fn mirror(&self, nodes: &[String], wanted: i64) -> anyhow::Result<Report> {
        let started = stopwatch();
        loop {
            let names: Vec<NodeId> = nodes.iter().map(|node| NodeId::new(node)).collect();
            let known = self.placer.inspect(move |mirror| {
                let cursor = mirror.cursor;
                let fleet = mirror.engine().fleet();
                let used = names.iter().map(|name| {
                    let usage = fleet.usage(name);
                    let (instances, memory) =
                        usage.map_or((0, 0), |usage| (usage.instances.used, usage.memory_mib.used));
                    (name.to_string(), instances, memory)
                });
                (used.collect::<Vec<_>>(), cursor)
            });
            let (nodes, cursor) = known.context("the planner is gone")?;
            if cursor >= wanted || started.elapsed() > Duration::from_secs(10) {
                return Ok(Report::Mirror { nodes, cursor });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn contended(conflict: &Conflict) -> Outcome {
    Outcome::Contended {
        node: conflict.node.to_string(),
        code: conflict.guard.code().to_owned(),
        text: format!("{:?}", conflict.guard),
    }
}

/// An id that no other space has.
pub(crate) fn id_in(space: u64, number: u64) -> InstanceId {
    InstanceId::from_u128((u128::from(space) << 64) | u128::from(number))
}
