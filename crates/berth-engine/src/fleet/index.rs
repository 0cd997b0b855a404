//! Where instances are, by tenant, workload, tag, rule and cached image.
//!
//! Kept in step with the rows by `claims` and `nodes`; answers "on which nodes, and how many"
//! without reading instance rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::interner::{Interner, Symbol};
use super::posting::{Posting, Presence};
use super::resident_rules::ResidentRules;
use super::rows::InstanceRow;
use crate::affinity::{Rule, Subject};

/// Postings by attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    tenants: FxHashMap<Symbol, Posting>,
    workloads: FxHashMap<Symbol, FxHashMap<Symbol, Presence>>,
    tags: BTreeMap<(Symbol, Symbol, Symbol), Posting>,
    names: BTreeMap<(Symbol, Symbol), Posting>,
    apart_rules: FxHashMap<Symbol, ResidentRules>,
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
        let tenant = row.tenant;
        self.tenants.entry(tenant).or_default().add(place.index);
        if let Some(workload) = row.workload {
            let presence = self.workloads.entry(tenant).or_default().entry(workload).or_default();
            presence.add(place.index, place.rack, place.zone);
        }
        for &(key, value) in tags {
            self.tags.entry((tenant, key, value)).or_default().add(place.index);
        }
        if let Some(rare) = &row.rare {
            if let Some(name) = rare.name {
                self.names.entry((tenant, name)).or_default().add(place.index);
            }
            for rule in &rare.apart_rules {
                self.apart_rules.entry(tenant).or_default().add(rule, place.index);
            }
        }
    }

    pub(crate) fn remove(&mut self, row: &InstanceRow, tags: &[(Symbol, Symbol)], place: Location) {
        let tenant = row.tenant;
        remove_from_hash(&mut self.tenants, &tenant, place.index);
        if let Some(workload) = row.workload {
            let of_tenant = self.workloads.entry(tenant).or_default();
            if let Some(presence) = of_tenant.get_mut(&workload) {
                presence.remove(place.index, place.rack, place.zone);
                if presence.nodes.is_empty() {
                    of_tenant.remove(&workload);
                }
            }
            if of_tenant.is_empty() {
                self.workloads.remove(&tenant);
            }
        }
        for &(key, value) in tags {
            remove_from_tree(&mut self.tags, &(tenant, key, value), place.index);
        }
        if let Some(rare) = &row.rare {
            if let Some(name) = rare.name {
                remove_from_tree(&mut self.names, &(tenant, name), place.index);
            }
            if let Some(of_tenant) = self.apart_rules.get_mut(&tenant) {
                for rule in &rare.apart_rules {
                    of_tenant.remove(rule, place.index);
                }
                if of_tenant.is_empty() {
                    self.apart_rules.remove(&tenant);
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

    /// All tenants.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (Symbol, &Posting)> {
        self.tenants.iter().map(|(tenant, nodes)| (*tenant, nodes))
    }

    /// All workloads.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = ((Symbol, Symbol), &Presence)> {
        self.workloads.iter().flat_map(|(tenant, of_tenant)| {
            of_tenant.iter().map(|(workload, presence)| ((*tenant, *workload), presence))
        })
    }

    /// All tags.
    pub(crate) fn tags(&self) -> impl Iterator<Item = ((Symbol, Symbol, Symbol), &Posting)> {
        self.tags.iter().map(|(tag, nodes)| (*tag, nodes))
    }

    /// Nodes that hold any of this tenant's instances.
    pub(crate) fn tenant(&self, tenant: Symbol) -> Option<&Posting> {
        self.tenants.get(&tenant)
    }

    /// Where the replicas of one of this tenant's workloads are.
    pub(crate) fn workload(&self, tenant: Symbol, workload: Symbol) -> Option<&Presence> {
        self.workloads.get(&tenant)?.get(&workload)
    }

    /// Nodes that hold any of this tenant's instances with this tag and value.
    pub(crate) fn tag(&self, tenant: Symbol, key: Symbol, value: Symbol) -> Option<&Posting> {
        self.tags.get(&(tenant, key, value))
    }

    /// Nodes that hold any of this tenant's instances with this name.
    pub(crate) fn name(&self, tenant: Symbol, name: Symbol) -> Option<&Posting> {
        self.names.get(&(tenant, name))
    }

    /// Nodes that already have an image.
    pub(crate) fn cached_image(&self, image: Symbol) -> Option<&Posting> {
        self.cached_images.get(&image)
    }

    /// This tenant's values of a tag, with where they are.
    pub(crate) fn tag_values<'a>(
        &'a self,
        tenant: Symbol,
        key: Symbol,
        texts: &'a Interner,
    ) -> impl Iterator<Item = (&'a str, &'a Posting)> {
        let span = (tenant, key, Symbol::MIN)..=(tenant, key, Symbol::MAX);
        self.tags.range(span).map(|((_, _, value), posting)| (texts.text(*value), posting))
    }

    /// This tenant's workloads, with the nodes they are on. In no particular order.
    pub(crate) fn workloads_of<'a>(
        &'a self,
        tenant: Symbol,
        texts: &'a Interner,
    ) -> impl Iterator<Item = (&'a str, &'a Posting)> {
        let of_tenant = self.workloads.get(&tenant).into_iter().flatten();
        of_tenant.map(|(workload, presence)| (texts.text(*workload), &presence.nodes))
    }

    /// Hard "apart" rules that this tenant's instances carry, with where those instances are.
    pub(crate) fn apart_rules_of(
        &self,
        tenant: Symbol,
    ) -> impl Iterator<Item = (&Arc<Rule>, &Posting)> {
        self.apart_rules.get(&tenant).into_iter().flat_map(ResidentRules::iter)
    }

    /// The hard "apart" rules of this tenant's instances.
    pub(crate) fn resident_rules(&self, tenant: Symbol) -> Option<&ResidentRules> {
        self.apart_rules.get(&tenant)
    }

    /// Whether anyone carries a hard "apart" rule that names instances.
    pub(crate) fn has_rules_on_instances(&self) -> bool {
        let mut rules = self.apart_rules.values().flat_map(ResidentRules::iter);
        rules.any(|(rule, _)| *rule.subject() == Subject::Instance)
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
