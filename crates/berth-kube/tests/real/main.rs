//! Berth on a real control plane: `make kube-real`.
//!
//! The programs come from `KUBEBUILDER_ASSETS`; without it nothing is checked, and the test says so. Berth runs as
//! its manifests say, with their service accounts and RBAC on; controllers are Kubernetes' own; kubelets are
//! imitated. Cases run one after the other on one cluster. In the end every binding is judged by an independent
//! checker against the state just before it, and no request of Berth may have been forbidden.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod api;
#[path = "../support/assets/mod.rs"]
mod assets;
mod audit;
#[path = "../support/checker/mod.rs"]
mod checker;
mod churn;
mod cluster;
mod coexistence;
mod devices;
mod elastic;
mod faults;
mod kubelets;
mod manifests;
mod network;
mod objects;
mod parts;
mod pod_fields;
mod ratios;
mod recorder;
mod scheduler;
mod throughput;
mod volumes;
mod webhook;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};

use tokio::task::LocalSet;
use tokio::time::Instant;

use assets::{Programs, VARIABLE};
use audit::Audit;
use cluster::Cluster;

type Running = Pin<Box<dyn Future<Output = ()>>>;
type Case = (&'static str, fn(Arc<Cluster>) -> Running);

/// A case is the name of its function.
macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |cluster| {
            Box::pin(async move { $module::$name(&cluster).await })
        })),*]
    };
}

/// The cases in their order; the first installs Berth.
const CASES: &[Case] = cases![
    manifests::both_parts_become_ready,
    manifests::applying_them_again_changes_nothing,
    manifests::the_namespace_is_restricted,
    webhook::a_deployment_is_split_while_it_is_scaled,
    webhook::a_roll_out_is_split_like_the_revision_before,
    webhook::a_lost_pod_is_replaced_on_its_capacity_type,
    webhook::ordinals_of_a_stateful_set_decide,
    webhook::another_count_rebuilds_within_the_budget,
    webhook::a_replication_controller_is_split_too,
    webhook::a_dry_run_takes_no_slot_and_a_wrong_count_is_reported,
    webhook::a_killed_webhook_continues_where_it_was,
    webhook::counts_are_exact_while_the_api_server_restarts,
    scheduler::mixed_workloads_are_placed_by_the_rules,
    scheduler::an_unschedulable_pod_says_why_and_is_bound_later,
    scheduler::a_job_is_bound_as_a_gang,
    scheduler::a_pod_group_is_bound_from_its_minimum_on,
    scheduler::preemption_spares_what_a_budget_protects,
    scheduler::pods_of_a_job_take_turns,
    scheduler::a_drain_moves_pods_within_their_budget,
    pod_fields::every_field_of_a_pod_is_known,
    pod_fields::a_pod_goes_where_its_features_are_declared,
    pod_fields::tolerations_compare_numbers,
    devices::claims_are_allocated_by_their_selectors,
    devices::pods_of_a_job_take_turns_with_devices_of_a_template,
    devices::pods_that_share_a_claim_stay_together,
    devices::tainted_devices_are_left_alone,
    elastic::a_pod_is_resized_in_place_as_its_annotation_says,
    elastic::a_resize_that_a_quota_refuses_is_reported,
    elastic::an_agent_grows_a_pod_over_a_change_of_leader,
    elastic::permits_of_machines_are_stored_on_them,
    elastic::a_policy_of_a_config_map_relieves_a_node,
    churn::random_pods_come_and_go,
    volumes::pods_follow_their_local_volumes,
    volumes::volumes_are_provisioned_where_pods_are_placed,
    coexistence::two_schedulers_fill_the_same_nodes,
    faults::a_leader_is_killed,
    faults::connections_are_cut,
    faults::the_api_server_is_killed,
    faults::etcd_is_killed,
];

#[allow(clippy::disallowed_methods, reason = "how make says what to test")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|it| !it.is_empty())
}

/// The program of Berth: `BERTH_PROGRAM`, else the one that was built with the tests.
fn program() -> PathBuf {
    let built = || {
        let test = std::env::current_exe().unwrap();
        // target/debug/deps/real-…
        test.ancestors().nth(2).unwrap().join("berth")
    };
    let program = variable("BERTH_PROGRAM").map_or_else(built, PathBuf::from);
    assert!(program.is_file(), "there is no {}: cargo build --package berth", program.display());
    program
}

