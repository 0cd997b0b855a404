//! Traces on the command line: replays, reports, benchmarks, comparisons and tuning; and that a server
//! makes the same choices as the simulator.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use berth_api::{InstanceSpec, PlaceRequest, ReleaseClaim, Resources};
use berth_client::{Client, Connect, PlaceOutcome};
use berth_engine::NodeId;
use berth_sim::packing::{
    Action, Chooser, Options, Synthetic, node_facts, placement_digest, replay, synthetic_fleet,
};
use serde_json::Value;

const NODES: &str = "node_id,cpu_milli,memory_mib\nsmall,4000,4096\nbig,8000,16384\n";
const EVENTS: &str = "time,event,vm_id,cpu_milli,memory_mib,tenant\n\
    0,create,z,1000,1024,acme\n0,create,a,1000,1024,acme\n1,create,b,8000,1024,bits\n2,create,c,500,512,acme\n90,delete,a,,,\n";

fn berth(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env("BERTH_CONFIG", folder.join("client.toml")).current_dir(folder);
    for name in ["BERTH_URL", "BERTH_TOKEN", "BERTH_CA_CERT"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(folder: &Path, words: &[&str]) -> Output {
    berth(folder).args(words).output().unwrap()
}

fn said(folder: &Path, words: &[&str]) -> String {
    let output = run(folder, words);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{words:?}\n{out}{err}");
    out
}

fn json(folder: &Path, words: &[&str]) -> Value {
    serde_json::from_str(&said(folder, words)).unwrap()
}

fn fails(folder: &Path, words: &[&str]) -> String {
    let output = run(folder, words);
    assert!(!output.status.success(), "{words:?}\n{}", text(&output.stdout));
    text(&output.stderr)
}

/// A folder with `trace/events.csv` and `trace/nodes.csv`.
fn with_trace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    std::fs::create_dir(&trace).unwrap();
    std::fs::write(trace.join("nodes.csv"), NODES).unwrap();
    std::fs::write(trace.join("events.csv"), EVENTS).unwrap();
    folder
}

#[test]
fn a_replay_writes_a_report_that_needs_no_other_file_and_charts() {
    let folder = with_trace();
    let words = [
        "simulate",
        "replay",
        "trace/events.csv",
        "--node-count",
        "2",
        "--policy",
        "pack",
        "--policy",
        "first-fit",
        "--html",
        "report.html",
        "--svg",
        "charts",
    ];
    let table = said(folder.path(), &words);
    assert!(table.contains("4 instances on 2 nodes of trace/nodes.csv"), "{table}");
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("<h1>Placement replay</h1>") && html.contains("first-fit"), "{html}");
    assert_eq!(html.matches("<svg").count(), 6);
    for outside in ["<script", "http:", "https:", "url(", "@import", "src="] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("prefers-color-scheme:dark"));
    let mut charts: Vec<String> = std::fs::read_dir(folder.path().join("charts"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    charts.sort();
    assert_eq!(
        charts,
        [
            "1-cpu.svg",
            "1-mean-nodes.svg",
            "1-nodes-over-time.svg",
            "1-rejected-over-time.svg",
            "1-rejected.svg",
            "1-stranded.svg"
        ]
    );
    let chart = std::fs::read_to_string(folder.path().join("charts/1-rejected.svg")).unwrap();
    assert!(
        chart.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && chart.contains("<style>")
    );
}

#[test]
fn a_malformed_line_ends_a_replay_with_its_place_unless_it_is_to_be_left_out() {
    let folder = with_trace();
    let events = format!("{EVENTS}91,create,d,many,1,acme\n92,create,e,500,512,acme\n");
    std::fs::write(folder.path().join("trace/events.csv"), events).unwrap();
    let words = ["simulate", "replay", "trace/events.csv", "--policy", "pack", "--node-count", "2"];
    let error = fails(folder.path(), &words);
    assert!(error.contains("trace/events.csv: line 7: cpu_milli: \"many\""), "{error}");
    let report = json(folder.path(), &[&words[..], &["--skip-bad", "--json"]].concat());
    assert_eq!(
        (&report[0]["skipped_lines"], &report[0]["outcomes"][0]["arrived"]),
        (&1.into(), &5.into())
    );
}

#[test]
fn a_trace_can_be_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let spec = "synthetic:hours=3,arrivals=60,resizes=20,reclaims=20,seed=4";
    let words = ["simulate", "replay", spec, "--policy", "pack", "--spare", "20", "--json"];
    let report = json(folder.path(), &words);
    assert!(report[0]["outcomes"][0]["arrived"].as_u64().unwrap() > 50, "{report}");
    assert_eq!(report, {
        let mut again = json(folder.path(), &words);
        // How fast it was differs.
        let speed = report[0]["outcomes"][0]["decisions_per_s"].clone();
        again[0]["outcomes"][0]["decisions_per_s"] = speed;
        again
    });
    let error = fails(folder.path(), &["simulate", "replay", "synthetic:hours=x"]);
    assert!(error.contains("hours: \"x\": expected a whole number from 1 to 8784"), "{error}");
}

