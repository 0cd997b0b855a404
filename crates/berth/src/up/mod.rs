//! `berth up`: run a server.

mod certificate;
mod client_file;
mod config;
mod greeting;
mod lock;
mod open;
mod options;
mod reload;
mod sign_in;
mod stop;
mod watchdog;

use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use berth_client::{Client, Connect};
use berth_control::ControlPlane;
use berth_server::config::LoadedConfig;
use berth_server::policy_file::PolicyFile;
use berth_server::serve::Stop;
use berth_server::telemetry::Telemetry;
use berth_server::wire;
use berth_server::{AppState, router};
use berth_sim::agents::DemoOptions;
use clap::Args;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use open::ServerResources;
use options::Flags;
use reload::Reloader;

pub(crate) use certificate::Certificate;
pub(crate) use config::ConfigCommand;
pub(crate) use lock::Lock;
pub(crate) use open::without_password;
pub(crate) use options::{BadConfig, default_data_dir};
pub(crate) use stop::Signals;

/// Options of `berth up`.
#[derive(Args)]
pub(crate) struct Up {
    /// Simulate a fleet of hosts, with its own data: --demo, or --demo=5000.
    #[arg(long, value_name = "HOSTS", num_args = 0..=1, require_equals = true, default_missing_value = "1000")]
    demo: Option<u64>,
    #[command(flatten)]
    flags: Flags,
}

/// Raises the limit of open files to what the system allows: every connection is one, and shells set a
/// low limit. If that fails, connections are refused later, and the log says why.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

impl Up {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let loaded = self.flags.load()?;
        // Its blocking client must be created outside of asynchronous code. It is kept to the end, so
        // that the last traces are sent too.
        let telemetry = Arc::new(Telemetry::start(&loaded.config.telemetry)?);
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        raise_file_limit();
        let runtime = tokio::runtime::Runtime::new()?;
        let outcome = runtime.block_on(self.serve(loaded, Arc::clone(&telemetry)));
        // Remaining blocking threads must not delay the exit.
        runtime.shutdown_timeout(std::time::Duration::from_secs(2));
        outcome
    }

    async fn serve(self, loaded: LoadedConfig, telemetry: Arc<Telemetry>) -> anyhow::Result<()> {
        let mut signals = stop::Signals::new()?;
        // Registered early, because an unhandled SIGHUP ends the process.
        let hangup = signal(SignalKind::hangup())?;
        let server = open::listen("--listen", &loaded.config.server.listen)?;
        let wire = open::listen("--wire-listen", &loaded.config.wire.listen)?;
        let (own, others) = (server.addresses(), wire.addresses());
        let resources = ServerResources::new(&loaded.config, self.demo.is_some(), &own, &others)?;
        let state = resources.start(&loaded.config).await?;
        open::warn_about_durability(&state.control).await;
        let mut policy_file = loaded.config.policy_file.clone().map(PolicyFile::new);
        if let Some(file) = &mut policy_file {
            file.check_file(&state.control, true).await;
        }
        let limits = Arc::new(ArcSwap::from_pointee(loaded.config.http.connections));
        let control = &state.control;
        let server = server.with_monitors(|| control.monitor_task("listener"));
        let wire = wire.with_monitors(|| control.monitor_task("permit_listener"));
        let [server, wire] = [server, wire]
            .map(|server| server.with_limits(Arc::clone(&limits)).with_tls(resources.tls.clone()));
        let app = router(state.clone(), loaded.config.http.limits);
        let wire_app = wire::router(state.clone(), loaded.config.wire_settings());
        let draining = control.lifecycle.draining().clone();
        let steps = Stop { draining, ..Stop::default() };
        let (on_own, on_wire) = (server.run(app, steps.clone()), wire.run(wire_app, steps.clone()));
        let serving = tokio::spawn(async move {
            tokio::join!(on_own, on_wire);
        });

        let sign_in = sign_in::set_up(&resources, &state, self.demo.is_some()).await?;
        greeting::print(&resources, &sign_in, self.demo);
        let demo = self.demo.map(|hosts| simulate_fleet(&resources, &state, hosts)).transpose()?;
        let demo = demo.map(tokio::spawn);
        let current = Arc::new(ArcSwap::from_pointee(loaded));
        let reloader = Reloader {
            flags: self.flags,
            current: Arc::clone(&current),
            control: Arc::clone(&state.control),
            limits,
            telemetry,
            own: resources.own.clone(),
            tls: resources.tls.clone(),
            policy_file,
            last_error: None,
        };
        let (monitor, stopping) = (control.monitor_task("reload"), CancellationToken::new());
        let reloading = tokio::spawn(reloader.run(hangup, monitor, stopping.clone()));
        let watchdog = watchdog::start(control)?;
        // Fails only without a service manager.
        let _ = sd_notify::notify(&[NotifyState::Ready]);

        let ended = state.control.thread_ended().clone();
        let why = tokio::select! {
            why = signals.next() => why,
            // Without it nothing can be decided; the service manager starts the server again.
            () = ended.cancelled() => "a shared thread ended",
        };
        stopping.cancel();
        reloading.abort();
        let _ = reloading.await;
        stop::stop(why, &mut signals, &steps, &state.control, serving, &current).await;
        if let Some(demo) = demo {
            let _ = demo.await;
        }
        drop(watchdog);
        close(state.control).await;
        drop(resources);
        anyhow::ensure!(!ended.is_cancelled(), "a shared thread ended; the log says which and why");
        Ok(())
    }
}

/// A simulated fleet that talks to this server like real hosts. Only this process knows its token.
fn simulate_fleet(
    resources: &ServerResources,
    state: &AppState,
    hosts: u64,
) -> anyhow::Result<impl Future<Output = ()> + Send + use<>> {
    let token = sign_in::token_of_this_process(&state.access)?;
    let ca_pem = match &resources.own {
        Some(own) => Some(std::fs::read(own.authority.ca_cert())?),
        None => None,
    };
    let url = resources.local_url();
    let connect = Connect { url, token: Some(token), ca_pem, ..Connect::default() };
    let client =
        Client::new(connect).context("the simulated fleet cannot connect to the server")?;
    let options = DemoOptions { hosts, ..DemoOptions::default() };
    Ok(berth_sim::agents::run(client, options, state.control.lifecycle.draining().clone()))
}

/// Closes the ledger after all its users.
async fn close(control: Arc<ControlPlane>) {
    let tick = std::time::Duration::from_millis(10);
    // Loops end when they are stopped; each holds the control plane until then.
    for _ in 0..500 {
        if Arc::strong_count(&control) == 1 {
            break;
        }
        tokio::time::sleep(tick).await;
    }
    let _ = tokio::task::spawn_blocking(move || drop(control)).await;
}
