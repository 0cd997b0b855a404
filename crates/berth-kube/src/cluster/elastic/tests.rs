//! Accounts and permits of elastic pods, through `Cluster` alone.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use berth_engine::Policy;
use berth_engine::elastic::{Permit, PermitRequest, Size};
use serde_json::{Value, json};

use super::permits::{AgentRequest, PermitError, WriteOutcome};
use super::source::PERMIT;
use crate::cluster::pod::Key;
use crate::cluster::{Cluster, MissingRequests, Settings};

fn cluster(policy: &str) -> Cluster {
    let mut cluster = Cluster::new(Settings {
        scheduler: "berth".to_owned(),
        policy: Policy::from_toml(&format!("name = \"test\"\n{policy}")).unwrap(),
        missing_requests: MissingRequests::Zero,
        ignored_pod_fields: Vec::new(),
    });
    let node = json!({
        "metadata": {"name": "a", "labels": {"pool": "vm"}},
        "status": {
            "capacity": {"cpu": "8", "memory": "16Gi", "pods": "10"},
            "allocatable": {"cpu": "7500m", "memory": "15Gi", "pods": "10"},
        },
    });
    cluster.put_node(&serde_json::from_value(node).unwrap());
    cluster
}

fn put_pod(cluster: &mut Cluster, name: &str, cpu: &str, memory: &str, vm: Option<&str>) {
    let pod = json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": name, "labels": {"vm.neon.tech/name": vm},
        },
        "spec": {"schedulerName": "berth", "nodeName": "a", "containers": [
            {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}},
        ]},
        "status": {"phase": "Running"},
    });
    let mut pod = pod;
    if vm.is_none() {
        pod["metadata"]["labels"] = json!({});
    }
    cluster.put_pod(&serde_json::from_value(pod).unwrap());
}

fn vm(version: u32, labels: &Value, permit: Option<&Permit>) -> Value {
    let amounts = json!({"min": 1, "use": 1, "max": 4});
    let mut all = json!({"autoscaling.neon.tech/enabled": "true"});
    for (key, value) in labels.as_object().unwrap() {
        all[key] = value.clone();
    }
    let annotations = permit.map_or(json!({}), |it| json!({PERMIT: json!(it).to_string()}));
    json!({
        "metadata": {
            "name": "vm", "namespace": "shop", "uid": "vm", "labels": all,
            "resourceVersion": version.to_string(), "annotations": annotations,
        },
        "spec": {"guest": {"cpus": amounts, "memorySlotSize": "1Gi", "memorySlots": amounts}},
    })
}

fn key() -> Key {
    Key::new("shop", "runner")
}

fn size(cpus: u32) -> Size {
    Size::new(cpus * 1000, cpus * 1024)
}

fn asked(cpus: u32) -> AgentRequest {
    AgentRequest::new(PermitRequest::new(size(cpus)), Some(size(1)))
}

#[test]
fn the_account_has_the_system_others_and_what_is_uncertain() {
    let mut cluster = cluster("");
    put_pod(&mut cluster, "runner", "100m", "64Mi", Some("vm"));
    // Their sum is rounded up once: 1.5 MiB and 1.25 MiB are 3 MiB.
    put_pod(&mut cluster, "one", "410m", "1536Ki", None);
    put_pod(&mut cluster, "two", "401m", "1280Ki", None);
    cluster.put_vm(&vm(1, &json!({}), None));
    let account = cluster.account_by_name("a", 0).unwrap();
    let cpu = account.cpu;
    assert_eq!((cpu.total, cpu.system, cpu.other), (8000, 500, 811));
    assert_eq!((cpu.reserved, cpu.buffer), (4811, 3000), "its maximum, until its agent speaks");
    assert_eq!(cpu.watermark, 6750);
    let memory = account.memory;
    assert_eq!((memory.total, memory.system, memory.other), (16_384, 1024, 3));
    assert_eq!((memory.reserved, memory.buffer), (4 * 1024 + 3, 3 * 1024));
    cluster.request_permit(&key(), &asked(2).request, Some(size(1)), 0).unwrap();
    // Without its last permit, all that was set aside for it counts as held, so that it shrinks to 2.
    let cpu = cluster.account_by_name("a", 0).unwrap().cpu;
    assert_eq!((cpu.reserved, cpu.buffer), (2811, 0));
}

#[test]
fn a_larger_system_reserve_stops_growth_and_takes_nothing_away() {
    let mut cluster = cluster("");
    put_pod(&mut cluster, "runner", "100m", "64Mi", Some("vm"));
    cluster.put_vm(&vm(1, &json!({}), None));
    cluster.request_permit(&key(), &asked(3).request, Some(size(1)), 0).unwrap();
    let reserve = "name = \"test\"\n[[elastic.nodes]]\nlabels = { pool = \"vm\" }\nsystem = { cpu_milli = 6000, memory_mib = 1024 }\n";
    cluster.set_policy(Policy::from_toml(reserve).unwrap());
    let account = cluster.account_by_name("a", 0).unwrap();
    assert_eq!((account.cpu.system, account.cpu.reserved), (6000, 3000));
    assert!(account.is_over());
    let more = cluster.request_permit(&key(), &asked(4).request, Some(size(1)), 0).unwrap();
    assert_eq!(more.permit.granted, size(3));
    // Less than the node itself keeps is not accepted from a policy.
    let small = reserve.replace("6000", "100").replace("1024", "0");
    cluster.set_policy(Policy::from_toml(&small).unwrap());
    assert_eq!(cluster.account_by_name("a", 0).unwrap().cpu.system, 500);
}

