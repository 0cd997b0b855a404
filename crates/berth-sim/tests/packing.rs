//! Replays of traces: what is read from files, what is counted, and what simple rules give.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use berth_sim::packing::{
    Chooser, FleetNode, Options, Outcome, Trace, read_fleet, read_trace, replay, volume_bound,
};

const HEADER: &str = "time,event,vm_id,cpu_milli,memory_mib,gpu_count\n";

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn two_nodes(folder: &tempfile::TempDir) -> Vec<FleetNode> {
    let text = "node_id,cpu_milli,memory_mib\nbig,8000,16384\nsmall,4000,4096\n";
    read_fleet(&file(folder, "nodes.csv", text), false).unwrap()
}

fn trace_of(folder: &tempfile::TempDir, events: &str) -> Trace {
    read_trace(&file(folder, "events.csv", &format!("{HEADER}{events}")), false).unwrap()
}

fn outcome(trace: &Trace, nodes: &[FleetNode], policy: &str) -> Outcome {
    let chooser = Chooser::named(policy).unwrap();
    replay(trace, nodes, &chooser, Options { seed: 1 }, |_| ()).unwrap()
}

#[test]
fn a_small_trace_is_counted_as_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = two_nodes(&folder);
    let trace = trace_of(
        &folder,
        "0,create,a,4000,4096,\n10,create,b,4000,4096,\n20,create,c,4000,4096,\n\
         30,create,d,2000,1024,\n40,delete,a,,,\n40,delete,d,,,\n60,delete,b,,,\n100,delete,c,,,\n",
    );
    let found = outcome(&trace, &nodes, "first-fit");
    assert_eq!((found.arrived, found.placed, found.rejected), (4, 3, 1));
    assert_eq!((found.rejected_cpu_milli, found.rejected_memory_mib), (2000, 1024));
    assert_eq!(found.placed_before_first_rejection, Some(3));
    // One node from 0 to 20, both to 60, then only the one with c: 20 + 80 + 40 node-seconds of 100.
    assert_eq!((found.mean_nodes_milli, found.peak_nodes), (1400, 2));
    assert_eq!((found.violations, found.never_used_nodes), (0, 0));
    let bound = volume_bound(&trace, &nodes);
    // 14 cores at 30 s are more than the two nodes have: a third like the smallest is counted.
    assert_eq!(bound.peak_nodes, 3);
}

#[test]
fn nodes_are_lost_and_return_and_instances_are_resized() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = two_nodes(&folder);
    let trace = trace_of(
        &folder,
        "0,create,a,4000,4096,\n0,create,b,4000,8192,\n10,resize,a,4000,8192,\n\
         20,resize,a,4000,16384,\n30,node-lost,big,,,\n40,create,c,1000,1024,\n\
         50,node-back,big,,,\n60,create,d,1000,1024,\n",
    );
    let found = outcome(&trace, &nodes, "first-fit");
    // Both are on big; growing to 16 GiB beside b does not fit; neither fits on small as it is then.
    assert_eq!(found.resizes_refused, 1);
    assert_eq!((found.displaced, found.displaced_without_place), (0, 2));
    assert_eq!((found.placed, found.rejected, found.violations), (4, 0, 0));
    let trace = trace_of(&folder, "0,create,a,1000,1024,\n9,node-lost,big,,,\n");
    assert_eq!(outcome(&trace, &nodes, "first-fit").displaced, 1);
    let trace = trace_of(&folder, "0,create,a,1000,1024,\n9,node-lost,huge,,,\n");
    let chooser = Chooser::named("pack").unwrap();
    let error = replay(&trace, &nodes, &chooser, Options { seed: 1 }, |_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the trace loses or returns node \"huge\", which is not in the fleet"
    );
}

