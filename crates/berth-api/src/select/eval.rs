//! Whether a node fits. Never fails: what a node lacks is simply not equal to anything.

use std::cmp::Ordering;

use berth_engine::node_selector::grammar::{Facts, Operator, fits_pattern};
use berth_engine::{CpuCapMode, Limits, LinkState, TraitValue};

use super::NodeView;
use super::attribute::{Attribute, Resource};
use super::value::Value;

impl Facts<Attribute> for NodeView<'_> {
    fn has(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Trait(key) => {
                self.facts.traits.get(key).is_some_and(|value| *value != TraitValue::Bool(false))
            }
            Attribute::Platform | Attribute::PlatformVersion => self.facts.platform.is_some(),
            _ => {
                attribute.switch(self) == Some(true)
                    || attribute.number(self).is_some()
                    || attribute.moment(self).is_some()
                    || !attribute.texts(self).is_empty()
            }
        }
    }

    fn compares(&self, attribute: &Attribute, operator: Operator, value: &Value) -> bool {
        let accepts = |found: Option<Ordering>| found.is_some_and(|found| operator.accepts(found));
        match value {
            Value::Text(pattern) if operator == Operator::Like => {
                attribute.texts(self).iter().any(|text| fits_pattern(pattern, text))
            }
            Value::Text(text) => {
                let in_order = Operator::ORDER.contains(&operator);
                let order = if in_order { by_text } else { str::cmp };
                attribute.texts(self).iter().any(|found| operator.accepts(order(found, text)))
            }
            Value::Switch(on) => accepts(attribute.switch(self).map(|found| found.cmp(on))),
            Value::Number(number) => accepts(attribute.number(self).map(|found| found.cmp(number))),
            Value::Share(ppm) => accepts(attribute.share(self).map(|(part, whole)| {
                (i128::from(part) * 1_000_000).cmp(&(i128::from(*ppm) * i128::from(whole)))
            })),
            Value::Moment(from, until) => accepts(attribute.moment(self).map(|at| {
                // A day is equal to every second in it.
                if at < *from {
                    Ordering::Less
                } else if at < *until {
                    Ordering::Equal
                } else {
                    Ordering::Greater
                }
            })),
            Value::Age(seconds) => accepts(attribute.age(self).map(|age| age.cmp(seconds))),
            Value::Version(wanted) => {
                accepts(self.facts.platform.map(|platform| platform.version.cmp(wanted)))
            }
        }
    }
}

impl Attribute {
    /// Its value as text; several where any of them will do.
    fn texts(&self, node: &NodeView<'_>) -> Vec<String> {
        let facts = node.facts;
        let one = |text: Option<&str>| text.map(str::to_owned).into_iter().collect();
        match self {
            Self::Id => one(Some(facts.id.as_str())),
            Self::State => one(Some(facts.state.name())),
            Self::Zone => one(facts.zone.as_deref()),
            Self::Rack => one(facts.rack.as_deref()),
            Self::CapacityType => one(Some(facts.capacity_type.name())),
            Self::CpuCapMode => one(Some(cap_mode(facts.cpu_cap_mode))),
            Self::Platform | Self::PlatformVersion => {
                facts.platform.iter().map(|platform| platform.version.to_string()).collect()
            }
            Self::Label(key) => one(facts.labels.get(key).map(String::as_str)),
            Self::Trait(key) => match facts.traits.get(key) {
                None => Vec::new(),
                Some(TraitValue::List(words)) => words.clone(),
                Some(value) => vec![value.to_string()],
            },
            Self::Network(tag) => {
                let network = facts.networks.iter().find(|network| network.tag == *tag);
                one(network.map(|network| link(network.link)))
            }
            Self::Image(name) => one(facts.cached_images.contains(name).then_some("cached")),
            _ => Vec::new(),
        }
    }

    fn switch(&self, node: &NodeView<'_>) -> Option<bool> {
        match self {
            Self::Kvm => Some(node.facts.kvm),
            Self::Reserved => Some(node.facts.reserved),
            Self::Headnode => Some(node.facts.headnode),
            Self::Virtual => Some(node.facts.is_virtual),
            Self::Reservoir => Some(node.facts.reservoir),
            _ => None,
        }
    }

