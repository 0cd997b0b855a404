//! Fixes as text.

use std::collections::BTreeMap;
use std::fmt;

use super::render::name;
use super::{Fix, QuotaLimits};
use crate::model::{Amounts, CapacityType, InstanceId, NodeFacts, Ratios};
use crate::units;

/// What a proposed node needs besides its size.
fn particulars(facts: &NodeFacts) -> Vec<String> {
    let mut texts = Vec::new();
    texts.extend(facts.extra.iter().map(|(class, amount)| format!("{amount} {class}")));
    texts.extend(facts.traits.iter().map(|(name, value)| format!("trait {name}={value}")));
    texts.extend(facts.networks.iter().map(|network| format!("network {} up", network.tag)));
    texts.extend(facts.zone.iter().map(|zone| format!("in zone {zone}")));
    texts.extend(facts.rack.iter().map(|rack| format!("in rack {rack}")));
    texts.extend(facts.labels.iter().map(|(key, value)| format!("label {key}={value}")));
    if facts.capacity_type == CapacityType::Spot {
        texts.push("spot".to_owned());
    }
    if let Some(platform) = facts.platform {
        let built = units::moment(platform.built_at.0);
        texts.push(format!("platform {} built {built}", platform.version));
    }
    if facts.ratios != Ratios::default() {
        let Ratios { cpu_permille, memory_permille, disk_permille } = facts.ratios;
        let ratio = |permille: u32| units::ratio(permille.into());
        texts.push(format!(
            "overcommit CPU {}, memory {}, disk {}",
            ratio(cpu_permille),
            ratio(memory_permille),
            ratio(disk_permille)
        ));
    }
    texts
}

impl fmt::Display for QuotaLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instances = |count: i64| match count {
            1 => "1 instance".to_owned(),
            count => format!("{count} instances"),
        };
        let texts = [
            self.cpu_milli.map(units::cpu),
            self.memory_mib.map(|mib| format!("{} memory", units::size(mib))),
            self.disk_mib.map(|mib| format!("{} disk", units::size(mib))),
            self.instances.map(instances),
        ];
        let texts: Vec<String> = texts.into_iter().flatten().collect();
        f.write_str(&texts.join(", "))
    }
}

fn size_text(resources: &Amounts, extra: &BTreeMap<String, u32>) -> String {
    let classes = extra.iter().map(|(class, amount)| match amount {
        0 => format!(", no {class}"),
        amount => format!(", {amount} {class}"),
    });
    format!("ask for {resources}{}", classes.collect::<String>())
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shrink { resources, extra, node } => {
                let size = size_text(resources, extra);
                write!(f, "{size} (fits on {})", name(node.as_ref()))
            }
            Self::Relax { change, node, .. } => {
                write!(f, "{change} (fits on {} then)", name(node.as_ref()))
            }
            Self::Free { instances, names, node, preempts, .. } => {
                let text = |(place, id): (usize, &InstanceId)| match names.get(place) {
                    Some(name) if !name.is_empty() => format!("{name} ({id})"),
                    _ => id.to_string(),
                };
                let shown: Vec<String> = instances.iter().enumerate().take(3).map(text).collect();
                let action = if *preempts { "preempt" } else { "release" };
                write!(f, "{action} {}", shown.join(", "))?;
                if instances.len() > shown.len() {
                    write!(f, " and {} more", instances.len() - shown.len())?;
                }
                match node {
                    Some(node) => write!(f, " on {node}"),
                    None => Ok(()),
                }
            }
            Self::Mend { remedy, node, .. } => {
                write!(f, "repair {} ({remedy})", name(node.as_ref()))
            }
            Self::AddNode { shape, count, facts } => {
                match count {
                    1 => write!(f, "add a node with at least {}", shape.at_least())?,
                    count => {
                        write!(f, "add {count} nodes, each with at least {}", shape.at_least())?;
                    }
                }
                particulars(facts).iter().try_for_each(|fact| write!(f, ", {fact}"))
            }
            Self::Fewer { count, of } => write!(f, "place {count} of {of} now"),
            Self::Count { count, of } => write!(f, "ask for {count} instead of {of}"),
            Self::ChangePool { pool, to: Some(to) } => {
                write!(f, "take a value of pool {to} instead of {pool}")
            }
            Self::ChangePool { pool, to: None } => write!(f, "ask for no value of pool {pool}"),
            Self::RaiseQuota { tenant, limits } => {
                write!(f, "raise the quota of {tenant} to {limits}")
            }
            Self::SetPool { pool, range, tenant, .. } => {
                write!(f, "set pool {pool} to {range}")?;
                match tenant {
                    Some(tenant) => write!(f, " for {tenant}"),
                    None => f.write_str(", open to all tenants"),
                }
            }
            Self::Combined { changes } => {
                // The node is named once, after all that must be done.
                let change = |fix: &Self| match fix {
                    Self::Shrink { resources, extra, .. } => size_text(resources, extra),
                    Self::Relax { change, .. } => change.clone(),
                    other => other.to_string(),
                };
                let texts: Vec<String> = changes.iter().map(change).collect();
                f.write_str(&texts.join("; and "))?;
                match self.tried_on() {
                    Some(node) => write!(f, " (fits on {node} then)"),
                    None => Ok(()),
                }
            }
        }
    }
}
