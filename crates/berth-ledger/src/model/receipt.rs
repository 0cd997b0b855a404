//! Receipts: the record of every decision, chained by hash so that none can be altered or lost.

use berth_engine::{InstanceId, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::claim::{Spec, Text};
use super::event::SpecList;
use super::plan::Basis;
use super::refusal_detail::RefusalDetail;

/// What the name of a writer's chain of refusals has after the writer's own name.
pub(crate) const REFUSALS: &str = "-refusals";

/// The writer of a chain, as events name it.
#[must_use]
pub fn writer_of_chain(chain: &str) -> &str {
    chain.strip_suffix(REFUSALS).unwrap_or(chain)
}

/// Where an instance of a decision went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedInstance {
    /// The instance.
    pub instance: InstanceId,
    /// The node.
    pub node: NodeId,
    /// The node's total.
    pub score: i64,
    /// The generation of the node's facts.
    pub constraint_gen: i64,
}

/// How a decision ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionOutcome {
    /// All were claimed.
    Granted(Vec<PlacedInstance>),
    /// Nothing was.
    Refused {
        /// The reason code.
        code: String,
        /// The explanation, when it was kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<RefusalDetail>,
    },
}

/// One decision: what was asked, on what ground, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// The request.
    pub request_id: Text,
    /// The tenant.
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: Text,
    /// The policy and the fleet it was made on.
    pub basis: Basis,
    /// The instances asked for, and which of the receipt's requests each is.
    pub(crate) asked: Vec<(InstanceId, u32)>,
    /// What each asked for; filled in when a receipt is read.
    #[serde(skip)]
    pub specs: Vec<Spec>,
    /// How it ended.
    pub outcome: DecisionOutcome,
    /// Instances that were released to make room for it, and their tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted: Vec<(InstanceId, Text)>,
}

impl DecisionRecord {
    /// A record of a decision about these instances.
    #[must_use]
    pub fn new(
        request_id: Text,
        tenant: Text,
        basis: Basis,
        asked: Vec<(InstanceId, Spec)>,
        outcome: DecisionOutcome,
    ) -> Self {
        let (instances, specs): (Vec<InstanceId>, Vec<Spec>) = asked.into_iter().unzip();
        let asked = instances.into_iter().map(|instance| (instance, 0)).collect();
        let preempted = Vec::new();
        Self { request_id, tenant, basis, asked, specs, outcome, preempted }
    }

    /// The instances asked for, with what each asked for.
    pub fn asked(&self) -> impl Iterator<Item = (InstanceId, &Spec)> {
        self.asked.iter().map(|(instance, _)| *instance).zip(&self.specs)
    }
}

/// Stores decisions as one receipt's body.
pub(crate) fn pack(decisions: &mut [DecisionRecord]) -> String {
    let mut list = SpecList::default();
    let mut items = String::with_capacity(decisions.len() * 384);
    for decision in decisions.iter_mut() {
        for ((_, number), spec) in decision.asked.iter_mut().zip(&decision.specs) {
            *number = list.number(spec);
        }
        if !items.is_empty() {
            items.push(',');
        }
        super::json::decision(&mut items, decision);
    }
    list.with_items("decisions", &items)
}

#[derive(Deserialize)]
struct PackedBody<'a> {
    #[serde(borrow)]
    specs: Vec<&'a RawValue>,
    decisions: Vec<DecisionRecord>,
}

/// The decisions in a receipt's body.
pub(crate) fn unpack(body: &str) -> Result<Vec<DecisionRecord>, serde_json::Error> {
    let unpacked: PackedBody<'_> = serde_json::from_str(body)?;
    let specs: Vec<Spec> =
        unpacked.specs.iter().map(|spec| Spec::stored(spec.get().to_owned())).collect();
    let mut decisions = unpacked.decisions;
    for decision in &mut decisions {
        let asked = decision.asked.iter();
        decision.specs =
            asked.filter_map(|(_, number)| specs.get(*number as usize).cloned()).collect();
    }
    Ok(decisions)
}

/// The hash that ties a receipt to the one before it.
pub(crate) fn link(previous: &[u8], chain: &str, n: i64, body: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(previous);
    hasher.update(chain.as_bytes());
    hasher.update(&n.to_be_bytes());
    hasher.update(body.as_bytes());
    *hasher.finalize().as_bytes()
}
