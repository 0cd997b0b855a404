//! What an agent needs of whatever runs its instances.
//!
//! A driver starts, watches and stops. It knows nothing of claims, leases or restarts: what should
//! run, and what follows from an end, is the keeper's business. A driver remembers on disk what it
//! started, since an agent may be killed at any moment and must not start anything twice.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use berth_api::engine::InstanceId;
use berth_api::{Assignment, MigrationTask};

/// An instance to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// Which.
    pub(super) instance: InstanceId,
    /// The fence it is started under.
    pub(super) fence: i64,
    /// What it is told about itself, as names and values of an environment.
    pub(super) environment: BTreeMap<String, String>,
    /// What receives an instance that is being moved here, run in place of the driver's own command.
    pub(super) receive: Option<String>,
}

impl Launch {
    /// What waits for an instance that is being moved here, and becomes it.
    pub(super) fn receiving(task: &MigrationTask, command: &str) -> Self {
        Self {
            instance: task.instance,
            fence: task.fence,
            environment: about(task),
            receive: Some(command.to_owned()),
        }
    }

    /// What an assignment asks for.
    pub(super) fn of(assignment: &Assignment) -> Self {
        let mut environment = BTreeMap::new();
        let mut tell = |name: &str, value: String| {
            // No environment can hold a zero byte; a value that has one is told up to it.
            let whole = value.split('\0').next().unwrap_or_default().to_owned();
            environment.insert(format!("BERTH_{name}"), whole);
        };
        tell("INSTANCE", assignment.instance.to_string());
        tell("FENCE", assignment.fence.to_string());
        tell("OWNER", assignment.owner.clone());
        // What it may use; what is charged for that may be less, or more.
        let using = assignment.elastic.as_ref().and_then(|elastic| elastic.using);
        let size = using.map_or(assignment.resources, |using| using.within(assignment.resources));
        tell("CPU_MILLI", size.cpu_milli.to_string());
        tell("MEMORY_MIB", size.memory_mib.to_string());
        tell("DISK_MIB", assignment.resources.disk_mib.to_string());
        tell("BANDWIDTH_MBPS", assignment.resources.bandwidth_mbps.to_string());
        let optional = [
            ("NAME", &assignment.name),
            ("WORKLOAD", &assignment.workload),
            ("IMAGE", &assignment.image),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                tell(name, value.clone());
            }
        }
        for (tag, value) in &assignment.tags {
            tell(&format!("TAG_{}", variable(tag)), value.clone());
        }
        for held in &assignment.values {
            tell(&format!("VALUE_{}", variable(&held.pool)), held.value.clone());
        }
        if !assignment.volumes.is_empty() {
            tell("VOLUMES", assignment.volumes.join(" "));
        }
        let (instance, fence) = (assignment.instance, assignment.fence);
        Self { instance, fence, environment, receive: None }
    }
}

/// What commands are told about a migration, as names and values of an environment.
pub(super) fn about(task: &MigrationTask) -> BTreeMap<String, String> {
    let told = [
        ("BERTH_INSTANCE", task.instance.to_string()),
        ("BERTH_MIGRATION", task.id.clone()),
        ("BERTH_SOURCE", task.source.to_string()),
        ("BERTH_TARGET", task.target.to_string()),
        ("BERTH_FENCE", task.fence.to_string()),
        ("BERTH_CPU_MILLI", task.resources.cpu_milli.to_string()),
        ("BERTH_MEMORY_MIB", task.resources.memory_mib.to_string()),
        ("BERTH_DISK_MIB", task.resources.disk_mib.to_string()),
        ("BERTH_BANDWIDTH_MBPS", task.resources.bandwidth_mbps.to_string()),
    ];
    told.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A name as part of a variable's name: capitals, digits and underscores.
fn variable(name: &str) -> String {
    let letter = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
    };
    name.chars().map(letter).collect()
}

/// An instance that an earlier agent of this node started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Survivor {
    /// Which.
    pub(super) instance: InstanceId,
    /// The fence it was started under.
    pub(super) fence: i64,
    /// Whether it only waits for what is being moved here.
    pub(super) arriving: bool,
}

/// What a look at an instance shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Started, and not known to work yet.
    Starting,
    /// Runs.
    Running,
    /// Nothing is left of it.
    Gone(Exit),
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// While no agent watched.
    Unwatched,
    /// The host was rebooted.
    Reboot,
}

impl Exit {
    /// Whether it ended as it should.
    pub(super) const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unwatched => f.write_str("ended while no agent watched it"),
            Self::Reboot => f.write_str("ended when the host was rebooted"),
        }
    }
}

/// How firmly an instance is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Firmness {
    /// It may clean up.
    Ask,
    /// It has no say.
    Force,
}

/// Starts, watches and stops instances on this host.
pub(super) trait Driver: Send {
    /// The driver's name, for the node's labels.
    fn name(&self) -> &'static str;

    /// Whether it needs hardware virtualisation.
    fn needs_kvm(&self) -> bool;

    /// What an earlier agent started, whether or not it still runs. Asked once, at the beginning.
    fn recover(&mut self) -> io::Result<Vec<Survivor>>;

    /// Starts an instance. After an error, nothing of it runs.
    fn start(&mut self, launch: &Launch) -> io::Result<()>;

    /// Takes up what a migration brought: what received it, or else what was started here under the
    /// fence of its task. From now on it runs under this fence. False: nothing of it is here.
    fn adopt(&mut self, instance: InstanceId, under: i64, fence: i64) -> io::Result<bool>;

    /// What whoever moves an instance has to know of it, as names and values of an environment.
    fn told(&self, instance: InstanceId) -> BTreeMap<String, String>;

    /// What it does now. An instance that was never started is gone.
    fn look(&mut self, instance: InstanceId) -> Sight;

    /// Tells it to stop, and does not wait.
    fn stop(&mut self, instance: InstanceId, firmness: Firmness);

    /// Nothing more will be asked of an instance that is gone.
    fn forget(&mut self, instance: InstanceId);
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::engine::Amounts;
    use berth_api::{ClaimState, HeldValue};

    #[test]
    fn an_instance_is_told_who_it_is_in_names_that_a_shell_can_read() {
        let assignment = Assignment {
            instance: InstanceId::from_u128(7),
            state: ClaimState::Binding,
            fence: 42,
            owner: "acme".to_owned(),
            name: Some("web-1".to_owned()),
            workload: None,
            image: None,
            resources: Amounts::new(500, 256),
            tags: BTreeMap::from([("app.kubernetes.io/name".to_owned(), "a\0b".to_owned())]),
            volumes: Vec::new(),
            values: vec![HeldValue { pool: "ip-4".to_owned(), value: "10.0.0.1".to_owned() }],
            elastic: None,
        };
        let told = Launch::of(&assignment).environment;
        assert_eq!(told["BERTH_NAME"], "web-1");
        assert_eq!(told["BERTH_FENCE"], "42");
        assert_eq!(told["BERTH_VALUE_IP_4"], "10.0.0.1");
        assert_eq!(told["BERTH_TAG_APP_KUBERNETES_IO_NAME"], "a");
        assert!(!told.contains_key("BERTH_IMAGE"));
    }
}
