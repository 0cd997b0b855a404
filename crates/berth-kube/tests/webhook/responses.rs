//! What is answered to odd reviews, odd workloads and odd pods.

use std::time::Duration;

use berth_kube::webhook::{OnError, OnInvalid};
use berth_ledger::Backend;
use berth_pgtemp::{Options as PgOptions, TempPostgres};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{
    Fixture, eventually, metric, post, post_http2, request, review, review_id, shared, until_readyz,
};

#[tokio::test]
async fn a_body_that_is_not_a_review_is_rejected_with_what_is_accepted() {
    let fixture = Fixture::new().await;
    let pod = json!({ "metadata": {} });
    let mut beta = review("u", &pod);
    beta["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let (status, text) = post(fixture.webhook(), "/mutate", &beta.to_string()).await;
    assert_eq!(status, 400);
    assert_eq!(
        text,
        "apiVersion is \"admission.k8s.io/v1beta1\"; accepted is admission.k8s.io/v1\n"
    );
    for odd in ["", "{", "null", "[]", "7", "{}", "\u{0}"] {
        let (status, text) = post(fixture.webhook(), "/mutate", odd).await;
        assert_eq!(status, 400, "{odd:?}: {text}");
    }
    assert_eq!(post(fixture.webhook(), "/other", "{}").await.0, 404);
    assert_eq!(request(fixture.webhook(), "GET", "/mutate", "").await.0, 405);
    let huge = " ".repeat(9 << 20);
    assert_eq!(post(fixture.webhook(), "/mutate", &huge).await.0, 413);
}

#[tokio::test]
async fn unusual_pods_are_handled() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 100, &shared(1)).await;
    let odd = [
        json!(null),
        json!([]),
        json!("pod"),
        json!({ "metadata": null }),
        json!({ "metadata": [] }),
        json!({ "metadata": { "ownerReferences": {} } }),
        json!({ "metadata": { "ownerReferences": [null] } }),
        json!({ "metadata": { "annotations": "x" } }),
    ];
    for pod in odd {
        let answer = fixture.review(&pod).await;
        assert!(answer.is_untouched(), "{pod}: {answer:?}");
    }
    let specs = [
        json!(null),
        json!([]),
        json!({ "affinity": 7 }),
        json!({ "affinity": { "nodeAffinity": [] } }),
        json!({ "nodeSelector": [], "affinity": { "nodeAffinity": { "requiredDuring": 1 } } }),
    ];
    for spec in specs {
        let mut pod = owned.pod();
        pod["spec"] = spec.clone();
        assert!(fixture.review(&pod).await.allowed(), "{spec}");
    }
    let big = "x".repeat(3 << 20);
    let mut pod = owned.pod();
    pod["metadata"]["annotations"] = json!({ "big": big });
    assert!(!fixture.review(&pod).await.is_untouched(), "three megabytes are no trouble");
}

#[tokio::test]
async fn both_protocols_are_spoken() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    let call = review(&review_id(), &owned.pod()).to_string();
    let (status, text) = post_http2(fixture.webhook(), "/mutate?timeout=5s", &call).await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer["response"]["auditAnnotations"]["slot"], "0");
    assert_eq!(answer["response"]["auditAnnotations"]["workload"], "Deployment/web/abc");
}

#[tokio::test]
async fn other_operations_and_kinds_pass() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    for operation in ["UPDATE", "DELETE", "CONNECT"] {
        let mut call = review(&review_id(), &owned.pod());
        call["request"]["operation"] = json!(operation);
        assert!(fixture.send(&call).await.is_untouched(), "{operation}");
    }
    let mut call = review(&review_id(), &owned.pod());
    call["request"]["kind"]["kind"] = json!("Service");
    assert!(fixture.send(&call).await.is_untouched());
    let mut call = review(&review_id(), &owned.pod());
    call["request"]["namespace"] = json!("kube-system");
    assert!(fixture.send(&call).await.is_untouched(), "a system namespace");
}

