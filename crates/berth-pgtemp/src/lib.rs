//! A private PostgreSQL server, for tests and benchmarks.
//!
//! [`TempPostgres::start`] makes a folder, sets up a new cluster in it and starts a server that
//! no one else knows. It can be stopped, killed as by a power failure, and started again. Dropping
//! it leaves neither process nor folder. If the program that started it is killed, the kernel kills
//! the server too; only the folder is left then.
//!
//! It never touches a PostgreSQL that was there before, and it must not serve anything of value:
//! every local user may log in.

mod account;
mod cluster;
mod error;
mod programs;
mod server;

use std::fs::{File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use account::Account;
pub use error::{CommandError, StartError};
use server::{LOOKS_MAX, PAUSE, Server, WAITED_S};

/// Ports are taken from below those that the system gives to outgoing connections. From among
/// those, a client that keeps trying to reach a killed server would in the end be given the
/// server's own port, connect to itself, and keep the server from coming back.
const PORT_LOWEST: u16 = 15_000;
const PORTS: u16 = 16_000;

/// How many ports are tried.
const PORT_TRIES: u32 = 20;

/// How much of the server's log an error shows.
const LOG_TAIL_LINES: usize = 20;

/// Options of the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether a commit waits for the disk, as it must where durability or speed is measured.
    /// Without it tests run faster, and a killed machine (not a killed server) loses data.
    pub durable: bool,
    /// Further settings, as in `postgresql.conf`; they win over our own.
    pub settings: Vec<(String, String)>,
    /// Where the data folder is made, for example a small file system that is to run full. The
    /// server's account must be able to reach it. The system's temporary folder if not given.
    pub parent: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { durable: true, settings: Vec::new(), parent: None }
    }
}

impl Options {
    /// For tests that do not ask what survives a power failure: no waiting for the disk.
    pub fn quick() -> Self {
        Self { durable: false, ..Self::default() }
    }
}

/// A server that lives as long as this value.
#[derive(Debug)]
pub struct TempPostgres {
    server: Option<Server>,
    programs: PathBuf,
    account: Account,
    options: Options,
    port: u16,
    /// Holds socket and log, so that a full data disk can neither hide the log nor break the socket.
    home: TempDir,
    data: TempDir,
}

