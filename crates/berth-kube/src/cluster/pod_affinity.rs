//! Pod affinity: for every distinct term, how many pods match it in each domain.
//!
//! Every distinct term that any pod has is kept once, with the number of pods per domain that match it
//! and that have it. Pods with the same labels share a set, which lists the terms that it matches: adding
//! or removing a pod costs one step per term that concerns it, and checking a node one lookup per term.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::pod::{Namespaces, Pod, PodTerm};
use super::selector::{Labels, Selector};
use super::topology::{NO_DOMAIN, Topologies, TopologyId, count_in, count_mut};

/// The number of a term.
pub(super) type TermId = usize;
/// The number of a label set.
pub(super) type SetId = usize;

/// Namespaces, and pods in them; an absent selector matches none.
type PodScope = (Namespaces, Option<Selector>);

/// What makes a term distinct: all parts must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TermKey {
    parts: Vec<PodScope>,
    topology: TopologyId,
}

/// A term with its counts per domain.
#[derive(Clone, Debug)]
pub(super) struct TermCounts {
    key: Arc<TermKey>,
    /// Its topology key.
    pub(super) topology: TopologyId,
    /// Pods that match.
    pub(super) matching: Vec<u32>,
    /// Pods that match, in all domains.
    pub(super) total: u32,
    /// Pods that have it as required anti-affinity.
    pub(super) anti_affinity: Vec<u32>,
    /// The same, in all domains.
    pub(super) anti_affinity_total: u32,
    /// Sum of the weights of pods that have it as a preference.
    pub(super) preference: Vec<i64>,
    /// The number of pods that have it as a preference.
    pub(super) preferring: u32,
    users: u32,
}

/// Pods of one namespace with the same labels.
#[derive(Clone, Debug)]
pub(super) struct LabelSet {
    /// The namespace.
    pub(super) namespace: Arc<str>,
    /// The labels.
    pub(super) labels: Arc<Labels>,
    /// Terms that it matches.
    pub(super) terms: Vec<TermId>,
    /// The number of its pods by node index: all, and those that are not terminating.
    pub(super) at: FxHashMap<usize, (u32, u32)>,
    users: u32,
}

/// The terms of a pod, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodTerms {
    /// Its label set.
    pub(super) set: SetId,
    /// Required affinity: one term for each topology key, each with all parts.
    pub(super) required_affinity: Vec<TermId>,
    /// Required anti-affinity.
    pub(super) anti_affinity: Vec<TermId>,
    /// Preferences, by weight.
    pub(super) preferred_affinity: Vec<(i64, TermId)>,
}

/// Whether a pod is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountChange {
    /// Add it.
    Add,
    /// Remove it.
    Remove,
}

impl CountChange {
    fn apply(self, count: &mut u32) {
        *count = match self {
            Self::Add => count.saturating_add(1),
            Self::Remove => count.saturating_sub(1),
        };
    }
}

/// All terms and label sets.
#[derive(Clone, Debug, Default)]
pub(super) struct AffinityIndex {
    terms: Vec<Option<TermCounts>>,
    free_terms: Vec<TermId>,
    by_key: FxHashMap<Arc<TermKey>, TermId>,
    sets: Vec<Option<LabelSet>>,
    free_sets: Vec<SetId>,
    by_labels: FxHashMap<(Arc<str>, Arc<Labels>), SetId>,
    namespaces: FxHashMap<Arc<str>, Labels>,
}

impl AffinityIndex {
    /// A term.
    pub(super) fn term(&self, id: TermId) -> Option<&TermCounts> {
        self.terms.get(id)?.as_ref()
    }

    /// A label set.
    pub(super) fn set(&self, id: SetId) -> Option<&LabelSet> {
        self.sets.get(id)?.as_ref()
    }

    /// All label sets.
    pub(super) fn sets(&self) -> impl Iterator<Item = (SetId, &LabelSet)> {
        self.sets.iter().enumerate().filter_map(|(id, set)| Some((id, set.as_ref()?)))
    }

