//! Whether the host works: a command that the operator gives.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

/// How often the host is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long a check may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Most characters of a reason.
const MAX_REASON: usize = 200;

/// Checks the host again and again, and wakes the sync with the server when the result changes.
pub(super) async fn watch(
    command: Option<String>,
    degraded: watch::Sender<Option<String>>,
    wake: Arc<Notify>,
) {
    let Some(command) = command else { return };
    loop {
        sleep(CHECK_INTERVAL).await;
        let found = run(&command).await;
        let changed = degraded.send_if_modified(|known| {
            let changed = *known != found;
            known.clone_from(&found);
            changed
        });
        if changed {
            match found {
                Some(reason) => tracing::warn!(reason, "health check failed; node is degraded"),
                None => tracing::info!("health check succeeded; node is no longer degraded"),
            }
            wake.notify_one();
        }
    }
}

/// Checks the host once. Returns why it works only in part.
pub(super) async fn run(command: &str) -> Option<String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::null()).kill_on_drop(true);
    let output = match timeout(TIMEOUT, shell.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Some(format!("the health check cannot be run: {error}")),
        Err(_) => {
            return Some(format!("the health check took longer than {} s", TIMEOUT.as_secs()));
        }
    };
    if output.status.success() {
        return None;
    }
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let last =
        said.iter().filter_map(|said| said.lines().rfind(|line| !line.trim().is_empty())).next();
    Some(match last {
        Some(line) => {
            let line = line.trim().chars().filter(|character| !character.is_control());
            line.take(MAX_REASON).collect()
        }
        None => format!("the health check failed: {}", output.status),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_that_fails_says_why_in_its_last_line() {
        let cases = [
            ("true", None),
            ("echo all is well", None),
            (
                "echo first; echo overlay loses 9 % of packets; exit 1",
                Some("overlay loses 9 % of packets"),
            ),
            ("echo no kvm >&2; exit 3", Some("no kvm")),
            ("exit 3", Some("the health check failed: exit status: 3")),
        ];
        for (command, reason) in cases {
            assert_eq!(run(command).await.as_deref(), reason, "{command}");
        }
        let long = run("head -c 1000 /dev/zero | tr '\\0' x; exit 1").await;
        assert_eq!(long.map(|reason| reason.len()), Some(MAX_REASON));
    }
}
