//! The resources of a server: addresses, data directory, database, certificates. An error names what is
//! missing and what to do.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use berth_control::{ControlOptions, ControlPlane, PlacerOptions, StartError};
use berth_engine::Policy;
use berth_ledger::{Backend, LedgerError};
use berth_server::AppState;
use berth_server::config::{Config, TlsMode};
use berth_server::serve::{Authority, Server, Tls, TlsFiles};

use super::lock::Lock;
use super::options::default_data_dir;
use crate::cmdutil::create_private_dir;

/// The resources that a server holds while it runs.
pub(super) struct ServerResources {
    pub(super) data_dir: PathBuf,
    pub(super) backend: Backend,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) wire: Vec<SocketAddr>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) own: Option<OwnAuthority>,
    pub(super) no_sign_in: bool,
    _lock: Option<Lock>,
}

/// Logs settings of the database under which a failover loses acknowledged placements. A server starts
/// all the same: whether that matters is the operator's decision.
pub(super) async fn warn_about_durability(control: &ControlPlane) {
    match control.read(|ledger| ledger.durability_warnings()).await {
        Ok(warnings) => {
            for warning in warnings {
                tracing::warn!(remedy = warning.remedy(), "{warning}");
            }
        }
        Err(error) => {
            tracing::warn!(error = %error.detail(), "failed to check the durability of the database");
        }
    }
}

/// The server's own certificate authority, and the host names of its certificate.
#[derive(Clone)]
pub(super) struct OwnAuthority {
    pub(super) authority: Authority,
    pub(super) hosts: Vec<String>,
}

/// Binds the addresses, which were set with a flag.
pub(super) fn listen(flag: &str, addresses: &[SocketAddr]) -> anyhow::Result<Server> {
    Server::bind(addresses).map_err(|(at, error)| match error.kind() {
        ErrorKind::AddrInUse => anyhow!(
            "cannot listen on {at}: the port is in use; stop the program that uses it, or set another with {flag}, such as {flag} {}:{}",
            at.ip(),
            at.port().saturating_add(1)
        ),
        ErrorKind::PermissionDenied => anyhow!(
            "cannot listen on {at}: ports below 1024 are for root; set another with {flag}"
        ),
        ErrorKind::AddrNotAvailable => anyhow!(
            "cannot listen on {at}: this machine does not have the address; set one of its own with {flag}"
        ),
        _ => anyhow!("cannot listen on {at}: {error}"),
    })
}

impl ServerResources {
    pub(super) fn new(
        config: &Config,
        demo: bool,
        addresses: &[SocketAddr],
        wire: &[SocketAddr],
    ) -> anyhow::Result<Self> {
        let mut data_dir = config.server.data_dir.clone();
        if data_dir.as_os_str().is_empty() {
            data_dir = default_data_dir()?;
            // A demonstration must not mix with real data.
            if demo {
                data_dir.push("demo");
            }
        }
        // The ledger in it has hashes of tokens.
        create_private_dir(&data_dir).with_context(|| {
            format!("failed to create {}; grant the user of this process access, or set another directory with --data-dir", data_dir.display())
        })?;
        let backend = match &config.server.database_url {
            Some(url) => Backend::parse(url)?,
            None => Backend::Sqlite(data_dir.join("berth.db")),
        };
        let lock = match &backend {
            Backend::Sqlite(path) => Some(Lock::take(path)?),
            Backend::Postgres(_) => None,
        };
        let now = jiff::Timestamp::now();
        let own = match config.tls.mode {
            TlsMode::Own => {
                let authority = Authority::in_data_dir(&data_dir, now)?;
                let hosts = hosts(&[addresses, wire].concat(), &config.tls.hosts);
                authority.renew_server(&hosts, now)?;
                Some(OwnAuthority { authority, hosts })
            }
            TlsMode::Off | TlsMode::Files => None,
        };
        let tls = tls_files(config, own.as_ref()).map(Tls::load).transpose()?.map(Arc::new);
        let (addresses, wire) = (addresses.to_vec(), wire.to_vec());
        let no_sign_in = config.server.no_sign_in;
        Ok(Self { data_dir, backend, addresses, wire, tls, own, no_sign_in, _lock: lock })
    }