#[test]
fn a_malformed_line_is_reported_with_file_line_and_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let bad = [
        ("0,create,a,4 cores,4096,\n", "cpu_milli: \"4 cores\": expected a whole number from 1"),
        ("0,create,a,4000,0,\n", "memory_mib: \"0\": expected a whole number from 1"),
        ("0,begin,a,4000,4096,\n", "event: \"begin\": expected create, delete, resize"),
        ("0,create,,4000,4096,\n", "vm_id: \"\": expected a name"),
        ("0,delete,a,,,\n", "vm_id: \"a\": expected an instance that was created"),
        ("0,create,a,1,1,2\n", "gpu_count: \"2\": expected 0: GPUs are not replayed"),
        ("x,create,a,1,1,\n", "time: \"x\": expected a whole number of seconds"),
    ];
    for (line, expected) in bad {
        let good = "0,create,first,1000,1024,\n";
        let path = file(&folder, "events.csv", &format!("{HEADER}{good}{line}"));
        let error = read_trace(&path, false).unwrap_err().to_string();
        let place = format!("{}: line 3: ", path.display());
        assert!(error.starts_with(&place) && error.contains(expected), "{error}");
        let trace = read_trace(&path, true).unwrap();
        assert_eq!((trace.events.len(), trace.skipped.len()), (1, 1));
        assert_eq!(trace.skipped[0].line, 3);
    }
    let backwards = format!("{HEADER}5,create,a,1,1,\n4,delete,a,,,\n");
    let error = read_trace(&file(&folder, "events.csv", &backwards), false).unwrap_err();
    assert!(error.to_string().contains("expected 5 or later"), "{error}");
    let error = read_trace(&file(&folder, "events.csv", "time,event\n"), false).unwrap_err();
    assert!(
        error.to_string().contains("column vm_id is missing; present are: time, event"),
        "{error}"
    );
    assert!(read_trace(&file(&folder, "events.csv", HEADER), false).is_err());
}

#[test]
fn compressed_files_are_read_whatever_their_name_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    let compressed = std::fs::File::create(&path).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(compressed, flate2::Compression::fast());
    encoder.write_all(format!("{HEADER}7,create,a,1000,1024,\n").as_bytes()).unwrap();
    encoder.finish().unwrap();
    let trace = read_trace(&path, false).unwrap();
    assert_eq!((trace.events[0].time, trace.demands[0].memory_mib), (7, 1024));
}

#[test]
fn equal_choices_have_equal_digests_and_others_differ() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = two_nodes(&folder);
    let trace = trace_of(&folder, "0,create,a,1000,1024,\n1,create,b,3000,3072,\n");
    let first_fit = outcome(&trace, &nodes, "first-fit");
    assert_eq!(first_fit, outcome(&trace, &nodes, "first-fit"));
    assert_ne!(first_fit.digest, outcome(&trace, &nodes, "min-ram").digest);
}

#[test]
fn an_unknown_policy_is_refused_with_the_names_there_are() {
    let error = Chooser::named("best-fit").unwrap_err().to_string();
    assert!(error.contains("balanced") && error.contains("best-fit-l2"), "{error}");
}

/// Traces lie next to the repository and are not part of it.
fn shared(folder: &str) -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = root.join(folder);
    if !folder.exists() {
        eprintln!("skipped: the traces are not next to the repository");
        return None;
    }
    Some(folder)
}

fn on_trace(folder: &Path, nodes: usize, policy: &str) -> Outcome {
    let trace = read_trace(&folder.join("events.csv.gz"), false).unwrap();
    let fleet = read_fleet(&folder.join("nodes.csv.gz"), false).unwrap();
    outcome(&trace, &fleet[..nodes], policy)
}

#[test]
fn a_month_of_huawei_gives_the_figures_of_an_independent_program() {
    let Some(folder) = shared("huawei_east1") else { return };
    let first_fit = on_trace(&folder, 56, "first-fit");
    assert_eq!(
        (first_fit.rejected, first_fit.placed_before_first_rejection, first_fit.peak_nodes),
        (16, Some(63_177), 56)
    );
    assert_eq!((first_fit.mean_nodes_milli / 100, first_fit.bound_peak_nodes), (343, 54));
    assert_eq!(first_fit.violations, 0);
    let min_ram = on_trace(&folder, 56, "min-ram");
    assert_eq!((min_ram.rejected, min_ram.mean_nodes_milli / 100), (9, 371));
}
