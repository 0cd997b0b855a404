//! Several replicas: one acts, another takes over.

use serde_json::json;

use crate::support::{Replica, add_nodes, add_pod, bound, check_books, eventually, start};

#[tokio::test]
async fn one_of_two_replicas_leads_and_releases_the_lease_when_it_stops() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2"], 4_000).await;
    let first = Replica::standing(&fake, "first").await;
    let holder = || {
        let lease = fake.get("leases.coordination.k8s.io", "default", "berth-scheduler");
        lease.unwrap_or_default()["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    eventually("first leads", || holder() == "first").await;
    let second = Replica::standing(&fake, "second").await;
    for index in 0..5 {
        add_pod(&fake, &format!("p{index}"), 300).await;
        bound(&fake, &format!("p{index}")).await;
    }
    assert_eq!(second.counts().await["leader"], json!(false));
    first.stop().await;
    eventually("second leads", || holder() == "second").await;
    for index in 5..10 {
        add_pod(&fake, &format!("p{index}"), 300).await;
        bound(&fake, &format!("p{index}")).await;
    }
    let lease = fake.get("leases.coordination.k8s.io", "default", "berth-scheduler").unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], json!(1));
    check_books(&fake);
    assert_eq!(fake.bindings().len(), 10);
    second.stop().await;
}

#[tokio::test]
async fn a_leader_that_cannot_renew_binds_nothing_until_it_leads_again() {
    let fake = start().await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let replica = Replica::standing(&fake, "only").await;
    add_pod(&fake, "before", 100).await;
    bound(&fake, "before").await;
    fake.set_faults(berth_kube_fake::Faults {
        error_rate_permille: 1_000,
        only: Some("leases.coordination.k8s.io".to_owned()),
        ..berth_kube_fake::Faults::default()
    });
    while replica.counts().await["leader"] == json!(true) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    add_pod(&fake, "meanwhile", 100).await;
    while replica.counts().await["pods"] != json!(2) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(fake.bindings().len(), 1);
    fake.clear_faults();
    bound(&fake, "meanwhile").await;
    check_books(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn a_leader_that_crashes_is_replaced_and_nothing_is_bound_twice() {
    let fake = start().await;
    add_nodes(&fake, &["n1", "n2", "n3"], 10_000).await;
    let mut first = Some(Replica::mortal(&fake, "first"));
    add_pod(&fake, "p0", 100).await;
    bound(&fake, "p0").await;
    let second = Replica::standing(&fake, "second").await;
    for index in 1..100 {
        add_pod(&fake, &format!("p{index}"), 200).await;
        if index == 30 {
            // No farewell, and whatever it was about to do is not done.
            first.take().unwrap().shutdown_background();
        }
    }
    for index in 1..100 {
        bound(&fake, &format!("p{index}")).await;
    }
    check_books(&fake);
    second.stop().await;
}
