//! The worked examples of the arithmetic, by their numbers in the notes on the systems it follows.
//!
//! CPU and memory are given the same numbers, so that both ways of granting must agree.

use super::{
    Account, Free, Grants, Holding, InvalidPermitRequest, Limit, Overcommit, Permit, PermitContext,
    PermitDecision, PermitRequest, Size, Sums, WatermarkRule, decide_permit,
};
use crate::model::{Amounts, NodeFacts, OtherUsage, Ratios, Used};

/// A node of which so much is there and reserved, and one instance on it.
struct Node {
    total: u32,
    reserved: u32,
    permit: Permit,
    unit: u32,
    max: u32,
}

const fn both(amount: u32) -> Size {
    Size::new(amount, amount)
}

impl Node {
    fn new(total: u32, reserved: u32, has: u32) -> Self {
        let permit = Permit::placed(both(has), Overcommit::NONE);
        Self { total, reserved, permit, unit: 1, max: 100_000 }
    }

    fn terms(&self, grants: Grants) -> PermitContext {
        let left = i64::from(self.total) - i64::from(self.reserved);
        PermitContext {
            host_cpu_milli: None,
            unit: both(self.unit),
            grants,
            min: both(0),
            max: both(self.max),
            frozen: false,
            whole_units: true,
            node: Free { cpu: left, memory: left },
            quota: Free::UNLIMITED,
            below_watermark: Free::UNLIMITED,
            now: 1000,
        }
    }

    /// Decides both ways, which must agree, and keeps the result.
    fn ask(&mut self, wish: &PermitRequest) -> PermitDecision {
        let [joint, alone] = [Grants::Joint, Grants::PerResource]
            .map(|grants| decide_permit(&self.permit, wish, &self.terms(grants)).unwrap());
        assert_eq!(joint, alone);
        let (before, after) = (self.permit.charge(), joint.permit.charge());
        self.reserved = self.reserved + after.cpu_milli - before.cpu_milli;
        self.permit = joint.permit;
        joint
    }

    fn wants(&mut self, size: u32) -> (u32, u32, u32) {
        let permit = self.ask(&PermitRequest::new(both(size))).permit;
        assert_eq!(permit.granted.cpu_milli, permit.granted.memory_mib);
        (permit.granted.cpu_milli, permit.pressure.cpu_milli, self.reserved)
    }

    fn wants_holding(&mut self, size: u32, last_permit: u32) -> (u32, u32, u32) {
        let wish = PermitRequest {
            last_permit: Some(both(last_permit)),
            ..PermitRequest::new(both(size))
        };
        let permit = self.ask(&wish).permit;
        (permit.granted.cpu_milli, permit.pressure.cpu_milli, self.reserved)
    }
}

#[test]
fn examples_1_to_5_and_10_grow_shrink_and_share_what_is_left() {
    assert_eq!(Node::new(10, 5, 2).wants(3), (3, 0, 6), "1");
    assert_eq!(Node::new(10, 6, 3).wants(2), (2, 0, 5), "2");
    let mut third = Node::new(10, 8, 1);
    assert_eq!(third.wants(5), (3, 2, 10), "3");
    third.reserved -= 2;
    assert_eq!(third.wants(5), (5, 0, 10), "4");
    let mut fifth = Node { unit: 2, ..Node::new(10, 7, 4) };
    assert_eq!(fifth.wants(8), (6, 2, 9), "5");
    let mut tenth = Node { unit: 250, ..Node::new(10_000, 9600, 1000) };
    assert_eq!(tenth.wants(2000), (1250, 750, 9850), "10");
}

#[test]
fn examples_6_and_7_an_over_full_node_lets_nothing_grow_and_everything_shrink() {
    assert_eq!(Node::new(10, 12, 2).wants_holding(3, 2), (2, 1, 12), "6");
    let mut told = Node::new(10, 12, 2);
    let wish = PermitRequest { last_permit: Some(both(3)), ..PermitRequest::new(both(3)) };
    assert!(told.ask(&wish).found_larger, "what its agent holds is so");
    assert_eq!((told.permit.granted, told.reserved), (both(3), 13), "6");
    assert_eq!(Node::new(10, 15, 4).wants(2), (2, 0, 13), "7");
}

