//! Lets pods share what they have in common: the labels and the requirements of their template, the name of their
//! namespace, their node and their owner. Twenty thousand pods have a few hundred of each.
//!
//! What no pod has any more is dropped now and then. Changes no value.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::pod::{NodeRequirements, Owner, Pod};
use super::selector::Labels;

/// Values below this number are not looked through.
const LEAST: usize = 1_024;

/// Values of one type.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    values: FxHashSet<Arc<T>>,
    /// The number of values at which those without a user are dropped.
    limit: usize,
}

impl<T: ?Sized + Hash + Eq> Default for Pool<T> {
    fn default() -> Self {
        Self { values: FxHashSet::default(), limit: LEAST }
    }
}

impl<T: ?Sized + Hash + Eq> Pool<T> {
    /// Replaces a value by an equal one that others have.
    fn share(&mut self, value: &mut Arc<T>) {
        if let Some(known) = self.values.get(&**value) {
            value.clone_from(known);
            return;
        }
        if self.values.len() >= self.limit {
            self.values.retain(|it| Arc::strong_count(it) > 1);
            self.limit = LEAST.max(self.values.len() * 2);
        }
        self.values.insert(Arc::clone(value));
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Interner {
    texts: Pool<str>,
    labels: Pool<Labels>,
    requirements: Pool<NodeRequirements>,
    owners: Pool<Owner>,
}

impl Interner {
    /// Makes a pod share what other pods have, too.
    pub(super) fn share(&mut self, pod: &mut Pod) {
        self.texts.share(&mut pod.key.namespace);
        self.texts.share(&mut pod.scheduler);
        pod.node.iter_mut().for_each(|it| self.texts.share(it));
        pod.image.iter_mut().for_each(|it| self.texts.share(it));
        self.labels.share(&mut pod.labels);
        self.requirements.share(&mut pod.node_requirements);
        pod.owner.iter_mut().for_each(|it| self.owners.share(it));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_become_one_and_those_without_a_user_are_dropped() {
        let mut pool = Pool::<str>::default();
        let (mut first, mut second): (Arc<str>, Arc<str>) = ("shop".into(), "shop".into());
        pool.share(&mut first);
        pool.share(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
        for number in 0..10 * LEAST {
            pool.share(&mut Arc::from(number.to_string()));
        }
        assert!(pool.values.len() <= LEAST, "{} values", pool.values.len());
        assert!(pool.values.contains("shop"), "it has users");
    }
}
