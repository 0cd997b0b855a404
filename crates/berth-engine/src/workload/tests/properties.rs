//! Whatever happens to a workload, each step keeps what was promised, and it settles in the end.

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy as _, any, prop_oneof, proptest};
use proptest::test_runner::FileFailurePersistence;

use super::super::{
    CapacityRule, Cause, HostState, Member, MemberState, OnChange, Rolling, Share, Step, Strategy,
    WorkloadPlan, on_demand_slots,
};
use super::world::World;
use crate::model::CapacityType;

/// What happens to a workload from outside.
#[derive(Clone, Debug)]
enum Event {
    Scale(u32),
    Limit(Option<u32>, bool),
    /// The rule is there or not, in force or not, and rebuilds or not.
    Rule(Option<(bool, OnChange)>),
    NewRevision,
    RollBack,
    Pause(bool),
    Fails(bool),
    Change(Rolling),
    Host(usize, HostState),
    Dies(usize),
    Crashes(usize),
    /// Some steps are done, some members start and stop.
    Passes(u64),
}

fn rollings() -> impl proptest::strategy::Strategy<Value = Rolling> {
    let strategies =
        prop_oneof![Just(Strategy::BlueGreen), Just(Strategy::Rolling), Just(Strategy::Recreate)];
    let share = || {
        let percent = prop_oneof![Just(0_u8), Just(10), Just(25), Just(100)];
        prop_oneof![(0..4_u32).prop_map(Share::Count), percent.prop_map(Share::Percent)]
    };
    (strategies, share(), share()).prop_map(|(strategy, max_surge, max_unavailable)| Rolling {
        strategy,
        max_surge,
        max_unavailable,
    })
}

fn hosts() -> impl proptest::strategy::Strategy<Value = HostState> {
    prop_oneof![
        Just(HostState::Fine),
        Just(HostState::Draining),
        Just(HostState::Draining),
        Just(HostState::Overdue),
        Just(HostState::Reclaimed),
        Just(HostState::Lost),
    ]
}

fn events() -> impl proptest::strategy::Strategy<Value = Event> {
    let on_change = prop_oneof![Just(OnChange::Rebuild), Just(OnChange::Lazy)];
    prop_oneof![
        2 => (0..8_u32).prop_map(Event::Scale),
        2 => (proptest::option::of(0..8_u32), any::<bool>()).prop_map(|(m, each)| Event::Limit(m, each)),
        2 => proptest::option::weighted(0.8, (any::<bool>(), on_change)).prop_map(Event::Rule),
        2 => Just(Event::NewRevision),
        1 => Just(Event::RollBack),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => any::<bool>().prop_map(Event::Fails),
        1 => rollings().prop_map(Event::Change),
        4 => (any::<usize>(), hosts()).prop_map(|(which, host)| Event::Host(which, host)),
        2 => any::<usize>().prop_map(Event::Dies),
        1 => any::<usize>().prop_map(Event::Crashes),
        16 => any::<u64>().no_shrink().prop_map(Event::Passes),
    ]
}

/// Small and good enough to mix things up.
struct SmallRng(u64);

impl SmallRng {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed >> 33) % u64::try_from(sides).unwrap()).unwrap()
    }
}

fn happen(world: &mut World, event: &Event) {
    let one_of = |world: &World, which: usize| which.checked_rem(world.members.len());
    match *event {
        Event::Scale(replicas) if world.single_writer => world.replicas = replicas.min(1),
        Event::Scale(replicas) => world.replicas = replicas,
        Event::Limit(max_on_demand, at_least_one_of_each) => {
            let rule = world.rule.unwrap_or_default();
            world.rule = Some(CapacityRule { max_on_demand, at_least_one_of_each, ..rule });
        }
        Event::Rule(None) => world.rule = None,
        Event::Rule(Some((enabled, on_change))) => {
            let rule = world.rule.unwrap_or_default();
            world.rule = Some(CapacityRule { enabled, on_change, ..rule });
        }
        Event::NewRevision => world.revision += 1,
        Event::RollBack => world.revision -= 1,
        Event::Pause(paused) => world.paused = paused,
        Event::Fails(failing) => world.failing = failing,
        Event::Change(rolling) => world.rolling = rolling,
        Event::Host(which, host) => {
            if let Some(which) = one_of(world, which) {
                world.members[which].host = host;
            }
        }
        Event::Dies(which) => {
            if let Some(which) = one_of(world, which) {
                world.members.remove(which);
            }
        }
        Event::Crashes(which) => {
            if let Some(which) = one_of(world, which) {
                world.members[which].state = MemberState::Leaving;
            }
        }
        Event::Passes(seed) => pass(world, &mut SmallRng(seed)),
    }
}

