//! Encryption of the connection, as set by `sslmode` and `sslrootcert` in the URL.
//!
//! The modes mean what they mean to PostgreSQL's own programs. The driver knows only some of them,
//! so both settings are taken out of the URL before it sees it.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::LedgerError;

const MODES: &str = "disable, prefer, require and verify-full";

/// How a connection is to be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Not at all.
    Disable,
    /// Encrypted if the server supports it; its identity is not checked. The default.
    Prefer,
    /// Always encrypted; the server's identity is not checked.
    Require,
    /// In any case, and only with a server that the certificates vouch for, by its name.
    VerifyFull,
}

/// The encryption settings of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsSettings {
    pub(super) mode: Mode,
    /// The certificates to believe in, a file.
    pub(super) roots: Option<String>,
}

fn invalid(name: &'static str, value: &str, accepted: impl Into<String>) -> LedgerError {
    LedgerError::InvalidUrlSetting { name, value: value.to_owned(), accepted: accepted.into() }
}

/// Takes what is about encryption out of a URL.
pub(super) fn split_tls_settings(url: &str) -> Result<(String, TlsSettings), LedgerError> {
    let mut wanted = TlsSettings { mode: Mode::Prefer, roots: None };
    // A password may have a question mark in it; it ends at the first @.
    let start = url.find('@').unwrap_or(0);
    let Some(query) = url[start..].find('?').map(|place| start + place) else {
        return Ok((url.to_owned(), wanted));
    };
    let mut kept: Vec<&str> = Vec::new();
    for setting in url[query + 1..].split('&') {
        match setting.split_once('=') {
            Some(("sslmode", value)) => wanted.mode = mode(&decoded("sslmode", value)?)?,
            Some(("sslrootcert", value)) => {
                wanted.roots = Some(decoded("sslrootcert", value)?);
            }
            _ => kept.push(setting),
        }
    }
    match (wanted.mode, &wanted.roots) {
        (Mode::VerifyFull, None) => {
            let accepted = "the path of a file with the certificates to believe in, which \
                 sslmode=verify-full needs";
            Err(invalid("sslrootcert", "", accepted))
        }
        (Mode::Disable | Mode::Prefer | Mode::Require, Some(roots)) => {
            let accepted = "nothing unless sslmode is verify-full, since nothing else looks at it";
            Err(invalid("sslrootcert", roots, accepted))
        }
        (_, _) => {
            let rest = kept.join("&");
            let mark = if rest.is_empty() { "" } else { "?" };
            Ok((format!("{}{mark}{rest}", &url[..query]), wanted))
        }
    }
}

fn mode(name: &str) -> Result<Mode, LedgerError> {
    match name {
        "disable" => Ok(Mode::Disable),
        "prefer" => Ok(Mode::Prefer),
        "require" => Ok(Mode::Require),
        "verify-full" => Ok(Mode::VerifyFull),
        _ => Err(invalid("sslmode", name, MODES)),
    }
}

/// A value as it was before it was put into a URL.
fn decoded(name: &'static str, value: &str) -> Result<String, LedgerError> {
    let accepted = || invalid(name, value, "text in which % is followed by two hexadecimal digits");
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(accepted)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| accepted())
}

impl TlsSettings {
    /// What makes encrypted connections; none if there are to be none.
    pub(super) fn connector(&self) -> Result<Option<MakeRustlsConnect>, LedgerError> {
        if self.mode == Mode::Disable {
            return Ok(None);
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| LedgerError::Database(format!("TLS: {error}")))?;
        let config = match &self.roots {
            Some(file) => builder.with_root_certificates(roots(file)?),
            None => {
                let anyone = Arc::new(AcceptAnyCertificate(provider));
                builder.dangerous().with_custom_certificate_verifier(anyone)
            }
        };
        Ok(Some(MakeRustlsConnect::new(config.with_no_client_auth())))
    }
}

/// The certificates of a file.
fn roots(file: &str) -> Result<RootCertStore, LedgerError> {
    let from_server_error = |why: &dyn std::fmt::Display| {
        invalid("sslrootcert", file, format!("a file with certificates in PEM form ({why})"))
    };
    let mut store = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(Path::new(file));
    for certificate in certificates.map_err(|error| from_server_error(&error))? {
        let certificate = certificate.map_err(|error| from_server_error(&error))?;
        store.add(certificate).map_err(|error| from_server_error(&error))?;
    }
    if store.is_empty() {
        return Err(from_server_error(&"it has none"));
    }
    Ok(store)
}

/// Accepts any server certificate: protects against eavesdroppers, not against those who
/// pretend.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    // Whose signature it is does not matter, and a certificate may be of a kind that is not read.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_encryption_is_taken_out_of_the_url() {
        let table = [
            ("postgres://h/d", "postgres://h/d", Mode::Prefer, None),
            ("postgres://h/d?sslmode=disable", "postgres://h/d", Mode::Disable, None),
            (
                "postgres://u:a?b@h/d?connect_timeout=3&sslmode=require&port=1",
                "postgres://u:a?b@h/d?connect_timeout=3&port=1",
                Mode::Require,
                None,
            ),
            (
                "postgres://h/d?sslrootcert=%2Fetc%2Fca%20x.pem&sslmode=verify%2dfull",
                "postgres://h/d",
                Mode::VerifyFull,
                Some("/etc/ca x.pem"),
            ),
        ];
        for (url, rest, mode, roots) in table {
            let wanted = TlsSettings { mode, roots: roots.map(str::to_owned) };
            assert_eq!(split_tls_settings(url).unwrap(), (rest.to_owned(), wanted), "{url}");
        }
    }

    #[test]
    fn a_setting_that_is_not_known_is_named_with_what_would_be_accepted() {
        let table = [
            ("sslmode=verify-ca", "sslmode", "verify-ca", MODES),
            ("sslmode=", "sslmode", "\"\"", MODES),
            ("sslmode=%zz", "sslmode", "%zz", "two hexadecimal digits"),
            ("sslmode=verify-full", "sslrootcert", "\"\"", "the path of a file"),
            ("sslmode=require&sslrootcert=/ca", "sslrootcert", "/ca", "verify-full"),
        ];
        for (query, name, value, accepted) in table {
            let text =
                split_tls_settings(&format!("postgres://h/d?{query}")).unwrap_err().to_string();
            for part in [name, value, accepted] {
                assert!(text.contains(part), "{query}: {text}");
            }
        }
    }

    #[test]
    fn a_file_without_certificates_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for (file, why) in [(empty.to_str().unwrap(), "it has none"), ("/nowhere.pem", "No such")] {
            let wanted = TlsSettings { mode: Mode::VerifyFull, roots: Some(file.to_owned()) };
            let Err(error) = wanted.connector() else { panic!("{file} was taken") };
            let text = error.to_string();
            assert!(text.contains(file) && text.contains(why), "{text}");
        }
    }
}
