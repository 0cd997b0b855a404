//! States of tables that paged lists continue with.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::object::Object;
use crate::store::TableId;

/// Paged lists that can be continued at the same time.
const SNAPSHOTS_MAX: usize = 64;

/// A table, or one namespace of it, at a version.
pub(crate) type Moment = (TableId, Option<String>, u64);

/// The states that paged lists continue with.
#[derive(Default)]
pub(crate) struct Snapshots {
    states: HashMap<Moment, Arc<Vec<Arc<Object>>>>,
    order: VecDeque<Moment>,
}

impl Snapshots {
    pub(crate) fn keep(&mut self, at: Moment, state: Arc<Vec<Arc<Object>>>) {
        if self.states.insert(at.clone(), state).is_none() {
            self.order.push_back(at);
        }
        while self.order.len() > SNAPSHOTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.states.remove(&oldest);
            }
        }
    }

    pub(crate) fn get(&self, at: &Moment) -> Option<&Arc<Vec<Arc<Object>>>> {
        self.states.get(at)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
