//! Fixes as text.

use std::fmt;

use super::Fix;
use super::render::name;
use crate::model::{CapacityType, NodeFacts, Ratios};

/// What a proposed node needs besides its size.
fn particulars(facts: &NodeFacts) -> Vec<String> {
    let mut texts = Vec::new();
    texts.extend(facts.extra.iter().map(|(class, amount)| format!("{amount} {class}")));
    texts.extend(facts.traits.iter().map(|(name, value)| format!("trait {name}={value}")));
    texts.extend(facts.networks.iter().map(|network| format!("network {} up", network.tag)));
    if facts.capacity_type == CapacityType::Spot {
        texts.push("spot".to_owned());
    }
    if let Some(platform) = facts.platform {
        texts.push(format!("platform {} built at {}", platform.version, platform.built_at.0));
    }
    if facts.ratios != Ratios::default() {
        let Ratios { cpu_permille, memory_permille, disk_permille } = facts.ratios;
        texts.push(format!(
            "overprovision ratios cpu {cpu_permille} memory {memory_permille} disk {disk_permille} ‰"
        ));
    }
    texts.extend(facts.zone.iter().map(|zone| format!("zone {zone}")));
    texts.extend(facts.rack.iter().map(|rack| format!("rack {rack}")));
    texts
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shrink { resources: r, extra, node } => {
                write!(
                    f,
                    "ask for {} mCPU, {} MiB memory, {} MiB disk, {} Mbit/s",
                    r.cpu_milli, r.memory_mib, r.disk_mib, r.bandwidth_mbps,
                )?;
                extra.iter().try_for_each(|(class, amount)| write!(f, ", {amount} {class}"))?;
                write!(f, " (fits on {})", name(node.as_ref()))
            }
            Self::Relax { change, node, .. } => {
                write!(f, "{change} (fits on {} then)", name(node.as_ref()))
            }
            Self::Free { instances, node, .. } => {
                let ids: Vec<String> = instances.iter().take(3).map(ToString::to_string).collect();
                write!(f, "release {}", ids.join(", "))?;
                if instances.len() > ids.len() {
                    write!(f, " and {} more", instances.len() - ids.len())?;
                }
                match node {
                    Some(node) => write!(f, " on {node}"),
                    None => Ok(()),
                }
            }
            Self::Mend { remedy, node, .. } => {
                write!(f, "mend {} ({remedy})", name(node.as_ref()))
            }
            Self::AddNode { shape, count, facts } => {
                match count {
                    1 => write!(f, "add a node with at least")?,
                    count => write!(f, "add {count} nodes, each with at least")?,
                }
                write!(
                    f,
                    " {} mCPU, {} MiB memory, {} MiB disk, {} Mbit/s",
                    shape.cpu_milli, shape.memory_mib, shape.disk_mib, shape.bandwidth_mbps
                )?;
                particulars(facts).iter().try_for_each(|fact| write!(f, ", {fact}"))
            }
            Self::Fewer { count, of } => write!(f, "place {count} of {of} now"),
            Self::Combined { changes } => {
                let texts: Vec<String> = changes.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; and "))
            }
        }
    }
}
