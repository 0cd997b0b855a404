//! Zones and racks as numbers, and which nodes are in each.

use std::collections::BTreeMap;

use super::columns::NodeIndex;

/// The number of "not known": such a node is in no rack, or in no zone.
pub(crate) const NO_DOMAIN: u32 = 0;

/// Some nodes of one block, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    pub(crate) block: u32,
    pub(crate) mask: u64,
}

impl Lanes {
    /// One node.
    pub(crate) fn one(index: NodeIndex) -> Self {
        Self { block: u32::try_from(index.block()).unwrap_or(u32::MAX), mask: 1 << index.lane() }
    }
}

/// One rack or zone, and its nodes block by block: what holds for a rack is applied to a whole
/// block's worth of its nodes at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Domain {
    name: String,
    lanes: Vec<Lanes>,
}

impl Domain {
    fn add(&mut self, index: NodeIndex) {
        let one = Lanes::one(index);
        match self.lanes.binary_search_by_key(&one.block, |lanes| lanes.block) {
            Ok(at) => self.lanes[at].mask |= one.mask,
            Err(at) => self.lanes.insert(at, one),
        }
    }

    fn remove(&mut self, index: NodeIndex) {
        let one = Lanes::one(index);
        if let Ok(at) = self.lanes.binary_search_by_key(&one.block, |lanes| lanes.block) {
            self.lanes[at].mask &= !one.mask;
            if self.lanes[at].mask == 0 {
                self.lanes.remove(at);
            }
        }
    }
}

/// The racks and zones of a fleet. A rack belongs to its zone: equal names in two zones differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domains {
    zones: Vec<Domain>,
    racks: Vec<Domain>,
    zone_numbers: BTreeMap<String, u32>,
    rack_numbers: BTreeMap<(u32, String), u32>,
    /// Zones that have a node now.
    populated_zones: usize,
}

impl Default for Domains {
    fn default() -> Self {
        let unknown = vec![Domain::default()];
        Self {
            zones: unknown.clone(),
            racks: unknown,
            zone_numbers: BTreeMap::new(),
            rack_numbers: BTreeMap::new(),
            populated_zones: 0,
        }
    }
}

impl Domains {
    /// The number of a zone, made on first mention.
    pub(crate) fn zone_number(&mut self, name: Option<&str>) -> u32 {
        let Some(name) = name else { return NO_DOMAIN };
        if let Some(&number) = self.zone_numbers.get(name) {
            return number;
        }
        let number = push(&mut self.zones, name);
        self.zone_numbers.insert(name.to_owned(), number);
        number
    }

    /// The number of a rack in a zone, made on first mention.
    pub(crate) fn rack_number(&mut self, zone: u32, name: Option<&str>) -> u32 {
        let Some(name) = name else { return NO_DOMAIN };
        let key = (zone, name.to_owned());
        if let Some(&number) = self.rack_numbers.get(&key) {
            return number;
        }
        let number = push(&mut self.racks, name);
        self.rack_numbers.insert(key, number);
        number
    }

    pub(crate) fn add(&mut self, index: NodeIndex, rack: u32, zone: u32) {
        if zone != NO_DOMAIN && self.zones[zone as usize].lanes.is_empty() {
            self.populated_zones += 1;
        }
        self.zones[zone as usize].add(index);
        self.racks[rack as usize].add(index);
    }

    pub(crate) fn remove(&mut self, index: NodeIndex, rack: u32, zone: u32) {
        self.zones[zone as usize].remove(index);
        self.racks[rack as usize].remove(index);
        if zone != NO_DOMAIN && self.zones[zone as usize].lanes.is_empty() {
            self.populated_zones -= 1;
        }
    }

    /// The nodes of a rack.
    pub(crate) fn rack(&self, rack: u32) -> &[Lanes] {
        self.racks.get(rack as usize).map_or(&[], |domain| &domain.lanes)
    }

    /// The nodes of a zone.
    pub(crate) fn zone(&self, zone: u32) -> &[Lanes] {
        self.zones.get(zone as usize).map_or(&[], |domain| &domain.lanes)
    }

    pub(crate) fn rack_name(&self, rack: u32) -> Option<&str> {
        (rack != NO_DOMAIN).then(|| self.racks[rack as usize].name.as_str())
    }

    pub(crate) fn zone_name(&self, zone: u32) -> Option<&str> {
        (zone != NO_DOMAIN).then(|| self.zones[zone as usize].name.as_str())
    }

    /// Zone numbers that were ever given, the unknown one included.
    pub(crate) fn zone_count(&self) -> usize {
        self.zones.len()
    }

    /// Zones that have a node now.
    pub(crate) const fn populated_zones(&self) -> usize {
        self.populated_zones
    }
}

fn push(domains: &mut Vec<Domain>, name: &str) -> u32 {
    domains.push(Domain { name: name.to_owned(), lanes: Vec::new() });
    u32::try_from(domains.len() - 1).unwrap_or(u32::MAX)
}
