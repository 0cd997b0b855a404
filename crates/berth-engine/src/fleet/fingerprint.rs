//! One hash of the fleet's state, for tests that undoing changes restores it exactly.
//!
//! Independent of indexes, symbols and the order in which things came, all of which may differ
//! between two fleets that are in the same state.

use super::columns::NodeIndex;
use super::posting::{Posting, Presence};
use super::{Fleet, Symbol};

impl Fleet {
    /// A hash of every node's columns, every instance's place and every count per place.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut parts: Vec<String> = Vec::new();
        for (id, index) in self.nodes_in_order() {
            parts.push(format!("node {id} {}", self.columns_of(index)));
        }
        let mut instances: Vec<String> = self
            .instances
            .iter()
            .map(|row| format!("instance {} on {}", row.id, self.name_of(row.host.index().0)))
            .collect();
        instances.sort_unstable();
        parts.extend(instances);
        for (id, row) in &self.groups {
            parts.push(format!("group {id} {}", self.presence(&row.presence)));
        }
        parts.push(format!("load {} shapes {:?}", self.load_permille(), self.usual_shapes()));
        parts.push(format!("addresses {:?}", self.free_addresses));
        for (id, volume) in &self.volumes {
            parts.push(format!("volume {id} {:?} {:?}", volume.tenant, volume.attached_to));
        }
        parts.extend(self.index_parts());
        *blake3::hash(parts.join("\n").as_bytes()).as_bytes()
    }

    fn columns_of(&self, index: NodeIndex) -> String {
        let columns = &self.columns;
        let room = [&columns.cpu, &columns.memory, &columns.disk, &columns.bandwidth];
        let room = room.map(|column| column.get(index));
        let bits =
            [&columns.present, &columns.open, &columns.takes_capped, &columns.takes_uncapped];
        let bits = bits.map(|bits| bits.get(index));
        let extra: Vec<_> = self.extra.iter().map(|(name, c)| (name, c.get(index))).collect();
        let extra: Vec<_> = extra.into_iter().filter(|(_, room)| *room != 0).collect();
        let used = self.row(index).map(|row| row.used);
        format!("{room:?} {bits:?} {extra:?} {used:?}")
    }

    fn name_of(&self, index: u32) -> &str {
        self.row(NodeIndex(index)).map_or("", |row| row.id.as_str())
    }

    fn places(&self, nodes: &Posting) -> String {
        let mut places = Vec::new();
        nodes.for_each(|index, count| places.push(format!("{}:{count}", self.name_of(index))));
        places.sort_unstable();
        places.join(" ")
    }

    fn presence(&self, presence: &Presence) -> String {
        let named = |counts: &Posting, name: &dyn Fn(u32) -> Option<String>| {
            let mut places = Vec::new();
            counts.for_each(|domain, count| places.push((name(domain), count)));
            places.sort_unstable();
            places
        };
        let rack = |rack| self.domains.rack_name(rack).map(str::to_owned);
        let zone = |zone| self.domains.zone_name(zone).map(str::to_owned);
        let (racks, zones) = (named(&presence.racks, &rack), named(&presence.zones, &zone));
        format!("{} {racks:?} {zones:?}", self.places(&presence.nodes))
    }

    fn index_parts(&self) -> Vec<String> {
        let text = |symbol: Symbol| self.texts.text(symbol).to_owned();
        let mut parts: Vec<String> = Vec::new();
        for (tenant, nodes) in self.index.tenants() {
            parts.push(format!("tenant {} {}", text(tenant), self.places(nodes)));
        }
        for ((tenant, workload), presence) in self.index.workloads() {
            let places = self.presence(presence);
            parts.push(format!("workload {} {} {places}", text(tenant), text(workload)));
        }
        for ((tenant, key, value), nodes) in self.index.tags() {
            let tag = format!("{} {}={}", text(tenant), text(key), text(value));
            parts.push(format!("tag {tag} {}", self.places(nodes)));
        }
        parts.sort_unstable();
        parts
    }
}
