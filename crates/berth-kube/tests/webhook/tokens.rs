//! Retries, reinvocations, copies and dry runs: when the same answer is given, and when a new one.

use std::time::Duration;

use serde_json::json;

use crate::fixture::{Fixture, review, review_id, shared};

#[tokio::test]
async fn a_retry_of_the_same_call_gets_the_same_answer() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    let pod = owned.pod();
    let call = review(&review_id(), &pod);
    let first = fixture.send(&call).await;
    let again = fixture.send(&call).await;
    assert_eq!(first.patch, again.patch);
    assert_eq!(fixture.review(&pod).await.slot(&pod), "1 on-demand", "and took one slot only");
}

#[tokio::test]
async fn a_reinvocation_keeps_the_slot() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(0)).await;
    let pod = owned.pod();
    let first = fixture.review(&pod).await;
    let patched = first.patched(&pod);
    let second = fixture.review(&patched).await;
    assert_eq!(second.patch, json!([]), "nothing is left to change");
    assert!(second.allowed());

    // Another webhook has added an alternative meanwhile: the kind is required there too.
    let mut changed = patched.clone();
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/\
                 nodeSelectorTerms";
    let terms = changed.pointer_mut(terms).unwrap().as_array_mut().unwrap();
    terms.push(json!({ "matchExpressions": [
        { "key": "zone", "operator": "In", "values": ["a"] },
    ] }));
    let third = fixture.review(&changed).await;
    assert_eq!(third.patch.as_array().unwrap().len(), 1);
    let (token, slot) = (third.token(&changed), third.slot(&changed));
    assert_eq!((token, slot), (first.token(&pod), "0 spot".to_owned()));
    assert!(
        !third.patched(&changed)["metadata"]["annotations"]
            .as_object()
            .unwrap()
            .contains_key("berth.dev/pinned")
    );
    assert_eq!(fixture.review(&pod).await.slot(&pod), "1 spot");
}

#[tokio::test]
async fn a_copied_token_is_ignored() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    let other = fixture.deployment("api", 5, &shared(3)).await;
    let pod = owned.pod();
    let with_token = |token: &str| {
        let mut pod = owned.pod();
        pod["metadata"]["annotations"] = json!({ "berth.dev/slot-token": token });
        pod
    };
    // Of another workload.
    let foreign = other.pod();
    let foreign = fixture.review(&foreign).await.token(&foreign);
    let copied = with_token(&foreign);
    let answer = fixture.review(&copied).await;
    assert_eq!(answer.slot(&copied), "0 on-demand");
    assert_ne!(answer.token(&copied), foreign);
    // Unknown, and no token at all.
    for (odd, expected) in
        [("0190163d-8694-739b-aea5-966c26f8ad90", "1 on-demand"), ("not a token", "2 on-demand")]
    {
        let copied = with_token(odd);
        assert_eq!(fixture.review(&copied).await.slot(&copied), expected, "{odd}");
    }
    // Of a pod that lives: somebody copied its YAML.
    let (answer, name) = fixture.create(&pod).await;
    assert_eq!(answer.slot(&pod), "3 spot");
    let live = answer.token(&pod);
    assert!(fixture.fake.get("pods", "shop", &name).is_some());
    // Until the pod was seen the token could be of a later call for it. The others' never come.
    fixture.bound(&live).await;
    let copied = with_token(&live);
    let answer = fixture.review(&copied).await;
    assert_eq!(answer.slot(&copied), "4 spot");
    assert_ne!(answer.token(&copied), live);
}

#[tokio::test]
async fn s15_a_dry_run_says_what_would_be_and_reserves_nothing() {
    let fixture = Fixture::new().await;
    let owned = fixture.deployment("web", 5, &shared(3)).await;
    let pod = owned.pod();
    let mut dry = review(&review_id(), &pod);
    dry["request"]["dryRun"] = json!(true);
    assert_eq!(fixture.send(&dry).await.slot(&pod), "0 on-demand", "before anything is known");
    for _ in 0..2 {
        fixture.review(&pod).await;
    }
    for _ in 0..3 {
        dry["request"]["uid"] = json!(review_id());
        assert_eq!(fixture.send(&dry).await.slot(&pod), "2 on-demand");
    }
    assert_eq!(fixture.review(&pod).await.slot(&pod), "2 on-demand");
    dry["request"]["uid"] = json!(review_id());
    assert_eq!(fixture.send(&dry).await.slot(&pod), "3 spot");
}

#[tokio::test]
async fn s14_a_creation_that_is_rejected_frees_its_slot_when_the_reservation_ends() {
    let fixture =
        Fixture::with(|_| {}, |options| options.reserve_for = Duration::from_secs(2)).await;
    let owned = fixture.deployment("web", 5, &shared(1)).await;
    let pod = owned.pod();
    fixture.fake.refuse_next_pods(1);
    let refused = fixture.fake.create(pod.clone()).await;
    assert!(refused.is_err(), "the quota refuses it after the webhook gave it slot 0");
    assert_eq!(fixture.review(&pod).await.slot(&pod), "1 spot");
    let waited = tokio::time::timeout(Duration::from_secs(90), async {
        loop {
            let mut dry = review(&review_id(), &pod);
            dry["request"]["dryRun"] = json!(true);
            if fixture.send(&dry).await.slot(&pod) == "0 on-demand" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    waited.await.expect("slot 0 is free again");
    assert_eq!(fixture.review(&pod).await.slot(&pod), "0 on-demand");
}
