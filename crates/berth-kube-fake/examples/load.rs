//! How fast the imitation is: nodes and pods are made, some clients watch, every pod is bound.
//! `cargo run --release -p berth-kube-fake --example load -- NODES PODS WATCHERS`

#![allow(clippy::unwrap_used, reason = "a program that measures may stop at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use berth_kube_fake::{FakeApi, Options, samples};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How many requests are under way at once.
const AT_ONCE: usize = 64;

fn report(what: &str, count: usize, since: Instant) {
    let ms = since.elapsed().as_millis().max(1);
    println!("{what}: {count} in {ms} ms, {} a second", count as u128 * 1000 / ms);
}

/// Counts the pods that are seen bound.
async fn follow(client: kube::Client, bound: Arc<AtomicUsize>) {
    let pods: Api<Pod> = Api::all(client);
    let mut events = watcher(pods, watcher::Config::default()).boxed();
    while let Ok(Some(event)) = events.try_next().await {
        if let watcher::Event::Apply(pod) = event
            && pod.spec.is_some_and(|spec| spec.node_name.is_some())
        {
            bound.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let nodes = arguments.next().unwrap_or(500);
    let pods = arguments.next().unwrap_or(2000);
    let watchers = arguments.next().unwrap_or(2);
    let fake = FakeApi::start(Options::default()).await.unwrap();
    let began = Instant::now();
    let name = |letter: char| {
        move |at: usize, object: &mut Value| {
            object["metadata"]["name"] = json!(format!("{letter}{at}"));
        }
    };
    fake.create_many(samples::node("n", 64_000, 262_144), nodes, name('n')).await.unwrap();
    report("nodes made", nodes, began);
    let began = Instant::now();
    let some = pods / 10;
    for at in 0..some {
        fake.create(samples::pod("default", &format!("single{at}"), "other", 1, 1)).await.unwrap();
    }
    report("pods made one by one", some, began);
    let began = Instant::now();
    let pod = samples::pod("default", "p", "berth", 100, 128);
    fake.create_many(pod, pods, name('p')).await.unwrap();
    report("pods made", pods, began);
    let client = kube::Client::try_from(kube::Config::new(fake.url().parse().unwrap())).unwrap();
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let began = Instant::now();
    let listed = api.list(&ListParams::default()).await.unwrap().items.len();
    report("pods listed at once", listed, began);
    let bound = Arc::new(AtomicUsize::new(0));
    for _ in 0..watchers {
        tokio::spawn(follow(client.clone(), Arc::clone(&bound)));
    }
    let began = Instant::now();
    stream::iter(0..pods)
        .for_each_concurrent(AT_ONCE, |at| {
            let api = api.clone();
            async move {
                let name = format!("p{at}");
                let body = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
                    "target": { "kind": "Node", "name": format!("n{}", at % nodes) },
                });
                let params = PostParams::default();
                let _: Value =
                    api.create_subresource("binding", &name, &params, &body).await.unwrap();
            }
        })
        .await;
    report("pods bound", pods, began);
    while bound.load(Ordering::Relaxed) < watchers * pods && began.elapsed().as_secs() < 60 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    report("bindings seen by watchers", bound.load(Ordering::Relaxed), began);
    assert_eq!(fake.bindings().len(), pods);
}
