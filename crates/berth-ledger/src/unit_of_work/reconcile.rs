//! Recomputing counters from claims, under the lock of the row that holds them.
//!
//! A difference is a bug or a manual change to the database: it is corrected and reported.

use std::collections::BTreeMap;

use berth_engine::{NodeId, Used};

use super::UnitOfWork;
use super::charge::charge_tenant_use;
use super::rows::{ClassRow, TenantRow};
use crate::model::{Drift, EventBody, Text};

impl UnitOfWork {
    /// Recomputes a node's counters; every claim on it was read under its lock.
    pub(super) fn reconcile_node(&mut self, node: &NodeId) -> Vec<Drift> {
        let Some(row) = self.rows.nodes.get(node) else { return Vec::new() };
        let mut used = Used::default();
        let mut classes: BTreeMap<Text, i64> = BTreeMap::new();
        for (_, claim) in self.rows.claims.iter().filter(|(_, claim)| claim.node == *node) {
            used.charge(&claim.amounts, claim.capped, 1);
            let holdings = claim.holdings.iter().flat_map(|holdings| &holdings.classes);
            for (class, amount) in holdings {
                *classes.entry(Text::from(class.as_str())).or_default() += i64::from(*amount);
            }
        }
        let stored = row.room.used;
        let mut off = BTreeMap::new();
        for (name, stored, truth) in [
            ("cpu", stored.cpu, used.cpu),
            ("memory", stored.memory, used.memory),
            ("disk", stored.disk, used.disk),
            ("bandwidth", stored.bandwidth, used.bandwidth),
            ("instances", stored.instances.into(), used.instances.into()),
            ("capped", stored.capped.into(), used.capped.into()),
        ] {
            if stored != truth {
                off.insert(name.to_owned(), stored - truth);
            }
        }
        self.rows.nodes.edit(node, |row| row.room.used = used);
        off.extend(self.reconcile_classes(node, &classes));
        self.report(format!("node {node}"), off)
    }

    fn reconcile_classes(
        &mut self,
        node: &NodeId,
        truth: &BTreeMap<Text, i64>,
    ) -> BTreeMap<String, i64> {
        let mut off = BTreeMap::new();
        let stored: Vec<((NodeId, Text), ClassRow)> = self
            .rows
            .classes
            .iter()
            .filter(|(key, _)| key.0 == *node)
            .map(|(key, row)| (key.clone(), row.clone()))
            .collect();
        for (key, row) in stored {
            let used = truth.get(&key.1).copied().unwrap_or(0);
            if row.used != used {
                off.insert(format!("class {}", key.1), row.used - used);
                self.rows.classes.edit(&key, |row| row.used = used);
            }
        }
        for (class, &used) in truth {
            let key = (node.clone(), class.clone());
            if self.rows.classes.get(&key).is_none() {
                off.insert(format!("class {class}"), -used);
                self.rows.classes.set(&key, Some(ClassRow { limit: 0, used }));
            }
        }
        off
    }

    /// Recomputes a group's counts; all its members' claims were read under its lock.
    pub(super) fn reconcile_group(&mut self, group: &Text) -> Vec<Drift> {
        if self.rows.groups.get(group).is_none() {
            return Vec::new();
        }
        let mut truth: BTreeMap<Text, i64> = BTreeMap::new();
        for (_, claim) in self.rows.claims.iter() {
            let places = claim.holdings.iter().flat_map(|holdings| &holdings.groups);
            for domain in places.filter(|p| p.group == *group).filter_map(|p| p.domain.clone()) {
                *truth.entry(domain).or_default() += 1;
            }
        }
        let stored: BTreeMap<Text, i64> = self
            .rows
            .domains
            .iter()
            .filter(|(key, _)| key.0 == *group)
            .map(|(key, members)| (key.1.clone(), *members))
            .collect();
        let mut off = BTreeMap::new();
        for domain in stored.keys().chain(truth.keys()) {
            let (stored, members) = (stored.get(domain), truth.get(domain));
            let (stored, members) = (stored.copied().unwrap_or(0), members.copied().unwrap_or(0));
            if stored != members {
                off.insert(domain.to_string(), stored - members);
                let key = (group.clone(), domain.clone());
                self.rows.domains.set(&key, (members > 0).then_some(members));
            }
        }
        if truth.is_empty() {
            self.rows.groups.edit(group, |row| row.home = None);
        }
        self.report(format!("group {group}"), off)
    }

    /// Recomputes a tenant's use; all its claims were read while no other writer was in progress.
    pub(super) fn reconcile_tenant(&mut self, tenant: &Text) -> Vec<Drift> {
        let Some(stored) = self.rows.tenants.get(tenant).cloned() else { return Vec::new() };
        let (quota, removal) = (stored.quota, stored.removal.clone());
        let mut truth = TenantRow { quota, removal, ..TenantRow::default() };
        for (_, claim) in self.rows.claims.iter().filter(|(_, claim)| claim.tenant == *tenant) {
            charge_tenant_use(&mut truth, claim, 1);
        }
        let mut off = BTreeMap::new();
        for (name, stored, truth) in [
            ("cpu", stored.cpu, truth.cpu),
            ("memory", stored.memory, truth.memory),
            ("disk", stored.disk, truth.disk),
            ("instances", stored.instances, truth.instances),
        ] {
            if stored != truth {
                off.insert(name.to_owned(), stored - truth);
            }
        }
        self.rows.tenants.set(tenant, Some(truth));
        self.report(format!("tenant {tenant}"), off)
    }

    fn report(&mut self, row: String, amounts: BTreeMap<String, i64>) -> Vec<Drift> {
        self.keep();
        if amounts.is_empty() {
            return Vec::new();
        }
        self.events.push(EventBody::Drift { row: row.clone(), amounts: amounts.clone() });
        vec![Drift { row, amounts }]
    }
}
