//! Weights of scorers, which may depend on how full the fleet is.

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Policy, ScorerId};

/// The weight from a load on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WeightStep {
    /// The weight.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1000))]
    pub weight: f64,
    /// The load of the fleet from which it counts: the larger of CPU and memory in use, as a share of
    /// what active nodes may promise. Three decimals at most.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1))]
    pub from_load: f64,
}

/// A weight as it is written: a number, one step, or a list of steps. Below the first step it is 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WrittenWeight {
    Constant(f64),
    Steps(Vec<WeightStep>),
}

impl Serialize for WrittenWeight {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Constant(weight) => weight.serialize(output),
            Self::Steps(steps) => steps.serialize(output),
        }
    }
}

impl<'de> Deserialize<'de> for WrittenWeight {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(WrittenWeightVisitor)
    }
}

struct WrittenWeightVisitor;

impl<'de> Visitor<'de> for WrittenWeightVisitor {
    type Value = WrittenWeight;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight, { weight, from_load }, or a list of these")
    }

    fn visit_f64<E: de::Error>(self, weight: f64) -> Result<Self::Value, E> {
        Ok(WrittenWeight::Constant(weight))
    }

    fn visit_i64<E: de::Error>(self, weight: i64) -> Result<Self::Value, E> {
        Ok(WrittenWeight::Constant(weight as f64))
    }

    fn visit_u64<E: de::Error>(self, weight: u64) -> Result<Self::Value, E> {
        Ok(WrittenWeight::Constant(weight as f64))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let step = WeightStep::deserialize(MapAccessDeserializer::new(map))?;
        Ok(WrittenWeight::Steps(vec![step]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut steps = Vec::new();
        while let Some(step) = list.next_element()? {
            steps.push(step);
        }
        Ok(WrittenWeight::Steps(steps))
    }
}

/// The steps of one weight: from this load on, this weight, both in thousandths, by rising load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) scorer: ScorerId,
    pub(crate) steps: Vec<(u32, u32)>,
}

impl Weight {
    /// Whether it is the same at every load.
    pub(crate) fn is_constant(&self) -> bool {
        matches!(self.steps[..], [(0, _)])
    }

    /// The weight at a load.
    pub(crate) fn at(&self, load_permille: u32) -> u32 {
        let reached = self.steps.iter().rev().find(|(from, _)| *from <= load_permille);
        reached.map_or(0, |(_, weight)| *weight)
    }

    /// The largest it can be.
    pub(crate) fn most(&self) -> u32 {
        self.steps.iter().map(|(_, weight)| *weight).max().unwrap_or(0)
    }
}

impl Policy {
    /// Most steps of one weight.
    pub const MAX_WEIGHT_STEPS: usize = 8;

    /// Whether a scorer has a weight at some load of the fleet.
    #[must_use]
    pub fn uses(&self, scorer: &str) -> bool {
        let weight = self.all_weights.iter().find(|weight| weight.scorer.scorer().name == scorer);
        weight.is_some_and(|weight| weight.most() > 0)
    }

    /// Scorers with a weight above zero at a load of the fleet, both in thousandths.
    #[must_use]
    pub fn weights_at_load(&self, load_permille: u32) -> Vec<(ScorerId, u32)> {
        weights_at(&self.all_weights, load_permille)
    }

    /// Whether the weight of a scorer depends on the load of the fleet.
    pub(crate) fn depends_on_load(&self, scorer: ScorerId) -> bool {
        let weight = self.all_weights.iter().find(|weight| weight.scorer == scorer);
        weight.is_some_and(|weight| !weight.is_constant())
    }

    /// Makes the weights those of a load. Returns the scorers whose weight changed.
    pub(crate) fn weigh_at(&mut self, load_permille: u32) -> Vec<ScorerId> {
        let mut changed = Vec::new();
        for weight in self.all_weights.iter().filter(|weight| !weight.is_constant()) {
            let now = self.weights.iter().find(|(id, _)| *id == weight.scorer);
            if now.map_or(0, |(_, now)| *now) != weight.at(load_permille) {
                changed.push(weight.scorer);
            }
        }
        if !changed.is_empty() {
            self.weights = weights_at(&self.all_weights, load_permille);
        }
        changed
    }
}

/// The weights above zero at a load.
pub(crate) fn weights_at(all: &[Weight], load_permille: u32) -> Vec<(ScorerId, u32)> {
    let each = all.iter().map(|weight| (weight.scorer, weight.at(load_permille)));
    each.filter(|(_, weight)| *weight > 0).collect()
}
