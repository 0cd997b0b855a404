//! Waiting requests that are tried together are planned in their order.

use std::sync::Arc;
use std::sync::mpsc::channel;

use berth_control::{
    Actor, AttemptOrder, PlaceAnswer, PlaceJob, PlaceRequest, Placer, PlacerOptions,
};
use berth_engine::{Amounts, BatchMode, InstanceId, InstanceRequest, NodeFacts, Policy, Timestamp};
use berth_ledger::{Backend, Op, Text};

/// What became of requests for so much memory that are tried together, of which some hold up those after
/// them, on one node with 16 GiB.
fn try_together(asked: &[(u32, bool)]) -> Vec<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let mut options = PlacerOptions::new(Policy::builtin("pack").unwrap());
    options.clock = Arc::new(|| Timestamp(0));
    let placer = Placer::start(Backend::Sqlite(folder.path().join("ledger.db")), &options).unwrap();
    let mut facts = NodeFacts::new("n1", Amounts::new(64_000, 16_384).with_disk(100_000));
    facts.vmm_overhead_mib = 0;
    placer.ledger().administer(Op::put_node(facts)).unwrap();
    let order = AttemptOrder::default();
    let answers = asked.iter().enumerate().map(|(number, (memory_mib, holds_up_others))| {
        let id = InstanceId::from_u128(number as u128 + 1);
        // Each of another tenant, as a queue is.
        let tenant = format!("tenant-{number}");
        let instance =
            InstanceRequest::new(id, &tenant, Amounts::new(100, *memory_mib).with_disk(1));
        let by = Actor { name: Text::from("queue"), origin: Text::default(), is_tenant: true };
        let request = PlaceRequest {
            request_id: Text::from(id.to_string()),
            tenant: Text::from(tenant),
            instances: vec![Arc::new(instance)],
            mode: BatchMode::AllOrNothing,
            lease_s: 120,
            by: Some(by),
            quiet: true,
            attempt: Some(order.next(*holds_up_others)),
            ..PlaceRequest::default()
        };
        let (sender, answer) = channel();
        let reply = Box::new(move |answer| sender.send(answer).unwrap());
        placer.submit(PlaceJob { request, reply });
        answer
    });
    let answers: Vec<_> = answers.collect();
    let answers = answers.into_iter().map(|answer| match answer.recv().unwrap() {
        PlaceAnswer::Granted(_) => "granted",
        PlaceAnswer::NoRoom(_) => "waits",
        other => panic!("{other:?}"),
    });
    answers.collect()
}

#[test]
fn one_that_may_hold_up_others_keeps_the_room_from_them_when_it_finds_none() {
    let tried = try_together(&[(4000, true), (4000, false), (12_000, true), (1000, false)]);
    assert_eq!(tried, ["granted", "granted", "waits", "waits"]);
}

#[test]
fn one_that_holds_up_nobody_is_passed_by_the_others() {
    let tried =
        try_together(&[(4000, false), (14_000, false), (1000, true), (14_000, false), (500, true)]);
    assert_eq!(tried, ["granted", "waits", "granted", "waits", "granted"]);
}
