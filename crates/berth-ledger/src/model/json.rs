//! JSON written by hand where every claim writes it: events, receipts and answers.
//!
//! What is written here reads back with serde; tests compare the two. Only the hot few are here.

use berth_engine::{Amounts, InstanceId};

use super::answer::{Grant, GrantedClaim};
use super::claim::{HeldValue, Role, Slot};
use super::event::Allocation;
use super::receipt::{DecisionOutcome, DecisionRecord};

/// Writes a text, quoted. Most need no escape.
fn text(out: &mut String, text: &str) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        json(out, text);
    }
}

/// Writes what is not written by hand.
fn json<T: serde::Serialize + ?Sized>(out: &mut String, value: &T) {
    if let Some(text) = crate::invariant_ok!(serde_json::to_string(value), "record_is_json") {
        out.push_str(&text);
    }
}

fn number(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

fn instance(out: &mut String, instance: InstanceId) {
    let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
    out.push('"');
    out.push_str(instance.0.as_hyphenated().encode_lower(&mut buffer));
    out.push('"');
}

fn optional_text(out: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        out.push_str(name);
        text(out, value);
    }
}

fn values(out: &mut String, values: &[HeldValue]) {
    if values.is_empty() {
        return;
    }
    out.push_str(",\"values\":");
    json(out, values);
}

fn slot(out: &mut String, slot: Option<Slot>) {
    let Some(Slot { revision, slot }) = slot else { return };
    out.push_str(",\"seat\":{\"revision\":");
    number(out, revision);
    out.push_str(",\"slot\":");
    number(out, slot);
    out.push('}');
}

fn amounts(out: &mut String, amounts: &Amounts) {
    out.push_str("{\"cpu_milli\":");
    number(out, amounts.cpu_milli);
    out.push_str(",\"memory_mib\":");
    number(out, amounts.memory_mib);
    out.push_str(",\"disk_mib\":");
    number(out, amounts.disk_mib);
    out.push_str(",\"bandwidth_mbps\":");
    number(out, amounts.bandwidth_mbps);
    out.push('}');
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::Primary => "\"primary\"",
        Role::MigrationTarget => "\"migration_target\"",
        Role::MigrationSource => "\"migration_source\"",
    }
}

/// An allocation, as `EventBody` writes it.
pub(super) fn allocated(out: &mut String, event: &Allocation) {
    out.push_str("{\"kind\":\"instance.allocated\",\"instance_id\":");
    instance(out, event.instance_id);
    out.push_str(",\"role\":");
    out.push_str(role(event.role));
    out.push_str(",\"node_id\":");
    text(out, event.node_id.as_str());
    out.push_str(",\"fence\":");
    number(out, event.fence);
    out.push_str(",\"state\":");
    text(out, event.state.name());
    if let Some(until) = event.lease_until {
        out.push_str(",\"lease_until\":");
        number(out, until.0);
    }
    optional_text(out, ",\"overlay_ipv6\":", event.overlay_ipv6.as_deref());
    values(out, &event.values);
    out.push_str(",\"resources\":");
    amounts(out, &event.resources);
    optional_text(out, ",\"release_id\":", event.release_id.as_deref());
    optional_text(out, ",\"secrets_version_id\":", event.secrets_version_id.as_deref());
    out.push_str(",\"spec_hash\":");
    text(out, &event.spec_hash);
    optional_text(out, ",\"name\":", event.name.as_deref());
    slot(out, event.slot);
    if event.adopted {
        out.push_str(",\"adopted\":true");
    }
    optional_text(out, ",\"moved_from\":", event.moved_from.as_ref().map(|node| node.as_str()));
    if let Some(permit) = &event.permit {
        out.push_str(",\"permit\":");
        json(out, permit);
    }
    if !event.rules.is_empty() {
        out.push_str(",\"rules\":");
        json(out, &event.rules);
    }
    out.push_str(",\"spec_no\":");
    number(out, event.spec_no);
    out.push('}');
}

/// A decision, as serde writes it.
pub(super) fn decision(out: &mut String, record: &DecisionRecord) {
    out.push_str("{\"request_id\":");
    text(out, &record.request_id);
    out.push_str(",\"owner\":");
    text(out, &record.tenant);
    out.push_str(",\"basis\":{\"policy\":");
    text(out, &record.basis.policy);
    out.push_str(",\"fleet_version\":");
    number(out, record.basis.fleet_version);
    out.push_str(",\"now\":");
    number(out, record.basis.now);
    if let Some(in_flight) = record.basis.in_flight {
        out.push_str(",\"in_flight\":");
        number(out, i64::from(in_flight));
    }
    out.push_str("},\"asked\":[");
    for (place, (asked, spec)) in record.asked.iter().enumerate() {
        out.push_str(if place == 0 { "[" } else { ",[" });
        instance(out, *asked);
        out.push(',');
        number(out, *spec);
        out.push(']');
    }
    out.push_str("],\"outcome\":");
    match &record.outcome {
        DecisionOutcome::Granted(placed) => {
            out.push_str("{\"granted\":[");
            for (place, at) in placed.iter().enumerate() {
                out.push_str(if place == 0 { "{\"instance\":" } else { ",{\"instance\":" });
                instance(out, at.instance);
                out.push_str(",\"node\":");
                text(out, at.node.as_str());
                out.push_str(",\"score\":");
                number(out, at.score);
                out.push_str(",\"constraint_gen\":");
                number(out, at.constraint_gen);
                out.push('}');
            }
            out.push_str("]}");
        }
        refused @ DecisionOutcome::Refused { .. } => {
            json(out, refused);
        }
    }
    for (place, (victim, tenant)) in record.preempted.iter().enumerate() {
        out.push_str(if place == 0 { ",\"preempted\":[[" } else { ",[" });
        instance(out, *victim);
        out.push(',');
        text(out, tenant);
        out.push(']');
    }
    if !record.preempted.is_empty() {
        out.push(']');
    }
    out.push('}');
}

