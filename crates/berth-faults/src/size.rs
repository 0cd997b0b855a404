//! A ledger of full size, and how long a fresh process takes until it decides.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, bail};
use berth_control::{PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{Amounts, BatchMode, Fleet, InstanceId, InstanceRequest, NodeFacts, Policy};
use berth_ledger::{
    Answer, Backend, DEFAULT_LEASE_S, Job, Ledger, LedgerError, NodeVersion, Op, Outcome, Plan,
    PlannedClaim, Spec, Text, Verdict,
};
use berth_sim::NOW;

use crate::wait::Stopwatch;

/// Claims in one plan, and plans that may be in progress.
const PLAN: u64 = 20;
const UNDER_WAY: usize = 400;

/// Different requests among the claims.
const SHAPES: u64 = 1000;

/// How large a ledger is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes.
    pub nodes: u64,
    /// Claims.
    pub claims: u64,
}

/// How long a fresh process took.
#[derive(Clone, Copy, Debug)]
pub struct FirstDecision {
    /// Until the ledger was open and the fleet loaded.
    pub started: Duration,
    /// Until the first claim was granted and durable.
    pub decided: Duration,
}

fn shape(number: u64) -> InstanceRequest {
    let small = u32::try_from(number % 4).unwrap_or(0);
    let amounts = Amounts::new(100 << small, 64 << small).with_disk(256 << small);
    let tenant = format!("owner-{}", number % 50);
    let mut request = InstanceRequest::new(InstanceId::default(), &tenant, amounts);
    request.workload = Some(format!("workload-{number}"));
    request.image = Some(format!("image-{}", number % 40));
    request.tags.insert("role".to_owned(), "web".to_owned());
    request.tags.insert("shape".to_owned(), format!("s{number}"));
    request
}

fn roomy(mut facts: NodeFacts) -> NodeFacts {
    facts.instance_limit = 10_000_000;
    facts.reserved = false;
    if let Some(capacity) = facts.capacity.as_mut() {
        capacity.memory_mib *= 16;
        capacity.disk_mib = capacity.disk_mib.saturating_mul(16).min(Amounts::MAX / 4);
    }
    facts
}

/// Hands operations over, no more than some at a time, and looks at every answer.
fn submit_all(
    ledger: &Ledger,
    ops: impl Iterator<Item = anyhow::Result<Op>>,
    good: fn(Result<Answer, LedgerError>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let mut under_way = 0;
    for op in ops {
        if under_way == UNDER_WAY {
            good(receiver.recv()?)?;
            under_way -= 1;
        }
        let sender = sender.clone();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        ledger.submit([Job { op: op?, reply }]);
        under_way += 1;
    }
    for _ in 0..under_way {
        good(receiver.recv()?)?;
    }
    Ok(())
}

/// Fills an empty ledger through its own door.
///
/// # Errors
/// When something is not granted.
pub fn fill(ledger: &Ledger, size: Size) -> anyhow::Result<()> {
    let mut fleet = Fleet::new();
    berth_sim::add_nodes(&mut fleet, size.nodes, 20_260_101)?;
    let nodes = (0..size.nodes).map(|number| {
        let facts = fleet.node(&berth_sim::node_id(number)).context("a node is missing")?;
        Ok(Op::put_node(roomy(facts)))
    });
    submit_all(ledger, nodes, |answer| match answer? {
        Answer::Outcome(Outcome::Done | Outcome::Unchanged) => Ok(()),
        other => bail!("a node was not stored: {other:?}"),
    })?;
    let policy = Policy::builtin("balanced")?;
    let shapes: Vec<(InstanceRequest, Spec)> = (0..SHAPES)
        .map(|number| {
            let request = shape(number);
            let spec = Spec::of(&request);
            (request, spec)
        })
        .collect();
    let plans = (0..size.claims.div_ceil(PLAN)).map(|number| {
        let (shape, spec) = &shapes[usize::try_from(number % SHAPES)?];
        let claims = (number * PLAN..size.claims.min((number + 1) * PLAN)).map(|claim| {
            let mut request = shape.clone();
            request.id = InstanceId::from_u128((9 << 100) | u128::from(claim));
            let node = berth_sim::node_id(claim % size.nodes);
            let versions = NodeVersion { constraint_gen: 1, ..NodeVersion::default() };
            PlannedClaim::with_spec(Arc::new(request), spec.clone(), &policy, node, versions)
        });
        Ok(Op::Commit(Plan::new(&format!("fill-{number}"), &shape.tenant, claims.collect())))
    });
    submit_all(ledger, plans, |answer| match answer? {
        Answer::Plan(Verdict::Granted(_)) | Answer::Repeated(_) => Ok(()),
        other => bail!("a plan was not granted: {other:?}"),
    })
}

/// Starts a placer and places one instance.
///
/// # Errors
/// When it cannot start, or does not grant.
pub fn decide_first(backend: Backend) -> anyhow::Result<FirstDecision> {
    let watch = Stopwatch::start();
    let mut options = PlacerOptions::new(Policy::builtin("balanced")?);
    options.clock = Arc::new(|| NOW);
    let placer = Placer::start(backend, &options)?;
    let started = watch.elapsed();
    let mut instance = shape(0);
    let number = fastrand::u128(..);
    instance.id = InstanceId::from_u128(number);
    let answer = placer.place(PlaceRequest {
        request_id: Text::from(format!("first-{number:x}")),
        tenant: Text::from(instance.tenant.as_str()),
        instances: vec![Arc::new(instance)],
        mode: BatchMode::AllOrNothing,
        lease_s: DEFAULT_LEASE_S,
        pools: Vec::new(),
        ..PlaceRequest::default()
    });
    let decided = watch.elapsed();
    match answer {
        PlaceAnswer::Granted(_) => Ok(FirstDecision { started, decided }),
        other => bail!("the first request was not granted: {other:?}"),
    }
}