/// Does some of the steps in any order; then some members start and some are gone.
fn pass(world: &mut World, dice: &mut SmallRng) {
    let plan = world.plan();
    check_outlook(world, &plan);
    let mut steps = plan.steps;
    while !steps.is_empty() {
        let step = steps.swap_remove(dice.below(steps.len()));
        if dice.below(4) > 0 {
            world.apply(&step);
            check_slots(world);
        }
    }
    for member in &mut world.members {
        if member.state == MemberState::Starting && dice.below(2) == 0 {
            member.state = MemberState::Ready;
        }
    }
    world.members.retain(|it| it.state != MemberState::Leaving || dice.below(2) == 0);
}

fn is_old(world: &World, member: &Member) -> bool {
    member.revision != world.revision
}

fn has_old(world: &World) -> bool {
    world.members.iter().any(|it| is_old(world, it))
}

/// What holds for all steps together.
fn check_outlook(world: &World, plan: &WorkloadPlan) {
    if world.single_writer {
        return;
    }
    check_releases(world, plan);
    check_rebuilds(world, plan);
    if !has_old(world) {
        return;
    }
    let is_roll_out = |step: &&Step| {
        let (Step::Create { cause, .. } | Step::Release { cause, .. }) = step;
        *cause == Cause::RollOut
    };
    if world.paused {
        assert_eq!(plan.steps.iter().find(is_roll_out), None, "paused: {world:?}");
        return;
    }
    let replaces_live = |step: &Step| match *step {
        Step::Create { in_place_of: Some(old), .. } => world.member(old).is_live(),
        Step::Create { .. } | Step::Release { .. } => false,
    };
    let creates = plan.steps.iter().filter(|step| matches!(step, Step::Create { .. }));
    let fills = creates.filter(|step| !replaces_live(step)).count();
    let is_release = |step: &&Step| matches!(step, Step::Release { .. });
    match world.rolling.strategy {
        Strategy::Recreate => assert_eq!(fills, 0, "next to old ones: {world:?}"),
        Strategy::BlueGreen => {
            let new = world.available(|it| !is_old(world, it));
            let lets_go = plan.steps.iter().filter(is_release).any(|step| is_roll_out(&step));
            assert!(!lets_go || new >= world.replicas as usize, "too early: {world:?}");
        }
        Strategy::Rolling => {
            let (surge, _) = world.rolling.surge_and_unavailable(world.replicas);
            let counts = |it: &&Member| {
                it.is_live() && !(is_old(world, it) && it.host == HostState::Reclaimed)
            };
            let there = world.members.iter().filter(counts).count();
            let ceiling = (world.replicas + surge) as usize;
            assert!(fills == 0 || there + fills <= ceiling, "too many: {plan:?} {world:?}");
        }
    }
}

/// Whichever members are released, enough others run: with all releases done, and so with some of them.
fn check_releases(world: &World, plan: &WorkloadPlan) {
    let mut after = world.clone();
    for step in plan.steps.iter().filter(|step| matches!(step, Step::Release { .. })) {
        after.apply(step);
    }
    // Members on overdue and lost nodes go whatever that means for the others.
    let had = world.available(|it| it.host != HostState::Overdue);
    let has = after.available(|it| it.host != HostState::Overdue);
    let (_, unavailable) = world.rolling.surge_and_unavailable(world.replicas);
    let floor = match world.rolling.strategy {
        Strategy::Recreate if has_old(world) && !world.paused => 0,
        Strategy::Rolling if has_old(world) && !world.paused => {
            world.replicas.saturating_sub(unavailable)
        }
        Strategy::Recreate | Strategy::Rolling | Strategy::BlueGreen => world.replicas,
    };
    let floor = had.min(floor as usize);
    assert!(has >= floor, "{has} of {floor} left by {plan:?}: {world:?}");
}

