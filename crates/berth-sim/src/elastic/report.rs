//! The results of a day, in numbers that can be compared.

use serde::Serialize;

use super::Options;

/// Minutes that nodes were above a mark, all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct NodeMinutes {
    /// Above the watermark in CPU.
    pub cpu: u64,
    /// Above the watermark in memory.
    pub memory: u64,
    /// Above the watermark in either.
    pub either: u64,
    /// With more reserved than there is. Must be 0.
    pub over_full: u64,
}

/// Outcomes of migrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Migrations {
    /// Started.
    pub started: u64,
    /// Ended on the other node.
    pub done: u64,
    /// Ended where they started, because the other node had no room when they arrived.
    pub failed_no_room: u64,
    /// Ended where they started, for another reason, at random.
    pub failed_otherwise: u64,
    /// Not started, because no node could take the instance.
    pub without_place: u64,
    /// Memory that was copied, including that of failed migrations.
    pub copied_gib: u64,
    /// Instances that came back to a node they had left on the same day, each time.
    pub ping_pong: u64,
    /// Those of them that came back within an hour.
    pub ping_pong_within_hour: u64,
}

/// Migrations of one instance in a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct PerInstance {
    /// The mean, in thousandths.
    pub mean_milli: u64,
    /// Of a hundred instances, the one moved second most often.
    pub p99: u32,
    /// The instance moved most often.
    pub max: u32,
}

/// A day under a rule.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// The rule: `berth`, `seed` or `kubernetes`.
    pub rule: &'static str,
    /// Nodes.
    pub nodes: u32,
    /// Instances.
    pub instances: u32,
    /// Simulated minutes.
    pub minutes: u32,
    /// How full nodes were on average, in thousandths of their watermark, the fuller resource.
    pub mean_fill_permille: u64,
    /// The same of all nodes together in the fullest minute.
    pub peak_fill_permille: u64,
    /// Minutes above watermarks.
    pub node_minutes_above: NodeMinutes,
    /// Requests for permits.
    pub requests: u64,
    /// Those not granted in full.
    pub denials: u64,
    /// What was wanted and not granted: compute units times minutes.
    pub denied_unit_minutes: u64,
    /// Migrations.
    pub migrations: Migrations,
    /// Migrations that were started, by instance.
    pub per_instance: PerInstance,
    /// Minutes in which a node was not the sum of its instances, or above its limit.
    pub violations: u64,
    #[serde(skip)]
    fill_sum: u64,
    /// Memory that was copied, in MiB.
    #[serde(skip)]
    pub copied_mib: u64,
}

impl Outcome {
    /// Records how full all nodes were in a minute.
    pub fn record_fill(&mut self, permille: u64) {
        self.minutes += 1;
        self.fill_sum += permille;
        self.peak_fill_permille = self.peak_fill_permille.max(permille);
    }

    /// The report of a whole day.
    #[must_use]
    pub fn finish(&self, options: &Options, rule: &'static str, moves: &[u32]) -> Self {
        let mut moves = moves.to_vec();
        moves.sort_unstable();
        let sum: u64 = moves.iter().map(|moves| u64::from(*moves)).sum();
        let count = moves.len().max(1);
        let p99 = moves.get((count * 99).div_ceil(100).saturating_sub(1)).copied();
        Self {
            rule,
            nodes: options.nodes,
            instances: options.instances,
            migrations: Migrations { copied_gib: self.copied_mib / 1024, ..self.migrations },
            mean_fill_permille: self.fill_sum / u64::from(self.minutes.max(1)),
            per_instance: PerInstance {
                mean_milli: sum * 1000 / count as u64,
                p99: p99.unwrap_or(0),
                max: moves.last().copied().unwrap_or(0),
            },
            ..self.clone()
        }
    }
}
