//! Tickets in every order that is asked for, kept up to date with each change, so that no operation
//! goes through all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::TicketState;
use berth_engine::Used;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::tickets::TicketRecord;
use crate::documents::DocumentIndex;

/// A ticket and one of its times: sets of these are in the order of that time.
pub(super) type TimedTicket = (Timestamp, Arc<str>);

/// What is known of tickets besides their content.
#[derive(Default)]
pub struct TicketIndex {
    /// Rises with every ticket that comes.
    pub(super) arrivals: watch::Sender<u64>,
    /// Rises with every ticket that is closed.
    pub(super) closings: watch::Sender<u64>,
    /// Tickets by tenant and request id.
    requests: FxHashMap<String, FxHashMap<String, Arc<str>>>,
    /// Open tickets by age.
    by_age: BTreeSet<TimedTicket>,
    /// The same of each tenant that has any.
    by_tenant: FxHashMap<String, BTreeSet<TimedTicket>>,
    /// The oldest open ticket of each tenant, by age.
    tenants_first: BTreeSet<TimedTicket>,
    /// Open tickets by deadline.
    deadlines: BTreeSet<TimedTicket>,
    /// Closed tickets by deadline, after which they are kept for a while.
    closed: BTreeSet<TimedTicket>,
    /// Closed tickets by age.
    closed_by_age: BTreeSet<TimedTicket>,
    /// What open tickets ask for in all.
    wanted: Used,
}

impl TicketIndex {
    /// How many wait.
    pub(super) fn open_count(&self) -> usize {
        self.by_age.len()
    }

    /// How many of a tenant wait.
    pub(super) fn open_count_of(&self, tenant: &str) -> usize {
        self.by_tenant.get(tenant).map_or(0, BTreeSet::len)
    }

    /// Since when the one that waits longest does.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// What those that wait ask for in all.
    pub(super) fn wanted(&self) -> Used {
        self.wanted
    }

    /// The ticket of a request.
    pub(super) fn of_request(&self, tenant: &str, request_id: &str) -> Option<&Arc<str>> {
        self.requests.get(tenant)?.get(request_id)
    }

    /// Open tickets whose deadline has passed, the earliest first.
    pub(super) fn expired(&self, now: Timestamp) -> impl Iterator<Item = &Arc<str>> {
        self.deadlines.iter().take_while(move |(deadline, _)| *deadline <= now).map(|(_, id)| id)
    }

    /// Closed tickets whose deadline was before a time, the earliest first.
    pub(super) fn closed_before(&self, time: Timestamp) -> impl Iterator<Item = &Arc<str>> {
        self.closed.iter().take_while(move |(deadline, _)| *deadline < time).map(|(_, id)| id)
    }

    /// Closed tickets, newest first.
    pub(super) fn closed_newest_first(&self) -> impl Iterator<Item = &Arc<str>> {
        self.closed_by_age.iter().rev().map(|(_, id)| id)
    }

    /// Open tickets in the order in which they are tried, where those that came before a time have
    /// waited too long to be overtaken: those first, by age, then every tenant's first, then every
    /// tenant's second, and so on, each round by age. They are found one after the other, so the
    /// first ones cost the same however many follow.
    pub(super) fn fair_order(&self, overdue_before: Timestamp) -> impl Iterator<Item = &Arc<str>> {
        let bound: TimedTicket = (overdue_before, Arc::from(""));
        let overdue = self.by_age.range(..bound.clone());
        let first_round = self.tenants_first.range(bound..);
        let later = self.later_rounds(overdue_before);
        overdue.chain(first_round).chain(later).map(|(_, id)| id)
    }

