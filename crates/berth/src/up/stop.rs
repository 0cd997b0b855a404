//! Shutdown: a signal starts it, requests in flight are finished, a second signal ends the wait.

use std::sync::Arc;

use arc_swap::ArcSwap;
use berth_control::ControlPlane;
use berth_server::config::LoadedConfig;
use berth_server::serve::Stop;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

/// Signals that stop the process.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for a signal, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Stops in steps with a time limit each. Afterwards no connection is left.
pub(super) async fn stop(
    why: &'static str,
    signals: &mut Signals,
    steps: &Stop,
    control: &ControlPlane,
    mut serving: JoinHandle<()>,
    current: &Arc<ArcSwap<LoadedConfig>>,
) {
    let server = current.load().config.server.clone();
    let (delay, grace) = (server.stop_delay, server.stop_grace);
    tracing::info!(why, grace_s = grace.as_secs(), "stopping; a second signal ends the wait");
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    // Load balancers see it, and clients are asked to reconnect.
    steps.draining.cancel();
    let hurry = tokio::select! {
        () = tokio::time::sleep(delay) => false,
        _ = signals.next() => true,
    };
    steps.closing.cancel();
    // Streams and loops end.
    control.lifecycle.stop();
    let in_time = !hurry
        && tokio::select! {
            _ = &mut serving => true,
            () = tokio::time::sleep(grace) => false,
            _ = signals.next() => false,
        };
    if !in_time {
        tracing::warn!(
            "requests in flight were cut off; retry with the same request id to get their results"
        );
        steps.cut.cancel();
        let _ = serving.await;
    }
    tracing::info!("stopped");
}
