//! The interface between the agent and what runs its instances.
//!
//! A driver starts, observes and stops instances. It knows nothing of claims, leases or restarts: the
//! instance manager decides those. A driver records on disk what it started, because an agent may be
//! killed at any time and must not start anything twice.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use berth_api::engine::InstanceId;
use berth_api::{Assignment, MigrationTask};
use rustix::process::Signal;

/// An instance to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) instance: InstanceId,
    /// The fence it is started under.
    pub(super) fence: i64,
    /// The environment that describes it.
    pub(super) environment: BTreeMap<String, String>,
    /// The command that receives an instance that is moved here, instead of the driver's own command.
    pub(super) receive: Option<String>,
}

impl Launch {
    /// A process that waits for an instance that is moved here, and becomes it.
    pub(super) fn receiving(task: &MigrationTask, command: &str) -> Self {
        Self {
            instance: task.instance,
            fence: task.fence,
            environment: task_environment(task),
            receive: Some(command.to_owned()),
        }
    }

    /// The instance of an assignment.
    pub(super) fn of(assignment: &Assignment) -> Self {
        let mut environment = BTreeMap::new();
        let mut set = |name: &str, value: String| {
            // An environment cannot hold a zero byte, so the value is cut off there.
            let whole = value.split('\0').next().unwrap_or_default().to_owned();
            environment.insert(format!("BERTH_{name}"), whole);
        };
        set("INSTANCE", assignment.instance.to_string());
        set("FENCE", assignment.fence.to_string());
        set("TENANT", assignment.tenant.clone());
        // Its name until version 0.1; programs may still read it.
        set("TENANT", assignment.tenant.clone());
        // Its name in version 0.1, which commands may still read.
        set("OWNER", assignment.tenant.clone());
        // What it may use, which may differ from what is charged.
        let using = assignment.elastic.as_ref().and_then(|elastic| elastic.using);
        let size = using.map_or(assignment.resources, |using| using.within(assignment.resources));
        set("CPU_MILLI", size.cpu_milli.to_string());
        set("MEMORY_MIB", size.memory_mib.to_string());
        set("DISK_MIB", assignment.resources.disk_mib.to_string());
        set("BANDWIDTH_MBPS", assignment.resources.bandwidth_mbps.to_string());
        let optional = [
            ("NAME", &assignment.name),
            ("WORKLOAD", &assignment.workload),
            ("IMAGE", &assignment.image),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                set(name, value.clone());
            }
        }
        if let Some(slot) = &assignment.slot {
            set("SLOT", slot.slot.to_string());
            set("SLOT_ID", slot.id.to_string());
            set("REVISION", slot.revision.to_string());
        }
        for (tag, value) in &assignment.tags {
            set(&format!("TAG_{}", variable(tag)), value.clone());
        }
        for held in &assignment.values {
            set(&format!("VALUE_{}", variable(&held.pool)), held.value.clone());
        }
        if !assignment.volumes.is_empty() {
            set("VOLUMES", assignment.volumes.join(" "));
        }
        let (instance, fence) = (assignment.instance, assignment.fence);
        Self { instance, fence, environment, receive: None }
    }
}

/// The environment that describes a migration to commands.
pub(super) fn task_environment(task: &MigrationTask) -> BTreeMap<String, String> {
    let variables = [
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
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A name as part of a variable's name: uppercase letters, digits and underscores.
fn variable(name: &str) -> String {
    let letter = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
    };
    name.chars().map(letter).collect()
}

/// An instance that an earlier agent of this node started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecoveredInstance {
    pub(super) instance: InstanceId,
    /// The fence it was started under.
    pub(super) fence: i64,
    /// Whether it waits for an instance that is moved here.
    pub(super) arriving: bool,
}

/// The observed state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// Started, but not stable yet.
    Starting,
    Running,
    /// No process is left.
    Gone(Exit),
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// While no agent was running.
    Unwatched,
    /// The host was rebooted.
    Reboot,
}

impl Exit {
    /// Whether it ended successfully.
    pub(super) const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unwatched => f.write_str("ended while no agent was running"),
            Self::Reboot => f.write_str("ended when the host was rebooted"),
        }
    }
}

/// How an instance or a command is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopMode {
    /// It may clean up.
    Graceful,
    Forced,
}

impl StopMode {
    pub(super) const fn signal(self) -> Signal {
        match self {
            Self::Graceful => Signal::TERM,
            Self::Forced => Signal::KILL,
        }
    }
}

/// Starts, observes and stops instances on this host.
pub(super) trait Driver: Send {
    /// The driver's name, for the node's labels.
    fn name(&self) -> &'static str;

    /// Whether it needs hardware virtualisation.
    fn needs_kvm(&self) -> bool;

    /// What an earlier agent started, whether or not it still runs. Called once, at the beginning.
    fn recover(&mut self) -> io::Result<Vec<RecoveredInstance>>;

    /// Starts an instance. After an error, no process of it runs.
    fn start(&mut self, launch: &Launch) -> io::Result<()>;

    /// Adopts an instance that a migration brought: the process that received it, or one that was
    /// started here under the fence of its task. It runs under the new fence from now on. Returns false
    /// if there is none.
    fn adopt(&mut self, instance: InstanceId, started_under: i64, fence: i64) -> io::Result<bool>;

    /// The environment that describes an instance to the migrate command.
    fn migration_environment(&self, instance: InstanceId) -> BTreeMap<String, String>;

    /// The state of an instance. One that was never started is gone.
    fn observe(&mut self, instance: InstanceId) -> Observation;

    /// Stops an instance, without waiting.
    fn stop(&mut self, instance: InstanceId, mode: StopMode);

    /// Removes everything about an instance that is gone.
    fn forget(&mut self, instance: InstanceId);
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::engine::Amounts;
    use berth_api::{ClaimState, HeldValue, InstanceSlot};

    #[test]
    fn an_instance_is_described_by_variables_that_a_shell_can_read() {
        let assignment = Assignment {
            instance: InstanceId::from_u128(7),
            state: ClaimState::Binding,
            fence: 42,
            tenant: "acme".to_owned(),
            name: Some("web-1".to_owned()),
            workload: Some("web".to_owned()),
            slot: Some(InstanceSlot { id: uuid::Uuid::from_u128(9), slot: 3, revision: 2 }),
            image: None,
            resources: Amounts::new(500, 256),
            tags: BTreeMap::from([("app.kubernetes.io/name".to_owned(), "a\0b".to_owned())]),
            volumes: Vec::new(),
            values: vec![HeldValue { pool: "ip-4".to_owned(), value: "10.0.0.1".to_owned() }],
            elastic: None,
        };
        let variables = Launch::of(&assignment).environment;
        assert_eq!(variables["BERTH_NAME"], "web-1");
        assert_eq!(variables["BERTH_FENCE"], "42");
        assert_eq!((&*variables["BERTH_SLOT"], &*variables["BERTH_REVISION"]), ("3", "2"));
        assert_eq!(variables["BERTH_SLOT_ID"], "00000000-0000-0000-0000-000000000009");
        assert_eq!(variables["BERTH_VALUE_IP_4"], "10.0.0.1");
        assert_eq!(variables["BERTH_TAG_APP_KUBERNETES_IO_NAME"], "a");
        assert!(!variables.contains_key("BERTH_IMAGE"));
    }
}
