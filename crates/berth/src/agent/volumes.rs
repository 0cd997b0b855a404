//! The agent's part in moving volumes: on the node that a volume goes to, a command of the
//! operator's copies it, and its end is reported.

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

use super::say::say;

/// How often a report is tried; if none is heard, the next sign of life begins the work anew.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// What is said when there is nothing to copy with.
const NO_COMMAND: &str = "this agent has no --volume-command";

/// What copies volumes to this node.
pub(super) struct Mover {
    node: NodeId,
    command: Option<String>,
    /// Tells the voice that something was reported, so that what follows is heard soon.
    wake: Arc<Notify>,
    working: Vec<(VolumeMoveTask, JoinHandle<()>)>,
}

impl Mover {
    pub(super) fn new(node: NodeId, command: Option<String>, wake: Arc<Notify>) -> Self {
        Self { node, command, wake, working: Vec::new() }
    }

    /// Takes up what is to be done, and drops what no longer is.
    pub(super) fn take(&mut self, client: &Client, tasks: Vec<VolumeMoveTask>) {
        self.working.retain(|(task, work)| {
            let wanted = tasks.contains(task);
            if !wanted {
                // Its command is killed with it.
                work.abort();
            }
            wanted && !work.is_finished()
        });
        for task in tasks {
            // The node it comes from is told too; here the work is done where it goes.
            if task.to != self.node || self.working.iter().any(|(known, _)| *known == task) {
                continue;
            }
            let work =
                work(client.clone(), self.command.clone(), task.clone(), Arc::clone(&self.wake));
            self.working.push((task, tokio::spawn(work)));
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.working.iter().for_each(|(_, work)| work.abort());
    }
}

/// Does one task, and reports how it ended.
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
            say!("volume {volume}: {verb} from {} is done", task.from);
            (done, None)
        }
        Err(why) => {
            say!("volume {volume}: {verb} from {} failed: {why}", task.from);
            (VolumeMoveStep::Failed, Some(why))
        }
    };
    let report = VolumeMoveReport { volume, step, copied_permille: None, reason };
    let path = format!("/v1/nodes/{}/volume-moves", escape(task.to.as_str()));
    for _ in 0..TRIES {
        let said = client.post::<_, serde_json::Value>(&path, &report).await;
        if said.is_ok() {
            break;
        }
        sleep(BETWEEN_TRIES).await;
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
        .map_err(|error| format!("the volume command cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
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
        }
    }

    #[tokio::test]
    async fn a_command_is_told_what_to_do_and_its_last_words_are_kept() {
        let told = r#"told() { test "$1/$2/$3/$4" = "copy/data 1/a/b"; }; told"#;
        assert_eq!(run(told, "copy", &task()).await, Ok(()));
        let failed = run("echo one >&2; echo 'no space left' >&2; false", "copy", &task()).await;
        assert!(failed.unwrap_err().contains("no space left"));
    }
}
