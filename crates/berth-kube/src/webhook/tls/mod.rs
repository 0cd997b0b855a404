//! The serving certificate: of our own making and kept in a Secret, or from files that somebody
//! else keeps. Either way it is taken up while the webhook serves.

mod files;
mod own;
mod secret;

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

pub(super) use files::follow_files;
pub(super) use secret::{SecretKeeper, follow_secret};

/// A certificate that cannot be used.
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
    /// There is no certificate or key in it.
    #[error("{place} holds no {what} in PEM")]
    Content {
        /// Where it was looked for.
        place: String,
        /// What was looked for.
        what: &'static str,
    },
    /// They do not belong together, or are of a kind that is not supported.
    #[error("the certificate and its key cannot be used together")]
    Unusable(#[source] rustls::Error),
    /// A certificate cannot be made.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// The Secret cannot be read or written.
    #[error("Secret {name} cannot be kept")]
    Secret {
        /// Its name.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// Others kept changing it.
    #[error("Secret {0} changes again and again; is another program keeping it?")]
    Contended(String),
}

/// What the server needs of a certificate and its key.
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
