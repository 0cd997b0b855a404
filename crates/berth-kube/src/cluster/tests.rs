//! Scenarios of the whole core, through `Cluster` alone: what its parts do together.

use berth_engine::elastic::{PermitRequest, Size};
use berth_engine::{Policy, Timestamp};
use serde_json::{Value, json};

use super::outcome::{GangOutcome, Outcome, Reservation};
use super::pod::Key;
use super::{Cluster, MissingRequests, PodState, Settings};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const NOW: Timestamp = Timestamp(1000);

struct TestCluster(Cluster);

impl TestCluster {
    fn new(nodes: &[Value]) -> Result<Self, Box<dyn std::error::Error>> {
        let policy = Policy::builtin("balanced")?;
        let settings = Settings {
            scheduler: "berth".into(),
            policy,
            missing_requests: MissingRequests::Zero,
            ignored_pod_fields: Vec::new(),
        };
        let mut world = Self(Cluster::new(settings));
        for node in nodes {
            world.node(node)?;
        }
        Ok(world)
    }

    fn node(&mut self, node: &Value) -> TestResult {
        self.0.put_node(&serde_json::from_value(node.clone())?);
        Ok(())
    }

    fn pod(&mut self, pod: &Value) -> Result<PodState, serde_json::Error> {
        Ok(self.0.put_pod(&serde_json::from_value(pod.clone())?))
    }

    fn schedule(&mut self, pod: &Value) -> Result<Outcome, serde_json::Error> {
        self.pod(pod)?;
        Ok(self.0.schedule_pod(pod["metadata"]["uid"].as_str().unwrap_or_default(), NOW))
    }

    fn reserved(&mut self, pod: &Value) -> Result<Reservation, Box<dyn std::error::Error>> {
        match self.schedule(pod)? {
            Outcome::Reserved(reservation) => Ok(*reservation),
            other => Err(format!("it has no node: {other:?}").into()),
        }
    }
}

fn node(name: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "10"}},
    })
}

fn pod(name: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"}},
        "spec": {"schedulerName": "berth", "containers": [
            {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}},
        ]},
    })
}

fn bound(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod["status"] = json!({"phase": "Running"});
    pod
}

#[test]
fn a_node_is_filled_to_the_last_byte_and_the_refusal_has_both_numbers() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "2", "1G")])?;
    world.reserved(&pod("p1", "1", "500M"))?;
    world.reserved(&pod("p2", "500m", "500M"))?;
    let Outcome::Refused(refusal) = world.schedule(&pod("p3", "100m", "1"))? else {
        return Err("there is no byte left".into());
    };
    assert_eq!(refusal.code, "no_capacity_memory");
    assert_eq!(
        refusal.line,
        "0/1 nodes are available: 1 short of memory (nearest a: 0 free of 1 requested)"
    );
    Ok(())
}

#[test]
fn pods_bound_by_others_are_accounted_until_they_end() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "1", "1Gi")])?;
    let mut other = bound(pod("other", "800m", "100Mi"), "a");
    other["spec"]["schedulerName"] = "default-scheduler".into();
    assert_eq!(world.pod(&other)?, PodState::Bound);
    assert!(matches!(world.schedule(&pod("mine", "300m", "1Mi"))?, Outcome::Refused(_)));
    other["status"]["phase"] = "Succeeded".into();
    assert_eq!(world.pod(&other)?, PodState::Ended);
    assert!(world.0.take_changed());
    world.reserved(&pod("mine", "300m", "1Mi"))?;
    Ok(())
}

#[test]
fn a_reservation_becomes_a_binding_and_an_unreserved_one_leaves_nothing() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "1", "1Gi")])?;
    let first = pod("p1", "1", "1Gi");
    world.reserved(&first)?;
    assert_eq!(world.schedule(&first)?, Outcome::NotPending, "it is reserved already");
    world.0.unreserve("p1");
    let second = pod("p2", "1", "1Gi");
    world.reserved(&second)?;
    assert_eq!(world.pod(&bound(second.clone(), "a"))?, PodState::Bound);
    world.0.unreserve("p2");
    assert!(matches!(world.schedule(&first)?, Outcome::Refused(_)), "a binding is not given up");
    world.0.remove_pod(&Key::new("shop", "p2"), "p2");
    world.reserved(&first)?;
    Ok(())
}

#[test]
fn a_node_that_moves_to_another_zone_keeps_its_pods_and_is_counted_there() -> TestResult {
    let with_zone = |name: &str, zone: &str| {
        let mut node = node(name, "4", "8Gi");
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone.into();
        node
    };
    let mut world = TestCluster::new(&[with_zone("a", "x"), with_zone("b", "y")])?;
    world.pod(&bound(pod("there", "1", "1Gi"), "a"))?;
    let mut apart = pod("apart", "1", "1Gi");
    apart["spec"]["affinity"] = json!({"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "topology.kubernetes.io/zone",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }],
    }});
    assert_eq!(&*world.reserved(&apart)?.node, "b");
    world.0.unreserve("apart");
    world.node(&with_zone("a", "y"))?;
    assert!(matches!(world.schedule(&apart)?, Outcome::Refused(_)), "both zones are one now");
    world.node(&with_zone("a", "z"))?;
    assert_eq!(&*world.reserved(&apart)?.node, "b");
    Ok(())
}