#[test]
fn examples_8_and_9_who_was_found_counts_with_its_maximum_until_it_speaks() {
    let found = Permit::found(both(2), both(4), Overcommit::NONE);
    assert_eq!((found.reserved(), found.buffer), (both(4), both(2)));
    let mut eighth = Node { permit: found, max: 4, ..Node::new(10, 7, 0) };
    assert_eq!(eighth.wants(2), (2, 0, 5), "8");
    assert_eq!(eighth.permit.buffer, Size::ZERO);
    let mut ninth = Node { permit: found, max: 4, ..Node::new(10, 12, 0) };
    assert_eq!(ninth.wants_holding(4, 2), (2, 2, 10), "9");
}

#[test]
fn examples_11_and_12_units_margins_and_others() {
    let facts = |cpu: u32, memory: u32, reserve: Amounts, other: OtherUsage| {
        let ratios = Ratios { cpu_permille: 1000, ..Ratios::default() };
        let facts = NodeFacts::new("n", Amounts::new(cpu, memory));
        NodeFacts { system_reserve: reserve, ratios, other, vmm_overhead_mib: 0, ..facts }
    };
    let other = OtherUsage { cpu_unit_milli: 1000, memory_unit_mib: 1024, ..OtherUsage::default() };
    let account = |facts: &NodeFacts| {
        let mark = WatermarkRule { cpu_permille: 700, memory_permille: 700 };
        Account::of(facts, &Used::default(), mark, &Sums::default())
    };
    let first = account(&facts(7910, 30_976, Amounts::new(500, 512), other));
    let numbers = (first.cpu.total, first.cpu.system, first.cpu.watermark);
    assert_eq!(numbers, (7000, 0, 4000), "11: T 7, S 0, watermark 4");
    let gib = |amount: i64| amount / 1024;
    let memory = &first.memory;
    assert_eq!((gib(memory.total), gib(memory.system), gib(memory.watermark)), (30, 1, 20), "11");
    let second = account(&facts(7300, 30_976, Amounts::new(500, 512), other));
    assert_eq!((second.cpu.system, second.cpu.reservable()), (1000, 6000), "11: S 1, reservable 6");
    // 12: a margin of 420m; 810m and 1080m are both charged one CPU.
    let charged = |raw: u32| {
        let other = OtherUsage { cpu_milli: raw, ..other };
        account(&facts(7920, 30_976, Amounts::new(500, 512), other)).cpu.other
    };
    assert_eq!((charged(810), charged(1080)), (1000, 1000), "12");
    let charged = |raw_mib: u64| {
        let other = OtherUsage { memory_kib: raw_mib << 10, ..other };
        // A margin of 947252 KiB, which is 925 MiB and a little.
        gib(account(&facts(7920, 30_720 + 925 + 512, Amounts::new(500, 512), other)).memory.other)
    };
    assert_eq!((charged(3132), charged(4176)), (3, 4), "12");
}

#[test]
fn example_13_pressure_until_those_who_leave_account_for_it() {
    let ratios = Ratios { cpu_permille: 1000, ..Ratios::default() };
    let facts =
        NodeFacts { ratios, vmm_overhead_mib: 0, ..NodeFacts::new("n", Amounts::new(10, 10)) };
    let mark = WatermarkRule { cpu_permille: 700, memory_permille: 700 };
    let used = Used { cpu: 9, memory: 9, ..Used::default() };
    let of = |size: u32, pressure: u32, buffer: u32, leaving: bool| {
        let mut permit = Permit::placed(both(size - buffer), Overcommit::NONE);
        (permit.buffer, permit.pressure, permit.pressure_at) = (both(buffer), both(pressure), 0);
        Holding { charge: both(size), permit: Some(permit), leaving }
    };
    let sheds = |holdings: &[Holding]| {
        let sums = Sums::of(holdings.iter().copied(), 0, 60);
        Account::of(&facts, &used, mark, &sums).must_shed()
    };
    assert!(sheds(&[of(4, 2, 0, false), of(3, 0, 0, false), of(2, 0, 0, false)]), "4 > 0");
    assert!(sheds(&[of(4, 2, 0, false), of(3, 0, 0, true), of(2, 0, 0, false)]), "4 > 3");
    assert!(!sheds(&[of(4, 2, 0, false), of(3, 0, 0, true), of(2, 0, 0, true)]), "4 > 5 is false");
    assert!(
        !sheds(&[of(4, 2, 4, false), of(3, 0, 0, false), of(2, 0, 0, false)]),
        "4 > 4 is false"
    );
}

