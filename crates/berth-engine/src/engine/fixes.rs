//! The smallest fixes of a refusal. Every fix is tried before it is proposed: the changed request is
//! decided again, the released instances are removed from a copy of the node, the new node is tried in
//! a fleet of its own.

use super::release::smallest_release;
use super::{Engine, Reuse};
use crate::affinity::{Strength, Topology};
use crate::explain::{Diagnosis, Fix, PassedTests, Refusal, describe, diagnose};
use crate::filter::{FILTERS, FilterId, FilterTest, first_failure, run_filter};
use crate::fleet::{Fleet, NodeIndex, NodeRow};
use crate::model::{
    Amounts, InstanceRequest, LinkState, Network, NodeFacts, NodeId, Platform, Timestamp,
};
use crate::prepared_request::{DomainRule, PreparedRequest};

/// Nodes that are searched for instances to release; the closest come first.
const NODES_SEARCHED: usize = 64;

impl Engine {
    /// Explains why no node can take a request.
    pub(crate) fn refusal(&mut self, request: &InstanceRequest, now: Timestamp) -> Refusal {
        self.catch_up(now);
        let (mut refusal, diagnosis) = {
            let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
            let facts = self.masks.get(&self.fleet, &self.policy, request);
            let node = self.derived.eligible.words();
            let diagnosis = diagnose(&prepared, PassedTests { node, facts });
            (describe(&prepared, &diagnosis), diagnosis)
        };
        refusal.fixes = self.fixes(request, &diagnosis, now);
        refusal
    }

    /// The same without fixes, which cost the most to find.
    pub(crate) fn diagnosis(&self, request: &InstanceRequest, now: Timestamp) -> Refusal {
        let prepared = PreparedRequest::new(request, self.policy(), self.fleet(), now);
        describe(&prepared, &diagnose(&prepared, PassedTests::default()))
    }

    fn fixes(
        &mut self,
        request: &InstanceRequest,
        diagnosis: &Diagnosis,
        now: Timestamp,
    ) -> Vec<Fix> {
        let mut fixes = Vec::new();
        fixes.extend(self.propose_shrink(request, diagnosis, now));
        fixes.extend(self.propose_relaxations(request, now));
        fixes.extend(self.propose_release(request, diagnosis, now));
        fixes.extend(self.propose_repair(request, diagnosis, now));
        fixes.extend(self.propose_node(request, now));
        fixes
    }

    fn node_id(&self, index: NodeIndex) -> Option<NodeId> {
        self.fleet().row(index).map(|row| row.id.clone())
    }

    /// The largest request of the same kind that fits: on the node where least must be given up.
    fn propose_shrink(
        &mut self,
        request: &InstanceRequest,
        diagnosis: &Diagnosis,
        now: Timestamp,
    ) -> Option<Fix> {
        let fitted = |index: &NodeIndex| {
            let row = self.fleet().row(*index)?;
            let resources = fit_to_node(row, request, self)?;
            Some((lost_share(request.resources, resources), *index, resources))
        };
        // Stable, and the nodes come in order of id: of equals the smallest id is tried first.
        let mut by_loss: Vec<_> = diagnosis.lack_only_room.iter().filter_map(fitted).collect();
        by_loss.sort_by_key(|(lost, ..)| *lost);
        let smaller =
            by_loss.into_iter().take(NODES_SEARCHED).find_map(|(_, index, resources)| {
                let smaller = InstanceRequest { resources, ..request.clone() };
                smaller.validate().ok()?;
                let prepared = PreparedRequest::new(&smaller, self.policy(), self.fleet(), now);
                let fits = first_failure(&prepared, index, self.fleet().row(index)?).is_none();
                drop(prepared);
                fits.then_some(smaller)
            })?;
        let picked = self.pick(&smaller, now, Reuse::Mask)?;
        Some(Fix::Shrink { resources: smaller.resources, node: self.node_id(picked.index) })
    }

    /// Each of the request's own rules, dropped one at a time.
    fn propose_relaxations(&mut self, request: &InstanceRequest, now: Timestamp) -> Vec<Fix> {
        let mut fixes = Vec::new();
        for (filter, change, relaxed) in relaxations(request) {
            if let Some(picked) = self.pick(&relaxed, now, Reuse::Mask) {
                let node = self.node_id(picked.index);
                fixes.push(Fix::Relax { filter: filter.into(), change, node });
            }
        }
        fixes
    }

