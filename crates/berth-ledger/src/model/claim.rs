//! A claim: one instance's hold on one node, with everything it holds there.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use berth_engine::elastic::{Permit, Size};
use berth_engine::{Amounts, Elastic, InstanceId, InstanceRequest, NodeId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::pool::PoolKind;

/// Shared text; most texts of a claim are shared with many others.
pub type Text = Arc<str>;

/// Microseconds since the Unix epoch, by the database's clock.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// This moment some seconds later.
    #[must_use]
    pub const fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }

    /// The same moment in whole seconds, as the engine counts.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }
}

/// Whether a claim is where an instance runs or where it is being moved to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Where it runs.
    #[default]
    Primary,
    /// Where it is being moved to.
    MigrationTarget,
    /// Where it was moved from: it counts there until its agent confirms that it is gone.
    MigrationSource,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Primary, Self::MigrationTarget, Self::MigrationSource];

    /// The number it is stored as.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Primary => 0,
            Self::MigrationTarget => 1,
            Self::MigrationSource => 2,
        }
    }

    /// The role that is stored as this number.
    #[must_use]
    pub const fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Primary),
            1 => Some(Self::MigrationTarget),
            2 => Some(Self::MigrationSource),
            _ => None,
        }
    }
}

/// Where a claim stands in its life. It counts in every state, until it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// Leased: the only state that expires.
    Held,
    /// An agent has bound it.
    Binding,
    /// The instance runs.
    Active,
    /// To be stopped; frees its capacity when the agent confirms that it is gone.
    Releasing,
}

impl ClaimState {
    /// The number it is stored as.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Held => 0,
            Self::Binding => 1,
            Self::Active => 2,
            Self::Releasing => 3,
        }
    }

    /// The state that is stored as this number.
    #[must_use]
    pub const fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Held),
            1 => Some(Self::Binding),
            2 => Some(Self::Active),
            3 => Some(Self::Releasing),
            _ => None,
        }
    }

    /// The state's name as it stands in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Binding => "binding",
            Self::Active => "active",
            Self::Releasing => "releasing",
        }
    }

    /// All of them.
    pub const ALL: [Self; 4] = [Self::Held, Self::Binding, Self::Active, Self::Releasing];

    /// Whether a claim may go from this state to another, or stay in it. Binding again is what an instance does
    /// that is restarted on another node; a claim that is only held is never released in steps, and one that
    /// is being released never returns.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Held => matches!(next, Self::Held | Self::Binding),
            Self::Binding | Self::Active => !matches!(next, Self::Held),
            Self::Releasing => matches!(next, Self::Releasing),
        }
    }
}

/// What names a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimKey {
    /// The instance.
    pub instance: InstanceId,
    /// Which of its claims.
    pub role: Role,
}

impl ClaimKey {
    /// The claim on the node where an instance runs.
    #[must_use]
    pub const fn primary(instance: InstanceId) -> Self {
        Self { instance, role: Role::Primary }
    }

    /// The claim on the node where an instance is being moved to.
    #[must_use]
    pub const fn target(instance: InstanceId) -> Self {
        Self { instance, role: Role::MigrationTarget }
    }

    /// The claim on the node where an instance was moved from.
    #[must_use]
    pub const fn source(instance: InstanceId) -> Self {
        Self { instance, role: Role::MigrationSource }
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Primary => write!(f, "{}", self.instance),
            Role::MigrationTarget => write!(f, "{} (migration target)", self.instance),
            Role::MigrationSource => write!(f, "{} (migration source)", self.instance),
        }
    }
}

/// What an instance asked for, as stored: the request as JSON, without its id and name.
#[derive(Clone, Debug)]
pub struct Spec(Arc<SpecText>);

#[derive(Debug)]
struct SpecText {
    text: String,
    /// Made when first asked for: a million claims are loaded without it.
    hash: OnceLock<String>,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Spec {}

impl Hash for Spec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

/// How every request begins when its id is nil; left out of what is stored.
const NIL_ID: &str = r#""id":"00000000-0000-0000-0000-000000000000","#;

impl Spec {
    /// The stored form of a request.
    #[must_use]
    pub fn of(request: &InstanceRequest) -> Self {
        let mut bare = request.clone();
        bare.id = InstanceId::default();
        bare.name = None;
        bare.excluded_nodes.clear();
        let text = serde_json::to_string(&bare);
        let text = crate::invariant_ok!(text, "spec_is_json").unwrap_or_default();
        Self::stored(text.replacen(NIL_ID, "", 1))
    }