#[test]
fn the_packing_benchmark_finds_slices_and_the_sizes_that_a_reference_states() {
    let folder = with_trace();
    let root = folder.path();
    std::fs::create_dir(root.join("gpus")).unwrap();
    let gpus = "time,event,vm_id,cpu_milli,memory_mib,gpu_count\n0,create,a,1,1,1\n";
    std::fs::write(root.join("gpus/events.csv"), gpus).unwrap();
    std::fs::write(root.join("gpus/nodes.csv"), NODES).unwrap();
    let report = json(root, &["bench", "packing", "--traces", ".", "--json"]);
    let results = report["results"].as_array().unwrap();
    let policies: Vec<&str> =
        results.iter().map(|result| result["policy"].as_str().unwrap()).collect();
    for policy in ["pack", "balanced", "first-fit", "best-fit-linf", "min-ram", "kube-balanced"] {
        assert_eq!(policies.iter().filter(|known| **known == policy).count(), 1, "{policies:?}");
    }
    for result in results {
        assert_eq!(result["slice"], "trace/nodes@2");
        for key in ["rejected", "mean_nodes", "decisions_per_s"] {
            assert!(result[key].is_number(), "{key}: {result}");
        }
        assert!(result.get("placed_before_first_rejection").is_some());
    }
    assert_eq!(report["skipped"].as_array().unwrap().len(), 1);
    let stated = "# Results\n\nx/trace/events.csv with x/trace/nodes.csv: 3 creates; fleet 1\n";
    std::fs::write(root.join("REFERENCE.md"), stated).unwrap();
    let words = ["bench", "packing", "--traces", ".", "--json", "--policy", "first-fit"];
    let slices = |words: &[&str]| -> Vec<(String, u64)> {
        let report = json(root, words);
        let results = report["results"].as_array().unwrap();
        let slice = |result: &Value| {
            (result["slice"].as_str().unwrap().to_owned(), result["rejected"].as_u64().unwrap())
        };
        results.iter().map(slice).collect()
    };
    assert_eq!(slices(&words), [("trace/nodes@1".to_owned(), 1)]);
    let sizes = ["--node-count", "1", "--node-count", "2"];
    let sized = slices(&[&words[..], &sizes].concat());
    assert_eq!(sized, [("trace/nodes@1".to_owned(), 1), ("trace/nodes@2".to_owned(), 0)]);
}

#[test]
fn two_policies_differ_on_a_trace_and_a_condition_fails_the_command() {
    let folder = with_trace();
    let root = folder.path();
    let spread = "name = 'spread-memory'\n[filters]\ncpu = 'hard'\n[scores]\nmemory-spread = 1\n";
    std::fs::write(root.join("spread.toml"), spread).unwrap();
    // The first goes to the first node; where the second goes decides whether the third has room.
    let packing = "name = 'pack-memory'\n[filters]\ncpu = 'hard'\n[scores]\nmemory-pack = 1\n";
    std::fs::write(root.join("packing.toml"), packing).unwrap();
    let words = [
        "policy",
        "diff",
        "packing.toml",
        "spread.toml",
        "--on",
        "trace/events.csv",
        "--node-count",
        "2",
    ];
    let table = said(root, &words);
    assert!(table.contains("of 4 arrivals are treated differently on 2 nodes"), "{table}");
    assert!(
        table.contains("bits") && table.contains("refused") && table.contains("big"),
        "{table}"
    );
    let found = json(root, &[&words[..], &["-o", "json"]].concat());
    assert_eq!((&found[0]["only_first"], &found[0]["first"]["rejected"]), (&1.into(), &0.into()));
    assert_eq!(found[0]["tenants"][0]["tenant"], "bits");
    let strict = [&words[..], &["--fail-if", "rejected > +0.1%"]].concat();
    let output = run(root, &strict);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("rejected is 0 under the first policy and 1 under the second"),
        "{error}"
    );
    said(root, &[&words[..], &["--fail-if", "rejected > +1"]].concat());
    let error = fails(root, &["policy", "diff", "pack", "spread", "--fail-if", "rejected > +1"]);
    assert!(error.contains("--on TRACE or --since DURATION"), "{error}");
}