    /// The fewest instances on one node whose release makes room; the tenant's own first.
    fn propose_release(
        &self,
        request: &InstanceRequest,
        diagnosis: &Diagnosis,
        now: Timestamp,
    ) -> Option<Fix> {
        let prepared = PreparedRequest::new(request, self.policy(), self.fleet(), now);
        let mut indexes = diagnosis.lack_only_room.clone();
        // The key costs a pass of the filters, so it is computed once for each node.
        indexes.sort_by_cached_key(|index| shortfall(&prepared, *index));
        let own = |row: &crate::fleet::InstanceRow| Some(row.tenant) == prepared.tenant;
        let any = |row: &crate::fleet::InstanceRow| row.priority <= request.priority;
        let search = |may_go: &dyn Fn(&crate::fleet::InstanceRow) -> bool| {
            let nodes = indexes.iter().take(NODES_SEARCHED).filter_map(|&index| {
                let row = prepared.fleet.row(index)?;
                let released = smallest_release(&prepared, index, row, may_go)?;
                let memory: u64 = released.iter().map(|r| u64::from(r.resources.memory_mib)).sum();
                Some(((released.len(), memory, row.id.clone()), released))
            });
            nodes.min_by(|(a, _), (b, _)| a.cmp(b))
        };
        let ((_, _, node), released) = search(&own).or_else(|| search(&any))?;
        let mut tenants: Vec<String> =
            released.iter().map(|row| self.fleet().texts().text(row.tenant).to_owned()).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let instances = released.iter().map(|row| row.id).collect();
        Some(Fix::Free { instances, tenants, node: Some(node) })
    }

    /// A node that one filter about the node itself keeps out.
    fn propose_repair(
        &self,
        request: &InstanceRequest,
        diagnosis: &Diagnosis,
        now: Timestamp,
    ) -> Option<Fix> {
        let prepared = PreparedRequest::new(request, self.policy(), self.fleet(), now);
        let about_node = |id: &FilterId| matches!(id.filter().test, FilterTest::Node(_));
        let mendable = FilterId::all().filter(about_node);
        let (id, index) = mendable
            .filter_map(|id| diagnosis.only_node[usize::from(id.0)].map(|index| (id, index)))
            .max_by_key(|(id, _)| (diagnosis.only[usize::from(id.0)], std::cmp::Reverse(*id)))?;
        let row = prepared.fleet.row(index)?;
        // Every other filter is run again: only this one may fail.
        let others = FilterId::all().filter(|other| *other != id);
        let works =
            others.into_iter().all(|other| run_filter(other, &prepared, index, row).is_ok());
        works.then(|| Fix::Mend {
            filter: id.filter().name.into(),
            remedy: id.filter().remedy.into(),
            node: Some(row.id.clone()),
        })
    }

    /// A new node that could take the request, if a new node can help at all.
    fn propose_node(&self, request: &InstanceRequest, now: Timestamp) -> Option<Fix> {
        let prepared = PreparedRequest::new(request, self.policy(), self.fleet(), now);
        // A new node has no instances, and is in no known rack or zone.
        let alone = |rule: &DomainRule<'_>| rule.admits_count(0, rule.topology == Topology::Node);
        let tied = !prepared.hard_rules.iter().all(alone);
        let request_fails = FilterId::all().any(|id| match id.filter().test {
            FilterTest::Request(test) => test(&prepared).is_err(),
            FilterTest::Node(_)
            | FilterTest::Static(_)
            | FilterTest::Neighbour(_)
            | FilterTest::Load(_) => false,
        });
        if tied || request_fails || !request.volumes.is_empty() {
            return None;
        }
        let facts = smallest_node_for(request, self, now);
        let mut alone = Fleet::new();
        let index = alone.put_node(&facts).ok()?;
        if let Some(env) = &request.env {
            alone.set_secrets(env, true);
        }
        let prepared = PreparedRequest::new(request, self.policy(), &alone, now);
        let row = alone.row(index)?;
        let failure = first_failure(&prepared, index, row);
        // Rules about other instances were checked in the real fleet; this one has no others.
        let works =
            failure.is_none_or(|(id, _)| matches!(id.filter().test, FilterTest::Neighbour(_)));
        let shape = facts.capacity.unwrap_or_default();
        works.then(|| Fix::AddNode { shape, facts: Box::new(facts) })
    }
}

/// What is left of a request when it is cut down to a node's room; nothing if that is too little.
fn fit_to_node(row: &NodeRow, request: &InstanceRequest, engine: &Engine) -> Option<Amounts> {
    let wanted = request.resources;
    let cut = |wanted: u32, room: i64| {
        let room = u32::try_from(room.clamp(0, i64::from(Amounts::MAX))).unwrap_or(0);
        wanted.min(room)
    };
    let beside_disk =
        i64::from(request.image_mib) + i64::from(engine.policy().filters.disk_headroom_mib);
    let hard_cpu = engine.policy().filters.cpu == crate::policy::CpuRule::Hard;
    let cpu_room = if hard_cpu { row.limits.cpu - row.used.cpu } else { i64::MAX };
    let fitted = Amounts {
        cpu_milli: cut(wanted.cpu_milli, cpu_room),
        memory_mib: cut(wanted.memory_mib, row.memory_room()),
        disk_mib: cut(wanted.disk_mib, row.limits.disk - row.used.disk - beside_disk),
        bandwidth_mbps: cut(wanted.bandwidth_mbps, row.limits.bandwidth - row.used.bandwidth),
    };
    let emptied = fitted.named().into_iter().zip(wanted.named());
    let usable = emptied.into_iter().all(|((_, left, _), (_, asked, _))| asked == 0 || left > 0);
    (usable && fitted != wanted && row.used.instances < row.instance_limit).then_some(fitted)
}

