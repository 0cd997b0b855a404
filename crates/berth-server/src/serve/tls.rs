//! Encryption: certificates from files, read again when they change, and certificates of agents.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use berth_engine::NodeId;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

/// Where certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and the chain above it.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who vouches for agents; none: no certificate of a client is looked at.
    pub client_ca: Vec<PathBuf>,
}

/// Certificates that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file holds no certificate or no key.
    #[error("{path} holds no {what} in PEM: {why}")]
    Content {
        /// Which.
        path: String,
        /// What was looked for.
        what: &'static str,
        /// What was found.
        why: String,
    },
    /// They do not belong together, or are of a kind that is not supported.
    #[error("the certificate and its key cannot be used together")]
    Unusable(#[source] rustls::Error),
    /// Nobody can vouch for agents.
    #[error("the authorities of agents cannot be used: {0}")]
    Authorities(String),
}

/// Encryption of connections. What it does may change while it is used.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    read: ArcSwap<Vec<Vec<u8>>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When they cannot be read or used.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let read = files.read()?;
        let config = ArcSwap::from_pointee(files.config(&read)?);
        Ok(Self { files, config, read: ArcSwap::from_pointee(read) })
    }

    /// Reads the files again. Returns whether there was anything new.
    ///
    /// # Errors
    /// As [`Tls::load`]; then everything stays as it was.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let read = self.files.read()?;
        if read == **self.read.load() {
            return Ok(false);
        }
        self.config.store(Arc::new(self.files.config(&read)?));
        self.read.store(Arc::new(read));
        Ok(true)
    }

    /// The files it reads.
    #[must_use]
    pub const fn files(&self) -> &TlsFiles {
        &self.files
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

impl TlsFiles {
    /// What is in each: certificate, key, then authorities.
    fn read(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        let paths = [&self.cert, &self.key].into_iter().chain(&self.client_ca);
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| TlsError::File { path: named(path), source })
        };
        paths.map(read).collect()
    }

    fn config(&self, read: &[Vec<u8>]) -> Result<ServerConfig, TlsError> {
        let [cert, key, authorities @ ..] = read else {
            return Err(TlsError::Authorities("nothing was read".to_owned()));
        };
        let chain = certificates(&self.cert, cert)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Content {
            path: named(&self.key),
            what: "private key",
            why: error.to_string(),
        })?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unusable)?;
        let builder = if authorities.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for (path, pem) in self.client_ca.iter().zip(authorities) {
                for certificate in certificates(path, pem)? {
                    roots
                        .add(certificate)
                        .map_err(|error| TlsError::Authorities(error.to_string()))?;
                }
            }
            // Agents may have one; people and tenants come with tokens.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| TlsError::Authorities(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn named(path: &Path) -> String {
    path.display().to_string()
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = |why: String| TlsError::Content { path: named(path), what: "certificate", why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| content(error.to_string()))?;
    if found.is_empty() { Err(content("it has none".to_owned())) } else { Ok(found) }
}

/// The node whose agent a verified certificate is for: its one DNS name. With several names it would
/// not be clear who calls, so it is nobody.
pub(super) fn certified_node(chain: Option<&[CertificateDer<'_>]>) -> Option<NodeId> {
    let certificate = webpki::EndEntityCert::try_from(chain?.first()?).ok()?;
    let mut names = certificate.valid_dns_names();
    let (name, None) = (names.next()?, names.next()) else { return None };
    Some(NodeId::new(name))
}