    /// Registers the terms and labels of a pod.
    pub(super) fn add_pod(&mut self, pod: &Pod, topologies: &mut Topologies) -> PodTerms {
        let set = self.acquire_set(&pod.key.namespace, &pod.labels);
        let part = |term: &PodTerm| (term.namespaces.clone(), term.selector.clone());
        let all: Vec<_> = pod.required_affinity.iter().map(part).collect();
        let mut seen = FxHashSet::default();
        let required_affinity =
            pod.required_affinity.iter().filter(|term| seen.insert(term.topology.as_str()));
        let required_affinity =
            required_affinity.map(|term| (all.clone(), &term.topology)).collect::<Vec<_>>();
        let mut keep = |parts: Vec<PodScope>, topology: &str| {
            let key = TermKey { parts, topology: topologies.id_of(topology) };
            self.acquire_term(key, topologies)
        };
        PodTerms {
            set,
            required_affinity: required_affinity
                .into_iter()
                .map(|(parts, key)| keep(parts, key))
                .collect(),
            anti_affinity: pod
                .anti_affinity
                .iter()
                .map(|term| keep(vec![part(term)], &term.topology))
                .collect(),
            preferred_affinity: (pod.preferred_affinity.iter())
                .map(|(weight, term)| (*weight, keep(vec![part(term)], &term.topology)))
                .collect(),
        }
    }

    /// Releases the terms of a pod, which must not be accounted any more.
    pub(super) fn remove_pod(&mut self, pod_terms: &PodTerms) {
        let preferred_affinity = pod_terms.preferred_affinity.iter().map(|(_, id)| id);
        let ids: Vec<TermId> = pod_terms
            .required_affinity
            .iter()
            .chain(&pod_terms.anti_affinity)
            .chain(preferred_affinity)
            .copied()
            .collect();
        for id in ids {
            self.release_term(id);
        }
        let Some(set) = self.sets.get_mut(pod_terms.set).and_then(Option::as_mut) else { return };
        set.users = set.users.saturating_sub(1);
        if set.users == 0 {
            let key = (Arc::clone(&set.namespace), Arc::clone(&set.labels));
            self.by_labels.remove(&key);
            self.sets[pod_terms.set] = None;
            self.free_sets.push(pod_terms.set);
        }
    }

    /// Adds a pod on a node to the counts, or removes it.
    pub(super) fn count_pod(
        &mut self,
        pod_terms: &PodTerms,
        index: usize,
        stays: bool,
        step: CountChange,
        topologies: &Topologies,
    ) {
        let Some(set) = self.sets.get_mut(pod_terms.set).and_then(Option::as_mut) else { return };
        let entry = set.at.entry(index).or_default();
        step.apply(&mut entry.0);
        if stays {
            step.apply(&mut entry.1);
        }
        if *entry == (0, 0) {
            set.at.remove(&index);
        }
        for id in &set.terms {
            if let Some(term) = self.terms[*id].as_mut() {
                term.count_match(topologies.domain(term.topology, index), step);
            }
        }
        for id in &pod_terms.anti_affinity {
            if let Some(term) = self.terms[*id].as_mut() {
                let domain = topologies.domain(term.topology, index);
                if domain != NO_DOMAIN {
                    step.apply(count_mut(&mut term.anti_affinity, domain));
                    step.apply(&mut term.anti_affinity_total);
                }
            }
        }
        // Required affinity also attracts matching pods a little, in the other direction.
        let required_affinity = pod_terms.required_affinity.iter().map(|id| (1, *id));
        for (weight, id) in pod_terms.preferred_affinity.iter().copied().chain(required_affinity) {
            if let Some(term) = self.terms[id].as_mut() {
                let domain = topologies.domain(term.topology, index);
                if domain != NO_DOMAIN {
                    let signed = if step == CountChange::Add { weight } else { -weight };
                    *count_mut(&mut term.preference, domain) += signed;
                    step.apply(&mut term.preferring);
                }
            }
        }
    }

    /// Whether any term matches pods with these labels.
    pub(super) fn is_relevant(&self, set: SetId) -> bool {
        self.set(set).is_some_and(|set| !set.terms.is_empty())
    }

