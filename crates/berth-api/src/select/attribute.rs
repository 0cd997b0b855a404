//! What a selector can ask of a node: names, and what each is compared with.

use std::fmt;

use berth_engine::node_selector::ExpectedInput;
use berth_engine::node_selector::grammar::{self, Operator, quote};
use berth_engine::suggest::closest;

use super::value::Value;

/// Something a node has a capacity of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Thousandths of a core.
    Cpu,
    /// Mebibytes of memory.
    Memory,
    /// Mebibytes of disk.
    Disk,
    /// Megabits per second.
    Bandwidth,
    /// Instances.
    Instances,
}

impl Resource {
    const ALL: [Self; 5] = [Self::Cpu, Self::Memory, Self::Disk, Self::Bandwidth, Self::Instances];

    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Bandwidth => "bandwidth",
            Self::Instances => "instances",
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Cpu => Kind::Cpu,
            Self::Memory | Self::Disk => Kind::Size,
            Self::Bandwidth => Kind::Bandwidth,
            Self::Instances => Kind::Count,
        }
    }
}

/// One thing of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the fact of that name")]
pub enum Attribute {
    Id,
    State,
    Zone,
    Rack,
    CapacityType,
    Platform,
    PlatformVersion,
    HardwareClass,
    Kvm,
    Reserved,
    Headnode,
    Virtual,
    Reservoir,
    CpuCapMode,
    InstanceLimit,
    Instances,
    LastBoot,
    NextReboot,
    Heartbeat,
    OverlayLoss,
    Scratch,
    /// What the node has of it, before ratios and reserves.
    Capacity(Resource),
    /// What is used of it.
    Used(Resource),
    /// What can still be allocated of it, with ratios and reserves applied.
    Free(Resource),
    /// A free-form label.
    Label(String),
    /// A trait.
    Trait(String),
    /// What the node has of a further class, such as `gpu`.
    Extra(String),
    /// The link of a network.
    Network(String),
    /// Whether an image is there already.
    Image(String),
}

/// What an attribute is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// One of a few words.
    Word(&'static [&'static str]),
    /// On or off.
    Switch,
    /// A whole number.
    Count,
    /// CPU.
    Cpu,
    /// Memory or disk.
    Size,
    /// Bandwidth.
    Bandwidth,
    /// Parts per million.
    Loss,
    /// A moment, or how long ago or ahead.
    Date,
    /// A platform version.
    Version,
    /// A platform by version or by build date.
    Platform,
}

/// Attributes without a key, by the name that is written, and names that are also understood.
const PLAIN: [(&str, &[&str], Attribute); 25] = [
    ("id", &["name", "node"], Attribute::Id),
    ("state", &[], Attribute::State),
    ("zone", &[], Attribute::Zone),
    ("rack", &[], Attribute::Rack),
    ("capacity_type", &["capacity"], Attribute::CapacityType),
    ("platform", &[], Attribute::Platform),
    ("platform_version", &[], Attribute::PlatformVersion),
    ("hardware_class", &[], Attribute::HardwareClass),
    ("kvm", &[], Attribute::Kvm),
    ("reserved", &[], Attribute::Reserved),
    ("headnode", &[], Attribute::Headnode),
    ("virtual", &["is_virtual"], Attribute::Virtual),
    ("reservoir", &[], Attribute::Reservoir),
    ("cpu_cap_mode", &[], Attribute::CpuCapMode),
    ("instance_limit", &[], Attribute::InstanceLimit),
    ("instances", &[], Attribute::Instances),
    ("last_boot", &[], Attribute::LastBoot),
    ("next_reboot", &[], Attribute::NextReboot),
    ("heartbeat", &["heartbeat_at"], Attribute::Heartbeat),
    ("overlay_loss", &["overlay_loss_ppm"], Attribute::OverlayLoss),
    ("scratch", &["scratch_mib"], Attribute::Scratch),
    ("cpu", &["cpu_milli"], Attribute::Capacity(Resource::Cpu)),
    ("memory", &["memory_mib"], Attribute::Capacity(Resource::Memory)),
    ("disk", &["disk_mib"], Attribute::Capacity(Resource::Disk)),
    ("bandwidth", &["bandwidth_mbps"], Attribute::Capacity(Resource::Bandwidth)),
];

/// Makes an attribute of a key.
type AttributeOfKey = fn(String) -> Attribute;

/// Attributes that need a key after a colon or a dot.
const KEYED: [(&str, AttributeOfKey); 5] = [
    ("label", Attribute::Label),
    ("trait", Attribute::Trait),
    ("extra", Attribute::Extra),
    ("network", Attribute::Network),
    ("image", Attribute::Image),
];

impl grammar::Attribute for Attribute {
    type Value = Value;

    // Long and deep enough for a person; short enough that one cannot keep a server busy.
    const MAX_BYTES: usize = 4096;
    const MAX_TERMS: usize = usize::MAX;
    const MAX_DEPTH: usize = 32;