#[tokio::test]
async fn an_invalid_count_gives_a_warning_and_one_event() {
    let fixture = Fixture::new().await;
    for (number, odd) in ["three", "-1", "2.5"].into_iter().enumerate() {
        let name = format!("web{number}");
        let owned = fixture.deployment(&name, 5, &shared(odd)).await;
        for _ in 0..3 {
            let answer = fixture.review(&owned.pod()).await;
            assert!(answer.is_untouched());
            let warnings = answer.warnings();
            assert_eq!(warnings.len(), 1);
            assert!(warnings[0].chars().count() <= 120, "{}", warnings[0]);
            for part in ["webhook-scheduler-max-on-demand-count", odd, "a whole number from 0"] {
                assert!(warnings[0].contains(part), "{part}: {}", warnings[0]);
            }
        }
        let events = || -> Vec<Value> {
            let all = fixture.fake.list("events.events.k8s.io");
            all.into_iter().filter(|it| it["regarding"]["name"] == json!(name)).collect()
        };
        eventually("an event", || !events().is_empty()).await;
        let found = events();
        assert_eq!(found.len(), 1, "once, not for every pod");
        assert_eq!(found[0]["type"], "Warning");
        assert_eq!(found[0]["reason"], "InvalidMaxOnDemandCount");
        assert_eq!(found[0]["regarding"]["kind"], "Deployment");
    }
}

#[tokio::test]
async fn a_dry_run_leaves_no_event() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared("three")).await;
    let mut call = review(&review_id(), &owned.pod());
    call["request"]["dryRun"] = json!(true);
    assert_eq!(fixture.send(&call).await.warnings().len(), 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.fake.list("events.events.k8s.io"), Vec::<Value>::new());
}

#[tokio::test]
async fn an_invalid_count_can_be_rejected() {
    let fixture = Fixture::with(|_| {}, |options| options.on_invalid = OnInvalid::Refuse).await;
    let owned = fixture.deployment("web", 5, &shared("three")).await;
    let answer = fixture.review(&owned.pod()).await;
    assert!(!answer.allowed());
    let message = answer.response["status"]["message"].as_str().unwrap();
    assert!(message.contains("\"three\"; accepted is a whole number from 0"), "{message}");
    let refused = fixture.fake.create(owned.pod()).await.unwrap_err();
    assert!(refused.to_string().contains("accepted is a whole number from 0"), "{refused}");
}

#[tokio::test]
async fn a_switch_that_is_neither_on_nor_off_gives_a_warning() {
    let fixture = Fixture::new().await;
    let marks = json!({ "berth.dev/webhook-scheduler": "yes" });
    let owned = fixture.deployment("web", 5, &marks).await;
    let answer = fixture.review(&owned.pod()).await;
    assert!(answer.is_untouched());
    let expected = "berth: berth.dev/webhook-scheduler is \"yes\"; accepted is true or false";
    assert_eq!(answer.warnings(), [expected]);
}

#[tokio::test]
async fn a_pod_that_opts_out_passes() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    for place in ["labels", "annotations"] {
        let mut pod = owned.pod();
        pod["metadata"][place]["cloudpilot.ai/webhook-scheduler"] = json!("false");
        assert!(fixture.review(&pod).await.is_untouched(), "{place}");
    }
}

#[tokio::test]
async fn a_pod_that_chose_its_kind_is_counted_there_and_keeps_its_affinity() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(2)).await;
    let mut pinned = owned.pod();
    pinned["spec"]["nodeSelector"] = json!({ "node.kubernetes.io/capacity": "spot" });
    let answer = fixture.review(&pinned).await;
    let patched = answer.patched(&pinned);
    assert_eq!(patched["spec"], pinned["spec"]);
    assert_eq!(patched["metadata"]["annotations"]["berth.dev/slot"], "2");
    assert_eq!(patched["metadata"]["labels"]["berth.dev/capacity"], "spot");
    let pod = owned.pod();
    let mut slots = Vec::new();
    for _ in 0..3 {
        slots.push(fixture.review(&pod).await.slot(&pod));
    }
    assert_eq!(slots, ["0 on-demand", "1 on-demand", "3 spot"]);

    let mut neither = owned.pod();
    neither["spec"]["nodeSelector"] = json!({ "node.kubernetes.io/capacity": "reserved" });
    let answer = fixture.review(&neither).await;
    assert!(answer.is_untouched());
    assert_eq!(answer.warnings().len(), 1);

    let mut there = owned.pod();
    there["spec"]["nodeName"] = json!("n1");
    let answer = fixture.review(&there).await;
    assert!(answer.is_untouched() && answer.warnings().len() == 1);
}

