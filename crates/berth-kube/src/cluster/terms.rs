//! Where pods are that others want to be beside or away from: a count per rule and domain.
//!
//! Rules are selectors, and a selector has no place of its own; so every distinct rule that any pod
//! carries is kept once, with how many pods match it in each domain, and how many carry it there.
//! Pods with the same labels share a set, which knows the rules that it matches: a pod that comes or
//! goes costs one step per rule that concerns it, and a question about a node one look per rule.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::pod::{Namespaces, Pod, PodTerm};
use super::selector::{Labels, Selector};
use super::topology::{NOWHERE, Topologies, TopologyId, at, at_mut};

/// A rule by its number.
pub(super) type TermId = usize;
/// A set of labels by its number.
pub(super) type SetId = usize;

/// Namespaces, and pods in them; absent: none.
type Part = (Namespaces, Option<Selector>);

/// A rule about other pods: all parts must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TermKey {
    parts: Vec<Part>,
    topology: TopologyId,
}

/// A rule with its counts by domain.
#[derive(Clone, Debug)]
pub(super) struct TermCounts {
    key: Arc<TermKey>,
    /// Its label of nodes.
    pub(super) topology: TopologyId,
    /// Pods that match.
    pub(super) matching: Vec<u32>,
    /// Pods that match, anywhere.
    pub(super) total: u32,
    /// Pods that carry it as something they must be away from.
    pub(super) away: Vec<u32>,
    /// The same, anywhere.
    pub(super) away_total: u32,
    /// Weights of pods that carry it as a wish.
    pub(super) wish: Vec<i64>,
    /// How many carry it as a wish.
    pub(super) wishing: u32,
    users: u32,
}

/// Pods of one namespace with the same labels.
#[derive(Clone, Debug)]
pub(super) struct LabelSet {
    /// The namespace.
    pub(super) namespace: Arc<str>,
    /// The labels.
    pub(super) labels: Arc<Labels>,
    /// Rules that it matches.
    pub(super) terms: Vec<TermId>,
    /// How many are on each node: all, and those that are not about to go.
    pub(super) at: FxHashMap<usize, (u32, u32)>,
    users: u32,
}

/// What a pod carries, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Its labels.
    pub(super) set: SetId,
    /// Must be beside: one rule for each label of nodes, each with all parts.
    pub(super) beside: Vec<TermId>,
    /// Must be away from.
    pub(super) away: Vec<TermId>,
    /// Wishes, by weight.
    pub(super) wishes: Vec<(i64, TermId)>,
}

/// Which way a pod is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It comes.
    Come,
    /// It goes.
    Go,
}

impl Step {
    fn of(self, count: &mut u32) {
        *count = match self {
            Self::Come => count.saturating_add(1),
            Self::Go => count.saturating_sub(1),
        };
    }
}

/// All rules and sets.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    terms: Vec<Option<TermCounts>>,
    free_terms: Vec<TermId>,
    by_key: FxHashMap<Arc<TermKey>, TermId>,
    sets: Vec<Option<LabelSet>>,
    free_sets: Vec<SetId>,
    by_labels: FxHashMap<(Arc<str>, Arc<Labels>), SetId>,
    namespaces: FxHashMap<Arc<str>, Labels>,
}

impl Terms {
    /// A rule.
    pub(super) fn term(&self, id: TermId) -> Option<&TermCounts> {
        self.terms.get(id)?.as_ref()
    }

    /// A set.
    pub(super) fn set(&self, id: SetId) -> Option<&LabelSet> {
        self.sets.get(id)?.as_ref()
    }

    /// Every set.
    pub(super) fn sets(&self) -> impl Iterator<Item = (SetId, &LabelSet)> {
        self.sets.iter().enumerate().filter_map(|(id, set)| Some((id, set.as_ref()?)))
    }

    /// Keeps what a pod carries, and its labels.
    pub(super) fn carry(&mut self, pod: &Pod, topologies: &mut Topologies) -> Carried {
        let set = self.use_set(&pod.key.namespace, &pod.labels);
        let part = |term: &PodTerm| (term.namespaces.clone(), term.selector.clone());
        let all: Vec<_> = pod.beside.iter().map(part).collect();
        let mut seen = FxHashSet::default();
        let beside = pod.beside.iter().filter(|term| seen.insert(term.topology.as_str()));
        let beside = beside.map(|term| (all.clone(), &term.topology)).collect::<Vec<_>>();
        let mut keep = |parts: Vec<Part>, topology: &str| {
            let key = TermKey { parts, topology: topologies.of(topology) };
            self.use_term(key, topologies)
        };
        Carried {
            set,
            beside: beside.into_iter().map(|(parts, key)| keep(parts, key)).collect(),
            away: pod.away.iter().map(|term| keep(vec![part(term)], &term.topology)).collect(),
            wishes: (pod.wishes.iter())
                .map(|(weight, term)| (*weight, keep(vec![part(term)], &term.topology)))
                .collect(),
        }
    }

