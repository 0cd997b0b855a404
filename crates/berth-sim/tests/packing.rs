//! Replays of traces: what is read from files, what is counted, and what simple rules give.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use berth_engine::{Amounts, NodeFacts};
use berth_sim::packing::{
    Action, Chooser, Demand, FleetNode, Options, Outcome, Synthetic, Trace, is_event_log,
    placement_difference, read_event_log, read_fleet, read_trace, replay, synthetic_fleet,
    volume_bound,
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

#[test]
fn an_instance_that_is_reclaimed_leaves_its_node_and_a_restarting_node_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = two_nodes(&folder);
    let trace = trace_of(
        &folder,
        "0,create,a,1000,1024,\n1,create,b,8000,1024,\n2,spot-reclaim,a,,,\n3,create,b2,7000,1024,\n\
         4,spot-reclaim,a,,,\n5,node-reboot,big,,,\n6,create,c,500,1024,\n7,create,d,4000,1024,\n\
         8,node-back,big,,,\n9,create,e,500,1024,\n",
    );
    let found = outcome(&trace, &nodes, "first-fit");
    // b does not fit beside a. a goes to small, where it is reclaimed too, back to big: 7 + 1 cores.
    assert_eq!((found.reclaimed, found.reclaimed_without_place), (2, 0));
    // big restarts with b2 and a; c fits on small, d nowhere, and e on small again: big is full.
    assert_eq!((found.restarted, found.rejected), (2, 2));
    assert_eq!(found.placements, [Some(0), None, Some(0), Some(1), None, Some(1)]);
    let trace = trace_of(&folder, "0,create,a,8000,1024,\n1,spot-reclaim,a,,,\n");
    assert_eq!(outcome(&trace, &nodes, "pack").reclaimed_without_place, 1);
}

#[test]
fn the_log_of_a_server_is_a_trace_with_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let mut facts = NodeFacts::new("n1", Amounts::new(4000, 8192).with_disk(1000));
    facts.system_reserve = Amounts::new(1000, 1024);
    facts.vmm_overhead_mib = 64;
    let event = |seq: u32, kind: &str, body: serde_json::Value| {
        serde_json::json!({
            "seq": seq, "at": format!("2026-01-01T00:00:{seq:02}Z"), "kind": kind, "body": body,
        })
        .to_string()
    };
    let claim = |id: &str, role: &str| {
        serde_json::json!({
            "instance_id": id, "role": role, "tenant": "acme", "node_id": "n1",
            "resources": Amounts::new(2000, 1024),
        })
    };
    let lines = [
        event(1, "node.changed", serde_json::json!({ "constraint_gen": 1, "facts": facts })),
        event(2, "policy.changed", serde_json::json!({ "name": "pack" })),
        event(10, "instance.allocated", claim("a", "primary")),
        event(11, "instance.allocated", claim("a", "migration_target")),
        event(12, "instance.resized", claim("a", "primary")),
        event(20, "node.state", serde_json::json!({ "node_id": "n1", "state": "lost" })),
        event(21, "node.state", serde_json::json!({ "node_id": "n1", "state": "active" })),
        event(30, "instance.released", claim("a", "primary")),
    ];
    let path = file(&folder, "log.json", &lines.join("\n"));
    assert!(is_event_log(&path).unwrap());
    let (trace, nodes) = read_event_log(&path, false).unwrap();
    let demand = Demand { cpu_milli: 2000, memory_mib: 1088, disk_mib: 0 };
    let actions: Vec<(u64, Action)> =
        trace.events.iter().map(|event| (event.time, event.action.clone())).collect();
    let node = "n1".to_owned();
    assert_eq!(
        actions,
        [
            (9, Action::Create(0)),
            (11, Action::Resize(0, demand)),
            (19, Action::NodeLost(node.clone())),
            (20, Action::NodeBack(node)),
            (29, Action::Delete(0)),
        ]
    );
    assert_eq!(
        (trace.demands[0], trace.tenant(0), trace.name(0)),
        (demand, "acme", "a".to_owned())
    );
    // Three cores, each promised four times; what the host keeps is not for instances.
    let capacity = Demand { cpu_milli: 12_000, memory_mib: 7168, disk_mib: 1000 };
    assert_eq!(nodes, [FleetNode { name: "n1".to_owned(), capacity }]);
    // A page as it is printed without --follow, and a line that is no event.
    let page = format!("{{\"items\": [{}]}}", lines.join(",\n"));
    assert_eq!(
        read_event_log(&file(&folder, "page.json", &page), false).unwrap().0.events.len(),
        5
    );
    let bad = file(&folder, "bad.json", &format!("{}\n{{\"at\": 1}}\n{}", lines[0], lines[2]));
    let error = read_event_log(&bad, false).unwrap_err().to_string();
    assert!(error.contains("bad.json: line 2: ") && error.contains("an event with at"), "{error}");
    assert_eq!(read_event_log(&bad, true).unwrap().0.skipped[0].line, 2);
}

