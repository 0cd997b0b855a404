//! Maintenance of the ledger: ends leases that ran out, corrects counters that are out of step with
//! their claims, and removes what need not be kept. Any number of servers may do so at once: the
//! ledger's guards make each change once.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use berth_ledger::{Ledger, LedgerError, Retention, invariant};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::ControlResult;
use crate::fleet_snapshots;
use crate::loop_runner::{self, BackgroundLoop};
use crate::metrics::Metrics;
use crate::supervision::{Supervisor, ThreadWork};

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

/// Does what is due, by a configuration that may change.
pub(crate) struct MaintenanceLoop {
    ledger: Ledger,
    config: Arc<ArcSwap<MaintenanceConfig>>,
    reconciled: Instant,
    forgot: Instant,
}

impl MaintenanceLoop {
    pub(crate) fn new(ledger: Ledger, config: Arc<ArcSwap<MaintenanceConfig>>) -> Self {
        let now = Instant::now();
        Self { ledger, config, reconciled: now, forgot: now }
    }
}

impl BackgroundLoop for MaintenanceLoop {
    const NAME: &'static str = "maintenance";
    const PERIOD: Duration = Duration::from_secs(5);

    fn period(&self) -> Duration {
        self.config.load().reap_every.max(Duration::from_millis(100))
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let (ledger, config) = (self.ledger.clone(), self.config.load_full());
        let reconciles = self.reconciled.elapsed() >= config.reconcile_every;
        let forgets = self.forgot.elapsed() >= config.forget_every;
        let work = move || {
            ledger.reap()?;
            if reconciles {
                ledger.reconcile()?;
            }
            if forgets {
                // Before the log is cut, so that it goes on from one of them.
                fleet_snapshots::tend(&ledger, config.retention.events)?;
                ledger.forget(&config.retention)?;
            }
            Ok(())
        };
        tokio::task::spawn_blocking(work).await.unwrap_or(Err(LedgerError::Closed))?;
        if reconciles {
            self.reconciled = Instant::now();
        }
        if forgets {
            self.forgot = Instant::now();
        }
        Ok(())
    }
}

/// Maintenance of a ledger without a control plane: a thread that does it until it is dropped.
pub struct MaintenanceWorker {
    stopping: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl MaintenanceWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(ledger: Ledger, config: MaintenanceConfig) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let stopping = CancellationToken::new();
        let work = MaintenanceLoop::new(ledger, Arc::new(ArcSwap::from_pointee(config)));
        // Nobody asks this one whether it runs.
        let supervisor = Arc::<Supervisor>::default();
        let monitor = supervisor.monitor(MaintenanceLoop::NAME, ThreadWork::RunsPasses, None);
        let run = loop_runner::run(work, Arc::new(Metrics::new()), stopping.clone(), monitor);
        let thread = std::thread::Builder::new()
            .name("maintenance".to_owned())
            .spawn(move || runtime.block_on(run))?;
        Ok(Self { stopping, thread: Some(thread) })
    }
}

impl Drop for MaintenanceWorker {
    fn drop(&mut self) {
        self.stopping.cancel();
        if let Some(thread) = self.thread.take() {
            invariant!(thread.join().is_ok(), "maintenance_ends_without_panic");
        }
    }
}
