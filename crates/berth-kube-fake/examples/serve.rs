//! The imitation as a server of its own, to try things by hand: `kubectl --kubeconfig FILE …`.
//! `cargo run -p berth-kube-fake --example serve -- FILE NODES [WEBHOOK-ADDRESS]` writes a kubeconfig
//! to FILE, makes NODES nodes in three zones, half of them spot, and runs until it is interrupted.
//! Services named `berth-webhook` in `berth-system` are reached at WEBHOOK-ADDRESS.

#![allow(clippy::unwrap_used, reason = "a program for trying out may stop at the first surprise")]

use berth_kube_fake::{FakeApi, Options};
use serde_json::json;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "kubeconfig".to_owned());
    let nodes = arguments.next().and_then(|it| it.parse().ok()).unwrap_or(6_usize);
    let mut options = Options {
        kubelet: true,
        controllers: true,
        volume_binder: true,
        tls: true,
        token: Some("admin".to_owned()),
        ..Options::default()
    };
    if let Some(webhook) = arguments.next() {
        let address = webhook.parse().unwrap();
        options.services.insert("berth-system/berth-webhook".to_owned(), address);
    }
    let fake = FakeApi::start(options).await.unwrap();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "berth-system"}});
    fake.create(namespace).await.unwrap();
    for number in 0..nodes {
        let name = format!("node-{number}");
        let kind = if number % 2 == 0 { "on-demand" } else { "spot" };
        let labels = json!({
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
            "node.kubernetes.io/capacity": kind,
        });
        let has =
            json!({"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": has, "allocatable": has,
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        fake.create(node).await.unwrap();
    }
    std::fs::write(&file, fake.kubeconfig()).unwrap();
    println!("{} with {nodes} nodes; kubeconfig in {file}", fake.url());
    tokio::signal::ctrl_c().await.unwrap();
}
