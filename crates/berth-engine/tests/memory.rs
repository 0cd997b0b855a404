//! What a fleet keeps in memory, counted by the allocator: the same number on every machine.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use berth_engine::Fleet;

/// Nodes of the fleet: as many as `berth bench engine` has by default.
const NODES: u64 = 10_000;

/// Live bytes a node may take. `SPECIFICATION.md` promises 1,024 bytes of resident memory; the rest
/// is left to the allocator, which rounds sizes up and keeps freed memory for a while.
const BYTES_PER_NODE: u64 = 700;

/// Live bytes an instance may take. `SPECIFICATION.md` promises 200 bytes of resident memory.
const BYTES_PER_INSTANCE: u64 = 170;

#[test]
fn nodes_and_instances_take_no_more_memory_than_promised() {
    let mut fleet = Fleet::new();
    let of_nodes = live_bytes(|| {
        berth_sim::add_nodes(&mut fleet, NODES, 20_260_101).expect("simulated nodes are valid");
    });
    let mut instances = 0;
    let of_instances = live_bytes(|| {
        instances = berth_sim::fill_half(&mut fleet, NODES, 20_260_101)
            .expect("simulated instances can be claimed");
    });
    assert!(instances > 5 * NODES, "{instances} instances");
    let (per_node, per_instance) = (of_nodes / NODES, of_instances / instances);
    assert!(per_node <= BYTES_PER_NODE, "{per_node} bytes a node");
    assert!(per_instance <= BYTES_PER_INSTANCE, "{per_instance} bytes an instance");
}

/// Bytes that were allocated and not freed.
fn live_bytes(work: impl FnOnce()) -> u64 {
    let counted = allocation_counter::measure(work);
    u64::try_from(counted.bytes_current).unwrap_or(0)
}