#[test]
fn tuning_prints_what_it_judged_by_and_fails_without_a_recommendation() {
    let folder = tempfile::tempdir().unwrap();
    let spec = "synthetic:hours=12,arrivals=60,seed=2";
    let output = run(folder.path(), &["tune", spec, "--budget", "1", "--out", "tuned.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("1 policies tried") && out.contains("unseen"), "{out}");
    assert!(err.contains("no policy is recommended"), "{err}");
    assert!(!folder.path().join("tuned.toml").exists());
    let error = fails(folder.path(), &["tune", spec, "--goal", "max nodes"]);
    assert!(error.contains("\"max nodes\"") && error.contains("min and one of"), "{error}");
    let error = fails(folder.path(), &["tune", spec, "--budget", "soon"]);
    assert!(error.contains("a number of policies to try"), "{error}");
}

/// A server on a port of its own; it ends with the test.
struct Server {
    process: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut process = berth(folder.path())
            .args(["up", "--no-sign-in", "--listen", "127.0.0.1:0", "--data-dir", "data"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
            })
            .unwrap();
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, url, folder }
    }

    fn said(&self, words: &[&str]) -> String {
        let output =
            berth(self.folder.path()).env("BERTH_URL", &self.url).args(words).output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{words:?}\n{out}{err}");
        out
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

#[tokio::test]
async fn a_trace_through_http_and_through_the_simulator_gives_the_same_placements() {
    let description = Synthetic::parse("synthetic:hours=8,arrivals=60,lifetime=600,seed=3");
    let trace = description.unwrap().unwrap().trace();
    let nodes = synthetic_fleet(9);
    let simulated =
        replay(&trace, &nodes, &Chooser::named("pack").unwrap(), Options { seed: 1 }, |_| ())
            .unwrap();
    assert!(simulated.rejected > 0 && simulated.placed > 200, "{simulated:?}");

    let server = Server::start();
    server.said(&["policies", "activate", "pack"]);
    let connect = Connect { url: server.url.clone(), ..Connect::default() };
    let client = Client::new(connect).unwrap();
    let facts = node_facts(&nodes);
    for facts in &facts {
        let mut facts = facts.clone();
        facts.heartbeat_at = berth_engine::Timestamp::default();
        client.put_node(&facts).await.unwrap();
    }
    let position = |node: &NodeId| facts.iter().position(|facts| facts.id == *node);
    let mut placements = Vec::new();
    let mut running = std::collections::HashMap::new();
    for event in &trace.events {
        match &event.action {
            Action::Create(instance) => {
                let demand = trace.demands[*instance];
                let resources = Resources {
                    cpu_milli: demand.cpu_milli,
                    memory_mib: demand.memory_mib,
                    disk_mib: Some(0),
                    bandwidth_mbps: 0,
                };
                let spec = InstanceSpec { resources, ..InstanceSpec::default() };
                let request = PlaceRequest {
                    tenant: Some(trace.tenant(*instance).to_owned()),
                    lease_s: Some(86_400),
                    ..PlaceRequest::new(vec![spec])
                };
                let placed = match client.place(&request).await {
                    Ok(PlaceOutcome::Placed(placed)) => Some(placed),
                    Ok(PlaceOutcome::Waiting(ticket)) => panic!("{ticket:?}"),
                    Err(error) => {
                        let code = error.code().unwrap_or_default();
                        assert!(code.starts_with("no_capacity"), "{error:?}");
                        None
                    }
                };
                let node = placed.as_ref().and_then(|placed| placed.instances[0].node.clone());
                let node = node.map(|node| u32::try_from(position(&node).unwrap()).unwrap());
                if let Some(placed) = placed {
                    running.insert(*instance, placed.instances[0].instance);
                }
                placements.push(node);
            }
            Action::Delete(instance) => {
                if let Some(id) = running.remove(instance) {
                    client.release(id, &ReleaseClaim::default()).await.unwrap();
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(placement_digest(&placements), simulated.digest);
    replay_its_log(&server, &placements);
}

/// What the server logged is a trace too: of what it granted, and on the same nodes.
fn replay_its_log(server: &Server, placements: &[Option<u32>]) {
    let granted: Vec<Option<u32>> = placements.iter().copied().filter(Option::is_some).collect();
    let log = server.said(&["events", "--after", "0", "--limit", "100000", "-o", "json"]);
    server.write("log.json", &log);
    let database = server.folder.path().join("data/berth.db").display().to_string();
    server.said(&["export", "--database-url", &database, "--out", "export.jsonl"]);
    for file in ["log.json", "export.jsonl"] {
        let replayed = server.said(&["simulate", "replay", file, "--policy", "pack", "--json"]);
        let replayed: Value = serde_json::from_str(&replayed).unwrap();
        let outcome = &replayed[0]["outcomes"][0];
        assert_eq!(outcome["arrived"], granted.len(), "{file}");
        assert_eq!(outcome["digest"], placement_digest(&granted), "{file}");
    }
    let since = ["policies", "diff", "active", "pack", "--since", "1h", "-o", "json"];
    let found: Value = serde_json::from_str(&server.said(&since)).unwrap();
    assert_eq!(found[0]["arrived"], granted.len());
    assert_eq!(found[0]["same"], granted.len());
}