/// A grant, as the answer that is kept for a retry.
pub(crate) fn granted_answer(grant: &Grant) -> String {
    let mut out = String::with_capacity(64 + 160 * grant.claims.len());
    out.push_str("{\"granted\":{\"claims\":[");
    for (place, claim) in grant.claims.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        granted_claim(&mut out, claim);
    }
    out.push_str("],\"decision\":");
    text(&mut out, &grant.decision);
    out.push_str("}}");
    out
}

fn granted_claim(out: &mut String, claim: &GrantedClaim) {
    out.push_str("{\"instance\":");
    instance(out, claim.instance);
    if claim.role != Role::Primary {
        out.push_str(",\"role\":");
        out.push_str(role(claim.role));
    }
    out.push_str(",\"node\":");
    text(out, claim.node.as_str());
    out.push_str(",\"fence\":");
    number(out, claim.fence);
    out.push_str(",\"lease_until\":");
    match claim.lease_until {
        Some(until) => number(out, until.0),
        None => out.push_str("null"),
    }
    values(out, &claim.values);
    slot(out, claim.slot);
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Basis, ClaimState, EventBody, Micros, PlacedInstance, RefusalDetail, Text};
    use berth_engine::NodeId;
    use berth_engine::elastic::{Overcommit, Permit, Size};
    use serde_json::Value;

    fn held() -> Vec<HeldValue> {
        vec![HeldValue { pool: Text::from("over\"lay"), value: "fd00::1".to_owned() }]
    }

    fn event(full: bool) -> Allocation {
        let some = |text: &str| full.then(|| Text::from(text));
        Allocation {
            instance_id: InstanceId::from_u128(0xabc),
            role: if full { Role::MigrationTarget } else { Role::Primary },
            node_id: NodeId::new(if full { "n\\\"\u{1}ä" } else { "node-1" }),
            fence: 1_700_000_000_000_001,
            state: ClaimState::Held,
            lease_until: full.then_some(Micros(-5)),
            overlay_ipv6: full.then(|| "fd00::1".to_owned()),
            values: if full { held() } else { Vec::new() },
            resources: Amounts::new(1, 2).with_disk(3).with_bandwidth(4),
            release_id: some("r\n1"),
            secrets_version_id: some("v1"),
            spec_hash: "00ff".to_owned(),
            name: some("web"),
            slot: full.then_some(Slot { revision: 2, slot: 5 }),
            adopted: full,
            moved_from: full.then(|| NodeId::new("old")),
            permit: full.then(|| Box::new(Permit::placed(Size::new(1, 2), Overcommit::NONE))),
            rules: if full { vec![(NodeId::new("n"), 3)] } else { Vec::new() },
            spec_no: 7,
            spec: None,
        }
    }

    #[test]
    fn events_by_hand_are_what_serde_writes() {
        for full in [false, true] {
            let event = event(full);
            let mut out = String::new();
            allocated(&mut out, &event);
            let by_hand: Value = serde_json::from_str(&out).unwrap();
            let by_serde = serde_json::to_value(EventBody::Allocated(Box::new(event))).unwrap();
            assert_eq!(by_hand, by_serde);
            assert!(matches!(serde_json::from_str(&out), Ok(EventBody::Allocated(_))), "{out}");
        }
    }

    #[test]
    fn decisions_and_answers_by_hand_are_what_serde_writes() {
        let id = InstanceId::from_u128(9);
        let placed = PlacedInstance {
            instance: id,
            node: NodeId::new("a\"b"),
            score: -4,
            constraint_gen: 2,
        };
        let refused = DecisionOutcome::Refused {
            code: "no".to_owned(),
            detail: Some(RefusalDetail::new("{}")),
        };
        let granted = DecisionOutcome::Granted(vec![placed.clone(), placed]);
        for (outcome, in_flight, preempted) in
            [(granted, None, vec![(id, Text::from("a\"b")); 2]), (refused, Some(5), Vec::new())]
        {
            let record = DecisionRecord {
                request_id: Text::from("r"),
                tenant: Text::from("o\u{7f}"),
                basis: Basis { policy: "ff".to_owned(), fleet_version: 12, now: 34, in_flight },
                asked: vec![(id, 0), (id, 4)],
                specs: Vec::new(),
                outcome,
                preempted,
            };
            let mut out = String::new();
            decision(&mut out, &record);
            let by_hand: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(by_hand, serde_json::to_value(&record).unwrap());
        }
        let claim = |full: bool| GrantedClaim {
            instance: id,
            role: if full { Role::MigrationTarget } else { Role::Primary },
            node: NodeId::new("n"),
            fence: 1,
            lease_until: full.then_some(Micros(8)),
            values: if full { held() } else { Vec::new() },
            slot: full.then_some(Slot { revision: 1, slot: 0 }),
        };
        let grant = Grant { claims: vec![claim(false), claim(true)], decision: "c/1/0".to_owned() };
        let by_hand: Value = serde_json::from_str(&granted_answer(&grant)).unwrap();
        assert_eq!(
            by_hand,
            serde_json::json!({ "granted": serde_json::to_value(&grant).unwrap() })
        );
    }
}
