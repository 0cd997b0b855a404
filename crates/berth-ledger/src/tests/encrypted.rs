//! Connections that are encrypted, and servers with the wrong identity.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use berth_pgtemp::{Options, TempPostgres};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::database::Database;
use crate::error::Fault;
use crate::postgres::{Isolation, Postgres};
use crate::tests::raw;

/// A certificate authority, in PEM, that has made a certificate for one name.
struct IssuedCertificate {
    authority: String,
    certificate: String,
    key: String,
}

fn made_for(name: &str) -> IssuedCertificate {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = server.signed_by(&key, &authority).unwrap();
    IssuedCertificate {
        authority: authority.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

/// A server that encrypts, with a certificate for that name.
fn server(made: &IssuedCertificate) -> TempPostgres {
    let mut server = TempPostgres::start(Options::quick()).unwrap();
    let folder = server.data_folder().to_owned();
    let owner = std::fs::metadata(&folder).unwrap();
    for (name, text) in [("server.crt", &made.certificate), ("server.key", &made.key)] {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    server.psql("ALTER SYSTEM SET ssl = on").unwrap();
    server.restart().unwrap();
    server
}

fn open(url: &str) -> Result<Postgres, Fault> {
    Postgres::open(url, Isolation::ReadCommitted, None)
}

fn is_encrypted(url: &str) -> bool {
    let asks = "SELECT 1 / ssl::int FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    raw(url).script("test", asks).is_ok()
}

fn why(opened: Result<Postgres, Fault>) -> String {
    match opened {
        Ok(_) => panic!("it was opened"),
        Err(fault) => format!("{fault:?}"),
    }
}

#[test]
fn a_connection_is_encrypted_as_the_url_says() {
    let made = made_for("127.0.0.1");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let verify = |server: &TempPostgres, roots: &Path| {
        format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), roots.display())
    };
    let (own, other) = (file("own.pem", &made.authority), made_for("127.0.0.1").authority);
    let other = file("other.pem", &other);
    let server_of_ours = server(&made);
    let url = server_of_ours.url();
    assert!(is_encrypted(&url), "as PostgreSQL's programs do");
    for (mode, encrypted) in [("disable", false), ("prefer", true), ("require", true)] {
        assert_eq!(is_encrypted(&format!("{url}?sslmode={mode}")), encrypted, "{mode}");
    }
    assert!(is_encrypted(&verify(&server_of_ours, &own)));
    let mut tables = open(&verify(&server_of_ours, &own)).unwrap();
    assert!(tables.clock().unwrap().0 > 1_700_000_000_000_000);
    let text = why(open(&verify(&server_of_ours, &other)));
    assert!(text.contains("invalid peer certificate"), "{text}");
    // The right authority, and another's name.
    let named = made_for("db.example.net");
    let roots = file("named.pem", &named.authority);
    let text = why(open(&verify(&server(&named), &roots)));
    assert!(text.contains("not valid for name"), "{text}");
}

#[test]
fn a_server_that_cannot_encrypt_is_refused_only_where_that_was_asked_for() {
    let server = super::server();
    for mode in ["disable", "prefer"] {
        assert!(!is_encrypted(&format!("{}?sslmode={mode}", server.url())));
    }
    let text = why(open(&format!("{}?sslmode=require", server.url())));
    assert!(text.contains("does not support TLS"), "{text}");
    // No one listens on a socket of this machine.
    open(&format!("{}&sslmode=require", server.socket_url())).unwrap();
    let text = why(open(&format!("{}?sslmode=allow", server.url())));
    assert!(text.contains("InvalidUrlSetting") && text.contains("allow"), "{text}");
}
