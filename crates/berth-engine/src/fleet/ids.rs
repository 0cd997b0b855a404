//! From an instance's id to its row.
//!
//! The row holds the id already, so the table holds row numbers alone: five bytes an instance
//! instead of twenty-one. It must be used with the rows it was filled from.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use super::InstanceRows;
use crate::model::InstanceId;

/// Row numbers by instance id.
#[derive(Clone, Debug, Default)]
pub(super) struct IdTable(HashTable<u32>);

fn hash(id: InstanceId) -> u64 {
    FxBuildHasher.hash_one(id)
}

fn id_at(rows: &InstanceRows, row: u32) -> Option<InstanceId> {
    rows.get(row as usize).map(|instance| instance.id)
}

impl IdTable {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn find(&self, id: InstanceId, rows: &InstanceRows) -> Option<u32> {
        self.0.find(hash(id), |&row| id_at(rows, row) == Some(id)).copied()
    }

    /// Adds an id whose row is in place already.
    pub(super) fn insert(&mut self, id: InstanceId, row: u32, rows: &InstanceRows) {
        let rehash = |&row: &u32| id_at(rows, row).map_or(0, hash);
        self.0.insert_unique(hash(id), row, rehash);
    }

    /// Takes an id out whose row is still in place.
    pub(super) fn remove(&mut self, id: InstanceId, rows: &InstanceRows) -> Option<u32> {
        let entry = self.0.find_entry(hash(id), |&row| id_at(rows, row) == Some(id)).ok()?;
        Some(entry.remove().0)
    }
}
