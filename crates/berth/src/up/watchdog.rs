//! Ends a server of which a part has stalled for good, and tells systemd's watchdog that the server lives.
//!
//! Two rules, since what hangs may be a thread of ours or everything: a shared thread that has stalled for a minute
//! ends the process; and if the runtime no longer does anything, systemd does. Nothing here repairs anything.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use berth_control::ControlPlane;
use berth_control::stall_watch::{STALLED_FOR_GOOD, StallWatch};
use sd_notify::NotifyState;
use tokio::task::JoinHandle;

/// How many times systemd is told that the server lives within the time that it waits.
const SIGNS_PER_TIMEOUT: u32 = 4;

/// The watch; it ends when this is dropped.
pub(super) struct Watchdog {
    _stalls: StallWatch,
    signs: Option<JoinHandle<()>>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(signs) = &self.signs {
            signs.abort();
        }
    }
}

/// Starts to watch.
pub(super) fn start(control: &Arc<ControlPlane>) -> anyhow::Result<Watchdog> {
    let stalls = StallWatch::start(control, STALLED_FOR_GOOD, end_process);
    let stalls = stalls.context("failed to start the thread that watches for stalls")?;
    // Absent without a service manager that waits for signs of life.
    let signs = sd_notify::watchdog_enabled().map(|timeout| tokio::spawn(send_signs(timeout)));
    Ok(Watchdog { _stalls: stalls, signs })
}

/// On the runtime that serves: if it hangs, the signs stay away.
async fn send_signs(timeout: Duration) {
    let mut due = tokio::time::interval(timeout / SIGNS_PER_TIMEOUT);
    loop {
        due.tick().await;
        if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
            tracing::warn!(%error, "failed to tell systemd's watchdog that the server lives");
        }
    }
}

/// A stop in good order would wait for the thread. What was acknowledged is in the ledger.
fn end_process(thread: &'static str, time: Duration) {
    let busy_s = time.as_secs();
    tracing::error!(thread, busy_s, "shared thread has stalled for good; ending the process");
    std::process::exit(1);
}
