//! Whether the devices that a pod claims are available: for the pod as a whole, and on a node.

use std::fmt;
use std::sync::Arc;

use super::allocator::{AllocationError, ClaimChoice, Search};
use super::objects::{Allocation, Alternative, Claim, ClaimSpec, DeviceClass};
use super::selectors::Verdicts;
use super::{ClaimReference, Devices};
use crate::cluster::node::Node;
use crate::cluster::pod::{Key, Pod};

/// The most pods that a claim can be reserved for.
const CONSUMERS_MAX: usize = 256;
/// The most alternatives of a request.
const ALTERNATIVES_MAX: i64 = 8;

/// Why a pod's claims rule out all nodes or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRejection {
    /// A stable code, such as `devices_unavailable`.
    pub code: &'static str,
    /// The reason in one line that names the claim.
    pub text: String,
    /// By how much it missed, in thousandths of the devices that are needed.
    pub short: Option<i64>,
}

impl DeviceRejection {
    pub(super) fn new(code: &'static str, text: String) -> Self {
        Self { code, text, short: None }
    }
}

impl fmt::Display for DeviceRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An alternative with its class, and what selectors say of devices.
#[derive(Debug)]
pub(super) struct PreparedAlternative {
    pub(super) alternative: Alternative,
    pub(super) class: Arc<DeviceClass>,
    pub(super) of_class: Vec<Arc<Verdicts>>,
    pub(super) of_request: Vec<Arc<Verdicts>>,
}

/// A claim that is to be allocated.
#[derive(Debug)]
pub(super) struct PreparedClaim {
    pub(super) claim: Arc<Claim>,
    pub(super) spec: ClaimSpec,
    /// The alternatives of each request.
    pub(super) requests: Vec<Vec<PreparedAlternative>>,
}

/// The claims of a pod, prepared for the filters.
#[derive(Debug, Default)]
pub struct PreparedDevices {
    /// Claims that have devices, or for which they were decided.
    pub(super) settled: Vec<(Arc<Claim>, Arc<Allocation>)>,
    /// Claims that need devices.
    pub(super) pending: Vec<PreparedClaim>,
}

impl PreparedDevices {
    /// Whether the pod has no claims.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.pending.is_empty()
    }

    /// Whether a request has alternatives, some of which are preferred.
    #[must_use]
    pub fn has_preferences(&self) -> bool {
        self.pending.iter().any(|it| it.requests.iter().any(|it| it.len() > 1))
    }
}

impl Devices {
    /// Prepares the claims of a pod.
    ///
    /// # Errors
    /// When no node can take it, for a reason that does not depend on nodes.
    pub fn prepare(&mut self, pod: &Pod) -> Result<PreparedDevices, DeviceRejection> {
        let mut prepared = PreparedDevices::default();
        for it in &pod.device_claims {
            let claim = self.claim_of(pod, &it.name, &it.claim)?;
            let known = |other: &Key| {
                prepared.settled.iter().any(|it| it.0.key == *other)
                    || prepared.pending.iter().any(|it| it.claim.key == *other)
            };
            if known(&claim.key) {
                continue;
            }
            let decided = self.reservations.decision(&claim.key);
            match claim.allocation.clone().or_else(|| decided.cloned()) {
                Some(allocation) => prepared.settled.push((claim, allocation)),
                None => prepared.pending.push(self.prepare_claim(claim)?),
            }
        }
        Ok(prepared)
    }

    fn claim_of(
        &self,
        pod: &Pod,
        name: &str,
        reference: &ClaimReference,
    ) -> Result<Arc<Claim>, DeviceRejection> {
        let failed = |code, text| Err(DeviceRejection::new(code, text));
        let (claim, is_generated) = match reference {
            ClaimReference::Named(claim) => (claim, false),
            ClaimReference::Generated(claim) => (claim, true),
            ClaimReference::NotGenerated(template) => {
                let text = format!(
                    "the claim {name:?} of the pod was not created from template {template} yet; \
                     Kubernetes' resource claim controller does that"
                );
                return failed("device_claim_not_created", text);
            }
            ClaimReference::Unknown => {
                let text = format!(
                    "spec.resourceClaims {name:?} is of an unknown kind; accepted: resourceClaimName, \
                     resourceClaimTemplateName"
                );
                return failed("device_claim_unknown", text);
            }
        };
        let key = Key { namespace: Arc::clone(&pod.key.namespace), name: Arc::clone(claim) };
        let Some(claim) = self.claims.get(&key) else {
            let text = format!(
                "resource claim {key} does not exist, or the cluster does not serve \
                 resource.k8s.io/v1 (Kubernetes 1.34 and later)"
            );
            return failed("device_claim_missing", text);
        };
        if claim.deleting {
            let text = format!("resource claim {key} is being deleted");
            return failed("device_claim_deleting", text);
        }
        if is_generated && claim.owner.as_deref() != Some(&*pod.uid) {
            let text = format!("resource claim {key} was not created for this pod");
            return failed("device_claim_foreign", text);
        }
        if self.reservations.is_deallocating(&key) {
            let text = format!("resource claim {key} is being deallocated");
            return failed("device_claim_deallocating", text);
        }
        let is_reserved = claim.reserved_for.iter().any(|it| **it == *pod.uid);
        if !is_reserved && claim.reserved_for.len() >= CONSUMERS_MAX {
            let text =
                format!("resource claim {key} is used by {CONSUMERS_MAX} pods, the most it can be");
            return failed("device_claim_in_use", text);
        }
        Ok(Arc::clone(claim))
    }

