//! Tuning: what is searched, that it is the same for the same seed, and what is recommended.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use berth_engine::Policy;
use berth_sim::SeededRng;
use berth_sim::packing::{
    Action, Demand, FleetNode, Goal, Trace, TraceEvent, TuneError, TuneSource, Tuned, Verdict,
    synthetic_fleet, tune,
};

const GOAL: &str = "min rejected, then min nodes";

fn search(trace: &Trace, nodes: &[FleetNode], base: &str, policies: u64, seed: u64) -> Tuned {
    let goal: Goal = GOAL.parse().unwrap();
    let base = Policy::from_toml(base).unwrap();
    let mut go_on = |tried: u64| tried < policies;
    tune(&[TuneSource { trace, nodes }], &base, &goal, seed, &mut go_on).unwrap()
}

/// Arrivals of two sizes that stay for a while; `size` draws one at a place of the trace, in thousandths.
fn trace_of(arrivals: u64, size: impl Fn(u64, &mut SeededRng) -> [u32; 2]) -> Trace {
    let mut rng = SeededRng::new(3);
    let mut trace = Trace::default();
    let mut ends: Vec<(u64, usize)> = Vec::new();
    for number in 0..arrivals {
        let time = number * 10;
        ends.sort_unstable_by(|one, other| other.cmp(one));
        while let Some((end, instance)) = ends.last().copied()
            && end <= time
        {
            ends.pop();
            trace.events.push(TraceEvent { time: end, action: Action::Delete(instance) });
        }
        let [cpu_milli, memory_mib] = size(number * 1000 / arrivals, &mut rng);
        let instance = trace.demands.len();
        trace.demands.push(Demand { cpu_milli, memory_mib, disk_mib: 0 });
        trace.events.push(TraceEvent { time, action: Action::Create(instance) });
        ends.push((time + 200 + rng.below(4000), instance));
    }
    trace
}

/// Spreads: nearly anything is better where large instances come.
const SPREADING: &str = "name = 'spreading'\n[filters]\ncpu = 'hard'\n[scores]\nmemory-spread = 1";

fn steady(arrivals: u64) -> Trace {
    let nodes = [[1000, 3072], [2000, 6144], [4000, 12_288], [32_000, 98_304]];
    trace_of(arrivals, |_, rng| {
        let drawn = usize::try_from(rng.below(12)).unwrap();
        nodes[drawn.saturating_sub(8).min(3)]
    })
}

#[test]
fn a_policy_that_spreads_is_replaced_by_one_that_packs_and_the_gain_holds() {
    let (trace, nodes) = (steady(3000), synthetic_fleet(400));
    let tuned = search(&trace, &nodes, SPREADING, 12, 1);
    assert!(matches!(tuned.verdict, Verdict::Recommended { .. }), "{tuned:?}");
    let rejected = &tuned.unseen[0];
    assert!(rejected.gain > 0 && rejected.low <= rejected.gain && rejected.gain <= rejected.high);
    let signed = |value: u64| i64::try_from(value).unwrap();
    assert_eq!(rejected.gain, signed(rejected.base) - signed(rejected.tuned));
    // Hard rules are not the search's to change.
    let policy = Policy::from_toml(&tuned.policy_toml).unwrap();
    let filters = |policy: &Policy| {
        let json: serde_json::Value = serde_json::from_str(&policy.to_json()).unwrap();
        json["filters"].clone()
    };
    assert_eq!(filters(&policy), filters(&Policy::from_toml(SPREADING).unwrap()));
    assert_eq!(tuned.evaluated, 12);
}

#[test]
fn the_same_seed_and_number_of_policies_give_the_same_policy() {
    let (trace, nodes) = (steady(900), synthetic_fleet(400));
    let first = search(&trace, &nodes, SPREADING, 6, 1);
    let again = search(&trace, &nodes, SPREADING, 6, 1);
    assert_eq!((&first.policy_toml, &first.unseen), (&again.policy_toml, &again.unseen));
    assert_eq!(first.verdict, again.verdict);
    let other = search(&trace, &nodes, SPREADING, 6, 2);
    assert_ne!(first.policy_toml, other.policy_toml);
}

/// At first everything is small, and spreading by memory costs nothing; a policy that is tuned on it
/// has no reason to keep large gaps. Later large instances come, which need them.
#[test]
fn a_policy_that_was_fitted_to_what_no_longer_comes_is_not_recommended() {
    let trace = trace_of(3000, |permille, rng| {
        let is_late = permille >= 600;
        match rng.below(6) {
            // Until then CPU runs out first, from then on memory does.
            0..5 if is_late => [1000, 12_288],
            0..5 => [8000, 1024],
            _ if is_late => [2000, 131_072],
            _ => [40_000, 2048],
        }
    });
    let nodes = synthetic_fleet(600);
    // Packs by memory: right for what comes late, wrong for what comes first.
    let base = "name = 'by-memory'\n[filters]\ncpu = 'hard'\n[scores]\nmemory-pack = 4";
    let tuned = search(&trace, &nodes, base, 14, 1);
    let Verdict::NotRecommended { reason } = &tuned.verdict else {
        panic!("recommended: {tuned:?}");
    };
    assert!(!reason.is_empty());
    // It did find something better for the time that it learned from, or kept what it had.
    assert!(tuned.learned[0].gain >= 0, "{tuned:?}");
}

#[test]
fn a_trace_that_is_too_short_is_refused() {
    let goal: Goal = GOAL.parse().unwrap();
    let (trace, nodes) = (steady(2), synthetic_fleet(4));
    let base = Policy::builtin("pack").unwrap();
    let source = TuneSource { trace: &trace, nodes: &nodes };
    let error = tune(&[source], &base, &goal, 1, &mut |_| false).unwrap_err();
    assert!(matches!(error, TuneError::TooShort(_)), "{error}");
    let wrong = "max rejected".parse::<Goal>().unwrap_err().to_string();
    assert!(wrong.contains("\"max rejected\"") && wrong.contains("min and one of"), "{wrong}");
}