    /// Sets or removes a namespace's labels. Returns whether that is a change.
    pub(super) fn put_namespace(
        &mut self,
        name: &str,
        labels: Option<&Labels>,
        topologies: &Topologies,
    ) -> bool {
        let known = self.namespaces.get(name);
        if known == labels {
            return false;
        }
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.into(), labels.clone())),
            None => drop(self.namespaces.remove(name)),
        }
        let by_labels = |term: &TermCounts| term.key.parts.iter().any(|it| it.0.selected.is_some());
        let ids: Vec<TermId> = (0..self.terms.len())
            .filter(|id| self.terms[*id].as_ref().is_some_and(by_labels))
            .collect();
        for id in ids {
            self.rematch_term(id, topologies);
        }
        true
    }

    /// Counts again which pods match a term.
    fn rematch_term(&mut self, id: TermId, topologies: &Topologies) {
        let Some(mut term) = self.terms[id].take() else { return };
        (term.matching, term.total) = (Vec::new(), 0);
        for set in self.sets.iter_mut().flatten() {
            set.terms.retain(|it| *it != id);
            if matches(&term.key, set, &self.namespaces) {
                set.terms.push(id);
                for (index, (all, _)) in &set.at {
                    term.add_matches(topologies.domain(term.topology, *index), *all);
                }
            }
        }
        self.terms[id] = Some(term);
    }

    fn acquire_set(&mut self, namespace: &Arc<str>, labels: &Arc<Labels>) -> SetId {
        let key = (Arc::clone(namespace), Arc::clone(labels));
        if let Some(id) = self.by_labels.get(&key).copied() {
            if let Some(set) = self.sets[id].as_mut() {
                set.users += 1;
            }
            return id;
        }
        let mut set = LabelSet {
            namespace: Arc::clone(namespace),
            labels: Arc::clone(labels),
            terms: Vec::new(),
            at: FxHashMap::default(),
            users: 1,
        };
        let all = self.terms.iter().enumerate().filter_map(|(id, it)| Some((id, it.as_ref()?)));
        let matching = all.filter(|(_, term)| matches(&term.key, &set, &self.namespaces));
        set.terms = matching.map(|(id, _)| id).collect();
        let id = store(&mut self.sets, &mut self.free_sets, set);
        self.by_labels.insert(key, id);
        id
    }

    fn acquire_term(&mut self, key: TermKey, topologies: &Topologies) -> TermId {
        if let Some(id) = self.by_key.get(&key).copied() {
            if let Some(term) = self.terms[id].as_mut() {
                term.users += 1;
            }
            return id;
        }
        let (topology, key) = (key.topology, Arc::new(key));
        let term = TermCounts {
            key: Arc::clone(&key),
            topology,
            matching: Vec::new(),
            total: 0,
            anti_affinity: Vec::new(),
            anti_affinity_total: 0,
            preference: Vec::new(),
            preferring: 0,
            users: 1,
        };
        let id = store(&mut self.terms, &mut self.free_terms, term);
        self.by_key.insert(key, id);
        self.rematch_term(id, topologies);
        id
    }

    fn release_term(&mut self, id: TermId) {
        let Some(term) = self.terms.get_mut(id).and_then(Option::as_mut) else { return };
        term.users = term.users.saturating_sub(1);
        if term.users > 0 {
            return;
        }
        self.by_key.remove(&term.key);
        self.terms[id] = None;
        self.free_terms.push(id);
        for set in self.sets.iter_mut().flatten() {
            set.terms.retain(|it| *it != id);
        }
    }

    /// Whether a label set matches a term.
    pub(super) fn is_match(&self, set: SetId, term: TermId) -> bool {
        self.set(set).is_some_and(|set| set.terms.contains(&term))
    }
}

impl TermCounts {
    fn count_match(&mut self, domain: u32, step: CountChange) {
        if domain != NO_DOMAIN {
            step.apply(count_mut(&mut self.matching, domain));
            step.apply(&mut self.total);
        }
    }

    fn add_matches(&mut self, domain: u32, count: u32) {
        if domain != NO_DOMAIN {
            *count_mut(&mut self.matching, domain) += count;
            self.total += count;
        }
    }

    /// The number of matching pods in a domain.
    pub(super) fn matching_in(&self, domain: u32) -> u32 {
        if domain == NO_DOMAIN { 0 } else { count_in(&self.matching, domain) }
    }

    /// The number of pods in a domain whose anti-affinity is this term.
    pub(super) fn anti_affinity_in(&self, domain: u32) -> u32 {
        if domain == NO_DOMAIN { 0 } else { count_in(&self.anti_affinity, domain) }
    }
}

fn store<T>(all: &mut Vec<Option<T>>, free: &mut Vec<usize>, new: T) -> usize {
    if let Some(id) = free.pop() {
        all[id] = Some(new);
        return id;
    }
    all.push(Some(new));
    all.len() - 1
}

fn matches(key: &TermKey, set: &LabelSet, known: &FxHashMap<Arc<str>, Labels>) -> bool {
    key.parts.iter().all(|(namespaces, selector)| {
        let named = namespaces.named.iter().any(|it| **it == *set.namespace);
        let selected = || {
            let Some(selector) = &namespaces.selected else { return false };
            let empty = Labels::new();
            selector.matches(known.get(&*set.namespace).unwrap_or(&empty))
        };
        selector.as_ref().is_some_and(|it| it.matches(&set.labels)) && (named || selected())
    })
}
