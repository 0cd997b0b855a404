//! Topology domains: which nodes share the value of a label, for every topology key in use.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::selector::Labels;

/// The number of a topology key.
pub(super) type TopologyId = usize;

/// The domain of a node without the label.
pub(super) const NO_DOMAIN: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
struct Topology {
    key: String,
    /// Domains by value.
    values: FxHashMap<Arc<str>, u32>,
    /// The number of nodes and the value of each domain.
    domains: Vec<(u32, Arc<str>)>,
    /// Domains without nodes, for reuse: the host names of an autoscaled cluster have no end.
    free: Vec<u32>,
    /// The domain of each node, by its index.
    of: Vec<u32>,
}

/// All topology keys in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Topologies {
    all: Vec<Topology>,
    /// Labels of nodes, by index.
    nodes: Vec<Option<Arc<Labels>>>,
}

impl Topologies {
    /// The number of a topology key; from now on its domains are tracked.
    pub(super) fn id_of(&mut self, key: &str) -> TopologyId {
        if let Some(id) = self.all.iter().position(|it| it.key == key) {
            return id;
        }
        let mut new = Topology { key: key.to_owned(), ..Topology::default() };
        for (index, labels) in self.nodes.iter().enumerate() {
            new.put(index, labels.as_deref());
        }
        self.all.push(new);
        self.all.len() - 1
    }

    /// Sets the labels of a node; absent: it was deleted.
    pub(super) fn set_node(&mut self, index: usize, labels: Option<&Arc<Labels>>) {
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, None);
        }
        self.nodes[index] = labels.cloned();
        for topology in &mut self.all {
            topology.put(index, labels.map(Arc::as_ref));
        }
    }

    /// The domain of a node.
    pub(super) fn domain(&self, id: TopologyId, index: usize) -> u32 {
        self.all[id].of.get(index).copied().unwrap_or(NO_DOMAIN)
    }

    /// The domain of every node, by its index. Nodes beyond the end have none.
    pub(super) fn domains(&self, id: TopologyId) -> &[u32] {
        &self.all[id].of
    }

    /// The label's key.
    pub(super) fn key(&self, id: TopologyId) -> &str {
        &self.all[id].key
    }

    /// The number of domains ever seen.
    pub(super) fn count(&self, id: TopologyId) -> usize {
        self.all[id].domains.len()
    }
}

impl Topology {
    fn put(&mut self, index: usize, labels: Option<&Labels>) {
        let domain = labels.and_then(|it| it.get(&self.key)).map(|value| self.add_node(value));
        if index >= self.of.len() {
            self.of.resize(index + 1, NO_DOMAIN);
        }
        let before = std::mem::replace(&mut self.of[index], domain.unwrap_or(NO_DOMAIN));
        self.remove_node(before);
    }

    /// The domain of a value, which has one more node now.
    fn add_node(&mut self, value: &str) -> u32 {
        if let Some(domain) = self.values.get(value).copied() {
            self.domains[domain as usize].0 += 1;
            return domain;
        }
        let value: Arc<str> = value.into();
        let domain = self.free.pop().unwrap_or_else(|| {
            self.domains.push((0, Arc::clone(&value)));
            u32::try_from(self.domains.len() - 1).unwrap_or(NO_DOMAIN)
        });
        self.domains[domain as usize] = (1, Arc::clone(&value));
        self.values.insert(value, domain);
        domain
    }

    /// A domain has one node less. Without nodes it has no pods either, so its counts are zero.
    fn remove_node(&mut self, domain: u32) {
        let Some((nodes, value)) = self.domains.get_mut(domain as usize) else { return };
        *nodes -= 1;
        if *nodes == 0 {
            self.values.remove(value);
            self.free.push(domain);
        }
    }
}

/// The count of a domain; domains beyond the end have none.
pub(super) fn count_in<T: Copy + Default>(counts: &[T], domain: u32) -> T {
    counts.get(domain as usize).copied().unwrap_or_default()
}

/// The count of a domain, to change it.
pub(super) fn count_mut<T: Copy + Default>(counts: &mut Vec<T>, domain: u32) -> &mut T {
    let index = domain as usize;
    if index >= counts.len() {
        counts.resize(index + 1, T::default());
    }
    &mut counts[index]
}
