//! Finds devices on a node for all claims of a pod at once.
//!
//! A search with backtracking: requests in order, each alternative in order, each device in order, until the
//! constraints hold for all. It ends after a number of steps, so that no claim can stop the scheduler; the
//! refusal says so. Never looks at anything but devices.

use std::sync::Arc;

use k8s_openapi::api::resource::v1 as resource;

use super::Devices;
use super::filters::{PreparedAlternative, PreparedClaim};
use super::objects::{Amount, Constraint, Device, Reach, is_excluded};
use super::pools::PoolView;
use super::selectors::Verdict;
use crate::cluster::node::Node;

/// The most devices of a claim.
pub(super) const DEVICES_MAX: usize = 32;
/// Steps after which a search ends.
const STEPS_MAX: usize = 20_000;

/// A device that was chosen for a request.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) device: &'a Device,
    /// Where the slice of the device can be used.
    pub(super) reach: &'a Reach,
    pub(super) request: usize,
    pub(super) alternative: usize,
}

/// The devices for one claim.
pub(super) type ClaimChoice<'a> = Vec<Choice<'a>>;

/// Why there are no devices.
pub(super) enum AllocationError {
    /// A selector or a constraint of a claim is at fault; the text says which.
    Failed(&'static str, String),
    /// Not enough devices are free: the claim and the request.
    Short { claim: usize, request: usize },
    /// Each request can be satisfied, but not all together.
    NoCombination,
}

/// A device that a request may get, or the error that ends the search when it is reached.
enum Candidate<'a> {
    Device(&'a Device, &'a Reach),
    Failed(String),
}

/// What an alternative finds on the node.
#[derive(Default)]
struct Candidates<'a> {
    all: Vec<Candidate<'a>>,
    /// Devices of any kind on the node.
    seen: usize,
    /// Devices that match, but are tainted.
    tainted: usize,
    /// Devices that match, but need this feature.
    unsupported: Option<&'a str>,
    /// Why a pool is not used.
    problem: Option<&'a str>,
}

