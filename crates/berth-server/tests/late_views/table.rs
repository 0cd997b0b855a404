//! Every row of the table in the documents, with two claim paths on one PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use berth_control::{PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{InvalidRequest, Policy, Timestamp};
use berth_ledger::{Backend, Ledger};
use berth_pgtemp::TempPostgres;

use crate::inputs::{inputs, of_neighbours, of_nodes, of_pools, of_rules, of_tenants, of_volumes};

/// Longer than any test takes: the log is read only when something asks for it.
const LATE: Duration = Duration::from_secs(3600);

/// Something that a decision depends on, and how it changes.
pub(crate) struct Input {
    /// Its name in the documents.
    pub(crate) name: &'static str,
    /// What is there when both servers start.
    pub(crate) before: fn(&Ledger),
    /// The change, which the first server has acknowledged when this returns.
    pub(crate) change: fn(&Placer),
    /// What the late server is asked for then.
    pub(crate) request: fn() -> PlaceRequest,
    /// What it would answer without the change, and what it must answer.
    pub(crate) expected: (&'static str, &'static str),
}

/// A server that reads the log only when it must.
pub(crate) fn late_server(backend: &Backend) -> Placer {
    let mut options = PlacerOptions::new(Policy::builtin("pack").unwrap());
    options.clock = Arc::new(|| Timestamp(0));
    options.follow_every = LATE;
    Placer::start(backend.clone(), &options).unwrap()
}

/// An answer in a few words.
fn in_short(placer: &Placer, answer: &PlaceAnswer) -> String {
    match answer {
        PlaceAnswer::Granted(granted) => {
            let claim = &granted.grant.claims[0];
            let slot = claim.slot.map(|slot| format!(" in slot {}", slot.slot));
            let key = berth_ledger::ClaimKey::primary(claim.instance);
            let stored = placer.ledger().claim(key).unwrap();
            let secrets = stored.and_then(|claim| claim.secrets_version);
            let secrets = secrets.map(|version| format!(" with secrets {version}"));
            let (slot, secrets) = (slot.unwrap_or_default(), secrets.unwrap_or_default());
            format!("{}{slot}{secrets}", claim.node)
        }
        PlaceAnswer::NoRoom(refusals) => refusals[0].code.to_string(),
        PlaceAnswer::Refused(by, _) => by.code().to_owned(),
        PlaceAnswer::Invalid(InvalidRequest::UnknownGroup { .. }) => "unknown_group".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Names of the inputs in the documents, in order.
fn documented() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("## What a decision depends on").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.split('|').nth(1).unwrap().trim().to_owned()).collect()
}

#[test]
fn every_input_in_the_documents_is_tried_here() {
    let of_placements = inputs().into_iter().map(|input| input.name);
    let tried: Vec<&str> = of_placements.chain(crate::permits::INPUTS).collect();
    assert_eq!(documented(), tried);
}

/// Changes each of these, and asks the late server before and after.
fn walk(inputs: &[Input]) {
    let server = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let mut wrong = Vec::new();
    for (number, input) in inputs.iter().enumerate() {
        let name = format!("input_{number}");
        let backend = Backend::Postgres(server.create_database(&name).unwrap());
        let first = late_server(&backend);
        (input.before)(first.ledger());
        let late = late_server(&backend);
        let dry_run = PlaceRequest { dry_run: true, ..(input.request)() };
        let before = in_short(&late, &late.place(dry_run));
        (input.change)(&first);
        let after = in_short(&late, &late.place((input.request)()));
        if (before.as_str(), after.as_str()) != input.expected {
            let expected = input.expected;
            wrong.push(format!("{}: {:?}, not {expected:?}", input.name, (before, after)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_late_server_does_not_grant_by_what_a_node_was() {
    walk(&of_nodes());
}

#[test]
fn a_late_server_does_not_grant_by_what_neighbours_were() {
    walk(&of_neighbours());
    walk(&of_volumes());
}

#[test]
fn a_late_server_does_not_grant_by_what_a_tenant_had() {
    walk(&of_pools());
    walk(&of_tenants());
}

#[test]
fn a_late_server_does_not_grant_by_what_the_rules_were() {
    walk(&of_rules());
}
