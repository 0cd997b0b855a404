//! Watches for a shared thread that has stalled for good, and has the process ended: nothing in it can bring
//! the thread back, and the service manager starts a new one.
//!
//! A thread of its own, since the runtime may be what hangs. It decides nothing about the fleet.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use berth_ledger::invariant;

use crate::control_plane::ControlPlane;

/// How long a shared thread may be busy with one thing before the server ends. It is not ready long before.
pub const STALLED_FOR_GOOD: Duration = Duration::from_secs(60);

/// How often it looks.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// The watch; it ends when this is dropped.
pub struct StallWatch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StallWatch {
    /// Starts to watch. `ends` is called once, with the name of the thread and for how long it was busy.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        control: &Arc<ControlPlane>,
        limit: Duration,
        ends: impl FnOnce(&'static str, Duration) + Send + 'static,
    ) -> std::io::Result<Self> {
        // A server that stops waits until nobody else has the control plane.
        let control: Weak<ControlPlane> = Arc::downgrade(control);
        let (stop, stopped) = mpsc::channel::<()>();
        let look = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOKS_EVERY) {
                let Some(control) = control.upgrade() else { return };
                if let Some((name, time)) = control.stalled_thread(limit) {
                    return ends(name, time);
                }
            }
        };
        let thread = std::thread::Builder::new().name("stall-watch".to_owned()).spawn(look)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            invariant!(thread.join().is_ok(), "stall_watch_ends_without_panic");
        }
    }
}