#[test]
fn a_trace_that_is_made_up_follows_its_description() {
    let describe = |text: &str| Synthetic::parse(text).unwrap().unwrap();
    let description = describe(
        "synthetic:hours=240,arrivals=200,lifetime=120,diurnal=50,resizes=10,reclaims=5,seed=7",
    );
    let trace = description.trace();
    assert_eq!(trace.events, description.trace().events);
    assert_ne!(trace.events, Synthetic { seed: 8, ..description }.trace().events);
    assert!(trace.events.is_sorted_by_key(|event| event.time));
    let arrivals: Vec<u64> = trace
        .events
        .iter()
        .filter(|event| matches!(event.action, Action::Create(_)))
        .map(|event| event.time)
        .collect();
    // 48,000 are expected; three in a hundred more or fewer are many.
    assert!(arrivals.len().abs_diff(48_000) < 1500, "{}", arrivals.len());
    let near_noon = arrivals.iter().filter(|time| (*time % 86_400).abs_diff(43_200) < 21_600);
    let share = near_noon.count() * 100 / arrivals.len();
    assert!((60..65).contains(&share), "{share} percent near noon; 62.5 are expected");
    let ends = trace.ends();
    let lives: Vec<u64> = arrivals
        .iter()
        .zip(&ends)
        .take(20_000)
        .filter_map(|(start, end)| Some((*end)? - start))
        .collect();
    let mean = lives.iter().sum::<u64>() / lives.len() as u64;
    // A quarter of two hours for four of five, four times as long for the others: two hours on average.
    assert!(mean.abs_diff(7200) < 500, "{mean} seconds on average");
    let count = |wanted: fn(&Action) -> bool| {
        trace.events.iter().filter(|event| wanted(&event.action)).count()
    };
    assert!(count(|action| matches!(action, Action::Resize(..))).abs_diff(4800) < 500);
    assert!(count(|action| matches!(action, Action::SpotReclaim(_))).abs_diff(2400) < 400);
    let found = outcome(&trace, &synthetic_fleet(60), "pack");
    assert_eq!(found.violations, 0);
    assert!(found.placed > 40_000, "{}", found.placed);
    assert!(Synthetic::parse("synthetics.csv").is_none());
    let error = Synthetic::parse("synthetic:hours=0").unwrap().unwrap_err().to_string();
    assert_eq!(error, "synthetic trace: hours: \"0\": expected a whole number from 1 to 8784");
    let error = Synthetic::parse("synthetic:speed=1").unwrap().unwrap_err().to_string();
    assert!(error.contains("one of the keys hours, arrivals"), "{error}");
}

#[test]
fn two_policies_are_compared_arrival_by_arrival() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = two_nodes(&folder);
    let header = "time,event,vm_id,cpu_milli,memory_mib,tenant\n";
    let events = "0,create,a,1000,1024,acme\n1,create,b,8000,1024,bits\n2,create,c,500,512,acme\n";
    let path = file(&folder, "events.csv", &format!("{header}{events}"));
    let trace = read_trace(&path, false).unwrap();
    let (first, second) =
        (outcome(&trace, &nodes, "first-fit"), outcome(&trace, &nodes, "min-ram"));
    let difference = placement_difference(&trace, &nodes, [&first, &second], 0, 10);
    // min-ram puts a on small, and so has room for b.
    assert_eq!(
        (difference.arrived, difference.same, difference.other_node, difference.only_second),
        (3, 0, 2, 1)
    );
    let names: Vec<&str> = difference.placements.iter().map(|it| it.instance.as_str()).collect();
    assert_eq!(names, ["b", "a", "c"]);
    assert_eq!(difference.placements[0].second.as_deref(), Some("big"));
    let tenants: Vec<(&str, u64, u64)> = difference
        .tenants
        .iter()
        .map(|it| (it.tenant.as_str(), it.rejected_first, it.rejected_second))
        .collect();
    assert_eq!(tenants, [("acme", 0, 0), ("bits", 1, 0)]);
    assert_eq!(placement_difference(&trace, &nodes, [&first, &second], 2, 10).arrived, 1);
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

#[test]
fn the_first_day_of_azure_gives_the_figures_of_an_independent_program() {
    let Some(folder) = shared("azure2017") else { return };
    let mut trace = read_trace(&folder.join("events.csv.gz"), false).unwrap();
    trace.events.truncate(60_000);
    // Nodes, rejected, placed before the first rejection, peak, mean in thousandths; both in Python.
    let cases = [
        ("nodes_homog.csv.gz", 170, 272, 28_651, 170, 108_269),
        ("nodes_mixed.csv.gz", 200, 188, 28_835, 200, 123_653),
    ];
    for (nodes, count, rejected, before, peak, mean) in cases {
        let fleet = read_fleet(&folder.join(nodes), false).unwrap();
        let found = outcome(&trace, &fleet[..count], "first-fit");
        assert_eq!((found.rejected, found.placed_before_first_rejection), (rejected, Some(before)));
        assert_eq!((found.peak_nodes, found.mean_nodes_milli), (peak, mean));
    }
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn all_of_azure_gives_the_figures_of_the_reference() {
    let Some(folder) = shared("azure2017") else { return };
    let trace = read_trace(&folder.join("events.csv.gz"), false).unwrap();
    for (nodes, count, rejected) in [("nodes_homog", 723, 357), ("nodes_mixed", 780, 281)] {
        let fleet = read_fleet(&folder.join(format!("{nodes}.csv.gz")), false).unwrap();
        assert_eq!(outcome(&trace, &fleet[..count], "first-fit").rejected, rejected);
    }
}