#[test]
fn what_is_being_written_is_charged_as_the_larger_one_until_its_outcome_is_known() {
    let mut cluster = cluster("");
    put_pod(&mut cluster, "runner", "100m", "64Mi", Some("vm"));
    let stored = Permit { seq: 3, ..Permit::placed(size(1), Default::default()) };
    cluster.put_vm(&vm(1, &json!({}), Some(&stored)));
    let reserved = |it: &Cluster| it.account_by_name("a", 0).unwrap().cpu.reserved;
    assert_eq!(reserved(&cluster), 1000, "what a leader stored is certain");
    for (outcome, expected) in [
        (WriteOutcome::NotStored, 1000),
        (WriteOutcome::Unknown, 4000),
        (WriteOutcome::Stored, 4000),
    ] {
        let plan = cluster.plan_permit(&key(), &asked(4), 0).unwrap();
        assert!(plan.write.is_some());
        cluster.begin_permit_write("runner", &plan);
        assert_eq!(reserved(&cluster), 4000);
        // The watch may show the machine meanwhile.
        cluster.put_vm(&vm(2, &json!({}), Some(&stored)));
        assert_eq!(reserved(&cluster), 4000);
        cluster.end_permit_write("runner", &plan, outcome);
        assert_eq!(reserved(&cluster), expected, "{outcome:?}");
    }
    // The same size again needs no write.
    let plan = cluster.plan_permit(&key(), &asked(4), 0).unwrap();
    let after = plan.decision.permit;
    cluster.put_vm(&vm(3, &json!({}), Some(&after)));
    assert_eq!(cluster.plan_permit(&key(), &asked(4), 0).unwrap().write, None);
    // While it shrinks, its room is not given to others before the smaller permit is stored.
    let plan = cluster.plan_permit(&key(), &asked(1), 0).unwrap();
    cluster.begin_permit_write("runner", &plan);
    assert_eq!(reserved(&cluster), 4000);
    cluster.end_permit_write("runner", &plan, WriteOutcome::Stored);
    assert_eq!(reserved(&cluster), 1000);
}

#[test]
fn of_two_permits_the_one_with_the_higher_number_counts() {
    let mut cluster = cluster("");
    put_pod(&mut cluster, "runner", "100m", "64Mi", Some("vm"));
    let numbered =
        |seq: u64, cpus: u32| Permit { seq, ..Permit::placed(size(cpus), Default::default()) };
    cluster.put_vm(&vm(1, &json!({}), Some(&numbered(5, 3))));
    assert_eq!(cluster.permit(&key()).unwrap().granted, size(3));
    cluster.put_vm(&vm(2, &json!({}), Some(&numbered(4, 1))));
    assert_eq!(cluster.permit(&key()).unwrap().granted, size(3), "an older one");
    cluster.put_vm(&vm(3, &json!({}), Some(&numbered(6, 2))));
    assert_eq!(cluster.permit(&key()).unwrap().granted, size(2));
    // Once another may lead, only what is stored counts.
    cluster.request_permit(&key(), &asked(4).request, Some(size(1)), 0).unwrap();
    cluster.reset_permits();
    assert_eq!(cluster.permit(&key()).unwrap().granted, size(2));
}

#[test]
fn a_class_is_charged_by_its_overcommit_and_has_a_unit_of_its_own() {
    let class = "[elastic.classes.burst]\novercommit_permille = 2000\ncompute_unit = { cpu_milli = 1000, memory_mib = 1024 }\n";
    let mut cluster = cluster(class);
    put_pod(&mut cluster, "runner", "100m", "64Mi", Some("vm"));
    cluster.put_vm(&vm(1, &json!({"berth.dev/elastic-class": "burst"}), None));
    let plan =
        cluster.plan_permit(&key(), &AgentRequest::new(PermitRequest::new(size(4)), None), 0);
    let plan = plan.unwrap();
    assert_eq!((plan.reply.unit, plan.reply.granted), (size(1), size(4)));
    cluster.apply_permit("runner", &plan);
    assert_eq!(cluster.account_by_name("a", 0).unwrap().cpu.reserved, 2000);
}

#[test]
fn a_machine_that_is_being_moved_repeats_its_size_and_its_charge_leaves_with_it() {
    let mut cluster = cluster("");
    put_pod(&mut cluster, "runner", "100m", "64Mi", Some("vm"));
    cluster.put_vm(&vm(1, &json!({}), None));
    cluster.request_permit(&key(), &asked(2).request, Some(size(1)), 0).unwrap();
    let migration = json!({
        "metadata": {"name": "m", "namespace": "shop"}, "spec": {"vmName": "vm"},
        "status": {"phase": "Running", "targetPodName": "target"},
    });
    assert_eq!(cluster.put_migration(&migration), Some(Key::new("shop", "vm")));
    for cpus in [1, 3] {
        let refused = cluster.plan_permit(&key(), &asked(cpus), 0);
        assert!(matches!(refused, Err(PermitError::Moving(_))), "{refused:?}");
    }
    let plan = cluster.plan_permit(&key(), &asked(2), 0).unwrap();
    assert!(plan.reply.moving);
    assert_eq!(cluster.account_by_name("a", 0).unwrap().cpu.pressure_accounted_for, 2000);
    cluster.remove_migration(&Key::new("shop", "m"));
    assert!(!cluster.plan_permit(&key(), &asked(3), 0).unwrap().reply.moving);
}
