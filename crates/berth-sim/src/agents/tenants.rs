//! Tenants: each places small batches, keeps them for a while and releases them, so that the fleet is
//! neither empty nor full.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_api::{Claim, ClaimState, ReleaseClaim};
use berth_client::{Client, ClientError, PlaceOutcome};
use berth_engine::{InstanceId, NodeFacts};
use tokio::time::{Instant, sleep};

use super::pace::Pace;
use super::tenant_kinds::{KINDS, TenantKind};
use crate::fleet::SeededRng;

/// Below this share of memory in use, in thousandths, tenants place large batches.
const HURRY_BELOW: u64 = 580;
/// Below the first share tenants place, above the second they release.
const CALM: (u64, u64) = (630, 680);
/// How often a tenant refreshes its list of claims.
const REFRESH_EVERY: Duration = Duration::from_secs(60);

/// How full the fleet is, as far as its tenants know.
#[derive(Debug, Default)]
pub(super) struct FleetFill {
    hosts: u64,
    total_mib: u64,
    used_mib: [AtomicU64; KINDS.len()],
}

impl FleetFill {
    /// The fill of a fleet of these hosts.
    pub(super) fn new(facts: &[NodeFacts]) -> Self {
        let of = |facts: &NodeFacts| u64::from(facts.capacity.unwrap_or_default().memory_mib);
        let total_mib = facts.iter().map(of).sum();
        Self { hosts: facts.len() as u64, total_mib, ..Self::default() }
    }

    fn permille(&self) -> u64 {
        let used: u64 = self.used_mib.iter().map(|used| used.load(Ordering::Relaxed)).sum();
        used * 1000 / self.total_mib.max(1)
    }
}

/// An instance of a tenant.
#[derive(Clone, Copy, Debug)]
struct HeldInstance {
    memory_mib: u32,
    fence: i64,
    until: Instant,
}

/// One tenant.
pub(super) struct Tenant {
    client: Client,
    kind: &'static TenantKind,
    fill: Arc<FleetFill>,
    rng: SeededRng,
    pace: Pace,
    held: BTreeMap<InstanceId, HeldInstance>,
}

impl Tenant {
    /// A tenant that has not listed its claims yet.
    pub(super) const fn new(
        client: Client,
        kind: &'static TenantKind,
        fill: Arc<FleetFill>,
        seed: u64,
        pace: Pace,
    ) -> Self {
        Self { client, kind, fill, rng: SeededRng::new(seed), pace, held: BTreeMap::new() }
    }

    /// Places and releases until stopped.
    pub(super) async fn run(mut self) {
        let mut refreshed_at: Option<Instant> = None;
        loop {
            let mut outcome = Ok(());
            if refreshed_at.is_none_or(|at| at.elapsed() > REFRESH_EVERY) {
                outcome = self.refresh_claims().await;
                refreshed_at = outcome.is_ok().then(Instant::now);
            }
            if outcome.is_ok() {
                outcome = self.place_or_release().await;
            }
            self.publish_usage();
            let hurry = self.fill.permille() < HURRY_BELOW;
            let pause = match (&outcome, hurry) {
                (Err(error), _) => {
                    tracing::debug!(%error, tenant = self.kind.tenant, "tenant request failed");
                    Duration::from_secs(3)
                }
                (Ok(()), true) => self.pace.between(&mut self.rng, 700, 1300),
                (Ok(()), false) => self.pace.between(&mut self.rng, 3000, 9000),
            };
            sleep(pause).await;
        }
    }

    /// Places a batch or releases one.
    async fn place_or_release(&mut self) -> Result<(), ClientError> {
        let full = self.fill.permille();
        let now = Instant::now();
        let over = self.held.values().any(|held| held.until <= now);
        if full < HURRY_BELOW {
            let batch = (self.fill.hosts / 60).max(self.kind.batch);
            self.place(batch).await
        } else if full < CALM.0 || (full <= CALM.1 && !over) {
            let batch = self.rng.below(self.kind.batch) + 1;
            self.place(batch).await
        } else {
            self.release().await
        }
    }

    async fn place(&mut self, count: u64) -> Result<(), ClientError> {
        let request = self.kind.batch(count, &mut self.rng);
        let memory_mib = request.instances.first().map_or(0, |spec| spec.resources.memory_mib);
        let placed = match self.client.place(&request).await {
            Ok(PlaceOutcome::Placed(placed)) => placed,
            Ok(PlaceOutcome::Waiting(_)) => return Ok(()),
            Err(error) if is_refusal(&error) => {
                tracing::debug!(%error, tenant = self.kind.tenant, "batch refused");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let until = self.draw_end();
        for one in placed.instances {
            if let Some(fence) = one.fence {
                self.held.insert(one.instance, HeldInstance { memory_mib, fence, until });
            }
        }
        Ok(())
    }

    /// Releases some of what was kept longest.
    async fn release(&mut self) -> Result<(), ClientError> {
        let mut oldest: Vec<(Instant, InstanceId, i64)> =
            self.held.iter().map(|(id, held)| (held.until, *id, held.fence)).collect();
        oldest.sort_unstable();
        let count = self.rng.below(self.kind.batch) + 1;
        oldest.truncate(usize::try_from(count).unwrap_or(1));
        for (_, instance, fence) in oldest {
            let release = ReleaseClaim {
                fence: Some(fence),
                reason: Some("no longer needed".to_owned()),
                ..ReleaseClaim::default()
            };
            match self.client.release(instance, &release).await {
                Ok(_) => {}
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
            }
            self.held.remove(&instance);
        }
        Ok(())
    }

    /// Lists its claims: boots fail, hosts crash, and operators may release instances.
    async fn refresh_claims(&mut self) -> Result<(), ClientError> {
        let query = [("tenant", self.kind.tenant), ("limit", "1000")];
        let claims: Vec<Claim> = self.client.all("/v1/claims", &query).await?;
        let mut held = BTreeMap::new();
        for claim in claims.iter().filter(|claim| claim.state != ClaimState::Releasing) {
            let until = self.held.get(&claim.instance).map(|held| held.until);
            let until = until.unwrap_or_else(|| self.draw_end());
            let memory_mib = claim.resources.memory_mib;
            held.insert(claim.instance, HeldInstance { memory_mib, fence: claim.fence, until });
        }
        self.held = held;
        Ok(())
    }

    fn draw_end(&mut self) -> Instant {
        let (least, most) = self.kind.keeps_s;
        Instant::now() + self.pace.between(&mut self.rng, least * 1000, most * 1000)
    }

    fn publish_usage(&self) {
        let used = self.held.values().map(|held| u64::from(held.memory_mib)).sum();
        let number = KINDS.iter().position(|kind| kind.tenant == self.kind.tenant);
        if let Some(place) = number.and_then(|number| self.fill.used_mib.get(number)) {
            place.store(used, Ordering::Relaxed);
        }
    }
}

/// Whether the server refused the request, as opposed to a failure.
pub(super) fn is_refusal(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem { problem, .. }
        if (400..500).contains(&problem.status) && !matches!(problem.status, 401 | 403 | 429))
}
