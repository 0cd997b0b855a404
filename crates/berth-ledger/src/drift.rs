//! Finding counters that are not the sum of their claims.
//!
//! Claims and counters change in the same transactions, so in any one snapshot they must agree: no
//! lock is needed to see that they do not, only to correct them.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::NodeId;

use crate::model::{ClaimHoldings, Text};

/// Rows that need to be recomputed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriftedRows {
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) groups: BTreeSet<Text>,
    pub(crate) tenants: BTreeSet<Text>,
}

/// Nodes whose counters differ from the sum of their claims.
pub(crate) const NODES: &str = "SELECT r.node FROM node_room r LEFT JOIN (SELECT node, \
    sum(cpu) AS cpu, sum(memory) AS memory, sum(disk) AS disk, sum(bandwidth) AS bandwidth, \
    count(*) AS instances, sum(capped) AS capped FROM claim GROUP BY node) c ON c.node = r.node \
    WHERE r.used_cpu <> coalesce(c.cpu, 0) OR r.used_memory <> coalesce(c.memory, 0) \
    OR r.used_disk <> coalesce(c.disk, 0) OR r.used_bandwidth <> coalesce(c.bandwidth, 0) \
    OR r.used_instances <> coalesce(c.instances, 0) OR r.used_capped <> coalesce(c.capped, 0)";

/// Tenants whose use differs from the sum of their primary claims.
pub(crate) const TENANTS: &str = "SELECT t.owner FROM tenant t LEFT JOIN (SELECT owner, \
    sum(cpu) AS cpu, sum(memory) AS memory, sum(disk) AS disk, count(*) AS instances \
    FROM claim WHERE role = 0 GROUP BY owner) c ON c.owner = t.owner \
    WHERE t.used_cpu <> coalesce(c.cpu, 0) OR t.used_memory <> coalesce(c.memory, 0) \
    OR t.used_disk <> coalesce(c.disk, 0) OR t.used_instances <> coalesce(c.instances, 0)";

/// Claims that hold more than amounts.
pub(crate) const HOLDINGS: &str = "SELECT node, ties FROM claim WHERE ties IS NOT NULL";

/// Counters of further classes.
pub(crate) const CLASSES: &str = "SELECT node, class, used FROM node_class WHERE used <> 0";

/// Counters of groups.
pub(crate) const DOMAINS: &str =
    "SELECT placement_group, domain, members FROM placement_group_domain";

/// Classes and groups by claims, minus the counters.
#[derive(Default)]
pub(crate) struct DriftCounters {
    classes: BTreeMap<(String, String), i64>,
    domains: BTreeMap<(String, String), i64>,
}

impl DriftCounters {
    pub(crate) fn claim(&mut self, node: &str, holdings: &ClaimHoldings) {
        for (class, amount) in &holdings.classes {
            let key = (node.to_owned(), class.clone());
            *self.classes.entry(key).or_default() += i64::from(*amount);
        }
        for place in &holdings.groups {
            if let Some(domain) = &place.domain {
                let key = (place.group.to_string(), domain.to_string());
                *self.domains.entry(key).or_default() += 1;
            }
        }
    }

    pub(crate) fn class(&mut self, node: &str, class: &str, used: i64) {
        *self.classes.entry((node.to_owned(), class.to_owned())).or_default() -= used;
    }

    pub(crate) fn domain(&mut self, group: &str, domain: &str, members: i64) {
        *self.domains.entry((group.to_owned(), domain.to_owned())).or_default() -= members;
    }

    /// Adds the rows whose difference is not zero.
    pub(crate) fn report(&self, drifted: &mut DriftedRows) {
        let nodes = self.classes.iter().filter(|(_, off)| **off != 0);
        drifted.nodes.extend(nodes.map(|((node, _), _)| NodeId::new(node)));
        let groups = self.domains.iter().filter(|(_, off)| **off != 0);
        drifted.groups.extend(groups.map(|((group, _), _)| Text::from(group.as_str())));
    }
}