    fn by_name(name: &str) -> Result<Self, ExpectedInput> {
        let plain = |(written, others, _): &&(&str, &[&str], Self)| {
            *written == name || others.contains(&name)
        };
        if let Some((_, _, attribute)) = PLAIN.iter().find(plain) {
            return Ok(attribute.clone());
        }
        let (prefix, key) = name.split_once([':', '.']).unwrap_or((name, ""));
        if let Some((prefix, with)) = KEYED.iter().find(|(known, _)| *known == prefix) {
            let missing = || format!("{prefix} with a key, as in {prefix}:name").into();
            return (!key.is_empty()).then(|| with(key.to_owned())).ok_or_else(missing);
        }
        let resource = Resource::ALL.into_iter().find(|resource| resource.name() == key);
        match (prefix, resource) {
            ("used", Some(resource)) => return Ok(Self::Used(resource)),
            ("free", Some(resource)) => return Ok(Self::Free(resource)),
            _ => {}
        }
        let accepted = match prefix {
            "used" | "free" => format!("used. or free. with one of {}", resources(", ")),
            _ => format!("an attribute: {}", Self::names()),
        };
        Err(ExpectedInput::from(accepted).or_rather(Self::suggestion(name)))
    }

    fn names() -> String {
        let plain = PLAIN.iter().map(|(name, _, _)| (*name).to_owned());
        let with_resource = ["used", "free"].map(|prefix| format!("{prefix}.{}", resources("|")));
        let keyed = KEYED.iter().map(|(prefix, _)| match *prefix {
            "extra" => "extra.KEY".to_owned(),
            _ => format!("{prefix}:KEY"),
        });
        plain.chain(with_resource).chain(keyed).collect::<Vec<_>>().join(", ")
    }

    fn operators(&self) -> Vec<Operator> {
        let mut accepted = vec![Operator::Equal, Operator::NotEqual];
        let kind = self.kind();
        if !matches!(kind, Kind::Word(_) | Kind::Switch) {
            accepted.extend(Operator::ORDER);
        }
        if matches!(kind, Kind::Text | Kind::Version | Kind::Platform | Kind::Word(_)) {
            accepted.push(Operator::Like);
        }
        accepted.push(Operator::In);
        accepted
    }

    fn read_value(&self, text: &str, operator: Operator) -> Result<Value, ExpectedInput> {
        Value::read(text, self, operator).map_err(|accepted| {
            let meant = match self.kind() {
                Kind::Word(words) => closest(&text.to_lowercase(), words.iter().copied()),
                _ => None,
            };
            ExpectedInput::from(accepted).or_rather(meant.map(str::to_owned))
        })
    }

    fn write_value(&self, value: &Value) -> String {
        value.to_text(self.kind())
    }
}

impl Attribute {
    /// The name that comes closest, if one comes close.
    fn suggestion(name: &str) -> Option<String> {
        let (head, tail) = match name.split_once([':', '.']) {
            Some((head, tail)) => (head, Some(tail)),
            None => (name, None),
        };
        let Some(tail) = tail else {
            let plain = PLAIN.iter().map(|(name, _, _)| *name);
            return closest(head, plain).map(str::to_owned);
        };
        if let "used" | "free" = head {
            let names = Resource::ALL.map(Resource::name);
            return closest(tail, names.into_iter()).map(|found| format!("{head}.{found}"));
        }
        let heads = KEYED.iter().map(|(prefix, _)| *prefix).chain(["used", "free"]);
        let found = closest(head, heads)?;
        let separator = if matches!(found, "used" | "free") { '.' } else { ':' };
        Some(format!("{found}{separator}{tail}"))
    }

    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Id | Self::Zone | Self::Rack | Self::Label(_) | Self::Trait(_) => Kind::Text,
            Self::State => {
                Kind::Word(&["joining", "active", "cordoned", "draining", "degraded", "lost"])
            }
            Self::CapacityType => Kind::Word(&["on-demand", "spot"]),
            Self::CpuCapMode => Kind::Word(&["uniform", "capped", "uncapped", "mixed"]),
            Self::Network(_) => Kind::Word(&["up", "down", "unknown"]),
            Self::Image(_) => Kind::Word(&["cached"]),
            Self::Platform => Kind::Platform,
            Self::PlatformVersion => Kind::Version,
            Self::HardwareClass | Self::InstanceLimit | Self::Instances | Self::Extra(_) => {
                Kind::Count
            }
            Self::Kvm | Self::Reserved | Self::Headnode | Self::Virtual | Self::Reservoir => {
                Kind::Switch
            }
            Self::LastBoot | Self::NextReboot | Self::Heartbeat => Kind::Date,
            Self::OverlayLoss => Kind::Loss,
            Self::Scratch => Kind::Size,
            Self::Capacity(resource) | Self::Used(resource) | Self::Free(resource) => {
                resource.kind()
            }
        }
    }

    /// Whether it may be compared with a share, such as `80%`.
    pub(super) const fn has_share(&self) -> bool {
        matches!(self, Self::Used(_) | Self::Free(_))
    }
}

fn resources(between: &str) -> String {
    Resource::ALL.map(Resource::name).join(between)
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used(resource) => write!(f, "used.{}", resource.name()),
            Self::Free(resource) => write!(f, "free.{}", resource.name()),
            Self::Capacity(resource) => f.write_str(resource.name()),
            Self::Label(key) => write!(f, "label:{}", quote(key)),
            Self::Trait(key) => write!(f, "trait:{}", quote(key)),
            Self::Extra(key) => write!(f, "extra.{}", quote(key)),
            Self::Network(key) => write!(f, "network:{}", quote(key)),
            Self::Image(key) => write!(f, "image:{}", quote(key)),
            plain => {
                let named = PLAIN.iter().find(|(_, _, attribute)| attribute == plain);
                f.write_str(named.map_or("", |(name, _, _)| name))
            }
        }
    }
}
