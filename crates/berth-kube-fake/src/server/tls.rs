//! A generated certificate.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::StartError;

/// The certificate of the server and its CA.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) ca_pem: String,
    pub(crate) acceptor: TlsAcceptor,
}

impl Identity {
    /// Creates a CA and a certificate for this machine.
    pub(crate) fn make() -> Result<Self, StartError> {
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "kubernetes".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { ca_pem: authority.pem(), acceptor })
    }
}