    /// Lets go of what a pod carried. It must have gone from its node.
    pub(super) fn drop_carried(&mut self, carried: &Carried) {
        let wishes = carried.wishes.iter().map(|(_, id)| id);
        let ids: Vec<TermId> =
            carried.beside.iter().chain(&carried.away).chain(wishes).copied().collect();
        for id in ids {
            self.drop_term(id);
        }
        let Some(set) = self.sets.get_mut(carried.set).and_then(Option::as_mut) else { return };
        set.users = set.users.saturating_sub(1);
        if set.users == 0 {
            let key = (Arc::clone(&set.namespace), Arc::clone(&set.labels));
            self.by_labels.remove(&key);
            self.sets[carried.set] = None;
            self.free_sets.push(carried.set);
        }
    }

    /// Counts a pod on a node, or no longer.
    pub(super) fn count(
        &mut self,
        carried: &Carried,
        place: usize,
        stays: bool,
        step: Step,
        topologies: &Topologies,
    ) {
        let Some(set) = self.sets.get_mut(carried.set).and_then(Option::as_mut) else { return };
        let entry = set.at.entry(place).or_default();
        step.of(&mut entry.0);
        if stays {
            step.of(&mut entry.1);
        }
        if *entry == (0, 0) {
            set.at.remove(&place);
        }
        for id in &set.terms {
            if let Some(term) = self.terms[*id].as_mut() {
                term.count_match(topologies.domain(term.topology, place), step);
            }
        }
        for id in &carried.away {
            if let Some(term) = self.terms[*id].as_mut() {
                let domain = topologies.domain(term.topology, place);
                if domain != NOWHERE {
                    step.of(at_mut(&mut term.away, domain));
                    step.of(&mut term.away_total);
                }
            }
        }
        // Whoever must be beside others wishes, a little, that they come to it too.
        let beside = carried.beside.iter().map(|id| (1, *id));
        for (weight, id) in carried.wishes.iter().copied().chain(beside) {
            if let Some(term) = self.terms[id].as_mut() {
                let domain = topologies.domain(term.topology, place);
                if domain != NOWHERE {
                    let signed = if step == Step::Come { weight } else { -weight };
                    *at_mut(&mut term.wish, domain) += signed;
                    step.of(&mut term.wishing);
                }
            }
        }
    }

    /// Whether any rule speaks of pods with these labels.
    pub(super) fn concerns(&self, set: SetId) -> bool {
        self.set(set).is_some_and(|set| !set.terms.is_empty())
    }

    /// Tells a namespace's labels, or that it is gone. Returns whether that is new.
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
            self.match_again(id, topologies);
        }
        true
    }

    /// Counts anew who matches a rule.
    fn match_again(&mut self, id: TermId, topologies: &Topologies) {
        let Some(mut term) = self.terms[id].take() else { return };
        (term.matching, term.total) = (Vec::new(), 0);
        for set in self.sets.iter_mut().flatten() {
            set.terms.retain(|it| *it != id);
            if matches(&term.key, set, &self.namespaces) {
                set.terms.push(id);
                for (place, (all, _)) in &set.at {
                    term.add_matches(topologies.domain(term.topology, *place), *all);
                }
            }
        }
        self.terms[id] = Some(term);
    }

    fn use_set(&mut self, namespace: &Arc<str>, labels: &Arc<Labels>) -> SetId {
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

    fn use_term(&mut self, key: TermKey, topologies: &Topologies) -> TermId {
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
            away: Vec::new(),
            away_total: 0,
            wish: Vec::new(),
            wishing: 0,
            users: 1,
        };
        let id = store(&mut self.terms, &mut self.free_terms, term);
        self.by_key.insert(key, id);
        self.match_again(id, topologies);
        id
    }

    fn drop_term(&mut self, id: TermId) {
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

    /// Whether a pod with these labels matches a rule.
    pub(super) fn is_match(&self, set: SetId, term: TermId) -> bool {
        self.set(set).is_some_and(|set| set.terms.contains(&term))
    }
}

impl TermCounts {
    fn count_match(&mut self, domain: u32, step: Step) {
        if domain != NOWHERE {
            step.of(at_mut(&mut self.matching, domain));
            step.of(&mut self.total);
        }
    }

    fn add_matches(&mut self, domain: u32, count: u32) {
        if domain != NOWHERE {
            *at_mut(&mut self.matching, domain) += count;
            self.total += count;
        }
    }

    /// How many match in a domain.
    pub(super) fn matching_in(&self, domain: u32) -> u32 {
        if domain == NOWHERE { 0 } else { at(&self.matching, domain) }
    }

    /// How many in a domain must be away from whoever matches.
    pub(super) fn away_in(&self, domain: u32) -> u32 {
        if domain == NOWHERE { 0 } else { at(&self.away, domain) }
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
