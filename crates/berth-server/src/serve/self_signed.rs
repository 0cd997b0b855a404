//! Self-signed certificates: an authority in the data folder, the server's certificate, and
//! those of agents.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use berth_ledger::invariant_ok;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::DnsName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How long the authority is good for.
const AUTHORITY_DAYS: i64 = 3650;

/// How long the server's certificate is good for.
const SERVER_DAYS: i64 = 90;

/// How long before its end it is renewed.
const RENEW_DAYS: i64 = 30;

/// Certificates that cannot be made.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file cannot be read or written.
    #[error("{path} cannot be read or written")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A certificate cannot be made.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// There is no authority here.
    #[error(
        "{0} holds no authority: start a server with --tls self first, or name its data folder"
    )]
    NoAuthority(String),
    /// A certificate names nodes as the network names hosts.
    #[error(
        "node is {0:?}; accepted is an id that can be a DNS name: letters, digits, dots and hyphens"
    )]
    NoDnsName(String),
    /// A time that no certificate can have.
    #[error("days is {0}; accepted is 1 to 3650")]
    Days(i64),
}

/// The files of an own authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    folder: PathBuf,
}

/// What the server's certificate was issued for, to know when it must be issued again.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IssuedFor {
    hosts: Vec<String>,
    renew_at: Timestamp,
}

impl Authority {
    /// The authority in a data folder, made when there is none.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn in_data_dir(data_dir: &Path, now: Timestamp) -> Result<Self, CertificateError> {
        let authority = Self { folder: data_dir.join("tls") };
        let folder = &authority.folder;
        std::fs::create_dir_all(folder).map_err(|source| file(folder, source))?;
        if !authority.ca_key().exists() || !authority.ca_cert().exists() {
            let key = KeyPair::generate()?;
            let certificate = authority_params(now).self_signed(&key)?;
            write_private(&authority.ca_key(), &key.serialize_pem())?;
            write_public(&authority.ca_cert(), &certificate.pem())?;
        }
        Ok(authority)
    }

    /// The authority that is in a data folder already.
    ///
    /// # Errors
    /// When there is none.
    pub fn existing(data_dir: &Path) -> Result<Self, CertificateError> {
        let authority = Self { folder: data_dir.join("tls") };
        let there = authority.ca_key().exists() && authority.ca_cert().exists();
        let missing = || CertificateError::NoAuthority(data_dir.display().to_string());
        there.then_some(authority).ok_or_else(missing)
    }

    /// The certificate by which clients trust the server.
    #[must_use]
    pub fn ca_cert(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    fn ca_key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }

    /// The server's certificate and key, in one file so that they always belong together.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.folder.join("server.pem")
    }

    /// Makes the server's certificate when there is none, its end is near, or it is for other hosts.
    /// Returns whether it was made.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn renew_server(&self, hosts: &[String], now: Timestamp) -> Result<bool, CertificateError> {
        let note = self.folder.join("server.json");
        let made: Option<IssuedFor> =
            std::fs::read(&note).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let good = |made: &IssuedFor| made.hosts == hosts && made.renew_at > now;
        if self.server().exists() && made.as_ref().is_some_and(good) {
            return Ok(false);
        }
        let mut params = CertificateParams::new(hosts)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let pem = self.issue(params, "Berth server", SERVER_DAYS, now)?;
        write_private(&self.server(), &pem)?;
        let renew_at = after(now, SERVER_DAYS - RENEW_DAYS);
        let made = IssuedFor { hosts: hosts.to_vec(), renew_at };
        let text = serde_json::to_string(&made);
        let text = invariant_ok!(text, "certificate_note_is_json").unwrap_or_default();
        write_public(&note, &text)?;
        Ok(true)
    }

    /// A certificate and key in PEM with which an agent signs in for its node.
    ///
    /// # Errors
    /// When the node's id cannot be a DNS name, or it cannot be made.
    pub fn agent(&self, node: &str, days: i64, now: Timestamp) -> Result<String, CertificateError> {
        if DnsName::try_from(node).is_err() {
            return Err(CertificateError::NoDnsName(node.to_owned()));
        }
        if !(1..=AUTHORITY_DAYS).contains(&days) {
            return Err(CertificateError::Days(days));
        }
        let mut params = CertificateParams::new([node.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, node, days, now)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        name: &str,
        days: i64,
        now: Timestamp,
    ) -> Result<String, CertificateError> {
        let path = self.ca_key();
        let pem = std::fs::read_to_string(&path).map_err(|source| file(&path, source))?;
        let issuer = Issuer::new(authority_params(now), KeyPair::from_pem(&pem)?);
        params.distinguished_name = named(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        good_for(&mut params, days, now);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
    }
}

/// The authority by its name; issuing needs nothing else of its certificate.
fn authority_params(now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("Berth own authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    good_for(&mut params, AUTHORITY_DAYS, now);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

/// From yesterday, for clocks that are behind.
fn good_for(params: &mut CertificateParams, days: i64, now: Timestamp) {
    let date = |at: Timestamp| {
        let date = at.to_zoned(TimeZone::UTC).date();
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    params.not_before = date(after(now, -1));
    params.not_after = date(after(now, days));
}

fn after(now: Timestamp, days: i64) -> Timestamp {
    now.saturating_add(SignedDuration::from_hours(24 * days)).unwrap_or(Timestamp::MAX)
}

fn file(path: &Path, source: io::Error) -> CertificateError {
    CertificateError::File { path: path.display().to_string(), source }
}

fn write_private(path: &Path, text: &str) -> Result<(), CertificateError> {
    write(path, text, 0o600).map_err(|source| file(path, source))
}

fn write_public(path: &Path, text: &str) -> Result<(), CertificateError> {
    write(path, text, 0o644).map_err(|source| file(path, source))
}

/// Writes a file that is whole at any moment.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let temporary = path.with_extension("new");
    // One that was left behind may have another mode.
    let _ = std::fs::remove_file(&temporary);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}
