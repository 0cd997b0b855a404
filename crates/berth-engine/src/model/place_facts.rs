//! What a node selector sees of a node's facts.

use super::node::{NodeFacts, TraitValue};
use crate::node_selector::PlaceFacts;

impl PlaceFacts for NodeFacts {
    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    fn rack(&self) -> Option<&str> {
        self.rack.as_deref()
    }

    fn capacity_type(&self) -> &str {
        self.capacity_type.name()
    }

    fn platform_version(&self) -> Option<(u16, u16)> {
        self.platform.map(|platform| (platform.version.major, platform.version.minor))
    }

    fn hardware_class(&self) -> i32 {
        self.hardware_class
    }

    fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    fn trait_words(&self, key: &str) -> Vec<&str> {
        self.traits.get(key).map(TraitValue::words).unwrap_or_default()
    }
}
