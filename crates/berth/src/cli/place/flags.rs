//! Flags of requests, converted to the request and back to a command line.

use std::path::PathBuf;

use berth_api::engine::affinity::Rule;
use berth_api::engine::{CapacityType, Hint, Locality, TraitValue};
use berth_api::{InstanceSpec, PlaceRequest, Resources, units};
use clap::Args;

use super::elastic::ElasticFlags;
use super::place_flags::PlaceFlags;
use crate::cmdutil::{CmdResult, Failure, args, file, trait_flag};

/// Flags of one instance.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Requirements of each instance")]
pub(crate) struct InstanceFlags {
    /// Cores: 2, 0.5 or 500m.
    #[arg(long, value_parser = args::cpu, value_name = "CORES")]
    pub(crate) cpu: Option<u32>,
    /// Memory: 4GiB, 512MiB or plain MiB.
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    pub(crate) memory: Option<u32>,
    /// Local disk; 4GiB by default.
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    pub(crate) disk: Option<u32>,
    /// Bandwidth: 500Mbit or 10Gbit.
    #[arg(long, value_parser = args::bandwidth, value_name = "RATE")]
    pub(crate) bandwidth: Option<u32>,
    /// Extra resource and its amount: gpu=1; may be repeated.
    #[arg(long, value_parser = args::class, value_name = "CLASS=N")]
    pub(crate) extra: Vec<(String, u32)>,
    /// Name; with --count, -1, -2, … is appended.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Workload that it is a replica of.
    #[arg(long)]
    pub(crate) workload: Option<String>,
    /// Environment whose secrets it uses.
    #[arg(long)]
    pub(crate) env: Option<String>,
    /// Require that its environment has secrets.
    #[arg(long)]
    pub(crate) needs_secrets: bool,
    /// Image.
    #[arg(long)]
    pub(crate) image: Option<String>,
    /// Tag that affinity rules can refer to: role=web; may be repeated.
    #[arg(long = "tag", value_parser = args::pair, value_name = "KEY=VALUE")]
    pub(crate) tags: Vec<(String, String)>,
    /// Trait that its node must have: ssd, or cpu=amd; may be repeated.
    #[arg(long = "trait", value_parser = args::trait_value, value_name = "NAME[=VALUE]")]
    pub(crate) traits: Vec<(String, TraitValue)>,
    /// Network that its node must have, or alternatives: a|b; may be repeated.
    #[arg(long = "network", value_parser = networks_parser(), value_name = "A|B")]
    pub(crate) networks: Vec<Networks>,
    /// Group to join; may be repeated.
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// Local volume that its node must hold; may be repeated.
    #[arg(long = "volume", value_name = "VOLUME")]
    pub(crate) volumes: Vec<String>,
    /// Attachment (set of volumes) that its node must hold; may be repeated.
    #[arg(long = "attachment", value_name = "ATTACHMENT")]
    pub(crate) attachments: Vec<String>,
    /// Affinity rule: role!=db, or workload==~cache@rack; may be repeated.
    #[arg(long, value_parser = rule, value_name = "RULE")]
    pub(crate) affinity: Vec<Rule>,
    /// Place it on a node with this instance, or with one of this tag: an id, or role=db.
    #[arg(long, value_parser = args::hint, value_name = "INSTANCE|KEY=VALUE")]
    pub(crate) near: Vec<Hint>,
    /// Place it on a node without this instance or tag.
    #[arg(long, value_parser = args::hint, value_name = "INSTANCE|KEY=VALUE")]
    pub(crate) far: Vec<Hint>,
    /// Make --near and --far required instead of preferred.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Capacity type of its node: spot or on-demand.
    #[arg(long, value_parser = args::api_value::<CapacityType>("spot or on-demand"), value_name = "TYPE")]
    pub(crate) capacity: Option<CapacityType>,
    /// Cap its CPU.
    #[arg(long)]
    pub(crate) cpu_capped: bool,
    /// Exclude nodes that are virtual machines themselves.
    #[arg(long)]
    pub(crate) exclude_virtual: bool,
    /// Scheduling priority; higher may preempt lower.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) priority: Option<i32>,
    #[command(flatten)]
    pub(crate) place: PlaceFlags,
    #[command(flatten)]
    pub(crate) elastic: ElasticFlags,
}

