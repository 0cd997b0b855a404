//! What a search may change of a policy: the weights of scorers of room, from which load on they count, and
//! the usual shapes. Filters, other scorers and all other settings are left alone.

use std::collections::HashMap;

use berth_engine::score::SCORERS;
use berth_engine::{Policy, PolicyError};
use serde_json::{Map, Value, json};

use super::super::trace::Demand;
use crate::SeededRng;

/// Scorers of how full nodes are: traces say nothing of what the others score.
const TUNED_SCORERS: [&str; 7] = [
    "cpu-pack",
    "memory-pack",
    "cpu-pressure",
    "memory-spread",
    "fragmentation",
    "slot-loss",
    "tent",
];

/// Weights to choose from, in thousandths.
const WEIGHTS: [u32; 14] =
    [0, 0, 125, 250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12_000];

/// Loads of the fleet from which a weight may count, in thousandths.
const LOADS: [u32; 6] = [500, 600, 700, 800, 850, 900];

/// Of so many changed weights, one counts from a load on.
const STEPPED: u64 = 3;

/// How many of the commonest demands may become the usual shapes.
const SHAPE_COUNTS: [usize; 4] = [4, 6, 12, 16];

/// How often a varied policy is drawn again if it is not valid.
const TRIES: usize = 20;

/// What may be changed, and to what.
pub(super) struct Knobs {
    scorers: Vec<&'static str>,
    /// Lists of shapes for `fragmentation`; the first is the policy's own.
    shapes: Vec<Value>,
    /// Lists of shapes for the policy as a whole; none where policies have no such list.
    usual_shapes: Vec<Value>,
    /// Whether a weight may depend on the load.
    has_steps: bool,
}

impl Knobs {
    pub(super) fn new<'a>(
        base: &Policy,
        demands: impl Iterator<Item = &'a Demand>,
    ) -> Result<Self, PolicyError> {
        // What cannot be read back cannot be varied.
        Policy::from_json(&base.to_json())?;
        let document = document(base);
        let accepts = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut changed = document.clone();
            change(&mut changed);
            Policy::from_json(&Value::Object(changed).to_string()).is_ok()
        };
        let is_known = |name: &&str| SCORERS.iter().any(|scorer| scorer.name == *name);
        let scorers: Vec<&str> = TUNED_SCORERS.into_iter().filter(is_known).collect();
        let own = document.get("options").and_then(|options| options.get("shapes")).cloned();
        let mut shapes: Vec<Value> = own.into_iter().collect();
        let mut usual_shapes: Vec<Value> = document.get("shapes").cloned().into_iter().collect();
        let commonest = commonest(demands);
        for count in SHAPE_COUNTS {
            let shapes_of = |((cpu, memory), _): &((u32, u32), u64)| json!({ "cpu_milli": cpu, "memory_mib": memory, "disk_mib": 0, "bandwidth_mbps": 0 });
            shapes.push(commonest.iter().take(count).map(shapes_of).collect());
            let most = commonest.first().map_or(1, |(_, count)| *count);
            let weighted = |((cpu, memory), count): &((u32, u32), u64)| {
                let weight = (count * 1000 / most).max(1);
                json!({ "cpu_milli": cpu, "memory_mib": memory, "weight": weight })
            };
            usual_shapes.push(commonest.iter().take(count).map(weighted).collect());
        }
        shapes.dedup();
        usual_shapes.retain(|list| {
            accepts(&|document| drop(document.insert("shapes".to_owned(), list.clone())))
        });
        let has_steps = accepts(&|document| {
            if let Some(Value::Object(scores)) = document.get_mut("scores") {
                scores.insert("cpu-pack".to_owned(), weight_from(1000, Some(800)));
            }
        });
        Ok(Self { scorers, shapes, usual_shapes, has_steps })
    }

    /// The same policy with one to three changes.
    pub(super) fn vary(&self, policy: &Policy, rng: &mut SeededRng) -> Policy {
        for _ in 0..TRIES {
            let mut document = document(policy);
            document.insert("name".to_owned(), Value::from("tuned"));
            for _ in 0..=rng.below(3) {
                self.change(&mut document, rng);
            }
            if let Ok(varied) = Policy::from_json(&Value::Object(document).to_string()) {
                return varied;
            }
        }
        policy.clone()
    }

    fn change(&self, document: &mut Map<String, Value>, rng: &mut SeededRng) {
        let pick = |count: usize, rng: &mut SeededRng| {
            usize::try_from(rng.below(count as u64)).unwrap_or(0)
        };
        let what = pick(self.scorers.len() + 2, rng);
        let Some(scorer) = self.scorers.get(what) else {
            // Without such a list, nothing is changed by this.
            let list = |lists: &[Value], rng: &mut SeededRng| {
                if lists.is_empty() { None } else { Some(lists[pick(lists.len(), rng)].clone()) }
            };
            if what == self.scorers.len() {
                if let Some(shapes) = list(&self.usual_shapes, rng) {
                    document.insert("shapes".to_owned(), shapes);
                }
            } else if let Some(Value::Object(options)) = document.get_mut("options")
                && let Some(shapes) = list(&self.shapes, rng)
            {
                options.insert("shapes".to_owned(), shapes);
            }
            return;
        };
        let weight = WEIGHTS[pick(WEIGHTS.len(), rng)];
        let is_stepped = self.has_steps && rng.below(STEPPED) == 0;
        let from_load = is_stepped.then(|| LOADS[pick(LOADS.len(), rng)]);
        if let Some(Value::Object(scores)) = document.get_mut("scores") {
            if weight == 0 {
                scores.remove(*scorer);
            } else {
                scores.insert((*scorer).to_owned(), weight_from(weight, from_load));
            }
        }
    }
}

/// A weight as policies write it, perhaps from a load on; both in thousandths.
fn weight_from(weight: u32, from_load: Option<u32>) -> Value {
    match from_load {
        None => decimal(weight),
        Some(load) => json!([{ "weight": decimal(weight), "from_load": decimal(load) }]),
    }
}

/// Thousandths as a number.
fn decimal(permille: u32) -> Value {
    let text = format!("{}.{:03}", permille / 1000, permille % 1000);
    text.parse::<serde_json::Number>().map_or(Value::Null, Value::Number)
}

fn document(policy: &Policy) -> Map<String, Value> {
    match serde_json::from_str(&policy.to_json()) {
        Ok(Value::Object(document)) => document,
        // The canonical text of a policy is an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Demands and how often they come, the commonest first; of equally common ones the smaller.
fn commonest<'a>(demands: impl Iterator<Item = &'a Demand>) -> Vec<((u32, u32), u64)> {
    let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
    for demand in demands {
        *counts.entry((demand.cpu_milli, demand.memory_mib)).or_insert(0) += 1;
    }
    let mut counts: Vec<((u32, u32), u64)> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(demand, count)| (u64::MAX - count, *demand));
    counts
}
