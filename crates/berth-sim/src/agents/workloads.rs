//! The workloads of the demo.

use std::time::Duration;

use berth_client::{Client, ClientError};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Their names and definitions: on-demand and spot, spot alone, and any capacity.
fn workloads() -> [(&'static str, Value); 3] {
    let each = |image: &str, cpu: u32, memory: u32| {
        let resources = json!({ "cpu_milli": cpu, "memory_mib": memory });
        json!({ "env": "live", "image": image, "resources": resources })
    };
    [
        (
            "storefront",
            json!({
                "replicas": 12, "process": "web", "template": each("storefront:1", 1000, 2048),
                "capacity": { "max_on_demand": 4 },
                "rolling": { "strategy": "rolling", "max_surge": "25%" },
            }),
        ),
        (
            "thumbnails",
            json!({
                "replicas": 8, "process": "worker", "template": each("thumbnails:1", 2000, 1024),
                "capacity": { "max_on_demand": 0, "mode": "prefer" },
            }),
        ),
        ("checkout", json!({ "replicas": 3, "template": each("checkout:1", 500, 1024) })),
    ]
}

/// Stores the workloads, retrying until the server is up. Existing ones are not overwritten.
pub(super) async fn store_workloads(client: Client) {
    for (name, wanted) in workloads() {
        let path = format!("/v1/workloads/demo/{name}");
        loop {
            let known: Result<Value, ClientError> = client.get(&path, &[]).await;
            let stored = match known {
                Ok(_) => break,
                Err(_) => client.put::<_, Value>(&path, &wanted).await,
            };
            match stored {
                Ok(_) => break,
                Err(error) => tracing::debug!(%error, name, "failed to store workload; retrying"),
            }
            sleep(Duration::from_secs(2)).await;
        }
    }
}
