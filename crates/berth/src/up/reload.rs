//! Reloads settings, certificates and the policy file when they change, and on `SIGHUP`.
//!
//! Directories are watched, not files: editors and mounted volumes replace files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use berth_control::ControlPlane;
use berth_control::supervision::ThreadMonitor;
use berth_server::config::{Key, LoadedConfig};
use berth_server::policy_file::PolicyFile;
use berth_server::serve::{ConnectionLimits, Tls};
use berth_server::telemetry::Telemetry;
use notify::Watcher as _;
use sd_notify::NotifyState;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::open::OwnAuthority;
use super::options::Flags;
use crate::cmdutil::chain;

/// How long to wait for more changes before reading: a file may be written in pieces.
const DEBOUNCE: Duration = Duration::from_millis(300);

/// How often the expiry of the own certificate is checked.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);

/// Everything that can be reloaded.
pub(super) struct Reloader {
    pub(super) flags: Flags,
    /// The last accepted settings.
    pub(super) current: Arc<ArcSwap<LoadedConfig>>,
    pub(super) control: Arc<ControlPlane>,
    pub(super) limits: Arc<ArcSwap<ConnectionLimits>>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) own: Option<OwnAuthority>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) policy_file: Option<PolicyFile>,
    /// What was wrong at the last reload. Any change in a watched directory causes another one, which
    /// must not log the same again.
    pub(super) last_error: Option<String>,
}

/// Why something is reloaded.
#[derive(Clone, Copy)]
enum ReloadCause {
    Signal,
    Change,
    Hour,
}

/// The monitor of the reloader. Its end is expected once it is to stop, and only then.
struct ReloadMonitor {
    monitor: ThreadMonitor,
    stopping: CancellationToken,
}

impl Drop for ReloadMonitor {
    fn drop(&mut self) {
        if self.stopping.is_cancelled() {
            self.monitor.stop();
        }
    }
}

impl Reloader {
    /// Reloads until it is aborted, which is expected once it is to stop. A panic ends one reload only.
    pub(super) async fn run(
        mut self,
        mut hangup: Signal,
        monitor: ThreadMonitor,
        stopping: CancellationToken,
    ) {
        let monitor = ReloadMonitor { monitor, stopping };
        let started = self.current.load_full();
        let (sender, mut changes) = mpsc::unbounded_channel();
        let _watcher = self.watch(sender);
        let mut hourly = tokio::time::interval(RENEWAL_INTERVAL);
        loop {
            let cause = tokio::select! {
                _ = hangup.recv() => ReloadCause::Signal,
                Some(()) = changes.recv() => {
                    tokio::time::sleep(DEBOUNCE).await;
                    while changes.try_recv().is_ok() {}
                    ReloadCause::Change
                }
                _ = hourly.tick() => ReloadCause::Hour,
            };
            monitor.monitor.begin();
            // A panic is logged and counted; the next reload reads everything again.
            let _ = monitor.monitor.guard_async(self.reload_for(cause, &started)).await;
            monitor.monitor.idle();
        }
    }

    async fn reload_for(&mut self, cause: ReloadCause, started: &LoadedConfig) {
        match cause {
            ReloadCause::Signal => self.reload_by_signal(started).await,
            ReloadCause::Change => {
                self.reload(started, false);
                self.check_policy_file(false).await;
            }
            ReloadCause::Hour => self.renew(),
        }
    }

