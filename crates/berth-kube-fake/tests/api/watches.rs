//! Watches: resuming, what is forgotten, bookmarks, streaming lists and selectors.

use std::time::Duration;

use berth_kube_fake::{Faults, Options, samples};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta, WatchEvent, WatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};

use crate::support::{get, post, start, start_with};

fn kinds(lines: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    lines
        .iter()
        .map(|line| (text(&line["type"]), text(&line["object"]["metadata"]["name"])))
        .collect()
}

fn told(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

fn pod(name: &str) -> Value {
    samples::pod("default", name, "berth", 1, 1)
}

#[tokio::test]
async fn a_watch_goes_on_where_a_list_ended() {
    let (fake, client) = start().await;
    fake.create(pod("a")).await.unwrap();
    let pods: Api<Pod> = Api::all(client);
    let list = pods.list(&Default::default()).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    fake.create(pod("b")).await.unwrap();
    let mut stream = pods.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    fake.delete("Pod", "default", "a").await.unwrap();
    let Some(WatchEvent::Added(added)) = stream.try_next().await.unwrap() else { panic!("b") };
    assert_eq!(added.metadata.name.as_deref(), Some("b"));
    let Some(WatchEvent::Deleted(gone)) = stream.try_next().await.unwrap() else { panic!("a") };
    assert_eq!(gone.metadata.name.as_deref(), Some("a"));
    assert_eq!(gone.metadata.resource_version, Some(fake.version().to_string()));
}

#[tokio::test]
async fn a_watch_without_a_version_starts_with_all_there_is() {
    let (fake, _client) = start().await;
    fake.create(pod("a")).await.unwrap();
    for query in ["watch=true&timeoutSeconds=1", "watch=1&resourceVersion=0&timeoutSeconds=1"] {
        let lines = get(&fake, &format!("/api/v1/pods?{query}")).await.lines();
        assert_eq!(kinds(&lines), told(&[("ADDED", "a")]), "{query}");
    }
}

#[tokio::test]
async fn what_is_forgotten_is_told_inside_the_stream_or_refused() {
    for plain_gone in [false, true] {
        let options = Options { plain_gone, ..Options::default() };
        let (fake, _client) = start_with(options).await;
        fake.create(pod("a")).await.unwrap();
        let version = fake.version();
        fake.compact();
        let path = format!("/api/v1/pods?watch=true&resourceVersion={version}");
        let answer = get(&fake, &path).await;
        let status = if plain_gone {
            assert_eq!(answer.code, 410);
            answer.json()
        } else {
            assert_eq!((answer.code, answer.lines().len()), (200, 1));
            assert_eq!(answer.lines()[0]["type"], "ERROR");
            answer.lines()[0]["object"].clone()
        };
        assert_eq!((&status["code"], &status["reason"]), (&json!(410), &json!("Expired")));
    }
}

#[tokio::test]
async fn a_history_that_is_full_forgets_the_oldest() {
    let options = Options { history: 3, ..Options::default() };
    let (fake, _client) = start_with(options).await;
    let start = fake.version();
    for at in 0..5 {
        fake.create(pod(&format!("p{at}"))).await.unwrap();
    }
    let path = |version: u64| {
        format!("/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion={version}")
    };
    assert_eq!(get(&fake, &path(start)).await.lines()[0]["object"]["code"], 410);
    let kept = get(&fake, &path(start + 2)).await.lines();
    assert_eq!(kinds(&kept), told(&[("ADDED", "p2"), ("ADDED", "p3"), ("ADDED", "p4")]));
}

#[tokio::test]
async fn what_leaves_a_selection_is_deleted_to_its_watcher() {
    let (fake, _client) = start().await;
    fake.create(pod("a")).await.unwrap();
    fake.create(pod("b")).await.unwrap();
    let version = fake.version();
    let target = json!({ "target": { "name": "n" } });
    post(&fake, "/api/v1/namespaces/default/pods/a/binding", &target).await;
    let path = |selector: &str| {
        format!(
            "/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion={version}&fieldSelector={selector}"
        )
    };
    let unbound = get(&fake, &path("spec.nodeName%3D")).await.lines();
    assert_eq!(kinds(&unbound), told(&[("DELETED", "a")]));
    assert_eq!(unbound[0]["object"]["spec"]["nodeName"], Value::Null, "its last state in sight");
    assert_eq!(unbound[0]["object"]["metadata"]["resourceVersion"], fake.version().to_string());
    let bound = get(&fake, &path("spec.nodeName%3Dn")).await.lines();
    assert_eq!(kinds(&bound), told(&[("ADDED", "a")]));
    let all = get(&fake, &path("")).await.lines();
    assert_eq!(kinds(&all), told(&[("MODIFIED", "a")]));
}

#[tokio::test]
async fn bookmarks_come_to_those_who_allow_them() {
    let options =
        Options { bookmark_every: Some(Duration::from_millis(100)), ..Options::default() };
    let (fake, _client) = start_with(options).await;
    fake.create(samples::node("n", 1, 1)).await.unwrap();
    let version = fake.version();
    let path = format!("/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion={}", version - 1);
    assert!(get(&fake, &path).await.lines().is_empty());
    let lines = get(&fake, &format!("{path}&allowWatchBookmarks=true")).await.lines();
    assert!(!lines.is_empty());
    for line in lines {
        assert_eq!(line["type"], "BOOKMARK");
        assert_eq!(line["object"]["metadata"]["resourceVersion"], version.to_string());
    }
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let (fake, client) = start().await;
    fake.create(pod("a")).await.unwrap();
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &allowWatchBookmarks=true&timeoutSeconds=1";
    let lines = get(&fake, &format!("/api/v1/pods?{query}")).await.lines();
    assert_eq!(kinds(&lines[..2]), told(&[("ADDED", "a"), ("BOOKMARK", "")]));
    let metadata = &lines[1]["object"]["metadata"];
    assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true");
    let without = "/api/v1/pods?watch=true&sendInitialEvents=true";
    assert_eq!(get(&fake, without).await.code, 422);

    let pods: Api<Pod> = Api::all(client);
    let config = watcher::Config::default().streaming_lists();
    let mut stream = watcher(pods, config).boxed();
    let mut names = Vec::new();
    loop {
        match stream.try_next().await.unwrap().unwrap() {
            watcher::Event::InitApply(pod) => names.push(pod.metadata.name.unwrap()),
            watcher::Event::InitDone => break,
            watcher::Event::Init | watcher::Event::Apply(_) | watcher::Event::Delete(_) => {}
        }
    }
    assert_eq!(names, ["a"]);
}

#[tokio::test]
async fn a_watcher_outlives_cuts_and_compactions() {
    let options =
        Options { drop_watches_every: Some(Duration::from_millis(40)), ..Options::default() };
    let (fake, client) = start_with(options).await;
    let pods: Api<Pod> = Api::all(client);
    let mut stream = watcher(pods, watcher::Config::default()).boxed();
    let maker = async {
        for at in 0..40 {
            fake.create(pod(&format!("p{at:02}"))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            if at == 20 {
                fake.compact();
            }
        }
        fake.set_faults(Faults::default());
    };
    let reader = async {
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 40 {
            let event = stream.next().await.unwrap();
            if let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event {
                seen.insert(pod.metadata.name.unwrap());
            }
        }
        seen.len()
    };
    let ((), seen) = tokio::join!(maker, reader);
    assert_eq!(seen, 40);
}

#[tokio::test]
async fn metadata_alone_can_be_listed_and_watched() {
    let (fake, client) = start().await;
    fake.create(pod("a")).await.unwrap();
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client);
    let list = pods.list(&Default::default()).await.unwrap();
    assert_eq!(list.items[0].metadata.name.as_deref(), Some("a"));
    let mut stream = watcher(pods, watcher::Config::default()).boxed();
    let mut names = Vec::new();
    fake.create(pod("b")).await.unwrap();
    while names.len() < 2 {
        let event = stream.try_next().await.unwrap().unwrap();
        if let watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) = event {
            names.push(pod.metadata.name.unwrap());
        }
    }
    assert_eq!(names, ["a", "b"]);
    let accept = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let path = "/api/v1/namespaces/default/pods/a";
    let one = crate::support::plain(&fake, "GET", path, &accept, "").await.json();
    assert_eq!((&one["kind"], &one["spec"]), (&json!("PartialObjectMetadata"), &Value::Null));
}
