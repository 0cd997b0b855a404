//! Runs background loops: when the next pass starts, what happens after one that failed, and what is
//! measured.
//!
//! A pass that fails or panics is logged and counted, and retried with back-off, so no loop ends
//! before the server stops. A pass that is under way when the server stops is completed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::ControlResult;
use crate::metrics::{LoopFailure, Metrics};
use crate::supervision::ThreadMonitor;

/// How long to wait after the first failed pass; doubled after each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);

/// The longest wait after a failed pass.
const BACKOFF_LONGEST: Duration = Duration::from_secs(5);

/// Work that is done again and again until the server stops.
pub(crate) trait BackgroundLoop: Send + 'static {
    /// Its name in metrics and logs, one of [`LOOPS`](crate::metrics::LOOPS).
    const NAME: &'static str;

    /// Whether the first pass starts at once rather than after a wake-up or a period.
    const STARTS_AT_ONCE: bool = false;

    /// The longest wait for a wake-up.
    const PERIOD: Duration;

    /// The least time between two passes.
    const PAUSE: Duration = Duration::ZERO;

    /// The longest wait for a wake-up, where it changes. Read before each wait.
    fn period(&self) -> Duration {
        Self::PERIOD
    }

    /// The least time after a pass, where it depends on how long the pass took.
    fn pause(&self, took: Duration) -> Duration {
        let _ = took;
        Self::PAUSE
    }

    /// A change of any of these starts a pass before the period ends.
    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    /// One pass.
    fn pass(&mut self) -> impl Future<Output = ControlResult<()>> + Send;

    /// What remains to be done when the server stops.
    fn finish(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Runs a loop until the server stops.
pub(crate) async fn run<L: BackgroundLoop>(
    mut work: L,
    metrics: Arc<Metrics>,
    stopping: CancellationToken,
    monitor: ThreadMonitor,
) {
    let mut sources = work.wake_sources();
    let mut backoff = BACKOFF_FIRST;
    let mut is_due = L::STARTS_AT_ONCE;
    while !stopping.is_cancelled() {
        if !is_due {
            tokio::select! {
                () = stopping.cancelled() => break,
                () = wait_for_change(&mut sources) => {}
                () = tokio::time::sleep(work.period()) => {}
            }
        }
        // The pass sees whatever changed before it.
        sources.iter_mut().for_each(watch::Receiver::mark_unchanged);
        let began = Instant::now();
        monitor.begin();
        let is_done = run_pass(&mut work, &metrics, &stopping).await;
        monitor.idle();
        let pause = if is_done {
            backoff = BACKOFF_FIRST;
            work.pause(began.elapsed())
        } else {
            let next = (backoff * 2).min(BACKOFF_LONGEST);
            std::mem::replace(&mut backoff, next)
        };
        is_due = !is_done;
        let _ = tokio::time::timeout(pause, stopping.cancelled()).await;
    }
    work.finish().await;
    monitor.stop();
}

/// Runs one pass. Returns whether it succeeded.
async fn run_pass<L: BackgroundLoop>(
    work: &mut L,
    metrics: &Metrics,
    stopping: &CancellationToken,
) -> bool {
    let name = L::NAME;
    match AssertUnwindSafe(work.pass()).catch_unwind().await {
        Ok(Ok(())) => {
            metrics.loop_ran(name);
            return true;
        }
        // The ledger closes while the server stops.
        Ok(Err(_)) if stopping.is_cancelled() => {}
        Ok(Err(error)) => {
            metrics.loop_failed(name, LoopFailure::Error);
            tracing::warn!(
                name,
                code = error.code(),
                error = error.detail(),
                "background pass failed; retrying"
            );
        }
        Err(panic) => {
            metrics.loop_failed(name, LoopFailure::Panic);
            let message = panic_message(&*panic);
            tracing::error!(name, message, "background pass panicked; retrying");
        }
    }
    false
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

/// Waits until one of the sources changes; for ever if there is none.
async fn wait_for_change(sources: &mut Vec<watch::Receiver<u64>>) {
    while !sources.is_empty() {
        let changes = sources.iter_mut().map(|source| Box::pin(source.changed()));
        let (change, index, _) = select_all(changes).await;
        if change.is_ok() {
            return;
        }
        // Its sender is gone, so it never changes again.
        sources.swap_remove(index);
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::error::ControlError;
    use crate::supervision::ThreadWork;

    /// What the passes of a test do, in this order; later ones succeed.
    enum TestPass {
        Panic,
        Fail,
    }

    struct TestLoop {
        starts: watch::Sender<u32>,
        script: Vec<TestPass>,
        changes: watch::Receiver<u64>,
        finished: Arc<AtomicU32>,
    }

    impl BackgroundLoop for TestLoop {
        const NAME: &'static str = "queue";
        const PERIOD: Duration = Duration::from_secs(3600);
        const STARTS_AT_ONCE: bool = true;

        fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
            vec![self.changes.clone()]
        }

        async fn pass(&mut self) -> ControlResult<()> {
            self.starts.send_modify(|count| *count += 1);
            if self.script.is_empty() {
                return Ok(());
            }
            match self.script.remove(0) {
                TestPass::Panic => panic!("a pass of a test"),
                TestPass::Fail => Err(ControlError::invalid("a pass of a test")),
            }
        }

        async fn finish(&mut self) {
            self.finished.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Fixture {
        starts: watch::Receiver<u32>,
        changes: watch::Sender<u64>,
        metrics: Arc<Metrics>,
        stopping: CancellationToken,
        finished: Arc<AtomicU32>,
        task: tokio::task::JoinHandle<()>,
    }

    impl Fixture {
        fn start(script: Vec<TestPass>) -> Self {
            let (changes, receiver) = watch::channel(0);
            let (starts, started) = watch::channel(0);
            let finished = Arc::<AtomicU32>::default();
            let work =
                TestLoop { starts, script, changes: receiver, finished: Arc::clone(&finished) };
            let (metrics, stopping) = (Arc::new(Metrics::new()), CancellationToken::new());
            let supervisor = Arc::<crate::supervision::Supervisor>::default();
            let monitor = supervisor.monitor("queue", ThreadWork::RunsPasses, None);
            let task = tokio::spawn(run(work, Arc::clone(&metrics), stopping.clone(), monitor));
            Self { starts: started, changes, metrics, stopping, finished, task }
        }

        async fn wait_for_pass(&mut self, number: u32) {
            let waited = self.starts.wait_for(|count| *count >= number);
            tokio::time::timeout(Duration::from_secs(30), waited).await.unwrap().unwrap();
        }

        async fn stop(self) {
            self.stopping.cancel();
            tokio::time::timeout(Duration::from_secs(30), self.task).await.unwrap().unwrap();
            assert_eq!(self.finished.load(Ordering::Relaxed), 1);
        }
    }

    #[tokio::test]
    async fn a_failed_or_panicked_pass_is_counted_and_retried_after_the_back_off() {
        let began = Instant::now();
        let mut fixture = Fixture::start(vec![TestPass::Panic, TestPass::Fail]);
        fixture.wait_for_pass(3).await;
        assert!(began.elapsed() >= BACKOFF_FIRST * 3, "{:?}", began.elapsed());
        let text = fixture.metrics.text();
        for cause in ["panic", "error"] {
            let line = format!("berth_loop_failures_total{{loop=\"queue\",cause=\"{cause}\"}} 1\n");
            assert!(text.contains(&line), "{text}");
        }
        fixture.stop().await;
    }

    #[tokio::test]
    async fn a_change_starts_a_pass_before_the_period_ends() {
        let mut fixture = Fixture::start(Vec::new());
        fixture.wait_for_pass(1).await;
        for number in 2..4 {
            fixture.changes.send_modify(|version| *version += 1);
            fixture.wait_for_pass(number).await;
        }
        fixture.stop().await;
    }

    #[tokio::test]
    async fn a_loop_whose_wake_source_is_gone_still_stops_and_does_not_spin() {
        let mut fixture = Fixture::start(Vec::new());
        fixture.wait_for_pass(1).await;
        fixture.changes = watch::Sender::new(0);
        tokio::task::yield_now().await;
        assert_eq!(*fixture.starts.borrow(), 1);
        fixture.stop().await;
    }
}