    /// Every tenant's second ticket, third, and so on, without those that are overdue. When this is
    /// reached, each tenant has been met once, so it costs no more than what came before.
    fn later_rounds(&self, overdue_before: Timestamp) -> impl Iterator<Item = &TimedTicket> {
        let mut tenants = None;
        let mut round = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(next) = round.next() {
                    return Some(next);
                }
                let tenants = tenants.get_or_insert_with(|| {
                    let several = self.by_tenant.values().filter(|tickets| tickets.len() > 1);
                    several.map(|tickets| tickets.iter().skip(1)).collect::<Vec<_>>()
                });
                if tenants.is_empty() {
                    return None;
                }
                let mut next_round = Vec::with_capacity(tenants.len());
                tenants.retain_mut(|tickets| match tickets.next() {
                    Some(ticket) => {
                        next_round
                            .extend(Some(ticket).filter(|(since, _)| *since >= overdue_before));
                        true
                    }
                    None => false,
                });
                next_round.sort_unstable();
                round = next_round.into_iter();
            }
        })
    }

    fn link(&mut self, id: &str, stored: &TicketRecord) {
        let (id, ticket) = (Arc::<str>::from(id), &stored.ticket);
        let (by_age, by_deadline) = ((ticket.since, Arc::clone(&id)), (kept_from(stored), id));
        if let Some(request_id) = &ticket.request.request_id {
            let requests = self.requests.entry(ticket.tenant.clone()).or_default();
            // Releases that drew ticket ids could make two for one request: the first counts.
            requests.entry(request_id.clone()).or_insert_with(|| Arc::clone(&by_age.1));
        }
        if !stored.is_open() {
            self.closed.insert(by_deadline);
            self.closed_by_age.insert(by_age);
            return;
        }
        self.count_wanted(stored, 1);
        self.deadlines.insert(by_deadline);
        self.by_age.insert(by_age.clone());
        let tickets = self.by_tenant.entry(ticket.tenant.clone()).or_default();
        let first = tickets.first().cloned();
        if first.as_ref().is_none_or(|first| by_age < *first) {
            if let Some(first) = first {
                self.tenants_first.remove(&first);
            }
            self.tenants_first.insert(by_age.clone());
        }
        tickets.insert(by_age);
    }

    fn unlink(&mut self, id: &str, stored: &TicketRecord) {
        let (id, ticket) = (Arc::<str>::from(id), &stored.ticket);
        let (by_age, by_deadline) = ((ticket.since, Arc::clone(&id)), (kept_from(stored), id));
        self.unlink_request(stored, &by_age.1);
        if !stored.is_open() {
            self.closed.remove(&by_deadline);
            self.closed_by_age.remove(&by_age);
            return;
        }
        self.count_wanted(stored, -1);
        self.deadlines.remove(&by_deadline);
        self.by_age.remove(&by_age);
        let Some(tickets) = self.by_tenant.get_mut(&ticket.tenant) else { return };
        tickets.remove(&by_age);
        if self.tenants_first.remove(&by_age) {
            self.tenants_first.extend(tickets.first().cloned());
        }
        if tickets.is_empty() {
            self.by_tenant.remove(&ticket.tenant);
        }
    }

    fn unlink_request(&mut self, stored: &TicketRecord, id: &Arc<str>) {
        let ticket = &stored.ticket;
        let Some(request_id) = &ticket.request.request_id else { return };
        let Some(requests) = self.requests.get_mut(&ticket.tenant) else { return };
        if requests.get(request_id) == Some(id) {
            requests.remove(request_id);
        }
        if requests.is_empty() {
            self.requests.remove(&ticket.tenant);
        }
    }

    fn count_wanted(&mut self, stored: &TicketRecord, sign: i64) {
        for spec in &stored.ticket.request.instances {
            let amounts = spec.resources.amounts();
            for _ in 0..spec.count.unwrap_or(1) {
                self.wanted.charge(&amounts, false, sign);
            }
        }
    }
}

/// The deadline of a ticket; for one whose grant lapsed and was followed by another, the end of the time
/// that answers are kept: only the ticket knows which grant is the request's answer.
fn kept_from(stored: &TicketRecord) -> Timestamp {
    let deadline = stored.ticket.deadline;
    if stored.lapsed == 0 || stored.ticket.state != TicketState::Granted {
        return deadline;
    }
    let kept = SignedDuration::from_secs(berth_ledger::Retention::default().answers_s);
    deadline.saturating_add(kept).unwrap_or(Timestamp::MAX)
}

impl DocumentIndex<TicketRecord> for TicketIndex {
    fn insert(&mut self, id: &str, stored: &TicketRecord, previous: Option<&TicketRecord>) {
        if let Some(previous) = previous {
            self.unlink(id, previous);
        }
        self.link(id, stored);
        // A ticket that is read again is no news.
        let was_open = previous.map(TicketRecord::is_open);
        if was_open != Some(stored.is_open()) {
            let watchers = if stored.is_open() { &self.arrivals } else { &self.closings };
            watchers.send_modify(|version| *version += 1);
        }
    }

