//! What agents know of their instances, which is more than servers do: what is really used.

use serde_json::Value;
use tokio::time::Instant;

use crate::auditor::Truth;
use crate::picture::Pair;

/// Numbers that look random and are the same each time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }

    /// From one number to another, both included.
    pub(crate) fn between(&mut self, least: i64, most: i64) -> i64 {
        let sides = usize::try_from((most - least).max(0) + 1).unwrap();
        least + i64::try_from(self.roll(sides)).unwrap()
    }

    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }
}

/// How far a move is, as its agents know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A place is held.
    Held,
    Copying,
    /// It runs on the target, and the source has yet to clean up.
    Switched,
    /// It was called off, and the target has yet to drop what it received.
    Dropping,
}

#[derive(Clone, Debug)]
pub(crate) struct Moving {
    pub(crate) id: String,
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) stage: Stage,
    pub(crate) since: Instant,
}

/// An instance, as its agent knows it.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) node: String,
    pub(crate) fence: i64,
    pub(crate) elastic: bool,
    pub(crate) permille: i64,
    /// What it really uses.
    pub(crate) uses: Pair,
    /// What it was permitted, as far as its agent heard.
    pub(crate) holds: Pair,
    /// How far it may grow unasked.
    pub(crate) headroom: Option<Pair>,
    /// The number of the last request that was sent.
    pub(crate) sent: u64,
    /// The unit that its agent was told.
    pub(crate) unit: Option<Pair>,
    pub(crate) min: Pair,
    pub(crate) max: Pair,
    /// The last answer that was heard.
    pub(crate) answer: Option<Value>,
    pub(crate) moving: Option<Moving>,
}

impl Guest {
    pub(crate) fn truth(&self) -> Truth {
        Truth {
            node: self.node.clone(),
            uses: self.uses,
            permille: self.permille,
            elastic: self.elastic,
            bounds: (self.min, self.max),
            seq: self.sent,
            second_claim: self.moving.as_ref().map(|moving| match moving.stage {
                Stage::Held | Stage::Copying | Stage::Dropping => {
                    ("migration_target", moving.target.clone())
                }
                Stage::Switched => ("migration_source", moving.source.clone()),
            }),
        }
    }

    /// Takes an answer in.
    pub(crate) fn hear(&mut self, answer: &Value) {
        self.holds = Pair::read(&answer["permit"]);
        self.headroom = answer.get("headroom").map(|it| Pair::read(&it["up_to"]));
        self.unit = answer.get("compute_unit").map(Pair::read);
        self.fence = answer["fence"].as_i64().unwrap();
        self.answer = Some(answer.clone());
    }

    /// A size that may be asked for: some units more or less of each resource, within its bounds.
    pub(crate) fn wish(&self, dice: &mut Dice, cpu: (i64, i64), memory: (i64, i64)) -> Pair {
        let unit = self.unit.unwrap_or(Pair::new(250, 1024));
        let mut one = |has: i64, unit: i64, min: i64, max: i64, steps: (i64, i64)| {
            let units = dice.between(steps.0, steps.1);
            match units {
                0 => has,
                // What it has may be out of its bounds; a wish for anything else may not.
                _ => ((has / unit + units) * unit).clamp(min, max),
            }
        };
        Pair::new(
            one(self.holds.cpu, unit.cpu, self.min.cpu, self.max.cpu, cpu),
            one(self.holds.memory, unit.memory, self.min.memory, self.max.memory, memory),
        )
    }
}
