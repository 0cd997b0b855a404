//! Rules about records that are documents: queued requests, drains, moves of volumes.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::TicketState;
use berth_engine::NodeState;

use super::{CheckReport, Invariant};
use crate::debug::dump::Dump;

pub(super) fn check(dump: &Dump, report: &mut CheckReport) {
    tickets(dump, report);
    drains(dump, report);
    volume_moves(dump, report);
    volume_marks(dump, report);
}

fn tickets(dump: &Dump, report: &mut CheckReport) {
    for ticket in dump.tickets.iter().flatten() {
        let subject = format!("ticket {}", ticket.document);
        let rule = Invariant::TicketRecord;
        report.must(rule, &subject, "its id", &ticket.id, &ticket.document);
        let is_granted = ticket.state == TicketState::Granted;
        if is_granted != ticket.placed.is_some() {
            let found = ticket.placed.map_or("none".to_owned(), |placed| placed.to_string());
            let expected =
                if is_granted { "those of its grant" } else { "none, as it has no grant" };
            report.must(rule, &subject, "the number of its instances", found, expected);
        }
    }
}

fn drains(dump: &Dump, report: &mut CheckReport) {
    let records: BTreeSet<&str> = dump.drains.iter().map(|drain| drain.id.as_str()).collect();
    let draining = dump.nodes.iter().filter(|node| node.facts.state == NodeState::Draining);
    let draining: BTreeSet<&str> = draining.map(|node| node.facts.id.as_str()).collect();
    for node in records.symmetric_difference(&draining) {
        let subject = format!("node {node}");
        let (found, expected) = if records.contains(node) {
            ("there", "absent, since the node is not being emptied")
        } else {
            ("absent", "there, since the node is being emptied")
        };
        let what = "the record of its drain";
        report.must(Invariant::DrainRecord, &subject, what, found, expected);
    }
}

fn volume_moves(dump: &Dump, report: &mut CheckReport) {
    let homes: BTreeMap<&str, &str> =
        dump.volumes.iter().map(|volume| (volume.id.as_str(), volume.home.as_str())).collect();
    for stored in dump.volume_moves.iter().filter(|stored| stored.record.is_open()) {
        let (from, to) = (stored.record.from.as_str(), stored.record.to.as_str());
        let subject = format!("move of volume {} from {from} to {to}", stored.id);
        let rule = Invariant::VolumeMoveRecord;
        if from == to {
            report.must(rule, &subject, "where it goes", to, "another node than it leaves");
        }
        match homes.get(stored.id.as_str()) {
            Some(home) if *home == from || *home == to => {}
            Some(home) => {
                let expected = format!("{from} or {to}");
                report.must(rule, &subject, "the volume's home", home, expected);
            }
            None => report.must(rule, &subject, "the volume", "not there", "there"),
        }
    }
}

/// The mark of the last copy is set and taken away together with the record of the move.
fn volume_marks(dump: &Dump, report: &mut CheckReport) {
    let open = dump.volume_moves.iter().filter(|stored| stored.record.is_open());
    let open: BTreeMap<&str, &str> =
        open.map(|stored| (stored.id.as_str(), stored.record.to.as_str())).collect();
    for (volume, to) in &dump.volume_marks {
        let subject = format!("volume {volume}");
        let what = "where it is on its way to";
        let expected = open.get(volume.as_str()).copied().unwrap_or("nowhere: no move is open");
        report.must(Invariant::VolumeMark, &subject, what, to, expected);
    }
}