/// A search on one node.
pub(super) struct Search<'a> {
    devices: &'a Devices,
    claims: &'a [PreparedClaim],
    /// By claim, request and alternative.
    candidates: Vec<Vec<Vec<Candidates<'a>>>>,
    chosen: Vec<ClaimChoice<'a>>,
    steps: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(devices: &'a Devices, claims: &'a [PreparedClaim], node: &Node) -> Self {
        let pools = devices.pools.for_node(node);
        let by_alternative = |claim: &'a PreparedClaim, it: &'a PreparedAlternative| {
            candidates(devices, claim, it, &pools, node)
        };
        let candidates = claims
            .iter()
            .map(|claim| {
                let requests = claim.requests.iter();
                requests.map(|it| it.iter().map(|it| by_alternative(claim, it)).collect()).collect()
            })
            .collect();
        let chosen = claims.iter().map(|_| Vec::new()).collect();
        Self { devices, claims, candidates, chosen, steps: 0 }
    }

    /// The devices of each claim.
    pub(super) fn run(mut self) -> Result<Vec<ClaimChoice<'a>>, (AllocationError, Self)> {
        match self.allocate(0, 0) {
            Ok(true) => Ok(self.chosen),
            Ok(false) => Err((self.reason(), self)),
            Err(error) => Err((error, self)),
        }
    }

    /// Satisfies the requests of a claim from this one on, and all claims after it.
    fn allocate(&mut self, claim: usize, request: usize) -> Result<bool, AllocationError> {
        let Some(prepared) = self.claims.get(claim) else { return Ok(true) };
        let Some(alternatives) = prepared.requests.get(request) else {
            return self.allocate(claim + 1, 0);
        };
        for alternative in 0..alternatives.len() {
            let need = self.need((claim, request, alternative));
            let enough = need > 0 && self.chosen[claim].len() + need <= DEVICES_MAX;
            if enough && self.choose((claim, request, alternative), need, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many devices an alternative needs.
    fn need(&self, (claim, request, alternative): (usize, usize, usize)) -> usize {
        match self.claims[claim].requests[request][alternative].alternative.amount {
            Amount::Exactly(count) => count,
            Amount::All => self.candidates[claim][request][alternative].all.len(),
        }
    }

    /// Chooses as many devices, from a position on, and satisfies everything after it.
    fn choose(
        &mut self,
        at: (usize, usize, usize),
        need: usize,
        from: usize,
    ) -> Result<bool, AllocationError> {
        let (claim, request, alternative) = at;
        if need == 0 {
            return self.allocate(claim, request + 1);
        }
        let all = &self.candidates[claim][request][alternative];
        let total = all.all.len();
        let is_all =
            self.claims[claim].requests[request][alternative].alternative.amount == Amount::All;
        if let Some(problem) = all.problem.filter(|_| is_all) {
            let name = &self.claims[claim].requests[request][alternative].alternative.name;
            let text = format!(
                "claim {}, request {name} asks for all devices, but {problem}",
                self.claims[claim].claim.key
            );
            return Err(AllocationError::Failed("devices_unavailable", text));
        }
        for position in from..total {
            // Devices in another order are the same devices.
            if total - position < need {
                return Ok(false);
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                let text = format!("the search for devices was ended after {STEPS_MAX} steps");
                return Err(AllocationError::Failed("devices_search_ended", text));
            }
            let (device, reach) = match &self.candidates[claim][request][alternative].all[position]
            {
                Candidate::Device(device, reach) => (*device, *reach),
                Candidate::Failed(text) => {
                    return Err(AllocationError::Failed("device_selector_failed", text.clone()));
                }
            };
            if self.is_free(device) && self.allows(at, device) {
                let choice = Choice { device, reach, request, alternative };
                self.chosen[claim].push(choice);
                if self.choose(at, need - 1, position + 1)? {
                    return Ok(true);
                }
                self.chosen[claim].pop();
            }
            if is_all {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn is_free(&self, device: &Device) -> bool {
        !self.devices.in_use.contains_key(&device.id)
            && !self.chosen.iter().flatten().any(|it| it.device.id == device.id)
    }

    /// Whether the constraints of the claim allow a further device.
    fn allows(
        &self,
        (claim, request, alternative): (usize, usize, usize),
        device: &Device,
    ) -> bool {
        let prepared = &self.claims[claim];
        let concerns = |it: &Constraint, request: usize, alternative: usize| {
            let full = &prepared.requests[request][alternative].alternative.name;
            let base = full.split('/').next().unwrap_or_default();
            it.requests.is_empty() || it.requests.iter().any(|it| **it == **full || it == base)
        };
        prepared.spec.constraints.iter().all(|it| {
            if !concerns(it, request, alternative) {
                return true;
            }
            let Some(own) = device.attribute(&it.attribute) else { return false };
            let mut others = self.chosen[claim]
                .iter()
                .filter(|other| concerns(it, other.request, other.alternative));
            others.all(|other| {
                let other = other.device.attribute(&it.attribute);
                other.is_some_and(|other| same_value(own, other) != it.distinct)
            }) && has_one_value(own)
        })
    }

    /// Why there is no solution, by the first request that alone cannot be satisfied.
    fn reason(&self) -> AllocationError {
        for (claim, prepared) in self.claims.iter().enumerate() {
            for (request, alternatives) in prepared.requests.iter().enumerate() {
                let possible = (0..alternatives.len()).any(|alternative| {
                    let need = self.need((claim, request, alternative));
                    need > 0 && self.free((claim, request, alternative)) >= need
                });
                if !possible {
                    return AllocationError::Short { claim, request };
                }
            }
        }
        AllocationError::NoCombination
    }

    fn free(&self, (claim, request, alternative): (usize, usize, usize)) -> usize {
        let all = &self.candidates[claim][request][alternative].all;
        let is_free = |it: &&Candidate<'_>| match it {
            Candidate::Device(device, _) => !self.devices.in_use.contains_key(&device.id),
            Candidate::Failed(_) => false,
        };
        all.iter().filter(is_free).count()
    }

    /// What a request lacks: in words, and in thousandths of what it needs.
    pub(super) fn describe_shortage(&self, claim: usize, request: usize) -> (String, Option<i64>) {
        let prepared = &self.claims[claim];
        let mut parts = Vec::new();
        let mut least: Option<i64> = None;
        for (position, it) in prepared.requests[request].iter().enumerate() {
            let at = (claim, request, position);
            let found = &self.candidates[claim][request][position];
            let (matching, free) = (found.all.len(), self.free(at));
            let need = match it.alternative.amount {
                Amount::Exactly(count) => count,
                Amount::All => matching.max(1),
            };
            // A node without any device is farthest away.
            let missing = match (found.seen, matching) {
                (0, _) => 3000,
                (_, 0) => 2000,
                _ => need.saturating_sub(free) * 1000 / need.max(1),
            };
            let missing = i64::try_from(missing).unwrap_or(i64::MAX);
            least = Some(least.map_or(missing, |least| least.min(missing)));
            parts.push(describe_alternative(it, found, (need, matching, free)));
        }
        (format!("claim {}, {}", prepared.claim.key, parts.join("; ")), least)
    }
}

fn describe_alternative(
    it: &PreparedAlternative,
    found: &Candidates<'_>,
    (need, matching, free): (usize, usize, usize),
) -> String {
    let (name, class) = (&it.alternative.name, &it.alternative.class);
    let mut text = match matching {
        0 => format!("request {name}: none of {} devices here matches class {class}", found.seen),
        _ => format!(
            "request {name}: {free} of {matching} matching devices of class {class} free, {need} \
             requested"
        ),
    };
    if matching > 0 && need > DEVICES_MAX {
        text.push_str(&format!(" (at most {DEVICES_MAX} per claim)"));
    }
    if !it.alternative.selectors.is_empty() && matching == 0 {
        text.push_str(" and its selectors");
    }
    if found.tainted > 0 {
        text.push_str(&format!(", {} more tainted", found.tainted));
    }
    if let Some(feature) = found.unsupported {
        text.push_str(&format!(", others need {feature}, which is not supported"));
    }
    if let Some(problem) = found.problem {
        text.push_str(&format!(", {problem}"));
    }
    text
}

fn candidates<'a>(
    devices: &'a Devices,
    claim: &PreparedClaim,
    it: &PreparedAlternative,
    pools: &[PoolView<'a>],
    node: &Node,
) -> Candidates<'a> {
    let mut found = Candidates::default();
    for pool in pools {
        if pool.problem.is_some() {
            found.problem = found.problem.or(pool.problem);
            continue;
        }
        for slice in &pool.slices {
            for (position, device) in slice.devices.iter().enumerate() {
                if !device.reaches(node) {
                    continue;
                }
                found.seen += 1;
                match it.verdict(&claim.claim.key, slice, position) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(text) => {
                        found.all.push(Candidate::Failed(text));
                        continue;
                    }
                }
                if let Some(feature) = &device.unsupported {
                    found.unsupported = Some(feature);
                } else if is_tainted(devices, device, &it.alternative.tolerations) {
                    found.tainted += 1;
                } else {
                    found.all.push(Candidate::Device(device, &slice.reach));
                }
            }
        }
    }
    found
}

fn is_tainted(
    devices: &Devices,
    device: &Device,
    tolerations: &[resource::DeviceToleration],
) -> bool {
    let own = device.device.taints.iter().flatten();
    let rules = devices.taint_rules.values().filter(|it| it.applies_to(&device.id));
    own.chain(rules.map(|it| &it.taint)).any(|it| is_excluded(it, tolerations))
}

/// Lists of values are not compared.
fn has_one_value(it: &resource::DeviceAttribute) -> bool {
    it.string.is_some() || it.int.is_some() || it.bool.is_some() || it.version.is_some()
}

fn same_value(a: &resource::DeviceAttribute, b: &resource::DeviceAttribute) -> bool {
    a.string == b.string && a.int == b.int && a.bool == b.bool && a.version == b.version
}

impl PreparedAlternative {
    /// Whether a device matches the class and the request.
    fn verdict(
        &self,
        claim: &crate::cluster::pod::Key,
        slice: &super::objects::Slice,
        position: usize,
    ) -> Result<bool, String> {
        let class = self.of_class.iter().enumerate().map(|it| (it, true));
        let own = self.of_request.iter().enumerate().map(|it| (it, false));
        for ((number, verdicts), is_class) in class.chain(own) {
            match verdicts.of(slice, position) {
                Verdict::Matches => {}
                Verdict::Differs => return Ok(false),
                Verdict::Failed(why) => {
                    let device = slice.devices.get(position).map(|it| it.id.to_string());
                    let device = device.unwrap_or_default();
                    let whose = match is_class {
                        true => format!("class {}", self.alternative.class),
                        false => format!("claim {claim}, request {}", self.alternative.name),
                    };
                    return Err(format!(
                        "{whose}: selector #{number} on device {device}: CEL runtime error: {why}"
                    ));
                }
            }
        }
        Ok(true)
    }
}

/// The names of the alternatives that were chosen, to write them.
pub(super) fn chosen_alternative(chosen: &ClaimChoice<'_>, request: usize) -> Option<usize> {
    chosen.iter().find(|it| it.request == request).map(|it| it.alternative)
}

/// The name of the request of a choice.
pub(super) fn request_name(claim: &PreparedClaim, choice: &Choice<'_>) -> Arc<str> {
    Arc::clone(&claim.requests[choice.request][choice.alternative].alternative.name)
}
