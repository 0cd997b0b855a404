//! `berth up`: runs a server.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use berth_engine::Policy;
use berth_ledger::Backend;
use berth_server::service::{Service, ServiceOptions};
use berth_server::{HttpLimits, router};
use clap::Args;

/// Options of `berth up`.
#[derive(Args)]
pub(crate) struct Up {
    /// Where the server listens.
    #[arg(long, default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Where the server keeps its data.
    #[arg(long, default_value = "berth-data")]
    data_dir: PathBuf,
    /// Another database than the embedded one: postgres://USER@HOST/NAME.
    #[arg(long)]
    database_url: Option<String>,
    /// Callers on this machine need no token.
    #[arg(long)]
    no_sign_in: bool,
}

impl Up {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        tokio::runtime::Runtime::new()?.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let backend = match &self.database_url {
            Some(url) => Backend::parse(url)?,
            None => {
                std::fs::create_dir_all(&self.data_dir)
                    .with_context(|| format!("cannot make {}", self.data_dir.display()))?;
                Backend::Sqlite(self.data_dir.join("berth.db"))
            }
        };
        let mut options = ServiceOptions::new(backend, Policy::builtin("balanced")?);
        options.no_sign_in = self.no_sign_in;
        let service = Service::start(options)?;
        if let Some(token) = service.first_token()? {
            println!("admin token, shown this once: {token}");
        }
        let listener = tokio::net::TcpListener::bind(self.listen).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let stopping = service.stopping.clone();
        let app = router(service, HttpLimits::default());
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app)
            .with_graceful_shutdown(async move {
                let _ = tokio::signal::ctrl_c().await;
                stopping.cancel();
            })
            .await?;
        Ok(())
    }
}
