//! Numbers for places that a tenant may see: the same place always has the same one, and nobody can
//! tell which place it is, nor compare notes with another tenant.

use std::fmt::Write as _;

use berth_api::LocalityIndex;
use berth_engine::NodeFacts;

/// The secret that the numbers are made with; all servers of a ledger share it.
#[derive(Clone)]
pub struct LocalityKey([u8; 32]);

impl LocalityKey {
    /// A key from its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// What an instance on this node shares with others of the same tenant.
    #[must_use]
    pub fn index(&self, tenant: &str, facts: &NodeFacts) -> LocalityIndex {
        let zone = facts.zone.as_deref();
        // Racks of two zones may have the same name.
        let rack = facts.rack.as_deref().map(|rack| format!("{}\0{rack}", zone.unwrap_or("")));
        LocalityIndex {
            host: self.number(tenant, "host", facts.id.as_str()),
            rack: rack.map(|rack| self.number(tenant, "rack", &rack)),
            zone: zone.map(|zone| self.number(tenant, "zone", zone)),
        }
    }

    fn number(&self, tenant: &str, scope: &str, place: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [tenant, scope, place] {
            hasher.update(&u64::try_from(part.len()).unwrap_or(0).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        // Fifty bits: with a million hosts, two share a number with a chance of one in two thousand.
        let mut text = String::with_capacity(13);
        for byte in &hasher.finalize().as_bytes()[..6] {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::{Amounts, NodeFacts};

    fn node(id: &str, zone: &str, rack: &str) -> NodeFacts {
        let mut facts = NodeFacts::new(id, Amounts::new(1000, 1024));
        (facts.zone, facts.rack) = (Some(zone.to_owned()), Some(rack.to_owned()));
        facts
    }

    #[test]
    fn a_place_has_one_number_for_a_tenant_and_another_for_the_next() {
        let key = LocalityKey::new([7; 32]);
        let (a, b) = (node("a", "z1", "r1"), node("b", "z1", "r1"));
        let (of_a, of_b) = (key.index("acme", &a), key.index("acme", &b));
        assert_eq!(of_a, key.index("acme", &a));
        assert_ne!(of_a.host, of_b.host);
        assert_eq!((&of_a.rack, &of_a.zone), (&of_b.rack, &of_b.zone));
        assert_ne!(of_a.rack, key.index("other", &a).rack);
        assert_ne!(of_a.rack, key.index("acme", &node("c", "z2", "r1")).rack);
        assert!(!format!("{of_a:?}").contains("r1"));
    }
}