    fn number(&self, node: &NodeView<'_>) -> Option<i64> {
        let facts = node.facts;
        match self {
            Self::HardwareClass => Some(facts.hardware_class.into()),
            Self::InstanceLimit => Some(facts.instance_limit.into()),
            Self::Instances => Some(node.instances.into()),
            Self::OverlayLoss => Some(facts.overlay_loss_ppm.into()),
            Self::Scratch => Some(facts.scratch_mib.into()),
            Self::Extra(class) => facts.extra.get(class).map(|amount| i64::from(*amount)),
            Self::Capacity(resource) => {
                let capacity = facts.capacity?;
                Some(match resource {
                    Resource::Cpu => capacity.cpu_milli.into(),
                    Resource::Memory => capacity.memory_mib.into(),
                    Resource::Disk => capacity.disk_mib.into(),
                    Resource::Bandwidth => capacity.bandwidth_mbps.into(),
                    Resource::Instances => facts.instance_limit.into(),
                })
            }
            Self::Used(resource) => Some(used(node, *resource)),
            Self::Free(resource) => Some(limit(node, *resource)? - used(node, *resource)),
            _ => None,
        }
    }

    /// What is used or free, and what can be allocated in total.
    fn share(&self, node: &NodeView<'_>) -> Option<(i64, i64)> {
        let (Self::Used(resource) | Self::Free(resource)) = self else {
            return None;
        };
        let whole = limit(node, *resource).filter(|whole| *whole > 0)?;
        Some((self.number(node)?, whole))
    }

    fn moment(&self, node: &NodeView<'_>) -> Option<i64> {
        match self {
            Self::LastBoot => node.facts.last_boot.map(|at| at.0),
            Self::NextReboot => node.facts.next_reboot.map(|at| at.0),
            Self::Heartbeat => Some(node.facts.heartbeat_at.0),
            Self::Platform => node.facts.platform.map(|platform| platform.built_at.0),
            _ => None,
        }
    }

    /// How long ago it was; for what is planned, how long until then.
    fn age(&self, node: &NodeView<'_>) -> Option<i64> {
        let at = self.moment(node)?;
        match self {
            Self::NextReboot => Some(at.saturating_sub(node.now.0)),
            _ => Some(node.now.0.saturating_sub(at)),
        }
    }
}

fn used(node: &NodeView<'_>, resource: Resource) -> i64 {
    match resource {
        Resource::Cpu => node.used.cpu_milli.into(),
        Resource::Memory => node.used.memory_mib.into(),
        Resource::Disk => node.used.disk_mib.into(),
        Resource::Bandwidth => node.used.bandwidth_mbps.into(),
        Resource::Instances => node.instances.into(),
    }
}

/// What can be allocated in total, as the engine counts it; none for a node of unknown size.
fn limit(node: &NodeView<'_>, resource: Resource) -> Option<i64> {
    let facts = node.facts;
    let limits = Limits::of(facts.capacity?, facts.system_reserve, facts.ratios, facts.other);
    Some(match resource {
        Resource::Cpu => limits.cpu,
        Resource::Memory => limits.memory,
        Resource::Disk => limits.disk,
        Resource::Bandwidth => limits.bandwidth,
        Resource::Instances => facts.instance_limit.into(),
    })
}

const fn cap_mode(mode: CpuCapMode) -> &'static str {
    match mode {
        CpuCapMode::Uniform => "uniform",
        CpuCapMode::Capped => "capped",
        CpuCapMode::Uncapped => "uncapped",
        CpuCapMode::Mixed => "mixed",
    }
}

const fn link(state: LinkState) -> &'static str {
    match state {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Unknown => "unknown",
    }
}

/// Numbers by value, so that 9 comes before 10; anything else letter by letter.
fn by_text(found: &str, wanted: &str) -> Ordering {
    match (found.parse::<i64>(), wanted.parse::<i64>()) {
        (Ok(found), Ok(wanted)) => found.cmp(&wanted),
        _ => found.cmp(wanted),
    }
}