/// Runs the cases that were chosen; what failed.
async fn run_cases(cluster: &Arc<Cluster>) -> (usize, Vec<String>) {
    let only = variable("BERTH_KUBE_REAL_CASES");
    let (mut ran, mut failed) = (0, Vec::new());
    // A case that panics ends alone.
    let tasks = LocalSet::new();
    for (at, (name, case)) in CASES.iter().enumerate() {
        let chosen = only.as_ref().is_none_or(|it| it.split(',').any(|it| name.contains(it)));
        if at > 0 && !chosen {
            continue;
        }
        let since = Instant::now();
        let task = tasks.spawn_local(case(Arc::clone(cluster)));
        let outcome = tasks.run_until(task).await;
        let took = since.elapsed().as_secs_f64();
        ran += 1;
        match outcome {
            Ok(()) => println!("ok      {name} ({took:.1} s)"),
            Err(error) => {
                println!("FAILED  {name} ({took:.1} s)");
                failed.push(format!("{name}: {error}"));
                if at == 0 {
                    println!("{}", cluster.parts.logs());
                    break;
                }
            }
        }
        failed.extend(cluster.plane.failures());
    }
    (ran, failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the programs of a control plane: make kube-real"]
async fn a_real_cluster_is_served_by_the_rules() {
    let programs = match Programs::find() {
        Ok(Some(programs)) => programs,
        Ok(None) => {
            println!("kube-real: {VARIABLE} is not set: NOTHING was checked");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let folder = tempfile::Builder::new().prefix("berth-real-").tempdir().unwrap();
    let cluster = Cluster::start(&programs, folder.path(), &program()).await;
    let version = cluster.api.client.apiserver_version().await.unwrap().git_version;
    let (ran, failed) = run_cases(&cluster).await;
    let mut verdict = cluster.recorder.replay("berth");
    let at_the_end = cluster.violations.lock().unwrap_or_else(PoisonError::into_inner).clone();
    verdict.violations.extend(at_the_end);
    let audit = Audit::read(&cluster.plane);
    let relists = cluster.recorder.gaps();
    let (unused, granted) = audit.unused();
    for line in failed.iter().chain(&verdict.violations).chain(&audit.forbidden).take(40) {
        println!("{line}");
    }
    if !failed.is_empty() {
        println!("{}", cluster.parts.logs());
    }
    println!("permissions of the manifests that nobody used: {}", unused.join(", "));
    println!(
        "kube-real: Kubernetes {version}: {ran} cases, {} failed; {} placements ({} bindings in the audit log), {} \
         violations; {} requests forbidden ({} more by an API server that had just started); {} of {granted} permissions used; \
         {relists} watches of the judge begun again",
        failed.len(),
        verdict.placements,
        audit.bindings,
        verdict.violations.len(),
        audit.forbidden.len(),
        audit.forbidden_at_start,
        granted - unused.len(),
    );
    let clean = failed.is_empty() && verdict.violations.is_empty() && audit.forbidden.is_empty();
    assert!(clean, "kube-real failed");
    let all = variable("BERTH_KUBE_REAL_CASES").is_none();
    assert!(verdict.placements > 0 || !all, "nothing was placed");
}

/// `NODES PODS ROUNDS`, of `BERTH_KUBE_REAL_SIZE`.
fn size() -> (usize, usize, usize) {
    let text = variable("BERTH_KUBE_REAL_SIZE").unwrap_or_else(|| "1000 3000 2".to_owned());
    let numbers: Vec<usize> = text.split_whitespace().map(|it| it.parse().unwrap()).collect();
    let [nodes, pods, rounds] = numbers[..] else {
        panic!("accepted is NODES PODS ROUNDS: {text:?}")
    };
    (nodes, pods, rounds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; make kube-real-throughput"]
async fn throughput_beside_kube_scheduler() {
    match Programs::find() {
        Ok(Some(programs)) => throughput::measure(&programs, &program(), size()).await,
        Ok(None) => println!("kube-real: {VARIABLE} is not set: NOTHING was measured"),
        Err(error) => panic!("{error}"),
    }
}
