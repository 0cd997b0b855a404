//! Why a connection could not be made or used, found in the causes of an HTTP client's error.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

/// Why a server was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Nothing listens at this address.
    Refused,
    /// The host's name has no address.
    UnknownHost(String),
    /// No network leads to this host.
    NoRoute(String),
    /// The connection was not established in time.
    ConnectTimeout(Duration),
    /// The connection was established, but the response did not arrive in time.
    ResponseTimeout(Duration),
    /// The server's certificate was issued by an authority that is not trusted.
    UnknownAuthority,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is for other names; those that it is for, if known.
    WrongName(Vec<String>),
    /// The server's certificate is not accepted for another reason.
    BadCertificate(String),
    /// The server accepts only clients with a certificate, or not this one.
    ClientCertificate(String),
    /// The URL says `https`, and the server does not speak TLS.
    NotTls,
    /// The URL says `http`, and what answered is not HTTP; it may be TLS.
    NotHttp,
    /// The TLS handshake failed for another reason.
    Tls(String),
    /// The connection was closed before the response.
    Closed,
    /// Anything else, as the operating system or the HTTP library describes it.
    Other(String),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused, nothing listens there"),
            Self::UnknownHost(host) => write!(f, "the host name {host} has no address"),
            Self::NoRoute(why) => write!(f, "the host cannot be reached: {why}"),
            Self::ConnectTimeout(after) => {
                write!(f, "no connection within {} s", after.as_secs())
            }
            Self::ResponseTimeout(after) => {
                write!(
                    f,
                    "no response within {} s; a change may still take effect",
                    after.as_secs()
                )
            }
            Self::UnknownAuthority => f.write_str(
                "the server's certificate was issued by an authority that is not trusted",
            ),
            Self::Expired => f.write_str("the server's certificate has expired"),
            Self::NotYetValid => f.write_str("the server's certificate is not valid yet"),
            Self::WrongName(names) if names.is_empty() => {
                f.write_str("the server's certificate is for another name than this URL's host")
            }
            Self::WrongName(names) => {
                write!(
                    f,
                    "the server's certificate is for {}, not for this URL's host",
                    names.join(", ")
                )
            }
            Self::BadCertificate(why) => {
                write!(f, "the server's certificate is not accepted: {why}")
            }
            Self::ClientCertificate(why) => {
                write!(f, "the server did not accept the client's certificate: {why}")
            }
            Self::NotTls => f.write_str("the server does not speak TLS on this port"),
            Self::NotHttp => f.write_str("what answered is not HTTP; it may be TLS"),
            Self::Tls(why) => write!(f, "the TLS handshake failed: {why}"),
            Self::Closed => f.write_str("the connection was closed before a response arrived"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl ConnectionError {
    /// Finds the reason in an error and its causes.
    pub(crate) fn of(error: &reqwest::Error, host: &str, timeouts: Timeouts) -> Self {
        for cause in causes(error) {
            if let Some(error) = cause.downcast_ref::<rustls::Error>() {
                return of_tls(error);
            }
            if let Some(error) = cause.downcast_ref::<io::Error>() {
                if let Some(tls) = tls_within(error) {
                    return of_tls(tls);
                }
                if let Some(known) = of_io(error) {
                    return known;
                }
            }
            if let Some(error) = cause.downcast_ref::<hyper::Error>() {
                if error.is_parse() {
                    return Self::NotHttp;
                }
                if error.is_incomplete_message() {
                    return Self::Closed;
                }
            }
            // The library has a private type for this.
            if cause.to_string() == "dns error" {
                return Self::UnknownHost(host.to_owned());
            }
        }
        match (error.is_timeout(), error.is_connect()) {
            (true, true) => Self::ConnectTimeout(timeouts.connect),
            (true, false) => Self::ResponseTimeout(timeouts.response),
            (false, _) => {
                let last = causes(error).last();
                Self::Other(last.map_or_else(|| error.to_string(), ToString::to_string))
            }
        }
    }
}

/// How long is waited, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// The causes of an error, the nearest first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error| (*error).source())
}

/// The TLS error in an I/O error, which may be wrapped several times. `source` skips what is wrapped.
fn tls_within(error: &io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    let nested = inner.downcast_ref::<io::Error>().and_then(tls_within);
    inner.downcast_ref::<rustls::Error>().or(nested)
}

fn of_io(error: &io::Error) -> Option<ConnectionError> {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(ConnectionError::Refused),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            Some(ConnectionError::NoRoute(error.to_string()))
        }
        // The TLS library has no type for this.
        ErrorKind::UnexpectedEof if error.to_string().contains("tls handshake") => Some(
            ConnectionError::Tls("the connection was closed before it was complete".to_owned()),
        ),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            Some(ConnectionError::Closed)
        }
        _ => None,
    }
}

fn of_tls(error: &rustls::Error) -> ConnectionError {
    use rustls::AlertDescription as Alert;
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(certificate) => of_certificate(certificate),
        // An HTTP server answers in text, which is no TLS message.
        Tls::InvalidMessage(_) => ConnectionError::NotTls,
        Tls::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) => ConnectionError::ClientCertificate(error.to_string()),
        _ => ConnectionError::Tls(error.to_string()),
    }
}

fn of_certificate(error: &CertificateError) -> ConnectionError {
    match error {
        CertificateError::UnknownIssuer => ConnectionError::UnknownAuthority,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ConnectionError::Expired
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            ConnectionError::NotYetValid
        }
        CertificateError::NotValidForName => ConnectionError::WrongName(Vec::new()),
        CertificateError::NotValidForNameContext { presented, .. } => {
            ConnectionError::WrongName(presented.iter().map(|name| plain_name(name)).collect())
        }
        other => ConnectionError::BadCertificate(plain_reason(other)),
    }
}

/// Why a certificate is not accepted, without the notation of the library.
fn plain_reason(error: &CertificateError) -> String {
    let reason = match error {
        CertificateError::Revoked => "it was revoked",
        CertificateError::BadEncoding => "it cannot be read",
        CertificateError::BadSignature => "its signature is wrong",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for servers"
        }
        CertificateError::UnknownRevocationStatus => "it is not known whether it was revoked",
        other => {
            let text = format!("{other:?}");
            return match text {
                _ if text.contains("CaUsedAsEndEntity") => {
                    "it is the certificate of an authority, not of a server; have the authority issue one \
                     for the server"
                        .to_owned()
                }
                _ if text.contains("UnsupportedCertVersion") => {
                    "it is of an old version; version 3 is accepted".to_owned()
                }
                _ => other.to_string(),
            };
        }
    };
    reason.to_owned()
}

/// A name of a certificate without the notation of the library: `DnsName("a")`, `IpAddress(::1)`.
fn plain_name(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_against_certificates_are_shown_plainly() {
        let library = std::io::Error::other("CaUsedAsEndEntity");
        let other = CertificateError::Other(rustls::OtherError(std::sync::Arc::new(library)));
        let text = of_certificate(&other).to_string();
        assert!(text.contains("the certificate of an authority, not of a server"), "{text}");
        assert!(!text.contains("Other"), "{text}");
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        let text = of_io(&closed).map(|error| error.to_string());
        let expected = "the TLS handshake failed: the connection was closed before it was complete";
        assert_eq!(text.as_deref(), Some(expected));
    }

    #[test]
    fn names_of_certificates_are_shown_plainly() {
        assert_eq!(plain_name("DnsName(\"berth.example\")"), "berth.example");
        assert_eq!(plain_name("IpAddress(127.0.0.1)"), "127.0.0.1");
        assert_eq!(plain_name("other"), "other");
    }
}