    fn prepare_claim(&mut self, claim: Arc<Claim>) -> Result<PreparedClaim, DeviceRejection> {
        let unsupported = |text: &str| {
            let text = format!("{text}; use another schedulerName for such pods");
            DeviceRejection::new("device_feature_unsupported", text)
        };
        let spec = match &claim.spec {
            Ok(spec) => spec.clone(),
            Err(why) => return Err(unsupported(&format!("resource claim {}: {why}", claim.key))),
        };
        let mut requests = Vec::with_capacity(spec.requests.len());
        for request in &spec.requests {
            let mut alternatives = Vec::with_capacity(request.alternatives.len());
            for alternative in &request.alternatives {
                alternatives.push(self.prepare_alternative(&claim, alternative)?);
            }
            requests.push(alternatives);
        }
        Ok(PreparedClaim { claim, spec, requests })
    }

    fn prepare_alternative(
        &mut self,
        claim: &Claim,
        alternative: &Alternative,
    ) -> Result<PreparedAlternative, DeviceRejection> {
        let Some(class) = self.classes.get(&alternative.class).cloned() else {
            let text = format!(
                "resource claim {}, request {}: device class {} does not exist",
                claim.key, alternative.name, alternative.class
            );
            return Err(DeviceRejection::new("device_class_missing", text));
        };
        let selectors = class.selectors.as_ref().map_err(|why| {
            let text = format!("device class {}: {why}", class.name);
            DeviceRejection::new("device_feature_unsupported", text)
        })?;
        let mut verdicts = |all: &[Arc<str>], whose: String| {
            let verdicts = all.iter().enumerate().map(|(at, source)| {
                self.selectors.verdicts(source, &self.pools).map_err(|why| {
                    let text = format!("{whose}: selector #{at}: CEL compile error: {why}");
                    DeviceRejection::new("device_selector_invalid", text)
                })
            });
            verdicts.collect::<Result<Vec<_>, _>>()
        };
        let of_class = verdicts(selectors, format!("device class {}", class.name))?;
        let whose = format!("resource claim {}, request {}", claim.key, alternative.name);
        let of_request = verdicts(&alternative.selectors, whose)?;
        Ok(PreparedAlternative { alternative: alternative.clone(), class, of_class, of_request })
    }

    /// Whether the devices are available on a node.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self, prepared: &PreparedDevices, node: &Node) -> Result<(), DeviceRejection> {
        self.allocate(prepared, node).map(drop)
    }

    /// Whether the devices are available on a node, without a reason.
    #[must_use]
    pub fn fits(&self, prepared: &PreparedDevices, node: &Node) -> bool {
        prepared.is_empty() || self.allocate(prepared, node).is_ok()
    }

    /// The devices for all claims that need some, on a node.
    pub(super) fn allocate<'a>(
        &'a self,
        prepared: &'a PreparedDevices,
        node: &Node,
    ) -> Result<Vec<ClaimChoice<'a>>, DeviceRejection> {
        for (claim, allocation) in &prepared.settled {
            if !allocation.nodes.matches(&node.name, &node.labels) {
                let text = format!("claim {} has devices that this node cannot reach", claim.key);
                return Err(DeviceRejection::new("devices_elsewhere", text));
            }
        }
        if prepared.pending.is_empty() {
            return Ok(Vec::new());
        }
        let (error, search) = match Search::new(self, &prepared.pending, node).run() {
            Ok(chosen) => return Ok(chosen),
            Err(failed) => failed,
        };
        Err(match error {
            AllocationError::Failed(code, text) => DeviceRejection::new(code, text),
            AllocationError::Short { claim, request } => {
                let (text, short) = search.describe_shortage(claim, request);
                DeviceRejection { code: "devices_unavailable", text, short }
            }
            AllocationError::NoCombination => {
                let claims: Vec<String> =
                    prepared.pending.iter().map(|it| it.claim.key.to_string()).collect();
                let text = format!(
                    "no combination of free devices satisfies all requests and constraints of claim {}",
                    claims.join(" and ")
                );
                DeviceRejection::new("devices_unavailable", text)
            }
        })
    }

    /// How much the alternatives that a node can offer are preferred: more for earlier ones.
    #[must_use]
    pub fn preference(&self, prepared: &PreparedDevices, node: &Node) -> i64 {
        let Ok(chosen) = self.allocate(prepared, node) else { return 0 };
        let mut sum = 0;
        for (claim, chosen) in prepared.pending.iter().zip(&chosen) {
            for (request, alternatives) in claim.requests.iter().enumerate() {
                let position = super::allocator::chosen_alternative(chosen, request);
                if let Some(position) = position.filter(|_| alternatives.len() > 1) {
                    sum += ALTERNATIVES_MAX - i64::try_from(position).unwrap_or(0);
                }
            }
        }
        sum
    }
}
