//! Connecting to the first host of a URL that can be written to.
//!
//! All hosts are tried at once, and each for a limited time: a host that is frozen accepts connections
//! and never answers, and must not keep us from the one that has become the primary meanwhile.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::fault;
use crate::error::Fault;

/// How long to wait before a host that turned us away is tried again, while another has not answered.
/// A standby may become the primary in the meantime.
const PAUSE: Duration = Duration::from_millis(100);

/// Called with the payload of each notification. It must return quickly.
pub(super) type Notified = Arc<dyn Fn(&str) + Send + Sync>;

/// One configuration for each host of a URL, in its order.
pub(super) fn split_by_host(config: &Config) -> Vec<Config> {
    let count = config.get_hosts().len().max(config.get_hostaddrs().len());
    if count < 2 {
        return vec![config.clone()];
    }
    (0..count).map(|number| only_host(config, number)).collect()
}

/// The same configuration with only one of its hosts.
fn only_host(config: &Config, number: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(number) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(number) {
        one.hostaddr(*address);
    }
    let ports = config.get_ports();
    if let Some(port) = ports.get(number).or_else(|| ports.first()) {
        one.port(*port);
    }
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(name) = config.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(limit) = config.get_connect_timeout() {
        one.connect_timeout(*limit);
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*limit);
    }
    if let Some(every) = config.get_keepalives_interval() {
        one.keepalives_interval(every);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
    one.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
    one.channel_binding(config.get_channel_binding());
    one.target_session_attrs(config.get_target_session_attrs());
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        one.load_balance_hosts(LoadBalanceHosts::Random);
    }
    one
}

/// Connects to whichever host can be written to. Must run on the runtime that is to drive the
/// connection. Notifications go to `notified`.
///
/// Returns once a host is found, or once every host has turned us away or stayed silent for `limit`.
pub(super) async fn connect_to_writable_host(
    hosts: &[Config],
    tls: Option<&MakeRustlsConnect>,
    limit: Duration,
    notified: Option<Notified>,
) -> Result<Client, Fault> {
    let silent_hosts = Cell::new(hosts.len());
    let open_host = |host| open(host, tls, notified.clone());
    let mut attempts: FuturesUnordered<_> = hosts
        .iter()
        .map(|host| connect_to_host(|| open_host(host), limit, &silent_hosts))
        .collect();
    let mut faults = Vec::new();
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(client) => return Ok(client),
            Err(fault) => faults.push(fault),
        }
    }
    Err(joined(faults))
}

/// Tries one host, and again while another has not answered at all.
async fn connect_to_host<F>(
    open_host: impl Fn() -> F,
    limit: Duration,
    silent_hosts: &Cell<usize>,
) -> Result<Client, Fault>
where
    F: Future<Output = Result<Client, tokio_postgres::Error>>,
{
    let mut counted_as_silent = true;
    loop {
        let fault = match timeout(limit, open_host()).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => fault("connecting", &error),
            Err(_) => {
                let text = format!("connecting: no answer within {} s", limit.as_secs_f32());
                Fault::Disconnected(text)
            }
        };
        if counted_as_silent {
            counted_as_silent = false;
            silent_hosts.set(silent_hosts.get() - 1);
        }
        if silent_hosts.get() == 0 {
            return Err(fault);
        }
        sleep(PAUSE).await;
        // The last of the others may have answered in the meantime, and the caller waits.
        if silent_hosts.get() == 0 {
            return Err(fault);
        }
    }
}

/// Opens a connection that this runtime drives: it moves whenever a thread waits for an answer, and its
/// errors reach every waiting call.
async fn open(
    host: &Config,
    tls: Option<&MakeRustlsConnect>,
    notified: Option<Notified>,
) -> Result<Client, tokio_postgres::Error> {
    match tls {
        None => {
            let (client, connection) = host.connect(NoTls).await?;
            drive(connection, notified);
            Ok(client)
        }
        Some(tls) => {
            let (client, connection) = host.connect(tls.clone()).await?;
            drive(connection, notified);
            Ok(client)
        }
    }
}

fn drive<S, T>(mut connection: Connection<S, T>, notified: Option<Notified>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(notified) = notified else {
        tokio::spawn(connection);
        return;
    };
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                notified(notification.payload());
            }
        }
    });
}

/// One fault for those of all hosts. As long as one of them may come back, retrying may help.
fn joined(mut faults: Vec<Fault>) -> Fault {
    let is_final = faults.iter().all(|fault| matches!(fault, Fault::Fatal(_)));
    if let Some(last) = faults.pop_if(|_| is_final) {
        return last;
    }
    let texts: Vec<String> = faults
        .into_iter()
        .map(|fault| match fault {
            Fault::Fatal(error) => error.to_string(),
            Fault::Disconnected(text)
            | Fault::Retry(text)
            | Fault::Duplicate(text)
            | Fault::Guard(text)
            | Fault::StorageFull(text) => text,
        })
        .collect();
    Fault::Disconnected(texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LedgerError;

    #[test]
    fn each_host_keeps_its_port_and_everything_else() {
        let url = "postgres://u:p@one:1,two:2/db?application_name=a&connect_timeout=3";
        let config: Config = url.parse().unwrap();
        let hosts = split_by_host(&config);
        assert_eq!(hosts.len(), 2);
        for (number, host) in hosts.iter().enumerate() {
            assert_eq!(host.get_hosts(), &config.get_hosts()[number..=number]);
            assert_eq!(host.get_user(), Some("u"));
            assert_eq!(host.get_password(), Some(&b"p"[..]));
            assert_eq!(host.get_dbname(), Some("db"));
            assert_eq!(host.get_application_name(), Some("a"));
            assert_eq!(host.get_connect_timeout(), Some(&Duration::from_secs(3)));
        }
        assert_eq!(hosts[0].get_ports(), [1]);
        assert_eq!(hosts[1].get_ports(), [2]);
    }

    #[test]
    fn one_port_serves_all_hosts() {
        let config: Config = "host=one,two port=7 user=u".parse().unwrap();
        let hosts = split_by_host(&config);
        assert!(hosts.iter().all(|host| host.get_ports() == [7]), "{hosts:?}");
    }

    #[test]
    fn an_error_is_final_only_if_no_host_may_come_back() {
        let lost = || Fault::Disconnected("refused".to_owned());
        let wrong = || Fault::Fatal(LedgerError::Database("wrong password".to_owned()));
        assert!(matches!(joined(vec![wrong()]), Fault::Fatal(_)));
        let Fault::Disconnected(text) = joined(vec![lost(), wrong()]) else { panic!("is final") };
        assert_eq!(text, "refused; database error: wrong password");
    }
}
