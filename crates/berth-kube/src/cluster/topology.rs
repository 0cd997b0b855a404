//! Domains: which nodes share a value of a label, for every label that some rule speaks of.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::selector::Labels;

/// A label of nodes that makes domains.
pub(super) type TopologyId = usize;

/// The domain of a node that lacks the label.
pub(super) const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
struct Topology {
    key: String,
    /// Domains by value.
    values: FxHashMap<Arc<str>, u32>,
    /// How many nodes each domain has, and its value.
    domains: Vec<(u32, Arc<str>)>,
    /// Domains without nodes, to be used again: autoscaled host names would have no end.
    free: Vec<u32>,
    /// Each node's domain, by its place.
    of: Vec<u32>,
}

/// All labels that make domains.
#[derive(Clone, Debug, Default)]
pub(super) struct Topologies {
    all: Vec<Topology>,
    /// Labels of nodes, by place.
    nodes: Vec<Option<Arc<Labels>>>,
}

impl Topologies {
    /// The label with this key; from now on its domains are known.
    pub(super) fn of(&mut self, key: &str) -> TopologyId {
        if let Some(id) = self.all.iter().position(|it| it.key == key) {
            return id;
        }
        let mut new = Topology { key: key.to_owned(), ..Topology::default() };
        for (place, labels) in self.nodes.iter().enumerate() {
            new.put(place, labels.as_deref());
        }
        self.all.push(new);
        self.all.len() - 1
    }

    /// Tells of a node's labels, or that it is gone.
    pub(super) fn place(&mut self, place: usize, labels: Option<&Arc<Labels>>) {
        if place >= self.nodes.len() {
            self.nodes.resize(place + 1, None);
        }
        self.nodes[place] = labels.cloned();
        for topology in &mut self.all {
            topology.put(place, labels.map(Arc::as_ref));
        }
    }

    /// A node's domain.
    pub(super) fn domain(&self, id: TopologyId, place: usize) -> u32 {
        self.all[id].of.get(place).copied().unwrap_or(NOWHERE)
    }

    /// Every node's domain, by its place. Places beyond the end are nowhere.
    pub(super) fn domains(&self, id: TopologyId) -> &[u32] {
        &self.all[id].of
    }

    /// The label's key.
    pub(super) fn key(&self, id: TopologyId) -> &str {
        &self.all[id].key
    }

    /// How many domains were ever seen.
    pub(super) fn count(&self, id: TopologyId) -> usize {
        self.all[id].domains.len()
    }
}

impl Topology {
    fn put(&mut self, place: usize, labels: Option<&Labels>) {
        let domain = labels.and_then(|it| it.get(&self.key)).map(|value| self.enter(value));
        if place >= self.of.len() {
            self.of.resize(place + 1, NOWHERE);
        }
        let before = std::mem::replace(&mut self.of[place], domain.unwrap_or(NOWHERE));
        self.leave(before);
    }

    /// The domain of a value, which has a node more now.
    fn enter(&mut self, value: &str) -> u32 {
        if let Some(domain) = self.values.get(value).copied() {
            self.domains[domain as usize].0 += 1;
            return domain;
        }
        let value: Arc<str> = value.into();
        let domain = self.free.pop().unwrap_or_else(|| {
            self.domains.push((0, Arc::clone(&value)));
            u32::try_from(self.domains.len() - 1).unwrap_or(NOWHERE)
        });
        self.domains[domain as usize] = (1, Arc::clone(&value));
        self.values.insert(value, domain);
        domain
    }

    /// A domain has a node less. One without nodes has no pods either, so its counts are nil.
    fn leave(&mut self, domain: u32) {
        let Some((nodes, value)) = self.domains.get_mut(domain as usize) else { return };
        *nodes -= 1;
        if *nodes == 0 {
            self.values.remove(value);
            self.free.push(domain);
        }
    }
}

/// A count per domain, which grows as domains are seen.
pub(super) fn at<T: Copy + Default>(counts: &[T], domain: u32) -> T {
    counts.get(domain as usize).copied().unwrap_or_default()
}

/// The same, to change.
pub(super) fn at_mut<T: Copy + Default>(counts: &mut Vec<T>, domain: u32) -> &mut T {
    let place = domain as usize;
    if place >= counts.len() {
        counts.resize(place + 1, T::default());
    }
    &mut counts[place]
}
