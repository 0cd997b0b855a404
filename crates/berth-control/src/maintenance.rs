//! What any server does beside placing: end leases that ran out, look for counters out of step, and
//! forget what need not be kept. Any number of servers may do so at once; guards keep them safe.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use berth_ledger::{Ledger, Retention};

/// How often each is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaintenanceConfig {
    /// Ending leases that ran out.
    pub reap_every: Duration,
    /// Comparing counters with claims.
    pub reconcile_every: Duration,
    /// Forgetting what need not be kept.
    pub forget_every: Duration,
    /// What is kept.
    pub retention: Retention,
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        Self {
            reap_every: Duration::from_secs(5),
            reconcile_every: Duration::from_secs(60),
            forget_every: Duration::from_secs(600),
            retention: Retention::default(),
        }
    }
}

/// A thread that keeps house until it is dropped.
pub struct MaintenanceWorker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MaintenanceWorker {
    /// Starts to keep house.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(ledger: Ledger, maintenance: MaintenanceConfig) -> std::io::Result<Self> {
        Self::start_with(ledger, Arc::new(ArcSwap::from_pointee(maintenance)), || {})
    }

    /// Starts to keep house, by maintenance that may change, and tells of every round.
    ///
    /// # Errors
    /// As [`MaintenanceWorker::start`].
    pub fn start_with(
        ledger: Ledger,
        maintenance: Arc<ArcSwap<MaintenanceConfig>>,
        round: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            let (mut since_reconciled, mut since_forgot) = (Duration::ZERO, Duration::ZERO);
            loop {
                let tick = maintenance.load().reap_every.max(Duration::from_millis(100));
                if stopped.recv_timeout(tick) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let maintenance = maintenance.load();
                // What fails now, because the database is away, is done the next time.
                if ledger.reap().is_ok() {
                    round();
                }
                since_reconciled += tick;
                since_forgot += tick;
                if since_reconciled >= maintenance.reconcile_every {
                    since_reconciled = Duration::ZERO;
                    let _ = ledger.reconcile();
                }
                if since_forgot >= maintenance.forget_every {
                    since_forgot = Duration::ZERO;
                    let _ = ledger.forget(&maintenance.retention);
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("maintenance_worker".to_owned()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MaintenanceWorker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
