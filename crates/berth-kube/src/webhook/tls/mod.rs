//! The serving certificate: self-signed and stored in a Secret, or from files. Changes take effect
//! without a restart.

mod files;
mod secret;
mod self_signed;

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

pub(super) use files::follow_files;
pub(super) use secret::{CertificateSecret, follow_secret};

/// A certificate cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {path}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A certificate or key is missing.
    #[error("{place} contains no {what} in PEM format")]
    Content {
        /// Where it was expected.
        place: String,
        /// What is missing.
        what: &'static str,
    },
    /// Certificate and key do not match, or their type is not supported.
    #[error("certificate and key cannot be used together")]
    Unusable(#[source] rustls::Error),
    /// A certificate cannot be created.
    #[error("failed to create a certificate")]
    Make(#[from] rcgen::Error),
    /// The Secret cannot be read or written.
    #[error("failed to read or write Secret {name}")]
    Secret {
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// Other writers keep changing the Secret.
    #[error("Secret {0} changed on every attempt; is another program managing it?")]
    Contended(String),
}

/// The TLS configuration for a certificate and its key.
fn server_config(place: &str, certificate: &[u8], key: &[u8]) -> Result<ServerConfig, TlsError> {
    let missing = |what| TlsError::Content { place: place.to_owned(), what };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| missing("certificate"))?;
    if chain.is_empty() {
        return Err(missing("certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| missing("private key"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?;
    let mut config =
        builder.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
