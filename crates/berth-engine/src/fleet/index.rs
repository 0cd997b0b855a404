//! Where instances are, by owner, workload, tag, rule and cached image.
//!
//! Kept in step with the rows by `claims` and `nodes`; answers "on which nodes, and how many"
//! without reading instance rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::interner::{Interner, Symbol};
use super::posting::{Posting, Presence};
use super::rows::InstanceRow;
use crate::affinity::{Rule, Subject};

/// Postings by attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    owners: FxHashMap<Symbol, Posting>,
    workloads: FxHashMap<Symbol, FxHashMap<Symbol, Presence>>,
    tags: BTreeMap<(Symbol, Symbol, Symbol), Posting>,
    names: BTreeMap<(Symbol, Symbol), Posting>,
    apart_rules: FxHashMap<Symbol, BTreeMap<Arc<Rule>, Posting>>,
    cached_images: FxHashMap<Symbol, Posting>,
}

/// A location: node index, rack, zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) index: u32,
    pub(crate) rack: u32,
    pub(crate) zone: u32,
}

impl Index {
    pub(crate) fn add(&mut self, row: &InstanceRow, tags: &[(Symbol, Symbol)], place: Location) {
        let owner = row.owner;
        self.owners.entry(owner).or_default().add(place.index);
        if let Some(workload) = row.workload {
            let presence = self.workloads.entry(owner).or_default().entry(workload).or_default();
            presence.add(place.index, place.rack, place.zone);
        }
        for &(key, value) in tags {
            self.tags.entry((owner, key, value)).or_default().add(place.index);
        }
        if let Some(rare) = &row.rare {
            if let Some(name) = rare.name {
                self.names.entry((owner, name)).or_default().add(place.index);
            }
            for rule in &rare.apart_rules {
                let of_owner = self.apart_rules.entry(owner).or_default();
                of_owner.entry(Arc::clone(rule)).or_default().add(place.index);
            }
        }
    }

    pub(crate) fn remove(&mut self, row: &InstanceRow, tags: &[(Symbol, Symbol)], place: Location) {
        let owner = row.owner;
        remove_from_hash(&mut self.owners, &owner, place.index);
        if let Some(workload) = row.workload {
            let of_owner = self.workloads.entry(owner).or_default();
            if let Some(presence) = of_owner.get_mut(&workload) {
                presence.remove(place.index, place.rack, place.zone);
                if presence.nodes.is_empty() {
                    of_owner.remove(&workload);
                }
            }
            if of_owner.is_empty() {
                self.workloads.remove(&owner);
            }
        }
        for &(key, value) in tags {
            remove_from_tree(&mut self.tags, &(owner, key, value), place.index);
        }
        if let Some(rare) = &row.rare {
            if let Some(name) = rare.name {
                remove_from_tree(&mut self.names, &(owner, name), place.index);
            }
            if let Some(of_owner) = self.apart_rules.get_mut(&owner) {
                for rule in &rare.apart_rules {
                    remove_from_tree(of_owner, rule, place.index);
                }
                if of_owner.is_empty() {
                    self.apart_rules.remove(&owner);
                }
            }
        }
    }

    pub(crate) fn add_cached_image(&mut self, image: Symbol, index: u32) {
        self.cached_images.entry(image).or_default().add(index);
    }

    pub(crate) fn remove_cached_image(&mut self, image: Symbol, index: u32) {
        remove_from_hash(&mut self.cached_images, &image, index);
    }

    /// All owners.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (Symbol, &Posting)> {
        self.owners.iter().map(|(owner, nodes)| (*owner, nodes))
    }

    /// All workloads.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = ((Symbol, Symbol), &Presence)> {
        self.workloads.iter().flat_map(|(owner, of_owner)| {
            of_owner.iter().map(|(workload, presence)| ((*owner, *workload), presence))
        })
    }

    /// All tags.
    pub(crate) fn tags(&self) -> impl Iterator<Item = ((Symbol, Symbol, Symbol), &Posting)> {
        self.tags.iter().map(|(tag, nodes)| (*tag, nodes))
    }

    /// Nodes that hold any of this owner's instances.
    pub(crate) fn owner(&self, owner: Symbol) -> Option<&Posting> {
        self.owners.get(&owner)
    }

    /// Where the replicas of one of this owner's workloads are.
    pub(crate) fn workload(&self, owner: Symbol, workload: Symbol) -> Option<&Presence> {
        self.workloads.get(&owner)?.get(&workload)
    }

    /// Nodes that hold any of this owner's instances with this tag and value.
    pub(crate) fn tag(&self, owner: Symbol, key: Symbol, value: Symbol) -> Option<&Posting> {
        self.tags.get(&(owner, key, value))
    }

    /// Nodes that hold any of this owner's instances with this name.
    pub(crate) fn name(&self, owner: Symbol, name: Symbol) -> Option<&Posting> {
        self.names.get(&(owner, name))
    }

    /// Nodes that already have an image.
    pub(crate) fn cached_image(&self, image: Symbol) -> Option<&Posting> {
        self.cached_images.get(&image)
    }

    /// This owner's values of a tag, with where they are.
    pub(crate) fn tag_values<'a>(
        &'a self,
        owner: Symbol,
        key: Symbol,
        texts: &'a Interner,
    ) -> impl Iterator<Item = (&'a str, &'a Posting)> {
        let span = (owner, key, Symbol::MIN)..=(owner, key, Symbol::MAX);
        self.tags.range(span).map(|((_, _, value), posting)| (texts.text(*value), posting))
    }

    /// This owner's workloads, with the nodes they are on. In no particular order.
    pub(crate) fn workloads_of<'a>(
        &'a self,
        owner: Symbol,
        texts: &'a Interner,
    ) -> impl Iterator<Item = (&'a str, &'a Posting)> {
        let of_owner = self.workloads.get(&owner).into_iter().flatten();
        of_owner.map(|(workload, presence)| (texts.text(*workload), &presence.nodes))
    }

    /// Hard "apart" rules that this owner's instances carry, with where those instances are.
    pub(crate) fn apart_rules_of(
        &self,
        owner: Symbol,
    ) -> impl Iterator<Item = (&Arc<Rule>, &Posting)> {
        self.apart_rules.get(&owner).into_iter().flatten()
    }

    /// Whether anyone carries a hard "apart" rule that names instances.
    pub(crate) fn has_rules_on_instances(&self) -> bool {
        let mut rules = self.apart_rules.values().flat_map(BTreeMap::keys);
        rules.any(|rule| *rule.subject() == Subject::Instance)
    }

    /// Whether anyone carries a hard "apart" rule.
    pub(crate) fn has_apart_rules(&self) -> bool {
        !self.apart_rules.is_empty()
    }
}

fn remove_from_hash<K: std::hash::Hash + Eq>(
    postings: &mut FxHashMap<K, Posting>,
    key: &K,
    index: u32,
) {
    if let Some(posting) = postings.get_mut(key) {
        posting.remove(index);
        if posting.is_empty() {
            postings.remove(key);
        }
    }
}

fn remove_from_tree<K: Ord>(postings: &mut BTreeMap<K, Posting>, key: &K, index: u32) {
    if let Some(posting) = postings.get_mut(key) {
        posting.remove(index);
        if posting.is_empty() {
            postings.remove(key);
        }
    }
}