impl TempPostgres {
    /// Sets up a new cluster, starts its server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When PostgreSQL is not installed, or when it does not come up; the error shows its log.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let mut postgres = Self::with_folders(options)?;
        let templates = cluster::templates();
        let (programs, account) = (&postgres.programs, &postgres.account);
        cluster::create(programs, account, postgres.data.path(), templates.as_deref())?;
        postgres.launch_on_free_port()?;
        Ok(postgres)
    }

    /// Starts a standby that streams from this server, under the name that
    /// `synchronous_standby_names` may have, and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_standby(&self, name: &str) -> Result<Self, StartError> {
        let port = self.port.to_string();
        let mut options = self.options.clone();
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
        options.settings.push(("primary_conninfo".to_owned(), primary));
        let mut standby = Self::with_folders(options)?;
        let mut command = standby.account.command(&standby.programs.join("pg_basebackup"));
        command.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf"]);
        command.args(["-w", "-U", "postgres", "-h", "127.0.0.1", "-p", &port, "-D"]);
        programs::run(command.arg(standby.data.path()).current_dir(standby.data.path()))?;
        standby.launch_on_free_port()?;
        Ok(standby)
    }

    /// Everything but a cluster and its server.
    fn with_folders(options: Options) -> Result<Self, StartError> {
        let programs = programs::find()?;
        let account = Account::find()?;
        let system = std::env::temp_dir();
        let home = make_folder(&account, &system)?;
        let data = make_folder(&account, options.parent.as_deref().unwrap_or(&system))?;
        Ok(Self { server: None, programs, account, options, port: 0, home, data })
    }

    fn launch_on_free_port(&mut self) -> Result<(), StartError> {
        for _ in 0..PORT_TRIES {
            self.port = random_port();
            match self.launch() {
                Err(StartError::PortsTaken { .. }) => {}
                outcome => return outcome,
            }
        }
        Err(StartError::PortsTaken { tries: PORT_TRIES, log_tail: self.log_tail() })
    }

    /// Address of the database `postgres` over TCP.
    pub fn url(&self) -> String {
        self.database_url("postgres")
    }

    /// Address of the database `postgres` over the Unix socket.
    pub fn socket_url(&self) -> String {
        let folder = percent_encoded(self.home.path());
        format!("postgres://postgres@/postgres?host={folder}&port={}", self.port)
    }

    /// Makes an empty database and returns its address over TCP.
    ///
    /// # Errors
    ///
    /// When the name is not plain, is taken, or the server does not answer.
    pub fn create_database(&self, name: &str) -> Result<String, CommandError> {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_plain) {
            return Err(CommandError::Name { name: name.to_owned() });
        }
        programs::run(self.client("createdb").arg(name))?;
        Ok(self.database_url(name))
    }

    /// Runs SQL in the database `postgres` with `psql` and returns the bare rows.
    ///
    /// # Errors
    ///
    /// When the SQL fails or the server does not answer.
    pub fn psql(&self, sql: &str) -> Result<String, CommandError> {
        let mut command = self.client("psql");
        command.args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "postgres",
            "-c",
            sql,
        ]);
        Ok(programs::run(&mut command)?.trim_end().to_owned())
    }

    /// Fast shutdown: sessions are ended and what is committed is written. Does nothing if the
    /// server does not run.
    ///
    /// # Errors
    ///
    /// When the server still runs after a minute.
    pub fn stop(&mut self) -> Result<(), CommandError> {
        if let Some(server) = &mut self.server {
            server.stop()?;
        }
        self.server = None;
        Ok(())
    }

    /// Kills the server and all its children at once, as a power failure would.
    ///
    /// # Errors
    ///
    /// When a process is still there after a minute.
    pub fn kill(&mut self) -> Result<(), CommandError> {
        if let Some(server) = &mut self.server {
            server.kill()?;
        }
        self.server = None;
        Ok(())
    }

    /// Halts the server and all its children, as if its machine was frozen: connections stay open, and
    /// nothing is answered.
    ///
    /// # Errors
    ///
    /// When they cannot be halted.
    pub fn freeze(&mut self) -> Result<(), CommandError> {
        self.server.as_mut().map_or(Ok(()), Server::freeze)
    }

    /// Lets a server go on that was halted.
    ///
    /// # Errors
    ///
    /// When it cannot be let go on.
    pub fn thaw(&mut self) -> Result<(), CommandError> {
        self.server.as_mut().map_or(Ok(()), Server::thaw)
    }

    /// Starts the server again on the same data and port, after [`Self::stop`] if it runs.
    ///
    /// # Errors
    ///
    /// When it does not come up; the error shows its log.
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.stop()?;
        self.launch()
    }

    /// The server's process, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.server.as_ref().map(Server::process_id)
    }

    /// The folder with the data.
    pub fn data_folder(&self) -> &Path {
        self.data.path()
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn database_url(&self, name: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("server.log")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-w").args(["-U", "postgres", "-p", &self.port.to_string(), "-h"]);
        command.arg(self.home.path()).current_dir(self.home.path());
        command
    }

    fn launch(&mut self) -> Result<(), StartError> {
        let log_error = |source| StartError::Directory { path: self.log_path(), source };
        let log = File::create(self.log_path()).map_err(log_error)?;
        let log_too = log.try_clone().map_err(log_error)?;
        let program = self.programs.join("postgres");
        let mut command = self.account.command_that_dies_with_us(&program);
        command.arg("-D").arg(self.data.path());
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.current_dir(self.data.path()).stdin(Stdio::null()).stdout(log).stderr(log_too);
        self.server = Some(Server::start(command)?);
        let outcome = self.wait_until_ready();
        if outcome.is_err() {
            // A server that failed to start must not keep running; the first error matters more.
            let _ = self.kill();
        }
        outcome
    }

    fn settings(&self) -> Vec<(String, String)> {
        let socket_folder = self.home.path().display().to_string();
        let port = self.port.to_string();
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1"),
            ("port", &port),
            ("unix_socket_directories", &socket_folder),
            ("max_connections", "200"),
            ("shared_buffers", "256MB"),
            // In the data folder, so that a killed server leaves nothing in the system's memory.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        if !self.options.durable {
            settings.extend([("fsync", "off"), ("full_page_writes", "off")]);
        }
        let own = settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        own.chain(self.options.settings.iter().cloned()).collect()
    }

    fn wait_until_ready(&mut self) -> Result<(), StartError> {
        for _ in 0..LOOKS_MAX {
            if let Some(status) = self.server.as_mut().and_then(Server::ended) {
                let log_tail = self.log_tail();
                // The words are the system's, and ours to expect: the server runs with locale C.
                return Err(if log_tail.contains("Address already in use") {
                    StartError::PortsTaken { tries: 1, log_tail }
                } else {
                    StartError::Exited { status, log_tail }
                });
            }
            if self.says_ready() && self.answers() {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Err(StartError::NotReady { waited_s: WAITED_S, log_tail: self.log_tail() })
    }

    /// Whether its lock file says that it is ready. One that was killed leaves such a file too, so it
    /// is asked as well; but to ask takes a process each time, and most looks come too early.
    fn says_ready(&self) -> bool {
        let lock = std::fs::read_to_string(self.data.path().join("postmaster.pid"));
        lock.is_ok_and(|lock| lock.lines().nth(7).is_some_and(|state| state.trim() == "ready"))
    }

    /// Asks over the private socket; another process could own the port.
    fn answers(&self) -> bool {
        let mut command = Command::new(self.programs.join("pg_isready"));
        command.args(["-q", "-U", "postgres", "-d", "postgres", "-p", &self.port.to_string()]);
        command.arg("-h").arg(self.home.path());
        programs::run(&mut command).is_ok()
    }

    /// A killed server leaves a few bytes of System V memory, of which a system has a fixed number
    /// of pieces. The next start on the same data takes them over; without one, no one would.
    fn free_shared_memory(&self) {
        let lock = std::fs::read_to_string(self.data.path().join("postmaster.pid"));
        let id = lock.ok().and_then(|lock| {
            let key_and_id = lock.lines().nth(6)?.split_whitespace().nth(1)?;
            key_and_id.parse::<u32>().ok()
        });
        if let Some(id) = id {
            let _ = programs::run(Command::new("ipcrm").args(["-m", &id.to_string()]));
        }
    }
}

impl Drop for TempPostgres {
    fn drop(&mut self) {
        // There is no caller to report to; the folders are removed in any case.
        let abandoned = self.server.as_mut().map_or(Ok(()), Server::abandon);
        if abandoned.is_err() {
            let _ = self.kill();
        }
        self.free_shared_memory();
    }
}

fn make_folder(account: &Account, parent: &Path) -> Result<TempDir, StartError> {
    let failed = |source| StartError::Directory { path: parent.to_owned(), source };
    let folder = tempfile::Builder::new()
        .prefix("berth-postgres-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
        .map_err(failed)?;
    account.hand_over(folder.path()).map_err(failed)?;
    Ok(folder)
}

/// A loopback port on which nothing listens, for a server that a test stops and starts again: no
/// outgoing connection is given it in between.
///
/// # Panics
///
/// If every port that was tried is in use.
#[must_use]
#[expect(clippy::expect_used, reason = "a test without a port cannot go on")]
pub fn free_port() -> u16 {
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..1000).map(|_| random_port()).find(is_free).expect("a free port below 31000")
}

/// Any port of ours; whether it is free shows when the server tries to take it.
fn random_port() -> u16 {
    let chance = RandomState::new().hash_one(0u8) % u64::from(PORTS);
    PORT_LOWEST + u16::try_from(chance).unwrap_or(0)
}

fn percent_encoded(path: &Path) -> String {
    let mut encoded = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) {
            encoded.push(char::from(*byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
