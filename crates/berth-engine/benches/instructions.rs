//! Instruction counts of the hot paths, with limits: they do not depend on what else the machine
//! does, so a change that makes a decision dearer fails here and not in a noisy timing.
//!
//! A limit is about ten percent above what was counted when it was set, on a machine with AVX2, which
//! is the widest that valgrind knows. Raise one only with a reason in the commit.

#![allow(missing_docs, reason = "gungraun generates public items without documentation")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up has failed")]

use std::hint::black_box;

use berth_engine::{Batch, Engine, Fleet, InstanceId, InstanceRequest, Policy, Reuse};
use berth_sim::NOW;
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};

/// What is counted is what a decision costs apart from building and dropping its inputs, which the
/// functions below therefore hand back.
const NODES: u64 = 2048;

/// An engine that has seen every shape, and the next request of one shape.
fn stand(shape: usize) -> (Engine, InstanceRequest) {
    let mut fleet = Fleet::new();
    berth_sim::add_nodes(&mut fleet, NODES, 1).expect("simulated nodes are valid");
    berth_sim::fill_half(&mut fleet, NODES, 1).expect("simulated instances can be claimed");
    berth_sim::add_groups(&mut fleet);
    let mut engine = Engine::with_fleet(fleet, Policy::builtin("balanced").expect("is built in"));
    let shapes = berth_sim::shapes().expect("simulated rules can be read");
    let mut next = 1 << 64;
    for request in shapes.iter().cycle().take(shapes.len() * 3) {
        next += 1;
        let request = InstanceRequest { id: InstanceId::from_u128(next), ..request.clone() };
        let placed = engine.place(&request, NOW).expect("the fleet is half empty");
        engine.fleet_mut().claim(&request, &placed.node).expect("the node is there");
    }
    let request = InstanceRequest { id: InstanceId::from_u128(1 << 65), ..shapes[shape].clone() };
    (engine, request)
}

fn hundred() -> (Engine, Batch) {
    let (engine, request) = stand(0);
    let requests = (0..100u128)
        .map(|n| InstanceRequest { id: InstanceId::from_u128((1 << 65) + n), ..request.clone() });
    (engine, Batch::new(requests.collect()))
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    LibraryBenchmarkConfig::default()
        .tool(Callgrind::default().hard_limits([(EventKind::Ir, instructions)]))
        .clone()
}

#[library_benchmark]
#[bench::plain(args = (0), setup = stand, config = at_most(23_500))]
#[bench::soft_rule(args = (3), setup = stand, config = at_most(92_000))]
#[bench::hard_rack_group(args = (11), setup = stand, config = at_most(26_000))]
fn full_scan((mut engine, request): (Engine, InstanceRequest)) -> (Engine, InstanceRequest) {
    let _ = black_box(engine.place_with(black_box(&request), NOW, Reuse::Mask));
    (engine, request)
}

#[library_benchmark]
#[bench::plain(args = (0), setup = stand, config = at_most(13_100))]
#[bench::soft_rule(args = (3), setup = stand, config = at_most(20_900))]
#[bench::hard_node_group(args = (1), setup = stand, config = at_most(17_600))]
fn repeated_class((mut engine, request): (Engine, InstanceRequest)) -> (Engine, InstanceRequest) {
    let _ = black_box(engine.place_with(black_box(&request), NOW, Reuse::Ranking));
    (engine, request)
}

#[library_benchmark]
#[bench::plain(args = (0), setup = stand, config = at_most(11_400))]
fn claim_and_release(
    (mut engine, request): (Engine, InstanceRequest),
) -> (Engine, InstanceRequest) {
    let node = berth_sim::node_id(7);
    let _ = black_box(engine.fleet_mut().claim(black_box(&request), &node));
    let _ = black_box(engine.fleet_mut().release(request.id));
    (engine, request)
}

#[library_benchmark]
#[bench::hundred(setup = hundred, config = at_most(2_900_000))]
fn batch((mut engine, batch): (Engine, Batch)) -> (Engine, Batch) {
    let _ = black_box(engine.place_batch(black_box(&batch), NOW));
    (engine, batch)
}

library_benchmark_group!(
    name = engine,
    benchmarks = [full_scan, repeated_class, claim_and_release, batch]
);
main!(library_benchmark_groups = engine);