    /// A text that came out of a ledger.
    #[must_use]
    pub fn stored(text: String) -> Self {
        Self(Arc::new(SpecText { text, hash: OnceLock::new() }))
    }

    /// The JSON.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// The first half of its hash, in hexadecimal: `spec_hash` in events.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.0.hash.get_or_init(|| {
            let hash = blake3::hash(self.0.text.as_bytes());
            hash.to_hex().chars().take(32).collect()
        })
    }

    /// How far the instance may shrink and grow, without reading all the rest.
    #[must_use]
    pub fn elastic(&self) -> Option<Elastic> {
        #[derive(Deserialize)]
        struct ElasticField {
            #[serde(default)]
            elastic: Option<Elastic>,
        }
        serde_json::from_str::<ElasticField>(self.as_str()).ok()?.elastic
    }

    /// The request again, under a nil id.
    ///
    /// # Errors
    /// When the text is not a stored request.
    pub fn request(&self) -> Result<InstanceRequest, serde_json::Error> {
        let text = self.as_str();
        let rest = text.strip_prefix('{').unwrap_or(text);
        serde_json::from_str(&format!("{{{NIL_ID}{rest}"))
    }
}

/// A member's place in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlace {
    /// The group.
    pub group: Text,
    /// The domain it counts in; absent where the node is in no such domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Text>,
}

/// A value held from a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldValue {
    /// The pool.
    pub pool: Text,
    /// The value as people write it: an address or a number.
    pub value: String,
}

impl HeldValue {
    /// The value as a number, whatever it stands for.
    #[must_use]
    pub fn number(&self) -> Option<u128> {
        [PoolKind::Ipv6, PoolKind::Ipv4, PoolKind::Number]
            .into_iter()
            .find_map(|kind| kind.read(&self.value))
    }
}

/// A slot of a workload's revision, and whose workload it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotKey {
    /// The tenant.
    #[serde(rename = "owner", alias = "tenant")]
    pub tenant: Text,
    /// The workload.
    pub workload: Text,
    /// Its revision.
    pub revision: i64,
    /// Its number.
    pub slot: i64,
}

/// A slot within its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The workload's revision.
    pub revision: i64,
    /// Its number.
    pub slot: i64,
}

/// The identity of a slot: the same for every instance that has it, in every revision, and another
/// for every slot of a ledger.
#[must_use]
pub fn slot_id(tenant: &str, workload: &str, slot: i64) -> Uuid {
    let mut hasher = blake3::Hasher::new_derive_key("berth 2026 slot of a workload");
    // Names have no NUL.
    hasher.update(tenant.as_bytes()).update(&[0]).update(workload.as_bytes()).update(&[0]);
    hasher.update(&slot.to_le_bytes());
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Uuid::new_v8(bytes)
}

impl SlotKey {
    /// The slot within its workload.
    #[must_use]
    pub const fn in_workload(&self) -> Slot {
        Slot { revision: self.revision, slot: self.slot }
    }
}

/// What a claim holds in addition to its amounts. Few claims hold any of it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimHoldings {
    /// Places in groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupPlace>,
    /// Volumes attached to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Text>,
    /// Further classes, such as `gpu`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, u32>,
    /// Values from pools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<HeldValue>,
    /// Its slot in a workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotKey>,
    /// The claims that had the slot when it was handed over to this one, the latest first. If this
    /// one goes before they do, the slot is theirs again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slot_predecessors: Vec<ClaimKey>,
}

impl ClaimHoldings {
    /// Takes the slot, and who had it before, out of the holdings.
    pub(crate) fn take_slot(&mut self) -> (Option<SlotKey>, Vec<ClaimKey>) {
        (self.slot.take(), std::mem::take(&mut self.slot_predecessors))
    }
}