    /// Watches the directories of all files that may change. If that fails, SIGHUP still works.
    fn watch(&self, changed: mpsc::UnboundedSender<()>) -> Option<notify::RecommendedWatcher> {
        let tls = self.tls.iter().flat_map(|tls| {
            let files = tls.files();
            [files.cert.as_path(), files.key.as_path()]
                .into_iter()
                .chain(files.client_ca.iter().map(PathBuf::as_path))
        });
        let policy = self.policy_file.iter().map(PolicyFile::path);
        let folders: BTreeSet<PathBuf> =
            self.flags.file().into_iter().chain(tls).chain(policy).map(folder_of).collect();
        if folders.is_empty() {
            return None;
        }
        let handler = move |event: notify::Result<notify::Event>| {
            // Reading a file is an event too, and must not cause another reload.
            let is_change = event.map_or_else(
                |error| {
                    // Events were lost, perhaps of our files: they are read again.
                    tracing::warn!(%error, "failed to watch files; reloading them");
                    true
                },
                |event| !event.kind.is_access(),
            );
            if is_change {
                let _ = changed.send(());
            }
        };
        let mut watcher = match notify::recommended_watcher(handler) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(%error, "failed to watch files; reload them with SIGHUP");
                return None;
            }
        };
        for folder in folders {
            if let Err(error) = watcher.watch(&folder, notify::RecursiveMode::NonRecursive) {
                let folder = folder.display().to_string();
                tracing::warn!(%error, folder, "failed to watch a directory; reload its files with SIGHUP");
            }
        }
        Some(watcher)
    }

    async fn check_policy_file(&mut self, by_signal: bool) {
        if let Some(file) = &mut self.policy_file {
            file.check_file(&self.control, by_signal).await;
        }
    }

    async fn reload_by_signal(&mut self, started: &LoadedConfig) {
        if let Ok(at) = NotifyState::monotonic_usec_now() {
            let _ = sd_notify::notify(&[NotifyState::Reloading, at]);
        }
        self.reload(started, true);
        self.check_policy_file(true).await;
        let _ = sd_notify::notify(&[NotifyState::Ready]);
    }

    fn reload(&mut self, started: &LoadedConfig, by_signal: bool) {
        let mut errors = Vec::new();
        match self.tls.as_ref().map(|tls| tls.reload()) {
            Some(Ok(true)) => tracing::info!("certificates reloaded"),
            Some(Ok(false)) | None => {}
            Some(Err(error)) => errors.push(format!(
                "failed to reload certificates; keeping the old ones: {}",
                chain(&error)
            )),
        }
        match self.flags.load() {
            Ok(loaded) => self.apply(loaded, started, by_signal),
            Err(error) => {
                errors.push(format!("invalid configuration; keeping the old one: {error:#}"));
            }
        }
        let error = (!errors.is_empty()).then(|| errors.join("; "));
        if let Some(text) = &error
            && (by_signal || error != self.last_error)
        {
            tracing::error!("{text}");
        }
        self.last_error = error;
    }

    fn apply(&self, loaded: LoadedConfig, started: &LoadedConfig, by_signal: bool) {
        let before = self.current.load_full();
        let (live, changed) = loaded.changed(&before);
        let (_, restart) = loaded.changed(started);
        if !live.is_empty() {
            let config = &loaded.config;
            self.control.lifecycle.configure(config.settings.clone(), config.maintenance);
            self.limits.store(Arc::new(config.http.connections));
            if let Err(error) = self.telemetry.set_level(&config.telemetry.log_level) {
                tracing::error!(%error, "failed to change the log level");
            }
            tracing::info!(settings = names(&live), "settings changed");
        }
        if !restart.is_empty() && (by_signal || !changed.is_empty()) {
            tracing::warn!(settings = names(&restart), "changed settings require a restart");
        }
        if by_signal && live.is_empty() && restart.is_empty() {
            tracing::info!("configuration unchanged");
        }
        self.current.store(Arc::new(loaded));
    }

    fn renew(&self) {
        let (Some(own), Some(tls)) = (&self.own, &self.tls) else { return };
        match own.authority.renew_server(&own.hosts, jiff::Timestamp::now()) {
            Ok(true) => match tls.reload() {
                Ok(_) => tracing::info!("server certificate renewed"),
                Err(error) => {
                    tracing::error!(error = chain(&error), "failed to load the renewed certificate")
                }
            },
            Ok(false) => {}
            Err(error) => {
                tracing::error!(error = chain(&error), "failed to renew the server certificate")
            }
        }
    }
}

fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

fn names(keys: &[&'static Key]) -> String {
    keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}