#[test]
fn example_15_overcommit_rounds_charges_up() {
    let twice = Overcommit::try_from(2000).unwrap();
    let mut node = Node { permit: Permit::placed(both(3), twice), ..Node::new(10, 8, 0) };
    assert_eq!(node.wants(7), (7, 0, 10), "15");
    let half_more = Overcommit::try_from(1500).unwrap();
    let permit = Permit::placed(both(1000), half_more);
    let mut node = Node { permit, unit: 250, ..Node::new(10_000, 9400, 0) };
    assert_eq!(node.wants(4000), (1750, 2250, 9900), "15");
    assert_eq!(half_more.charge(both(1)), both(1), "never less than was promised");
    assert!(Overcommit::try_from(0).is_err(), "nothing divides by it");
}

#[test]
fn joint_grants_are_whole_units_of_both() {
    let node = Node { unit: 1000, ..Node::new(0, 0, 1000) };
    let mut terms = node.terms(Grants::Joint);
    terms.node = Free { cpu: 3000, memory: 2500 };
    let decided =
        decide_permit(&node.permit, &PermitRequest::new(Size::new(5000, 5000)), &terms).unwrap();
    assert_eq!(decided.permit.granted, Size::new(3000, 3000), "memory for two more units");
    assert_eq!(decided.permit.pressure, Size::new(2000, 2000));
    terms.grants = Grants::PerResource;
    let decided =
        decide_permit(&node.permit, &PermitRequest::new(Size::new(5000, 5000)), &terms).unwrap();
    assert_eq!(decided.permit.granted, Size::new(4000, 3000), "each as far as it goes");
    terms.grants = Grants::Joint;
    let mixed = decide_permit(
        &node.permit,
        &PermitRequest::new(Size::new(500, 3000)),
        &PermitContext { whole_units: false, ..terms },
    );
    assert_eq!(mixed.unwrap().permit.granted, Size::new(500, 3000), "one shrinks, the other grows");
}

#[test]
fn a_repeated_or_late_request_gets_the_stored_answer() {
    let mut node = Node::new(10, 5, 2);
    let wish = |seq, size| PermitRequest { seq: Some(seq), ..PermitRequest::new(both(size)) };
    let first = node.ask(&wish(7, 4));
    assert!(!first.repeated);
    for (seq, size) in [(7, 4), (7, 9), (3, 2)] {
        let again = node.ask(&wish(seq, size));
        assert!(again.repeated, "{seq} for {size}");
        assert_eq!(again.permit, first.permit);
    }
}

#[test]
fn a_request_is_checked_against_the_unit_that_was_told() {
    let mut node = Node { unit: 2, max: 11, ..Node::new(100, 10, 4) };
    node.wants(6);
    // The unit changes; the agent cannot know yet.
    node.unit = 3;
    assert_eq!(node.wants(8).0, 8);
    let odd =
        decide_permit(&node.permit, &PermitRequest::new(both(10)), &node.terms(Grants::Joint));
    assert!(
        matches!(odd, Err(InvalidPermitRequest::NotWholeUnits { value: 10, unit: 3, .. })),
        "{odd:?}"
    );
    assert_eq!(node.wants(11).0, 11, "its maximum is always accepted");
    assert_eq!(node.wants(7).0, 7, "an instance that reports a smaller size has it");
    let outside =
        decide_permit(&node.permit, &PermitRequest::new(both(12)), &node.terms(Grants::Joint));
    assert!(matches!(outside, Err(InvalidPermitRequest::OutsideBounds { value: 12, max: 11, .. })));
}