/// One is rebuilt at a time, and only while nobody waits for a replacement.
fn check_rebuilds(world: &World, plan: &WorkloadPlan) {
    let is_rebuild = |step: &&Step| matches!(step, Step::Create { cause: Cause::Rebuild, .. });
    let rebuilds = plan.steps.iter().filter(is_rebuild).count();
    let waits = |it: &&Member| {
        let holder = world.holder(it.revision, it.slot).filter(|holder| holder.id != it.id);
        it.is_live() && holder.is_some_and(|holder| holder.state != MemberState::Ready)
    };
    // What waits in an old revision is on its way out, and holds up rebuilds as a roll-out.
    let waiting = world.members.iter().filter(waits).count();
    assert!(rebuilds == 0 || rebuilds == 1 && waiting == 0, "{plan:?} of {world:?}");
}

/// Each slot has one holder.
fn check_slots(world: &World) {
    let mut fences: Vec<_> =
        world.members.iter().map(|it| (it.revision, it.slot, it.fence)).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), world.members.len(), "two hold a slot: {world:?}");
}

/// Lets time pass until nothing is left to do.
fn settle(world: &mut World, dice: &mut SmallRng) {
    for _ in 0..2000 {
        let at_rest = world.members.iter().all(|it| it.state == MemberState::Ready);
        let plan = world.plan();
        let nothing = if world.single_writer { plan.steps.is_empty() } else { plan.is_settled() };
        if at_rest && nothing {
            return;
        }
        pass(world, dice);
    }
    panic!("never settles: {:?} of {world:?}", world.plan());
}

fn check_settled(world: &World) {
    let replicas = world.replicas as usize;
    assert_eq!(world.members.len(), replicas, "{world:?}");
    assert!(!has_old(world), "{world:?}");
    assert!(world.members.iter().all(|it| it.host == HostState::Fine), "{world:?}");
    if let Some(rule) = &world.rule {
        let on_demand = on_demand_slots(rule, Some(world.replicas)).min(world.replicas);
        assert_eq!(world.live(CapacityType::OnDemand), on_demand as usize, "{world:?}");
    }
}

fn config() -> ProptestConfig {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reconcile.proptest-regressions");
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        max_shrink_iters: 5000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_workload_settles_whatever_happened(
        rolling in rollings(),
        ruled in any::<bool>(),
        events in vec(events(), 0..60),
        seed in any::<u64>().no_shrink(),
    ) {
        let mut world = World::empty(4, ruled.then(CapacityRule::default));
        world.rolling = rolling;
        for event in &events {
            happen(&mut world, event);
        }
        let mut dice = SmallRng(seed);
        settle(&mut world, &mut dice);
        let live = world.members.len();
        assert!(live >= world.replicas as usize, "{world:?}");
        world.paused = false;
        if let Some(rule) = &mut world.rule {
            (rule.enabled, rule.on_change) = (true, OnChange::Rebuild);
        }
        settle(&mut world, &mut dice);
        check_settled(&world);
    }

    #[test]
    fn a_volume_never_has_two_writers(
        rolling in rollings(),
        events in vec(events(), 0..60),
        seed in any::<u64>().no_shrink(),
    ) {
        let mut world = World::empty(1, None);
        (world.rolling, world.single_writer) = (rolling, true);
        for event in &events {
            happen(&mut world, event);
        }
        // Somebody moves the volume, or says that the lost node is no more.
        world.members.retain(|it| it.host != HostState::Lost);
        for member in &mut world.members {
            member.host = HostState::Fine;
        }
        world.paused = false;
        world.rule = None;
        settle(&mut world, &mut SmallRng(seed));
        check_settled(&world);
    }
}