/// One instance's hold on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which.
    pub key: ClaimKey,
    /// The node.
    pub node: NodeId,
    /// The tenant.
    pub tenant: Text,
    /// The workload, if any.
    pub workload: Option<Text>,
    /// Where it stands.
    pub state: ClaimState,
    /// What it is charged.
    pub amounts: Amounts,
    /// Whether its CPU is capped.
    pub capped: bool,
    /// When it ends by itself; only while held.
    pub lease_until: Option<Micros>,
    /// Rises with every new holder; a lower one is refused.
    pub fence: i64,
    /// The request that made it.
    pub request_id: Text,
    /// The batch it came with.
    pub batch: Option<Uuid>,
    /// The instance's name, if any.
    pub name: Option<Text>,
    /// What it asked for.
    pub spec: Spec,
    /// What it holds in addition to its amounts.
    pub holdings: Option<Box<ClaimHoldings>>,
    /// The release it runs, if known.
    pub release_id: Option<Text>,
    /// The version of the secrets it was given, if known.
    pub secrets_version: Option<Text>,
    /// When it was granted.
    pub created_at: Micros,
    /// How large it may be, if it is elastic.
    pub permit: Option<Box<Permit>>,
}

impl Claim {
    /// Takes the claim to its next state. Whether it may go there was checked before: what a caller asks
    /// for is refused, and does not come here.
    pub(crate) fn enter(&mut self, next: ClaimState) {
        crate::invariant!(
            self.state.may_become(next),
            "claim_state_transition",
            claim = self.key,
            node = self.node,
            from = self.state,
            to = next
        );
        self.state = next;
    }

    /// The instance as the engine knows it.
    ///
    /// # Errors
    /// When the stored request cannot be read.
    pub fn request(&self) -> Result<InstanceRequest, serde_json::Error> {
        let mut request = self.spec.request()?;
        request.id = self.key.instance;
        request.name = self.name.as_deref().map(str::to_owned);
        request.resources = self.amounts;
        if let (Some(elastic), Some(permit)) = (request.elastic.as_mut(), self.permit.as_deref()) {
            elastic.using = (permit.granted != Size::of(&self.amounts)).then_some(permit.granted);
        }
        Ok(request)
    }

    /// Its slot in its workload.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        self.holdings.as_deref()?.slot.as_ref().map(SlotKey::in_workload)
    }

    /// The overlay address: the first value of an IPv6 pool.
    #[must_use]
    pub fn overlay_ipv6(&self) -> Option<&str> {
        let values = &self.holdings.as_deref()?.values;
        values.iter().map(|held| held.value.as_str()).find(|value| value.contains(':'))
    }
}

#[cfg(test)]
mod tests {
    use super::super::op::Step;
    use super::*;

    #[test]
    fn a_stored_request_reads_back_as_it_was() {
        let mut request =
            InstanceRequest::new(InstanceId::from_u128(7), "acme", Amounts::new(1000, 2048));
        request.tags.insert("role".to_owned(), "web".to_owned());
        let spec = Spec::of(&request);
        assert!(!spec.as_str().contains("\"id\""), "{}", spec.as_str());
        let mut conflicts = spec.request().unwrap();
        conflicts.id = request.id;
        assert_eq!(conflicts, request);
        request.name = Some("other".to_owned());
        request.id = InstanceId::from_u128(8);
        assert_eq!(spec, Spec::of(&request), "id and name are no part of it");
    }

    #[test]
    fn a_slot_id_depends_on_tenant_workload_and_number_and_never_changes() {
        let id = slot_id("acme", "web", 3);
        assert_eq!(id.to_string(), "59d739c4-23d5-8b35-bbdd-9b4de7d17bbe");
        for other in [slot_id("acm", "eweb", 3), slot_id("acme", "web", 4), slot_id("b", "web", 3)]
        {
            assert_ne!(other, id);
        }
    }

    #[test]
    fn a_claim_never_returns_from_its_release_nor_to_its_lease() {
        use ClaimState::{Active, Binding, Held, Releasing};
        let allowed = |from| match from {
            Held => vec![Held, Binding],
            Binding | Active => vec![Binding, Active, Releasing],
            Releasing => vec![Releasing],
        };
        for from in ClaimState::ALL {
            for to in ClaimState::ALL {
                assert_eq!(from.may_become(to), allowed(from).contains(&to), "{from:?} {to:?}");
            }
        }
    }

    #[test]
    fn a_step_leads_from_the_state_that_errors_name_to_one_that_may_follow() {
        for step in [Step::Renew { lease_s: 1 }, Step::Bind, Step::Activate] {
            let required =
                ClaimState::ALL.into_iter().find(|it| it.name() == step.required_state());
            assert!(required.unwrap().may_become(step.next_state()), "{step:?}");
            assert!(!ClaimState::Releasing.may_become(step.next_state()), "{step:?}");
        }
    }
}