    /// Opens the ledger and starts the service.
    pub(super) async fn start(&self, config: &Config) -> anyhow::Result<AppState> {
        let mut placer = PlacerOptions::new(policy(&config.policy)?);
        placer.ledger = config.ledger;
        placer.follow_every = config.follow_every;
        placer.tenant_queue = config.claim_path.planner_queue;
        placer.in_flight = config.claim_path.in_flight;
        placer.queue_delay = config.claim_path.queue_delay;
        let options = ControlOptions {
            backend: self.backend.clone(),
            placer,
            settings: config.settings.clone(),
            maintenance: config.maintenance,
            followers: Vec::new(),
        };
        // It blocks on the database.
        let no_sign_in = config.server.no_sign_in;
        let start = move || AppState::start(options, no_sign_in);
        let started = tokio::task::spawn_blocking(start).await?;
        started.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: StartError) -> anyhow::Error {
        let error = anyhow::Error::from(error);
        let name = self.database();
        match error.chain().find_map(|cause| cause.downcast_ref::<LedgerError>()) {
            Some(LedgerError::Unreachable(why)) => anyhow!(
                "the database {name} cannot be reached: {why}; start it, or set another with --database-url"
            ),
            Some(LedgerError::NewerSchema { found, known }) => anyhow!(
                "the database {name} was created by a newer Berth (schema {found}, this one supports up to {known}); start the newer Berth, or set another database with --database-url"
            ),
            Some(LedgerError::StorageFull(why)) => {
                anyhow!("the disk of the database {name} is full: {why}; free some space")
            }
            Some(LedgerError::Corrupt(why)) => anyhow!(
                "the database {name} is corrupt: {why}; restore it from an export, or set another with --database-url"
            ),
            Some(other) => anyhow!("the database {name} cannot be used: {other}"),
            None => error,
        }
    }

    /// The database, without its password.
    pub(super) fn database(&self) -> String {
        match &self.backend {
            Backend::Sqlite(path) => path.display().to_string(),
            Backend::Postgres(url) => without_password(url),
        }
    }

    /// The URL of the server on this machine.
    pub(super) fn local_url(&self) -> String {
        let loopback = self.addresses.iter().find(|at| at.ip().to_canonical().is_loopback());
        self.url(loopback.or(self.addresses.first()))
    }

    /// All URLs.
    pub(super) fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|at| self.url(Some(at))).collect()
    }

    /// The URLs of the wire protocol.
    pub(super) fn wire_urls(&self) -> Vec<String> {
        self.wire.iter().map(|at| self.url(Some(at))).collect()
    }

    fn url(&self, at: Option<&SocketAddr>) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let at = at.copied().unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 7070)));
        let ip = match at.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        format!("{scheme}://{}", SocketAddr::new(ip, at.port()))
    }
}

pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.find(['/', '?']).unwrap_or(rest.len());
    let Some(at) = rest[..authority].rfind('@') else { return url.to_owned() };
    let user = rest[..at].split(':').next().unwrap_or("");
    // Query parameters may contain a password too.
    let place = rest[at..].split('?').next().unwrap_or("");
    format!("{scheme}://{user}{place}")
}

fn tls_files(config: &Config, own: Option<&OwnAuthority>) -> Option<TlsFiles> {
    let mut client_ca: Vec<PathBuf> = config.tls.client_ca.iter().cloned().collect();
    if let Some(own) = own {
        client_ca.push(own.authority.ca_cert());
        let server = own.authority.server();
        return Some(TlsFiles { cert: server.clone(), key: server, client_ca });
    }
    let (cert, key) = (config.tls.cert.clone()?, config.tls.key.clone()?);
    Some(TlsFiles { cert, key, client_ca })
}

/// All host names of this server, in a fixed order.
fn hosts(addresses: &[SocketAddr], named: &[String]) -> Vec<String> {
    let own = addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fixed = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let all = fixed.into_iter().chain(own.map(|ip| ip.to_string())).chain(named.iter().cloned());
    let mut hosts: Vec<String> = all.chain([name.trim().to_owned()]).collect();
    hosts.retain(|host| !host.is_empty());
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

fn policy(name: &str) -> anyhow::Result<Policy> {
    let builtin = match Policy::builtin(name) {
        Ok(policy) => return Ok(policy),
        Err(error) => error,
    };
    let path = Path::new(name);
    if !path.exists() {
        bail!(
            "policy.initial is {name:?}, which is neither a file nor a built-in policy: {builtin}"
        );
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let read = if is_json { Policy::from_json(&text) } else { Policy::from_toml(&text) };
    read.with_context(|| format!("policy.initial is {name}, which is not a policy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://berth@db/x", "postgres://berth@db/x"),
            ("postgres://berth:s@cret@db:5432/x?sslmode=require", "postgres://berth@db:5432/x"),
            ("postgres://db/x", "postgres://db/x"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn a_policy_is_a_name_or_a_file() {
        assert_eq!(policy("pack").unwrap().name(), "pack");
        let error = policy("packk").unwrap_err().to_string();
        assert!(error.contains("\"packk\"") && error.contains("balanced"), "{error}");
    }
}
