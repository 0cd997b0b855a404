//! The measurement drives the real loop.

use berth_kube::scheduler::run_benchmark;
use berth_kube_fake::samples;
use serde_json::json;

use crate::support::settings;

#[test]
fn every_pod_is_scheduled_or_refused_once() {
    let nodes = (0..4).map(|index| {
        serde_json::from_value(samples::node(&format!("n{index}"), 1_000, 4_096)).unwrap()
    });
    let pods = (0..50).map(|index| {
        let mut pod = samples::pod("default", &format!("p{index}"), "berth", 100, 64);
        pod["metadata"]["uid"] = json!(format!("uid-{index}"));
        pod["metadata"]["resourceVersion"] = json!("1");
        serde_json::from_value(pod).unwrap()
    });
    let measured = run_benchmark(settings(), nodes.collect(), pods.collect()).unwrap();
    assert_eq!((measured.nodes, measured.pods), (4, 50));
    assert_eq!((measured.placed, measured.refused), (40, 10));
    assert!(measured.pods_per_s > 0);
}