/// Alternative networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks(pub(crate) Vec<String>);

// Clap would take a list of lists for many values of one flag.
fn networks_parser() -> impl Fn(&str) -> Result<Networks, String> + Clone {
    |text: &str| args::networks(text).map(Networks)
}

fn rule(text: &str) -> Result<Rule, String> {
    Rule::parse(text).map_err(|error| error.to_string())
}

impl InstanceFlags {
    /// Whether any flag was given.
    pub(crate) fn any(&self) -> bool {
        *self != Self::default()
    }

    /// The instance that the flags describe.
    pub(crate) fn spec(&self) -> CmdResult<InstanceSpec> {
        let Some(memory_mib) = self.memory else {
            return Err(Failure::usage("--memory is missing")
                .accepted("a size, such as --memory 4GiB; or a whole request with -f FILE"));
        };
        let resources = Resources { memory_mib, ..Resources::default() };
        let mut spec = InstanceSpec::new(resources);
        self.apply(&mut spec);
        Ok(spec)
    }

    /// Applies the flags to an instance; lists are extended.
    pub(crate) fn apply(&self, spec: &mut InstanceSpec) {
        fn set<T: Clone>(to: &mut Option<T>, from: &Option<T>) {
            if let Some(value) = from {
                *to = Some(value.clone());
            }
        }
        spec.resources.cpu_milli = self.cpu.unwrap_or(spec.resources.cpu_milli);
        spec.resources.memory_mib = self.memory.unwrap_or(spec.resources.memory_mib);
        spec.resources.bandwidth_mbps = self.bandwidth.unwrap_or(spec.resources.bandwidth_mbps);
        set(&mut spec.resources.disk_mib, &self.disk);
        set(&mut spec.name, &self.name);
        set(&mut spec.workload, &self.workload);
        set(&mut spec.env, &self.env);
        set(&mut spec.image, &self.image);
        set(&mut spec.capacity_type, &self.capacity);
        set(&mut spec.priority, &self.priority);
        spec.extra.extend(self.extra.iter().cloned());
        spec.tags.extend(self.tags.iter().cloned());
        spec.traits.extend(self.traits.iter().cloned());
        spec.networks.extend(self.networks.iter().map(|networks| networks.0.clone()));
        spec.groups.extend(self.groups.iter().cloned());
        spec.volumes.extend(self.volumes.iter().cloned());
        spec.attachments.extend(self.attachments.iter().cloned());
        spec.affinity.extend(self.affinity.iter().cloned());
        spec.needs_secrets |= self.needs_secrets;
        spec.cpu_capped |= self.cpu_capped;
        spec.exclude_virtual |= self.exclude_virtual;
        if !self.near.is_empty() || !self.far.is_empty() || self.strict {
            let locality = spec.locality.get_or_insert_with(Locality::default);
            locality.near.extend(self.near.iter().cloned());
            locality.far.extend(self.far.iter().cloned());
            locality.strict |= self.strict;
        }
        self.place.apply(spec);
        self.elastic.apply(spec);
    }

