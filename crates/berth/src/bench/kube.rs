//! `berth bench kube`: pods per second of the Kubernetes scheduler, without an API server.
//!
//! The scheduler's loop gets nodes and pods as from its informers; bindings succeed at once and come back
//! as from a watch.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_kube::cluster::{MissingRequests, Settings, policies};
use berth_kube::scheduler::{BenchmarkResult, run_benchmark};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use serde_json::{Value, json};

/// Pods of one workload.
const REPLICAS: usize = 50;

/// Options of `berth bench kube`.
#[derive(Args)]
pub(crate) struct KubeBench {
    /// Number of nodes.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Number of pods.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pods: u32,
    /// Requirements of the pods.
    #[arg(long, value_enum, default_value_t)]
    mix: Mix,
    /// Policy.
    #[arg(long, default_value = "balanced")]
    policy: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mix {
    /// CPU and memory.
    Plain,
    /// Workloads with selectors, tolerations, affinity, anti-affinity, spreading, host ports and gangs
    /// among plain ones.
    #[default]
    Full,
}

/// What was measured.
#[derive(Serialize)]
struct Report {
    mix: Mix,
    policy: String,
    #[serde(flatten)]
    measured: BenchmarkResult,
}

impl KubeBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let policy = policies::builtin(&self.policy)?;
        let settings = Settings {
            scheduler: "berth".to_owned(),
            policy,
            missing_requests: MissingRequests::default(),
            ignored_pod_fields: Vec::new(),
        };
        let nodes: Vec<Node> = (0..self.nodes).map(node).collect::<Result<_, _>>()?;
        let of_mix = |index| pod(index, self.mix);
        let pods: Vec<Pod> = (0..self.pods).map(of_mix).collect::<Result<_, _>>()?;
        let measured =
            run_benchmark(settings, nodes, pods).context("the measurement cannot run")?;
        let report = Report { mix: self.mix, policy: self.policy, measured };
        super::print_report(self.json, &report)
    }
}

/// A node of three sizes in ten zones; one in twenty is tainted, one in four has a fast disk.
fn node(index: u32) -> Result<Node, serde_json::Error> {
    let name = format!("node-{index:05}");
    let (cpu, memory) = [("16", "64Gi"), ("32", "128Gi"), ("64", "256Gi")][index as usize % 3];
    let disk = if index.is_multiple_of(4) { "ssd" } else { "hdd" };
    let taints = if index % 20 == 7 {
        json!([{ "key": "dedicated", "value": "batch", "effect": "NoSchedule" }])
    } else {
        json!([])
    };
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "uid": name, "resourceVersion": "1",
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": format!("zone-{}", index % 10),
                "disk": disk,
            },
        },
        "spec": { "taints": taints },
        "status": { "allocatable": {
            "cpu": cpu, "memory": memory, "ephemeral-storage": "100Gi", "pods": "110",
        } },
    }))
}

/// A pod of a workload of [`REPLICAS`].
fn pod(index: u32, mix: Mix) -> Result<Pod, serde_json::Error> {
    let workload = index as usize / REPLICAS;
    let app = format!("app-{workload}");
    let name = format!("{app}-{index}");
    let (cpu, memory) =
        [("100m", "128Mi"), ("250m", "512Mi"), ("500m", "1Gi"), ("1", "2Gi")][workload % 4];
    let mut metadata = json!({
        "name": name, "namespace": format!("team-{}", workload % 20), "uid": name,
        "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": { "app": app },
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app,
            "controller": true,
        }],
    });
    let mut spec = json!({
        "schedulerName": "berth",
        "containers": [{
            "name": "main", "image": "app:1",
            "resources": { "requests": { "cpu": cpu, "memory": memory } },
        }],
    });
    if mix == Mix::Full {
        add_rules(workload, &app, &mut metadata, &mut spec);
    }
    let status = json!({ "phase": "Pending" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status }))
}

/// Of ten workloads, four are plain and each other has a different rule.
fn add_rules(workload: usize, app: &str, metadata: &mut Value, spec: &mut Value) {
    let same = json!({ "matchLabels": { "app": app } });
    let spread = |key: &str, when: &str| {
        json!([{
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": same,
        }])
    };
    match workload % 10 {
        0 => spec["nodeSelector"] = json!({ "disk": "ssd" }),
        1 => {
            spec["tolerations"] =
                json!([{ "key": "dedicated", "operator": "Exists", "effect": "NoSchedule" }]);
        }
        2 => {
            spec["topologySpreadConstraints"] =
                spread("topology.kubernetes.io/zone", "DoNotSchedule");
        }
        3 => {
            let term = json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": same });
            spec["affinity"] = json!({ "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [term],
            } });
        }
        4 => {
            let term =
                json!({ "topologyKey": "topology.kubernetes.io/zone", "labelSelector": same });
            spec["affinity"] = json!({ "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [term],
            } });
        }
        5 => {
            spec["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 8080 }]);
            let size = REPLICAS.to_string();
            metadata["annotations"] =
                json!(BTreeMap::from([("berth.dev/gang", app), ("berth.dev/gang-size", &size)]));
        }
        _ => {}
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BenchmarkResult { nodes, pods, placed, refused, pods_per_s, p50_us, p99_us, max_us } =
            &self.measured;
        let mix = match self.mix {
            Mix::Plain => "plain",
            Mix::Full => "full",
        };
        writeln!(f, "{nodes} nodes, {pods} pods at once, mix {mix}, policy {}", self.policy)?;
        writeln!(f, "throughput     {pods_per_s:>9} pods/s, decided and seen on their nodes")?;
        writeln!(f, "waited         {p50_us:>9} us p50 {p99_us:>9} us p99 {max_us:>9} us most")?;
        writeln!(f, "                         from the first pod until a pod was decided")?;
        writeln!(f, "placed         {placed:>9}")?;
        writeln!(f, "refused        {refused:>9}")
    }
}