#[tokio::test]
async fn the_users_deletion_cost_and_affinity_stay() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    let mut pod = owned.pod();
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    pod["metadata"]["annotations"] = json!({ cost: "7" });
    pod["spec"]["affinity"] = json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] },
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] },
        ] },
    } });
    let patched = fixture.review(&pod).await.patched(&pod);
    assert_eq!(patched["metadata"]["annotations"][cost], "7");
    let terms = &patched["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let kind =
        json!({ "key": "node.kubernetes.io/capacity", "operator": "In", "values": ["on-demand"] });
    let expected = json!([
        { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }, kind] },
        {
            "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }],
            "matchExpressions": [kind],
        },
    ]);
    assert_eq!(*terms, expected);
}

#[tokio::test]
async fn when_the_api_server_is_slow_the_watched_copy_is_used() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    let pod = owned.pod();
    assert_eq!(fixture.review(&pod).await.slot(&pod), "0 on-demand");
    fixture.fake.set_faults(berth_kube_fake::Faults {
        latency: Some(Duration::from_secs(20)),
        ..berth_kube_fake::Faults::default()
    });
    assert_eq!(fixture.review(&pod).await.slot(&pod), "1 spot");
    fixture.fake.clear_faults();
}

#[tokio::test]
async fn when_the_api_server_does_not_answer_the_setting_decides() {
    for on_error in [OnError::Ignore, OnError::Refuse] {
        let change = |options: &mut berth_kube::webhook::Options| {
            options.on_error = on_error;
            options.timeout = Duration::from_secs(2);
        };
        let fixture = Fixture::with(|_| {}, change).await;
        let owned = fixture.deployment("web", 5, &shared(1)).await;
        // A workload that no watch has told of, so that nothing is known of it without asking.
        let mut pod = owned.pod();
        pod["metadata"]["ownerReferences"][0]["name"] = json!("web-unknown");
        fixture.fake.set_faults(berth_kube_fake::Faults {
            latency: Some(Duration::from_secs(20)),
            ..berth_kube_fake::Faults::default()
        });
        let answer = fixture.review(&pod).await;
        fixture.fake.clear_faults();
        match on_error {
            OnError::Ignore => assert!(answer.is_untouched() && answer.warnings().len() == 1),
            OnError::Refuse => {
                assert!(!answer.allowed());
                assert_eq!(answer.response["status"]["code"], 503);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_ledger_is_unavailable_pods_pass_with_a_warning_and_later_get_their_slots() {
    let mut postgres = TempPostgres::start(PgOptions::quick()).unwrap();
    let url = postgres.create_database("webhook").unwrap();
    let fixture = Fixture::with(|_| {}, |options| options.ledger = Backend::Postgres(url)).await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    let pod = owned.pod();
    assert_eq!(fixture.review(&pod).await.slot(&pod), "0 on-demand");
    postgres.kill().unwrap();
    let answer = fixture.review(&pod).await;
    assert!(answer.is_untouched(), "{answer:?}");
    assert_eq!(answer.warnings().len(), 1);
    // Those that follow do not wait for the database, nor does one of them find out whether it is back.
    let (started, mut slowest) = (Instant::now(), Duration::ZERO);
    while started.elapsed() < Duration::from_secs(5) {
        let (asked, answer) = (Instant::now(), fixture.review(&pod).await);
        slowest = slowest.max(asked.elapsed());
        assert!(format!("{answer:?}").contains("the slot database does not answer"), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(slowest < Duration::from_secs(1), "one waited for {slowest:?}");
    let line = "the slot database does not answer: no slots are assigned, and pods are treated as by --on-error admit\n";
    until_readyz(fixture.webhook(), 503, line).await;
    assert_eq!(metric(fixture.webhook(), "berth_webhook_database_up").await, Some(0.0));
    postgres.restart().unwrap();
    // No admission is needed to find out.
    until_readyz(fixture.webhook(), 200, "ok").await;
    assert_eq!(metric(fixture.webhook(), "berth_webhook_database_up").await, Some(1.0));
    // What was asked for while it was away may have been given after all, and ends by itself.
    let slot = fixture.review(&pod).await.slot(&pod);
    assert!(slot == "1 on-demand" || slot == "2 on-demand", "{slot}");
}
