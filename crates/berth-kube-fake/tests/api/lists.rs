//! Lists: pages, selectors and versions.

use berth_kube_fake::samples;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::support::{get, start};

async fn with_pods(count: usize) -> (berth_kube_fake::FakeApi, kube::Client) {
    let (fake, client) = start().await;
    for at in 0..count {
        let mut pod = samples::pod("default", &format!("p{at:02}"), "berth", 1, 1);
        pod["metadata"]["labels"] = json!({ "even": (at % 2 == 0).to_string() });
        if at % 2 == 0 {
            pod["metadata"]["labels"]["marked"] = json!("");
        }
        fake.create(pod).await.unwrap();
    }
    (fake, client)
}

#[tokio::test]
async fn pages_belong_to_one_state() {
    let (fake, client) = with_pods(7).await;
    let pods: Api<Pod> = Api::all(client);
    let first = pods.list(&ListParams::default().limit(3)).await.unwrap();
    assert_eq!(first.items.len(), 3);
    assert_eq!(first.metadata.remaining_item_count, Some(4));
    fake.delete("Pod", "default", "p05").await.unwrap();
    fake.create(samples::pod("default", "p99", "berth", 1, 1)).await.unwrap();
    let mut names: Vec<String> = Vec::new();
    let mut page = first;
    loop {
        names.extend(page.items.iter().map(|pod| pod.metadata.name.clone().unwrap()));
        let Some(token) = page.metadata.continue_.clone().filter(|t| !t.is_empty()) else { break };
        let version = page.metadata.resource_version.clone();
        page = pods.list(&ListParams::default().limit(3).continue_token(&token)).await.unwrap();
        assert_eq!(page.metadata.resource_version, version);
    }
    let expected: Vec<String> = (0..7).map(|at| format!("p{at:02}")).collect();
    assert_eq!(names, expected);
}

#[tokio::test]
async fn pages_of_a_namespace_and_of_all_do_not_mix() {
    let (fake, _client) = with_pods(4).await;
    for at in 0..4 {
        fake.create(samples::pod("kube-system", &format!("s{at}"), "berth", 1, 1)).await.unwrap();
    }
    let mut counts = Vec::new();
    let paths = ["/api/v1/namespaces/kube-system/pods", "/api/v1/pods"];
    let mut firsts = Vec::new();
    for path in paths {
        firsts.push(get(&fake, &format!("{path}?limit=1")).await.json());
    }
    for (path, first) in paths.iter().zip(&firsts) {
        let token = first["metadata"]["continue"].as_str().unwrap();
        let rest = get(&fake, &format!("{path}?limit=20&continue={token}")).await.json();
        let count = rest["items"].as_array().unwrap().len();
        assert_eq!(first["metadata"]["remainingItemCount"], count);
        counts.push(count);
    }
    assert_eq!(counts, [3, 7]);
}

#[tokio::test]
async fn a_page_of_a_forgotten_state_is_gone() {
    let (fake, _client) = with_pods(5).await;
    let first = get(&fake, "/api/v1/pods?limit=2").await.json();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    fake.compact();
    let gone = get(&fake, &format!("/api/v1/pods?limit=2&continue={token}")).await;
    assert_eq!((gone.code, gone.json()["reason"].clone()), (410, json!("Expired")));
    let go_on = gone.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = get(&fake, &format!("/api/v1/pods?limit=9&continue={go_on}")).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn selectors_choose() {
    let (fake, _client) = with_pods(6).await;
    let target = json!({ "target": { "name": "n" } });
    let path = "/api/v1/namespaces/default/pods/p00/binding";
    assert_eq!(crate::support::post(&fake, path, &target).await.code, 201);
    let table = [
        ("labelSelector=even%3Dtrue", 3),
        ("labelSelector=even%3D%3Dfalse", 3),
        ("labelSelector=even%21%3Dtrue", 3),
        ("labelSelector=even+in+(true,false)", 6),
        ("labelSelector=even+notin+(true)", 3),
        ("labelSelector=marked", 3),
        ("labelSelector=%21marked", 3),
        ("labelSelector=marked,even%3Dfalse", 0),
        ("fieldSelector=spec.nodeName%3Dn", 1),
        ("fieldSelector=spec.nodeName%3D", 5),
        ("fieldSelector=spec.schedulerName%3Dberth,status.phase%3DPending", 6),
        ("fieldSelector=metadata.name%3Dp03", 1),
        ("fieldSelector=status.phase%21%3DPending", 0),
    ];
    for (query, expected) in table {
        let list = get(&fake, &format!("/api/v1/pods?{query}")).await;
        assert_eq!(list.json()["items"].as_array().map(Vec::len), Some(expected), "{query}");
    }
    for query in ["fieldSelector=spec.priority%3D1", "labelSelector=a+in+b", "labelSelector=%3D"] {
        assert_eq!(get(&fake, &format!("/api/v1/pods?{query}")).await.code, 400, "{query}");
    }
}

#[tokio::test]
async fn items_of_a_list_do_not_say_their_kind() {
    let (fake, _client) = with_pods(1).await;
    let list = get(&fake, "/api/v1/pods").await.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    assert!(list["items"][0].get("kind").is_none());
    assert_eq!(get(&fake, "/api/v1/namespaces/default/pods/p00").await.json()["kind"], "Pod");
}

#[tokio::test]
async fn versions_of_lists_follow_the_rules() {
    let (fake, _client) = with_pods(3).await;
    let at = fake.version();
    fake.delete("Pod", "default", "p00").await.unwrap();
    let exact = format!("resourceVersion={at}&resourceVersionMatch=Exact");
    let table = [
        ("resourceVersion=0".to_owned(), 200, 2),
        ("resourceVersion=0&limit=1".to_owned(), 200, 2),
        (exact, 200, 3),
        (format!("resourceVersion={at}"), 200, 2),
        (format!("resourceVersion={at}&resourceVersionMatch=NotOlderThan"), 200, 2),
        ("resourceVersion=1&resourceVersionMatch=Exact".to_owned(), 200, 0),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(), 422, 0),
        ("resourceVersionMatch=Exact".to_owned(), 422, 0),
        ("resourceVersion=1&resourceVersionMatch=Near".to_owned(), 422, 0),
        ("sendInitialEvents=true".to_owned(), 422, 0),
        ("resourceVersion=1000000".to_owned(), 504, 0),
    ];
    for (query, expected, count) in table {
        let list = get(&fake, &format!("/api/v1/pods?{query}")).await;
        assert_eq!(list.code, expected, "{query}: {}", list.text);
        if expected == 200 {
            assert_eq!(list.json()["items"].as_array().unwrap().len(), count, "{query}");
        }
    }
    let large = get(&fake, "/api/v1/pods?resourceVersion=1000000").await.json();
    assert_eq!(large["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    fake.compact();
    let old =
        get(&fake, &format!("/api/v1/pods?resourceVersion={at}&resourceVersionMatch=Exact")).await;
    assert_eq!(old.code, 410);
}
