//! What a measurement says: Berth's share of what a bare client reaches, and how it compares with kube-scheduler.

use std::time::Duration;

use crate::assets::Usage;

/// Berth's share of the rate of bare bindings, in hundredths, that is to be reached.
const SHARE_MIN: u128 = 85;
/// How many times as much processor time kube-scheduler uses for each pod, in hundredths.
const PROCESSOR_MIN: u128 = 600;
/// The most memory at 5,000 nodes and 20,000 pods.
const PEAK_MIB_MAX: u64 = 150;
/// The size at which memory is limited, and from which on the larger factor counts.
const LARGE_NODES: usize = 5_000;

/// Nobody: bindings are sent as fast as the API server takes them.
pub(crate) const BARE: &str = "bare bindings";
/// The scheduler of Kubernetes.
pub(crate) const PEER: &str = "kube-scheduler";
/// This one.
pub(crate) const BERTH: &str = "Berth";

/// One round.
pub(crate) struct Round {
    pub(crate) who: &'static str,
    pub(crate) pods: usize,
    /// From the first binding to the last.
    pub(crate) took: Duration,
    pub(crate) usage: Usage,
}

/// The rounds of one of the three together.
#[derive(Clone, Copy, Default)]
struct Sum {
    pods: u128,
    took_ms: u128,
    cpu_ms: u128,
    peak_mib: u64,
}

impl Sum {
    fn of(rounds: &[Round], who: &str) -> Option<Self> {
        let mut sum = Self::default();
        for round in rounds.iter().filter(|it| it.who == who) {
            sum.pods += round.pods as u128;
            sum.took_ms += round.took.as_millis().max(1);
            sum.cpu_ms += u128::from(round.usage.cpu_ms);
            sum.peak_mib = sum.peak_mib.max(round.usage.peak_kib / 1_024);
        }
        (sum.pods > 0).then_some(sum)
    }
}

/// In how many hundredths of the rate of `other` one binds.
fn rate(one: Sum, other: Sum) -> u128 {
    one.pods * other.took_ms * 100 / (other.pods * one.took_ms).max(1)
}

fn line(what: &str, found: u128, least: u128) -> String {
    let verdict = if found >= least { "met" } else { "MISSED" };
    let text = |it: u128| format!("{}.{:02}", it / 100, it % 100);
    format!("{what}: {} (at least {}): {verdict}", text(found), text(least))
}

/// The comparisons, one in a line, each with its goal.
pub(crate) fn compare(rounds: &[Round], nodes: usize) -> Vec<String> {
    let Some(berth) = Sum::of(rounds, BERTH) else { return Vec::new() };
    let mut lines = Vec::new();
    if let Some(bare) = Sum::of(rounds, BARE) {
        lines.push(line("share of the rate of bare bindings", rate(berth, bare), SHARE_MIN));
    }
    if let Some(peer) = Sum::of(rounds, PEER) {
        let least = if nodes >= LARGE_NODES { 400 } else { 250 };
        lines.push(line("times the rate of kube-scheduler", rate(berth, peer), least));
        let processor = peer.cpu_ms * berth.pods * 100 / (berth.cpu_ms * peer.pods).max(1);
        lines.push(line("times its processor time for a pod", processor, PROCESSOR_MIN));
        lines.push(format!("peak memory of kube-scheduler: {} MiB", peer.peak_mib));
    }
    let is_met = if berth.peak_mib <= PEAK_MIB_MAX { "met" } else { "MISSED" };
    let limit = match nodes >= LARGE_NODES {
        true => format!(" (at most {PEAK_MIB_MAX}): {is_met}"),
        false => String::new(),
    };
    lines.push(format!("peak memory of Berth: {} MiB{limit}", berth.peak_mib));
    lines
}

#[test]
fn rates_processor_time_and_memory_are_compared_with_their_goals() {
    let round = |who, pods, ms, cpu_ms, peak_mib: u64| Round {
        who,
        pods,
        took: Duration::from_millis(ms),
        usage: Usage { cpu_ms, resident_kib: 0, peak_kib: peak_mib * 1_024 },
    };
    let rounds = [
        round(BARE, 1_000, 1_000, 0, 0),
        round(PEER, 1_000, 3_000, 6_300, 300),
        round(BERTH, 1_000, 1_100, 900, 150),
        round(BERTH, 1_000, 1_100, 900, 140),
    ];
    let found = compare(&rounds, 5_000);
    let expected = [
        "share of the rate of bare bindings: 0.90 (at least 0.85): met",
        "times the rate of kube-scheduler: 2.72 (at least 4.00): MISSED",
        "times its processor time for a pod: 7.00 (at least 6.00): met",
        "peak memory of kube-scheduler: 300 MiB",
        "peak memory of Berth: 150 MiB (at most 150): met",
    ];
    assert_eq!(found, expected);
    assert_eq!(
        compare(&rounds, 1_000)[1],
        "times the rate of kube-scheduler: 2.72 (at least 2.50): met"
    );
}
