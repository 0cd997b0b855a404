//! A pgbouncer between a ledger and its database, which can be killed.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::wait::wait_until;

/// How long it may take until it answers.
const START_TIME: Duration = Duration::from_secs(20);

/// A running pgbouncer. Killed when dropped.
pub struct Pooler {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
}

impl Pooler {
    /// Starts one in front of the server of a URL, in a mode of pooling, with further settings.
    ///
    /// # Errors
    /// When pgbouncer is not installed or does not start.
    pub fn start(url: &str, mode: &str, settings: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("berth-pooler-").tempdir()?;
        // It runs as another user if we are root.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let server = url.rsplit(':').next().and_then(|rest| rest.split('/').next());
        let server: u16 = server.context("no port")?.parse()?;
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\nserver_login_retry = 1\n{settings}\n"
        );
        std::fs::write(folder.path().join("pgbouncer.ini"), config)?;
        let mut pooler = Self { child: None, folder, port };
        pooler.launch()?;
        Ok(pooler)
    }

    fn launch(&mut self) -> anyhow::Result<()> {
        let config = self.folder.path().join("pgbouncer.ini");
        let is_root = std::fs::metadata(&config)?.uid() == 0;
        let mut command = Command::new("setpriv");
        // pgbouncer refuses to run as root, as PostgreSQL does.
        if is_root {
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        }
        command.args(["--pdeathsig", "KILL", "--", "pgbouncer", "--quiet"]).arg(config);
        // Debian keeps it where only root looks.
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("setpriv is missing"),
            _ => error.into(),
        })?;
        let child = self.child.insert(child);
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let mut ended = None;
        let listens = wait_until(START_TIME, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || TcpStream::connect(address).is_ok()
        });
        match ended {
            Some(status) => {
                bail!("pgbouncer ended ({status}); is it installed (apt-get install pgbouncer)?")
            }
            None if listens => Ok(()),
            None => bail!("pgbouncer does not listen"),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The URL of the database through it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// Kills it with all its connections.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may be gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again where it was.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        self.launch()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.kill();
    }
}
