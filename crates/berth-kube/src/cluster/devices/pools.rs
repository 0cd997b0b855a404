//! Pools of devices: slices of one driver and one pool name, and on which nodes they can be used.
//!
//! A driver that replaces a pool publishes slices of a new generation, one by one. Until all are there, the
//! pool is not used; slices of an older generation never are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::objects::{PoolId, Reach, Slice};
use crate::cluster::node::Node;

/// A pool.
#[derive(Debug, Default)]
pub(super) struct Pool {
    slices: BTreeMap<Arc<str>, Slice>,
    generation: i64,
    /// Why it is not used.
    pub(super) problem: Option<String>,
}

impl Pool {
    fn refresh(&mut self, id: &PoolId) {
        self.generation = self.slices.values().map(|it| it.generation).max().unwrap_or(0);
        let current: Vec<&Slice> = self.current().collect();
        let (found, expected) = (current.len(), current.first().map_or(0, |it| it.slices));
        let mut seen = BTreeSet::new();
        self.problem = if i64::try_from(found) != Ok(expected) {
            Some(format!("pool {id} is being updated ({found} of {expected} slices)"))
        } else if current.iter().any(|it| !it.has_unique_names(&mut seen)) {
            Some(format!("pool {id} is invalid: two of its devices have the same name"))
        } else {
            None
        };
    }

    /// The slices of the latest generation.
    fn current(&self) -> impl Iterator<Item = &Slice> {
        self.slices.values().filter(|it| it.generation == self.generation)
    }
}

/// A pool with its slices for one node.
pub(super) struct PoolView<'a> {
    pub(super) problem: Option<&'a str>,
    pub(super) slices: Vec<&'a Slice>,
}

/// All pools.
#[derive(Debug, Default)]
pub(super) struct Pools {
    all: BTreeMap<PoolId, Pool>,
    by_slice: FxHashMap<Arc<str>, PoolId>,
    /// Pools with slices for this node alone, and how many.
    by_node: FxHashMap<Arc<str>, BTreeMap<PoolId, usize>>,
    /// Pools with slices for several nodes, and how many.
    shared: BTreeMap<PoolId, usize>,
}

impl Pools {
    /// Adds or updates a slice; whether it changed.
    pub(super) fn put(&mut self, slice: Slice) -> bool {
        let known = self.by_slice.get(&slice.name).and_then(|id| self.all.get(id));
        let known = known.and_then(|pool| pool.slices.get(&slice.name));
        if known.is_some_and(|it| it.version == slice.version && !it.version.is_empty()) {
            return false;
        }
        self.remove(&slice.name.clone());
        let id = slice.pool.clone();
        *self.index_of(&slice.reach).entry(id.clone()).or_default() += 1;
        self.by_slice.insert(Arc::clone(&slice.name), id.clone());
        let pool = self.all.entry(id.clone()).or_default();
        pool.slices.insert(Arc::clone(&slice.name), slice);
        pool.refresh(&id);
        true
    }

    /// Removes a slice; whether there was one.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(id) = self.by_slice.remove(name) else { return false };
        let Some(pool) = self.all.get_mut(&id) else { return false };
        let Some(slice) = pool.slices.remove(name) else { return false };
        if pool.slices.is_empty() {
            self.all.remove(&id);
        } else {
            pool.refresh(&id);
        }
        let index = self.index_of(&slice.reach);
        if let Some(count) = index.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                index.remove(&id);
            }
        }
        if let Reach::Node(node) = &slice.reach
            && self.by_node.get(node).is_some_and(BTreeMap::is_empty)
        {
            self.by_node.remove(node);
        }
        true
    }

    fn index_of(&mut self, reach: &Reach) -> &mut BTreeMap<PoolId, usize> {
        match reach {
            Reach::Node(node) => self.by_node.entry(Arc::clone(node)).or_default(),
            _ => &mut self.shared,
        }
    }

    /// The slices of the latest generations.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.all.values().flat_map(Pool::current)
    }

    /// The pools with devices for a node, in order.
    pub(super) fn for_node(&self, node: &Node) -> Vec<PoolView<'_>> {
        let own = self.by_node.get(&node.name).into_iter().flat_map(BTreeMap::keys);
        let ids: BTreeSet<&PoolId> = own.chain(self.shared.keys()).collect();
        let pools = ids.into_iter().filter_map(|id| self.all.get(id));
        let mut found = Vec::new();
        for pool in pools {
            let slices = pool
                .current()
                .filter(|it| it.reach.includes(node))
                .filter(|it| {
                    it.reach != Reach::PerDevice || it.devices.iter().any(|it| it.reaches(node))
                })
                .collect::<Vec<_>>();
            if !slices.is_empty() {
                found.push(PoolView { problem: pool.problem.as_deref(), slices });
            }
        }
        found
    }
}
