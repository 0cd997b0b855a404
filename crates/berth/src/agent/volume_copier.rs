//! The agent's part in moving volumes: on the target node, the operator's command copies the volume, and
//! the result is reported.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use berth_api::engine::NodeId;
use berth_api::{VolumeMoveAction, VolumeMoveReport, VolumeMoveStep, VolumeMoveTask};
use berth_client::{Client, escape};
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Attempts to report a result; if all fail, the next heartbeat starts the copy again.
const REPORT_ATTEMPTS: u32 = 5;
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

const NO_COMMAND: &str = "this agent has no --volume-command";

/// Copies volumes to this node.
pub(super) struct VolumeCopier {
    node: NodeId,
    command: Option<String>,
    /// Wakes the sync with the server after a report.
    wake: Arc<Notify>,
    working: Vec<(VolumeMoveTask, JoinHandle<()>)>,
}

impl VolumeCopier {
    pub(super) fn new(node: NodeId, command: Option<String>, wake: Arc<Notify>) -> Self {
        Self { node, command, wake, working: Vec::new() }
    }

    /// Starts new tasks, and aborts those that are no longer wanted.
    pub(super) fn set_tasks(&mut self, client: &Client, tasks: Vec<VolumeMoveTask>) {
        self.working.retain(|(task, work)| {
            let wanted = tasks.contains(task);
            if !wanted {
                // Its command is killed with it.
                work.abort();
            }
            wanted && !work.is_finished()
        });
        for task in tasks {
            // The source gets the task too, but the target copies.
            if task.to != self.node || self.working.iter().any(|(known, _)| *known == task) {
                continue;
            }
            let work =
                work(client.clone(), self.command.clone(), task.clone(), Arc::clone(&self.wake));
            self.working.push((task, tokio::spawn(work)));
        }
    }
}

impl Drop for VolumeCopier {
    fn drop(&mut self) {
        self.working.iter().for_each(|(_, work)| work.abort());
    }
}

/// Runs one task, and reports the result.
async fn work(client: Client, command: Option<String>, task: VolumeMoveTask, wake: Arc<Notify>) {
    let (verb, done) = match task.action {
        VolumeMoveAction::Copy => ("copy", VolumeMoveStep::Copied),
        VolumeMoveAction::Sync => ("sync", VolumeMoveStep::Synced),
    };
    let ended = match command {
        Some(command) => run(&command, verb, &task).await,
        None => Err(NO_COMMAND.to_owned()),
    };
    let volume = task.volume.clone();
    let (step, reason) = match ended {
        Ok(()) => {
            tracing::info!(volume, verb, from = %task.from, "volume copied");
            (done, None)
        }
        Err(why) => {
            tracing::warn!(volume, verb, from = %task.from, why, "failed to copy volume");
            (VolumeMoveStep::Failed, Some(why))
        }
    };
    let report =
        VolumeMoveReport { volume, step, round: task.round, copied_permille: None, reason };
    let path = format!("/v1/nodes/{}/volume-moves", escape(task.to.as_str()));
    for _ in 0..REPORT_ATTEMPTS {
        let reported = client.post::<_, serde_json::Value>(&path, &report).await;
        if reported.is_ok() {
            break;
        }
        sleep(REPORT_INTERVAL).await;
    }
    wake.notify_one();
}

/// Runs the operator's command: `COMMAND copy|sync VOLUME FROM TO`.
async fn run(command: &str, verb: &str, task: &VolumeMoveTask) -> Result<(), String> {
    let output = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("{command} \"$@\""))
        .args(["sh", verb, &task.volume, task.from.as_str(), task.to.as_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("failed to run the volume command: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
    let short: String = last.trim().chars().take(120).collect();
    Err(format!("the volume command ended with {}: {short}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> VolumeMoveTask {
        VolumeMoveTask {
            volume: "data 1".to_owned(),
            from: NodeId::new("a"),
            to: NodeId::new("b"),
            action: VolumeMoveAction::Copy,
            round: Some(1),
        }
    }

    #[tokio::test]
    async fn a_command_gets_its_arguments_and_its_last_line_is_kept() {
        let checks = r#"checks() { test "$1/$2/$3/$4" = "copy/data 1/a/b"; }; checks"#;
        assert_eq!(run(checks, "copy", &task()).await, Ok(()));
        let failed = run("echo one >&2; echo 'no space left' >&2; false", "copy", &task()).await;
        assert!(failed.unwrap_err().contains("no space left"));
    }
}
