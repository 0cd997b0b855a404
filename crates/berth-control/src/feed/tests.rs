//! What streams share, and how much is kept for them.

use std::sync::Arc;

use berth_api::Role;
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{Event, EventBody, Micros, Role as ClaimRole, Text};

use super::view::{FeedEvent, Reader, StreamEvent};
use super::{KEPT, KEPT_BYTES, Ring};
use crate::caller::{Caller, Scope};

fn event(seq: i64, reason: &str) -> Event {
    let body = EventBody::Released {
        instance_id: InstanceId::from_u128(7),
        role: ClaimRole::Primary,
        node_id: NodeId::new("n1"),
        tenant: Text::from("acme"),
        fence: 1,
        reason: Text::from(reason),
    };
    Event { seq, at: Micros(1_700_000_000_123_456), origin: Text::from("w"), body }
}

/// A short one.
fn removed(seq: i64) -> Event {
    let body = EventBody::NodeRemoved { node_id: NodeId::new("n1"), constraint_gen: None };
    Event { seq, at: Micros(0), origin: Text::from("w"), body }
}

fn tenant(name: &str) -> Caller {
    let scope = Arc::new(Scope::Tenants(vec![name.to_owned()]));
    Caller { role: Role::Tenant, scope, ..Caller::local(name) }
}

fn reader(sees_nodes: bool, kinds: &[&str]) -> Reader {
    Reader { kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(), sees_nodes }
}

#[test]
fn a_stream_is_sent_what_a_list_shows_to_each_kind_of_reader() {
    let (listed, streamed) = (
        FeedEvent::of(event(5, "gone")).unwrap(),
        StreamEvent::of(FeedEvent::of(event(5, "gone")).unwrap()),
    );
    let callers = [Caller::local("ops"), tenant("acme"), tenant("other")];
    let mut sent = 0;
    for caller in &callers {
        for reader in [reader(true, &[]), reader(false, &["instance"]), reader(true, &["node"])] {
            let expected = listed.seen_by(caller, &reader).map(|event| {
                let data = serde_json::to_string(&event).unwrap();
                format!("id: 5\nevent: {}\ndata: {data}\n\n", event.kind)
            });
            let frame = streamed.frame_for(caller, &reader);
            sent += usize::from(frame.is_some());
            let frame = frame.map(|frame| String::from_utf8(frame.to_vec()).unwrap());
            assert_eq!(frame, expected, "{} {reader:?}", caller.name);
        }
    }
    assert_eq!(sent, 4);
    let shown = streamed.frame_for(&tenant("acme"), &reader(false, &[])).unwrap();
    assert!(!String::from_utf8_lossy(&shown).contains("n1"), "{shown:?}");
}

#[test]
fn all_streams_of_one_kind_of_reader_share_the_bytes_that_they_send() {
    let event = StreamEvent::of(FeedEvent::of(event(1, "gone")).unwrap());
    for (caller, sees_nodes) in
        [(Caller::local("ops"), true), (tenant("acme"), true), (tenant("acme"), false)]
    {
        let reader = reader(sees_nodes, &[]);
        let [first, second] = [0, 1].map(|_| event.frame_for(&caller, &reader).unwrap());
        assert_eq!(first.as_ptr(), second.as_ptr(), "{}", caller.name);
    }
}

#[test]
fn what_is_kept_for_streams_is_limited_in_bytes_and_in_number() {
    let (mut large, mut small) = (Ring::default(), Ring::default());
    for seq in 1..=40 {
        large.push(StreamEvent::of(FeedEvent::of(event(seq, &"x".repeat(1 << 20))).unwrap()));
    }
    assert!(large.bytes <= KEPT_BYTES, "{}", large.bytes);
    assert_eq!((large.events.len(), large.events.back().unwrap().seq), (7, 40));
    let count = i64::try_from(KEPT).unwrap() + 10;
    (1..=count).for_each(|seq| small.push(StreamEvent::of(FeedEvent::of(removed(seq)).unwrap())));
    assert_eq!((small.events.len(), small.events.front().unwrap().seq), (KEPT, 11));
    assert_eq!(small.bytes, small.events.iter().map(|event| event.bytes()).sum::<usize>());
}

#[test]
fn an_event_whose_request_cannot_be_read_is_not_shown_without_it() {
    let json = serde_json::json!({
        "kind": "instance.allocated", "instance_id": InstanceId::from_u128(7), "role": "primary",
        "node_id": "n1", "fence": 1, "state": "held", "spec_hash": "", "spec_no": 0,
        "resources": berth_engine::Amounts::new(1000, 1024),
    });
    let allocation = |spec: &str| {
        let mut body: EventBody = serde_json::from_value(json.clone()).unwrap();
        if let EventBody::Allocated(allocated) = &mut body {
            allocated.spec = Some(berth_ledger::Spec::stored(spec.to_owned()));
        }
        Event { seq: 1, at: Micros(0), origin: Text::from("w"), body }
    };
    let operator = Caller::local("ops");
    let whole = FeedEvent::of(allocation(r#"{"tenant":"acme"}"#)).unwrap();
    let shown = whole.seen_by(&operator, &reader(true, &[])).unwrap();
    assert_eq!(
        shown.body.pointer("/request/tenant"),
        Some(&serde_json::json!("acme")),
        "{shown:?}"
    );
    FeedEvent::of(allocation(r#"{"tenant":"#)).unwrap_err();
}