    /// The flags as words of a command line.
    pub(crate) fn to_words(&self) -> Vec<String> {
        let mut line = CommandLine::default();
        let exact = |amount: Option<u32>, text: fn(i64) -> String| {
            amount.map(|amount| text(i64::from(amount)))
        };
        line.flag("--cpu", exact(self.cpu, units::cpu_exact));
        line.flag("--memory", exact(self.memory, units::size_exact));
        line.flag("--disk", exact(self.disk, units::size_exact));
        line.flag("--bandwidth", exact(self.bandwidth, units::bandwidth_exact));
        line.flag("--extra", self.extra.iter().map(|(class, amount)| format!("{class}={amount}")));
        line.flag("--name", self.name.clone());
        line.flag("--workload", self.workload.clone());
        line.flag("--env", self.env.clone());
        line.switch("--needs-secrets", self.needs_secrets);
        line.flag("--image", self.image.clone());
        line.flag("--tag", self.tags.iter().map(|(key, value)| format!("{key}={value}")));
        line.flag("--trait", self.traits.iter().map(|(name, is)| trait_flag(name, is)));
        line.flag("--network", self.networks.iter().map(|networks| networks.0.join("|")));
        line.flag("--group", self.groups.iter().cloned());
        line.flag("--volume", self.volumes.iter().cloned());
        line.flag("--attachment", self.attachments.iter().cloned());
        line.flag("--affinity", self.affinity.iter().map(|rule| rule.as_str().to_owned()));
        line.flag("--near", self.near.iter().map(args::hint_flag));
        line.flag("--far", self.far.iter().map(args::hint_flag));
        line.switch("--strict", self.strict);
        line.flag("--capacity", self.capacity.map(|kind| kind.name().to_owned()));
        line.switch("--cpu-capped", self.cpu_capped);
        line.switch("--exclude-virtual", self.exclude_virtual);
        line.flag("--priority", self.priority.map(|priority| priority.to_string()));
        self.place.add_words(&mut line);
        self.elastic.add_words(&mut line);
        line.0
    }
}

/// A command line under construction.
#[derive(Default)]
pub(crate) struct CommandLine(pub(crate) Vec<String>);

impl CommandLine {
    /// Adds a flag for each of its values.
    pub(crate) fn flag(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        for value in values {
            self.0.extend([name.to_owned(), value]);
        }
    }

    /// Adds a flag without a value, if it is set.
    pub(crate) fn switch(&mut self, name: &str, set: bool) {
        self.0.extend(set.then(|| name.to_owned()));
    }
}

/// Flags of a whole request.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestFlags {
    #[command(flatten)]
    pub(crate) instance: InstanceFlags,
    /// Number of such instances.
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N", help_heading = "Request")]
    pub(crate) count: Option<u32>,
    /// Tenant; a tenant's token implies its own.
    #[arg(long, alias = "owner", help_heading = "Request")]
    pub(crate) tenant: Option<String>,
    /// Pool that each instance takes a value from; may be repeated.
    #[arg(long = "pool", value_name = "POOL", help_heading = "Request")]
    pub(crate) pools: Vec<String>,
    /// Request as the API takes it, in JSON, YAML or TOML; `-` reads standard input. Other flags apply
    /// to every instance in it.
    #[arg(long, short, value_name = "FILE", help_heading = "Request")]
    pub(crate) file: Option<PathBuf>,
}

impl RequestFlags {
    /// The request that the flags describe.
    pub(crate) fn request(&self) -> CmdResult<PlaceRequest> {
        let mut request = match &self.file {
            Some(file) => file::request(file)?,
            None => PlaceRequest::new(vec![self.instance.spec()?]),
        };
        for spec in &mut request.instances {
            if self.file.is_some() {
                self.instance.apply(spec);
            }
            if self.count.is_some() {
                spec.count = self.count;
            }
        }
        request.pools.extend(self.pools.iter().cloned());
        if self.tenant.is_some() {
            request.tenant.clone_from(&self.tenant);
        }
        Ok(request)
    }

    /// The flags as words of a command line.
    pub(crate) fn to_words(&self) -> Vec<String> {
        let mut line = CommandLine::default();
        line.flag("-f", self.file.as_ref().map(|file| file.display().to_string()));
        line.0.extend(self.instance.to_words());
        line.flag("--count", self.count.map(|count| count.to_string()));
        line.flag("--tenant", self.tenant.clone());
        line.flag("--pool", self.pools.iter().cloned());
        line.0
    }

    /// A whole command line.
    pub(crate) fn line(&self, command: &str, after: &[&str]) -> String {
        let words = self.to_words();
        let words = words.iter().map(String::as_str).chain(after.iter().copied());
        format!("{command} {}", args::shell_line(words))
    }
}
