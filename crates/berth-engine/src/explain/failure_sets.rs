//! Nodes by the set of filters that keep them out: what must change together for one of them.

use rustc_hash::FxHashMap;

use crate::filter::FilterId;
use crate::fleet::NodeIndex;

/// Nodes that are kept of each set, the first by id.
const NODES_KEPT: usize = 256;

/// Some filters, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct FilterSet(u64);

impl FilterSet {
    /// The filters for which this holds.
    pub(crate) fn of(wanted: impl Fn(FilterId) -> bool) -> Self {
        FilterId::all().filter(|id| wanted(*id)).fold(Self::default(), Self::with)
    }

    pub(crate) fn with(self, id: FilterId) -> Self {
        Self(self.0 | 1 << id.0)
    }

    pub(crate) fn has(self, id: FilterId) -> bool {
        self.with(id) == self
    }

    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not among the others.
    pub(crate) const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The filters, in order.
    pub(crate) fn filters(self) -> impl Iterator<Item = FilterId> {
        FilterId::all().filter(move |id| self.0 & (1 << id.0) != 0)
    }
}

/// The nodes that one set of filters keeps out.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodesOfSet {
    pub(crate) count: usize,
    /// The first by id.
    pub(crate) first: Vec<NodeIndex>,
}

/// Every set of filters that keeps a node out.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureSets {
    sets: FxHashMap<FilterSet, NodesOfSet>,
}

impl FailureSets {
    /// Notes the filters that keep one node out. Nodes come in order of id.
    pub(crate) fn note(&mut self, failed: FilterSet, index: NodeIndex) {
        let nodes = self.sets.entry(failed).or_default();
        nodes.count += 1;
        if nodes.first.len() < NODES_KEPT {
            nodes.first.push(index);
        }
    }

    /// The nodes that exactly these filters keep out.
    pub(crate) fn exactly(&self, set: FilterSet) -> &[NodeIndex] {
        self.sets.get(&set).map_or(&[], |nodes| &nodes.first)
    }

    /// Sets in a fixed order: the smallest first, of equals the one that keeps most nodes out.
    pub(crate) fn smallest_first(
        &self,
        size: impl Fn(FilterSet) -> u32,
    ) -> Vec<(FilterSet, &NodesOfSet)> {
        let mut sets: Vec<_> = self.sets.iter().map(|(set, nodes)| (*set, nodes)).collect();
        sets.sort_by_key(|(set, nodes)| (size(*set), std::cmp::Reverse(nodes.count), *set));
        sets
    }
}