#[test]
fn who_is_being_moved_may_shrink_and_not_grow() {
    let node = Node::new(100, 10, 4);
    let terms = PermitContext { frozen: true, ..node.terms(Grants::Joint) };
    let more = decide_permit(&node.permit, &PermitRequest::new(both(6)), &terms).unwrap().permit;
    assert_eq!(
        (more.granted, more.pressure, more.limited_by),
        (both(4), both(2), Some(Limit::Migration))
    );
    let less = decide_permit(&node.permit, &PermitRequest::new(both(3)), &terms).unwrap().permit;
    assert_eq!((less.granted, less.pressure), (both(3), Size::ZERO));
}

#[test]
fn a_quota_holds_back_without_pressure() {
    let node = Node::new(100, 10, 4);
    let terms = PermitContext { quota: Free { cpu: 1, memory: 9 }, ..node.terms(Grants::Joint) };
    let permit = decide_permit(&node.permit, &PermitRequest::new(both(8)), &terms).unwrap().permit;
    assert_eq!((permit.granted, permit.pressure), (both(5), Size::ZERO));
    assert_eq!(permit.limited_by, Some(Limit::Quota));
}

#[test]
fn no_instance_outgrows_the_cores_of_its_host_whatever_is_free() {
    // A host of 10 cores, of which 100 may be promised.
    let node = Node { max: 40, ..Node::new(100, 4, 4) };
    let terms = PermitContext { host_cpu_milli: Some(10), ..node.terms(Grants::PerResource) };
    let ask =
        |wish: &PermitRequest, terms| decide_permit(&node.permit, wish, terms).unwrap().permit;
    let permit = ask(&PermitRequest::new(both(12)), &terms);
    assert_eq!(permit.granted, Size::new(10, 12), "memory is no matter of cores");
    assert_eq!((permit.pressure, permit.limited_by), (Size::ZERO, Some(Limit::Host)));
    let permit = ask(&PermitRequest::new(both(10)), &terms);
    assert_eq!((permit.granted, permit.limited_by), (both(10), None), "exactly all of it");
    let joint = PermitContext { grants: Grants::Joint, ..terms };
    let permit = ask(&PermitRequest::new(both(12)), &joint);
    assert_eq!((permit.granted, permit.limited_by), (both(10), Some(Limit::Host)));
    let unasked = PermitRequest { headroom: both(9), ..PermitRequest::new(both(8)) };
    let permit = ask(&unasked, &terms);
    assert_eq!((permit.granted, permit.headroom), (both(8), Size::new(2, 9)));
    // What it has is not taken away, and room for it elsewhere on the node is still missed.
    let small = PermitContext { host_cpu_milli: Some(2), ..terms };
    assert_eq!(ask(&PermitRequest::new(both(5)), &small).granted, Size::new(4, 5));
    let full = PermitContext { node: Free { cpu: 3, memory: 9 }, ..terms };
    let permit = ask(&PermitRequest::new(both(12)), &full);
    assert_eq!((permit.granted, permit.pressure), (Size::new(7, 12), Size::new(3, 0)));
    assert_eq!(permit.limited_by, Some(Limit::Node));
}

#[test]
fn headroom_is_charged_and_never_above_the_watermark() {
    let mut node = Node { max: 20, ..Node::new(100, 80, 4) };
    let wish = PermitRequest { headroom: both(8), ..PermitRequest::new(both(6)) };
    let terms =
        PermitContext { below_watermark: Free { cpu: 7, memory: 9 }, ..node.terms(Grants::Joint) };
    let decided = decide_permit(&node.permit, &wish, &terms).unwrap().permit;
    // 2 of the 7 that are left below the watermark are its growth.
    assert_eq!((decided.granted, decided.buffer, decided.charge()), (both(6), both(5), both(11)));
    // It grew into its headroom while nobody could be asked, and says so. What it was allowed before
    // counts until it has heard that this is over.
    node.permit = decided;
    node.reserved += 7;
    assert_eq!(node.wants_holding(9, 9), (9, 0, 87));
    let heard = PermitRequest { heard: Some(node.permit.seq), ..PermitRequest::new(both(9)) };
    node.ask(&heard);
    assert_eq!((node.permit.buffer, node.reserved), (Size::ZERO, 85));
}

