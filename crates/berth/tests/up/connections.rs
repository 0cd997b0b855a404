//! What a command says about a server that it does not reach.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use berth_pgtemp::free_port;

use crate::harness::Home;

/// What a command that does not reach its server says.
fn whoami(home: &Home, arguments: &[&str]) -> String {
    let output = home.run(&[&["whoami"], arguments].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{arguments:?}\n{said}");
    said
}

fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing:\n{said}");
    }
}

#[test]
fn a_server_that_is_not_reached_says_why_and_who_chose_it() {
    let home = Home::new();
    let url = format!("http://127.0.0.1:{}", free_port());
    let said = whoami(&home, &["--url", &url]);
    assert_says(&said, &[&url, "(set by --url)", "connection refused", "berth up"]);

    let output = home.berth(&["whoami"]).env("BERTH_URL", &url).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_says(&said, &["(set by BERTH_URL)"]);

    std::fs::create_dir_all(home.client_file().parent().unwrap()).unwrap();
    std::fs::write(home.client_file(), format!("url = \"{url}\"\n")).unwrap();
    let said = whoami(&home, &[]);
    assert_says(&said, &[&format!("(set in {})", home.client_file().display())]);

    let said = whoami(&home, &["--url", "http://no-such-host.invalid:7070"]);
    assert_says(&said, &["host name no-such-host.invalid has no address", "DNS"]);

    let output = home.run(&["whoami", "--url", "127.0.0.1:7070"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_says(&said, &["\"127.0.0.1:7070\" (set by --url)", "accepted: one such as http://"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn tls_and_plain_http_are_told_apart() {
    let home = Home::new();
    let (data, other) = (home.path().join("one"), home.path().join("two"));
    let (data, other) = (data.to_str().unwrap(), other.to_str().unwrap());
    let plain = home.up(&["--no-sign-in", "--data-dir", data]);
    let url = plain.url().replace("http://", "https://");
    let said = whoami(&home, &["--url", &url]);
    assert_says(&said, &["does not speak TLS", &format!("use {}", plain.url())]);
    plain.stop();

    let encrypted = home.up(&["--tls", "self", "--data-dir", other]);
    let url = encrypted.url().replace("https://", "http://");
    let said = whoami(&home, &["--url", &url]);
    assert_says(&said, &["not HTTP", "TLS", &format!("use {}", encrypted.url())]);
    // The client file of the first server is in effect, which knows no authority.
    let said = whoami(&home, &["--url", &encrypted.url()]);
    assert_says(&said, &["authority that is not trusted", "--ca-cert", "tls/ca.pem"]);
    let ca = format!("{other}/tls/ca.pem");
    let pem = format!("{other}/tls/server.pem");
    encrypted.stop();

    let files = ["--tls", "files", "--tls-cert", &pem, "--tls-key", &pem, "--data-dir", data];
    let elsewhere = home.up(&[&["--listen", "127.0.0.2:0"], &files[..]].concat());
    let said = whoami(&home, &["--url", &elsewhere.url(), "--ca-cert", &ca]);
    assert_says(&said, &["certificate is for", "localhost", "--tls-host"]);
    elsewhere.stop();
}

#[test]
fn an_expired_certificate_is_called_expired() {
    let home = Home::new();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.subject_alt_names.push(rcgen::SanType::IpAddress([127, 0, 0, 1].into()));
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let write = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cert = write("server.pem", &certificate.pem());
    let key = write("server-key.pem", &key.serialize_pem());
    let server = home.up(&["--tls", "files", "--tls-cert", &cert, "--tls-key", &key]);
    let said = whoami(&home, &["--url", &server.url(), "--ca-cert", &cert]);
    assert_says(&said, &["certificate has expired", "renew", "clocks"]);
    server.stop();
}

#[test]
fn a_slash_at_the_end_of_a_url_changes_nothing() {
    let home = Home::new();
    let server = home.up(&[]);
    for end in ["", "/", "/v1", "/v1/"] {
        // The stored token belongs to this server, however its URL is written.
        let output = home.run(&["whoami", "--url", &format!("{}{end}", server.url())]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("admin"), "{end:?} {output:?}");
    }
    server.stop();
}

#[test]
fn an_agent_uses_the_client_file_and_names_its_server() {
    let home = Home::new();
    let server = home.up(&[]);
    let log = home.path().join("agent.log");
    let mut agent = home.berth(&["agent", "--node", "n1", "--command", "true", "--state-dir"]);
    agent.arg(home.path().join("agent")).stdin(Stdio::null());
    let mut agent = agent.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let began = Instant::now();
    let said = loop {
        let said = std::fs::read_to_string(&log).unwrap();
        if said.contains("node registered") || began.elapsed() > Duration::from_secs(60) {
            break said;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_says(&said, &["agent started", &server.url(), "set in", "node registered"]);
    server.stop();
}
