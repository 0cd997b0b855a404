//! `berth rebalance`: planned, saved, begun, and followed to its end, with agents that are scripts.

use berth_client::{Client, Connect};
use serde_json::{Value, json};

use super::{Server, text};

/// Two nodes, and three running elastic instances on the first.
fn uneven() -> Server {
    let server = Server::start();
    let register = |node: &str| {
        server.said(&[
            "nodes", "register", node, "--cpu", "10", "--memory", "20GiB", "--disk", "10GiB",
        ]);
    };
    register("node-1");
    let shape = json!({"cpu_milli": 1000, "memory_mib": 2048, "disk_mib": 0, "bandwidth_mbps": 0});
    let max = json!({"cpu_milli": 8000, "memory_mib": 16384});
    let elastic = json!({"min": {"cpu_milli": 1000, "memory_mib": 2048}, "max": max});
    for name in ["a", "b", "c"] {
        let spec = json!({"name": name, "resources": shape, "elastic": elastic});
        let placed =
            server.posts("/v1/placements", &json!({"tenant": "acme", "instances": [spec]}));
        let placed = &placed["instances"][0];
        let running = json!({"instance": placed["instance"], "fence": placed["fence"],
            "state": "running"});
        server.posts("/v1/nodes/node-1/heartbeat", &json!({"running": [running]}));
    }
    register("node-2");
    server
}

impl Server {
    /// Posts as an agent would.
    fn posts(&self, path: &str, body: &Value) -> Value {
        now(self.client().post(path, body)).unwrap()
    }

    fn migrations(&self, open: &str) -> Vec<Value> {
        let page: Value = now(self.client().get("/v1/migrations", &[("open", open)])).unwrap();
        page["items"].as_array().unwrap().clone()
    }

    fn client(&self) -> Client {
        Client::new(Connect { url: self.url.clone(), ..Connect::default() }).unwrap()
    }

    /// Agents finish whatever is under way.
    fn drive(&self) {
        for begun in self.migrations("true") {
            let path = format!("/v1/nodes/{}/migrations", begun["source"].as_str().unwrap());
            for step in ["switched", "cleaned_up"] {
                self.posts(&path, &json!({"id": begun["id"], "step": step}));
            }
        }
    }
}

/// Waits for something to be answered.
fn now<T>(answer: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(answer)
}

#[test]
fn a_rebalance_is_planned_saved_and_begun() {
    let server = uneven();
    let goal = ["rebalance", "plan", "--goal", "spread"];
    let empty = server.run(&goal);
    assert!(text(&empty.stderr).contains("nothing to gain"), "{}", text(&empty.stderr));
    let plan = ["rebalance", "plan", "--goal", "spread", "--onto-empty"];
    let table = server.said(&plan);
    assert!(table.starts_with("INSTANCE") && table.contains("GAIN"), "{table}");
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains("node-1  node-2") && table.contains(" ppm"), "{table}");
    assert!(server.migrations("false").is_empty());
    let saved = server.folder.path().join("plan.json");
    std::fs::write(&saved, server.said(&[&plan[..], &["-o", "json"]].concat())).unwrap();
    let saved = saved.to_str().unwrap();
    let begun = server.json(&["rebalance", "apply", "--plan", saved, "--yes"]);
    assert_eq!(begun["begun"][0]["state"], "target_held", "{begun}");
    assert_eq!(begun["begun"][0]["target"], "node-2", "{begun}");
    let again = server.fails(3, &["rebalance", "apply", "--plan", saved, "--yes"]);
    assert!(again.contains("no move could be started") && again.contains("already"), "{again}");
    server.drive();
    let late = server.fails(3, &["rebalance", "apply", "--plan", saved, "--yes"]);
    assert!(late.contains("it runs on node-2 now, not on node-1"), "{late}");
    let other = server.fails(2, &["rebalance", "apply", "--plan", "/nowhere.json"]);
    assert!(other.contains("berth rebalance plan"), "{other}");
    server.fails(2, &["rebalance", "plan", "--goal", "sideways"]);
    let budget = server.fails(2, &["rebalance", "plan", "--goal", "spread", "--budget", "0"]);
    assert!(budget.contains("1..=1000"), "{budget}");
}

#[test]
fn waiting_begins_the_rest_when_limits_allow_and_ends_with_all_moves_made() {
    let server = uneven();
    let policy = server.folder.path().join("one.toml");
    let limits = "name = \"one\"\n[scores]\nmemory-pack = 1\n[elastic.migration]\nper_node = 1\n";
    std::fs::write(&policy, limits).unwrap();
    server.said(&["policy", "activate", policy.to_str().unwrap()]);
    server.said(&["nodes", "cordon", "node-1"]);
    let spec = json!({"resources": {"cpu_milli": 4000, "memory_mib": 8192}});
    server.posts("/v1/placements", &json!({"tenant": "acme", "instances": [spec]}));
    server.said(&["nodes", "uncordon", "node-1"]);
    let apply = ["rebalance", "apply", "--goal", "consolidate", "--yes", "--wait"];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.json(&apply));
        while !waits.is_finished() {
            server.drive();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let made = waits.join().unwrap();
        assert_eq!(made["message"], "3 of 3 moves made", "{made}");
        assert_eq!(made["begun"].as_array().unwrap().len(), 3);
    });
    assert_eq!(server.json(&["nodes", "show", "node-1"])["instances"], 0);
}