#[test]
fn a_wish_that_fits_as_a_whole_is_granted_as_a_whole() {
    let node = Node { unit: 1000, ..Node::new(0, 0, 1000) };
    let mut terms = node.terms(Grants::Joint);
    terms.node = Free { cpu: 2000, memory: 9000 };
    let wish = PermitRequest::new(Size::new(2000, 6000));
    let permit = decide_permit(&node.permit, &wish, &terms).unwrap().permit;
    // CPU for two units does not hold five units of memory back: it wants no more than one of them.
    assert_eq!((permit.granted, permit.limited_by), (Size::new(2000, 6000), None));
    terms.node.memory = 3000;
    let permit = decide_permit(&node.permit, &wish, &terms).unwrap().permit;
    assert_eq!(permit.granted, Size::new(2000, 4000), "only what is lacking holds back");
}

#[test]
fn what_it_grew_into_can_be_told_whatever_the_unit_and_the_bounds() {
    let node = Node { unit: 1000, max: 9000, ..Node::new(100_000, 1500, 1500) };
    let wish = PermitRequest { headroom: both(2000), ..PermitRequest::new(both(1500)) };
    let terms = node.terms(Grants::Joint);
    let permit = decide_permit(&node.permit, &wish, &terms).unwrap().permit;
    assert_eq!(permit.reserved(), both(3500), "its headroom is whole units, and it is not");
    let told = PermitRequest { last_permit: Some(both(3500)), ..PermitRequest::new(both(3500)) };
    let grown = decide_permit(&permit, &told, &terms).unwrap();
    assert_eq!((grown.permit.granted, grown.found_larger), (both(3500), false));
}

#[test]
fn headroom_outlasts_lower_bounds_until_its_agent_speaks() {
    let mut permit = Permit::placed(both(4), Overcommit::NONE);
    permit.buffer = both(3);
    let bound = permit.rebound(both(5));
    assert_eq!(bound.charge(), both(7), "its agent may have grown to 7 unheard");
    let terms = Node { max: 5, ..Node::new(10, 10, 4) }.terms(Grants::Joint);
    let told = PermitRequest { last_permit: Some(both(7)), ..PermitRequest::new(both(7)) };
    let told = decide_permit(&bound, &told, &terms).unwrap();
    assert_eq!((told.permit.granted, told.found_larger), (both(7), false));
    let found = Permit::found(both(4), both(7), Overcommit::NONE);
    assert_eq!(found.rebound(both(5)).charge(), both(5), "nobody was promised anything");
}

#[test]
fn denied_wishes_fade() {
    let mut permit = Permit::placed(both(4), Overcommit::NONE);
    (permit.pressure, permit.pressure_at) = (both(8), 100);
    let after = |now| permit.charged_pressure(now, 60).cpu_milli;
    assert_eq!([after(90), after(100), after(130), after(160), after(220)], [8, 8, 6, 4, 2]);
    assert_eq!(after(100 + 60 * 16), 0);
}

#[test]
fn what_is_stored_reads_back() {
    let mut permit = Permit::found(both(2), both(4), Overcommit::try_from(1500).unwrap());
    (permit.unit, permit.load_milli) = (Some(both(1)), Some(700));
    let text = serde_json::to_string(&permit).unwrap();
    assert_eq!(serde_json::from_str::<Permit>(&text).unwrap(), permit, "{text}");
}

#[test]
fn headroom_counts_until_its_agent_has_heard_that_it_is_over() {
    let mut node = Node { max: 20, ..Node::new(100, 10, 4) };
    let with = |headroom: u32, heard: Option<u64>| PermitRequest {
        headroom: both(headroom),
        heard,
        ..PermitRequest::new(both(4))
    };
    node.ask(&with(6, None));
    assert_eq!((node.permit.headroom, node.reserved), (both(6), 16));
    // The answer that takes it away may be lost: the agent may still grow by the earlier one.
    node.ask(&with(0, Some(1)));
    assert_eq!((node.permit.headroom, node.reserved), (Size::ZERO, 16));
    node.ask(&with(0, None));
    assert_eq!(node.reserved, 16, "nobody knows what it has heard");
    node.ask(&with(0, Some(3)));
    assert_eq!(node.reserved, 10);
}