#[test]
fn a_gang_is_placed_as_a_whole_or_leaves_no_trace() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "2", "8Gi")])?;
    let member = |name: &str| {
        let mut member = pod(name, "1", "1Gi");
        member["metadata"]["labels"]["berth.dev/gang"] = "train".into();
        member["metadata"]["annotations"] = json!({"berth.dev/gang-size": "3"});
        member
    };
    world.pod(&member("g1"))?;
    world.pod(&member("g2"))?;
    let found = world.0.schedule_gang("shop", "train", NOW);
    assert_eq!(found, GangOutcome::Incomplete { present: 2, size: 3 });
    world.pod(&member("g3"))?;
    let GangOutcome::Refused(refusal) = world.0.schedule_gang("shop", "train", NOW) else {
        return Err("two of three fit".into());
    };
    assert!(refusal.line.starts_with("gang train is scheduled all together"), "{}", refusal.line);
    world.reserved(&pod("single", "2", "1Gi"))?;
    world.0.unreserve("single");
    world.node(&node("b", "1", "8Gi"))?;
    let GangOutcome::Reserved(all) = world.0.schedule_gang("shop", "train", NOW) else {
        return Err("all three fit now".into());
    };
    assert_eq!(all.len(), 3);
    Ok(())
}

#[test]
fn the_least_important_pod_is_preempted_and_the_node_nominated() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "2", "8Gi"), node("b", "2", "8Gi")])?;
    let with = |name: &str, priority: i32| {
        let mut pod = pod(name, "2", "1Gi");
        pod["spec"]["priority"] = priority.into();
        pod
    };
    world.pod(&bound(with("low", 1), "a"))?;
    world.pod(&bound(with("mid", 5), "b"))?;
    let Outcome::Preempt(preemption, _) = world.schedule(&with("high", 10))? else {
        return Err("there is a victim".into());
    };
    assert_eq!((&*preemption.node, &*preemption.victims[0].uid), ("a", "low"));
    assert_eq!(preemption.victims.len(), 1);
    world.0.remove_pod(&Key::new("shop", "low"), "low");
    assert!(matches!(
        world.schedule(&with("equal", 10))?,
        Outcome::Preempt(..) | Outcome::Refused(_)
    ));
    assert_eq!(&*world.reserved(&with("high", 10))?.node, "a");
    Ok(())
}

#[test]
fn a_claim_that_waits_for_its_first_consumer_is_provisioned_on_the_chosen_node() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "2", "8Gi")])?;
    let volumes = world.0.volumes();
    volumes.put_class(&serde_json::from_value(json!({
        "metadata": {"name": "fast"}, "provisioner": "csi.example.dev",
        "volumeBindingMode": "WaitForFirstConsumer",
    }))?);
    volumes.put_claim(&serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "claim"},
        "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    }))?);
    let mut pod = pod("db", "1", "1Gi");
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let reservation = world.reserved(&pod)?;
    assert_eq!(reservation.volumes.provision, [Key::new("shop", "data")]);
    Ok(())
}

#[test]
fn a_virtual_machine_is_charged_its_maximum_until_its_agent_requests_a_permit() -> TestResult {
    let mut world = TestCluster::new(&[node("a", "4", "16Gi")])?;
    let mut runner = bound(pod("runner", "100m", "64Mi"), "a");
    runner["metadata"]["labels"]["vm.neon.tech/name"] = "vm".into();
    world.pod(&runner)?;
    world.0.put_vm(&json!({
        "metadata": {"name": "vm", "namespace": "shop", "labels": {"autoscaling.neon.tech/enabled": "true"}},
        "spec": {"guest": {"cpus": {"min": 1, "use": 1, "max": 4}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 1, "max": 4}}},
    }));
    assert!(
        matches!(world.schedule(&pod("p", "1", "1Gi"))?, Outcome::Refused(_)),
        "4 of 4 are set aside"
    );
    let key = Key::new("shop", "runner");
    let unit = Some(Size::new(1000, 1024));
    let request = PermitRequest {
        last_permit: Some(Size::new(1000, 1024)),
        ..PermitRequest::new(Size::new(2000, 2048))
    };
    let decided = world.0.request_permit(&key, &request, unit, 0)?;
    assert_eq!(decided.permit.granted, Size::new(2000, 2048));
    world.reserved(&pod("p", "2", "1Gi"))?;
    let more = world.0.request_permit(&key, &PermitRequest::new(Size::new(3000, 3072)), unit, 0)?;
    assert_eq!(more.permit.granted, Size::new(2000, 2048), "the node is full");
    Ok(())
}

#[test]
fn an_explanation_has_every_node_and_changes_nothing() -> TestResult {
    let mut cordoned = node("b", "4", "8Gi");
    cordoned["spec"] = json!({"unschedulable": true});
    let mut world = TestCluster::new(&[node("a", "1", "8Gi"), cordoned])?;
    let mut requested = pod("p", "2", "1Gi");
    requested["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    world.pod(&requested)?;
    let found = world.0.explain(&Key::new("shop", "p"), NOW).ok_or("it is there")?;
    let rules: Vec<Vec<&str>> = (found.table.iter())
        .map(|node| node.removed_by.iter().map(|(rule, _)| rule.as_str()).collect())
        .collect();
    assert_eq!(rules, [vec!["node-selector", "cpu"], vec!["cordoned", "node-selector"]]);
    let again = world.0.explain(&Key::new("shop", "p"), NOW).ok_or("it is there")?;
    assert_eq!(found, again);
    Ok(())
}