    fn remove(&mut self, id: &str, stored: &TicketRecord) {
        self.unlink(id, stored);
        if stored.is_open() {
            // Its tenant was removed: there is nothing left to wait for.
            self.closings.send_modify(|version| *version += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use berth_api::{PlaceRequest, Ticket, TicketState};

    use super::*;

    fn record(tenant: &str, number: i64, state: TicketState) -> TicketRecord {
        let time = |at: i64| Timestamp::from_second(at).unwrap_or_default();
        let request =
            PlaceRequest { request_id: Some(format!("r{number}")), ..PlaceRequest::default() };
        let ticket = Ticket {
            id: format!("t{number:07}"),
            state,
            tenant: tenant.to_owned(),
            position: None,
            since: time(number),
            deadline: time(number + 1000),
            tries: 0,
            request,
            placed: None,
            problem: None,
        };
        let (actor, origin) = (String::new(), String::new());
        TicketRecord { ticket, actor, origin, lapsed: 0, oversized: false }
    }

    /// The order as it is defined, from all tickets.
    fn sorted(open: &[TicketRecord], overdue_before: i64) -> Vec<String> {
        let mut tickets: Vec<&Ticket> = open.iter().map(|stored| &stored.ticket).collect();
        tickets.sort_by(|a, b| (a.since, &a.id).cmp(&(b.since, &b.id)));
        let mut rounds: FxHashMap<&str, u64> = FxHashMap::default();
        let mut ranked: Vec<(bool, u64, &Ticket)> = Vec::new();
        for ticket in tickets {
            let is_in_time = ticket.since.as_second() >= overdue_before;
            let round = rounds.entry(&ticket.tenant).or_default();
            ranked.push((is_in_time, if is_in_time { *round } else { 0 }, ticket));
            *round += 1;
        }
        ranked.sort_by_key(|(is_in_time, round, _)| (*is_in_time, *round));
        ranked.into_iter().map(|(_, _, ticket)| ticket.id.clone()).collect()
    }

    #[test]
    fn the_order_is_fair_whatever_came_and_went() {
        let random = &mut fastrand::Rng::with_seed(17);
        for _ in 0..200 {
            let mut index = TicketIndex::default();
            let mut open: Vec<TicketRecord> = Vec::new();
            for number in 0..40 {
                let tenant = format!("tenant-{}", random.u8(..4));
                let stored = record(&tenant, number, TicketState::Waiting);
                index.insert(&stored.ticket.id, &stored, None);
                open.push(stored);
                if random.u8(..3) == 0 {
                    let gone = open.swap_remove(random.usize(..open.len()));
                    let mut closed = gone.clone();
                    closed.ticket.state = TicketState::Granted;
                    index.insert(&gone.ticket.id, &closed, Some(&gone));
                }
            }
            let overdue_before = random.i64(0..40);
            let time = Timestamp::from_second(overdue_before).unwrap_or_default();
            let order: Vec<String> = index.fair_order(time).map(ToString::to_string).collect();
            assert_eq!(order, sorted(&open, overdue_before));
            assert_eq!(index.open_count(), open.len());
            assert_eq!(index.closed_newest_first().count(), 40 - open.len());
        }
    }

    #[test]
    fn what_was_inserted_is_found_until_it_is_removed() {
        let mut index = TicketIndex::default();
        let open = record("acme", 1, TicketState::Waiting);
        index.insert("t0000001", &open, None);
        assert_eq!(index.of_request("acme", "r1").map(|id| &**id), Some("t0000001"));
        assert_eq!((index.open_count_of("acme"), index.open_count_of("other")), (1, 0));
        let at = |second: i64| Timestamp::from_second(second).unwrap_or_default();
        assert_eq!((index.expired(at(1000)).count(), index.expired(at(1001)).count()), (0, 1));
        let closed = record("acme", 1, TicketState::Cancelled);
        index.insert("t0000001", &closed, Some(&open));
        assert_eq!((index.open_count(), index.oldest()), (0, None));
        assert_eq!(index.expired(at(5000)).count(), 0);
        assert_eq!(index.closed_before(at(1001)).count(), 0);
        assert_eq!(index.closed_before(at(1002)).count(), 1);
        assert_eq!(index.of_request("acme", "r1").map(|id| &**id), Some("t0000001"));
        index.remove("t0000001", &closed);
        assert_eq!(index.of_request("acme", "r1"), None);
        assert_eq!(index.closed_before(at(5000)).count(), 0);
        assert!(index.requests.is_empty() && index.by_tenant.is_empty());
    }

    /// Prints what operations cost with a thousand and with a million tickets. The second is a small
    /// multiple of the first, where a scan would take a thousand times as long.
    #[test]
    #[ignore = "a measurement"]
    #[allow(clippy::disallowed_methods, reason = "a measurement")]
    fn cost_of_operations_with_a_million_tickets() {
        let mut times = Vec::new();
        for size in [1000_i64, 1_000_000] {
            let mut index = TicketIndex::default();
            let of = |number: i64| format!("tenant-{}", number % 97);
            for number in 0..size {
                let stored = record(&of(number), number, TicketState::Waiting);
                index.insert(&stored.ticket.id, &stored, None);
            }
            let began = Instant::now();
            for number in size..size + 1000 {
                let stored = record(&of(number), number, TicketState::Waiting);
                index.insert(&stored.ticket.id, &stored, None);
                assert_eq!(index.fair_order(Timestamp::MIN).take(128).count(), 128);
                let oldest = index.expired(Timestamp::MAX).next().map(ToString::to_string);
                let oldest = oldest.unwrap_or_default();
                let number: i64 = oldest[1..].parse().unwrap_or_default();
                index.remove(&oldest, &record(&of(number), number, TicketState::Waiting));
            }
            times.push(began.elapsed());
        }
        println!("1000 rounds with 1,000 and 1,000,000 tickets: {times:?}");
    }

    #[test]
    #[should_panic(expected = "invariant ticket_state_transition violated")]
    fn a_ticket_that_is_closed_is_not_closed_again() {
        let mut ticket = record("acme", 1, TicketState::Waiting);
        ticket.close(TicketState::Cancelled);
        ticket.close(TicketState::Granted);
    }
}