/// How much of a request is lost, summed over resources in parts per million of each.
fn lost_share(wanted: Amounts, fitted: Amounts) -> u64 {
    let pairs = wanted.named().into_iter().zip(fitted.named());
    let lost = pairs.map(|((_, asked, _), (_, left, _))| {
        u64::from(asked - left) * 1_000_000 / u64::from(asked.max(1))
    });
    lost.sum()
}

fn shortfall(prepared: &PreparedRequest<'_>, index: NodeIndex) -> i64 {
    let row = prepared.fleet.row(index);
    // These nodes lack only room.
    let of_room = |id: &FilterId| matches!(id.filter().test, FilterTest::Load(_));
    let failure = row.and_then(|row| {
        let mut filters = FilterId::all().filter(of_room);
        filters.find_map(|id| run_filter(id, prepared, index, row).err())
    });
    failure.and_then(|evidence| evidence.shortfall()).unwrap_or(i64::MAX)
}

/// The request with one of its rules dropped or softened, for each rule it has.
fn relaxations(request: &InstanceRequest) -> Vec<(&'static str, String, InstanceRequest)> {
    let mut relaxed = Vec::new();
    let mut add = |filter, change: String, apply: &dyn Fn(&mut InstanceRequest)| {
        let mut changed = request.clone();
        apply(&mut changed);
        relaxed.push((filter, change, changed));
    };
    if let Some(kind) = request.capacity_type {
        let change = format!("drop capacity_type {}", kind.name());
        add("capacity-type", change, &|r| r.capacity_type = None);
    }
    if request.platform != crate::model::PlatformBounds::default() {
        add("platform", "drop the platform bounds".into(), &|r| r.platform = Default::default());
    }
    for name in request.traits.keys() {
        add("traits", format!("drop trait {name}"), &|r| {
            r.traits.remove(name);
        });
    }
    for (place, tags) in request.networks.iter().enumerate() {
        add("networks", format!("drop network {}", tags.join(" or ")), &|r| {
            r.networks.remove(place);
        });
    }
    if request.ratios.is_some() {
        add("overprovision-ratios", "drop the ratios".into(), &|r| r.ratios = None);
    }
    if request.exclude_virtual {
        add("not-virtual", "accept virtual nodes".into(), &|r| r.exclude_virtual = false);
    }
    for group in &request.groups {
        add("groups", format!("leave group {group}"), &|r| r.groups.retain(|g| g != group));
    }
    for (place, rule) in request.affinity.iter().enumerate() {
        if rule.strength() == Strength::Hard {
            let change = format!("make {rule} soft with ~, or drop it");
            add("affinity", change, &|r| {
                r.affinity.remove(place);
            });
        }
    }
    if request.locality.strict {
        add("strict-locality", "drop strict".into(), &|r| r.locality.strict = false);
    }
    if !request.volumes.is_empty() {
        let change = format!("do without volume {}", request.volumes.join(", "));
        add("volume-home", change, &|r| r.volumes.clear());
    }
    let change = if request.cpu_capped { "drop the CPU cap" } else { "cap the CPU" };
    add("cpu-cap-mixing", change.into(), &|r| r.cpu_capped = !r.cpu_capped);
    if request.needs_secrets {
        add("secrets-present", "drop needs_secrets".into(), &|r| r.needs_secrets = false);
    }
    debug_assert!(relaxed.iter().all(|(name, ..)| FILTERS.iter().any(|f| f.name == *name)));
    relaxed
}

/// The least node that could take a request: its size, and the facts it asks for.
fn smallest_node_for(request: &InstanceRequest, engine: &Engine, now: Timestamp) -> NodeFacts {
    let wanted = request.resources;
    let filters = &engine.policy().filters;
    let mut shape = wanted;
    shape.cpu_milli = wanted.cpu_milli.max(1);
    let overhead = engine.fleet().largest_overhead();
    shape.memory_mib = wanted.memory_mib.saturating_add(overhead).min(Amounts::MAX);
    let disk = wanted.disk_mib.saturating_add(request.image_mib);
    shape.disk_mib = disk.saturating_add(filters.disk_headroom_mib).min(Amounts::MAX);
    let mut facts = NodeFacts::new("new-node", shape);
    facts.heartbeat_at = now;
    facts.vmm_overhead_mib = overhead;
    facts.extra.clone_from(&request.extra);
    facts.traits.clone_from(&request.traits);
    facts.capacity_type = request.capacity_type.unwrap_or_default();
    facts.ratios = request.ratios.unwrap_or_default();
    let first = |tags: &Vec<String>| tags.first().cloned().unwrap_or_default();
    let up = |tags: &Vec<String>| Network { tag: first(tags), link: LinkState::Up };
    facts.networks = request.networks.iter().map(up).collect();
    let bounds = request.platform.min.iter().chain(&request.platform.max).next_back();
    facts.platform = bounds.map(|(&version, &built_at)| Platform { version, built_at });
    facts
}
