//! Servers on one ledger, which can be stopped and started again.

use std::sync::Arc;
use std::time::Duration;

use berth_api::Role;
use berth_control::ControlOptions;
use berth_ledger::Backend;
use berth_pgtemp::TempPostgres;
use serde_json::Value;
use tokio::time::Instant;

use crate::common::{Reply, Server, TIMEOUT};
use crate::picture::Picture;

/// How long anything may take before a test says that it does not happen.
const PATIENCE: Duration = TIMEOUT;

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite,
    Postgres,
}

pub(crate) struct Stage {
    pub(crate) servers: Vec<Server>,
    /// The server that is asked.
    pub(crate) at: usize,
    token: String,
    backend: Backend,
    _postgres: Option<TempPostgres>,
    _folder: tempfile::TempDir,
}

/// Nobody is lost for want of a sign of life, however long a run is.
fn patient(options: &mut ControlOptions) {
    options.settings.lost_after = Duration::from_secs(86_400);
}

async fn start(backend: Backend) -> Server {
    Server::start_with(|options| {
        options.backend = backend;
        patient(options);
    })
    .await
}

impl Stage {
    pub(crate) async fn new(store: Store, servers: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (postgres, backend) = match store {
            Store::Sqlite => (None, Backend::Sqlite(folder.path().join("ledger.db"))),
            Store::Postgres => {
                let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
                let url = postgres.url();
                (Some(postgres), Backend::Postgres(url))
            }
        };
        let mut started = Vec::new();
        for _ in 0..servers {
            started.push(start(backend.clone()).await);
        }
        let token = started[0].token(Role::Admin).await;
        let stage =
            Self { servers: started, at: 0, token, backend, _postgres: postgres, _folder: folder };
        for at in 0..servers {
            stage
                .until("every server knows the token", async || {
                    stage.servers[at].get(&stage.token, "/v1/whoami").await.status == 200
                })
                .await;
        }
        stage
    }

    fn server(&self) -> &Server {
        &self.servers[self.at]
    }

    /// Stops the server that is asked and starts another in its place, on the same ledger.
    pub(crate) async fn restart(&mut self) {
        let old = self.servers.remove(self.at);
        let weak = Arc::downgrade(&old.control);
        old.stop().await;
        let began = Instant::now();
        while weak.strong_count() > 0 {
            assert!(began.elapsed() < PATIENCE, "the stopped server is still in use");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.servers.insert(self.at, start(self.backend.clone()).await);
    }

    pub(crate) async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let began = Instant::now();
        while !holds().await {
            assert!(began.elapsed() < PATIENCE, "it never happened: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.server().get(&self.token, path).await.expect(200).json()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.server().post(&self.token, path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.server().put(&self.token, path, body).await
    }

    /// Everything, as the server that is asked says.
    pub(crate) async fn look(&self) -> Picture {
        let nodes = self.get("/v1/nodes?limit=100").await;
        let claims = self.get("/v1/claims?limit=1000").await;
        let instances = self.get("/v1/instances?limit=1000").await;
        let open = self.get("/v1/migrations?open=true&limit=1000").await;
        Picture::read(&nodes, &claims, &instances, &open)
    }
}
