//! Fixes as text.

use std::fmt;

use super::Fix;
use super::render::name;
use crate::model::{CapacityType, NodeFacts, Ratios};
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

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shrink { resources, extra, node } => {
                write!(f, "ask for {resources}")?;
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
                    1 => write!(f, "add a node with at least {}", shape.at_least())?,
                    count => {
                        write!(f, "add {count} nodes, each with at least {}", shape.at_least())?;
                    }
                }
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
