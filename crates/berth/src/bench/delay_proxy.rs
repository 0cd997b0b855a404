//! A proxy that delays what passes, as a database far away would be. Each direction has its delay, and what is
//! under way does not hold up what follows.
//!
//! On a thread of its own, so that the load does not delay it further. It never reads what it passes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Where a database without a port in its URL listens.
const DEFAULT_PORT: u16 = 5432;

/// Bytes that are read at once.
const PIECE: usize = 1 << 16;

/// The proxy; it passes on for as long as the process runs.
pub(super) struct DelayProxy {
    /// The URL of the database through the proxy.
    pub(super) url: String,
    delay_us: Arc<AtomicU64>,
}

impl DelayProxy {
    /// Listens for connections to the database of this URL, which are not delayed yet.
    pub(super) fn start(url: &str) -> anyhow::Result<Self> {
        let (host, port) = host_of(url)?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let through = with_host(url, &format!("127.0.0.1:{}", listener.local_addr()?.port()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let delay_us = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_us);
        let serve = move || runtime.block_on(serve(listener, (host, port), delay));
        std::thread::Builder::new().name("delay-proxy".to_owned()).spawn(serve)?;
        Ok(Self { url: through, delay_us })
    }

    /// From now on everything is this long under way, in each direction.
    pub(super) fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.delay_us.store(micros, Ordering::Relaxed);
    }
}

/// What is between user and path.
fn authority(url: &str) -> anyhow::Result<std::ops::Range<usize>> {
    let Some(start) = url.find("://").map(|at| at + 3) else {
        bail!(
            "--database-url is {url:?}; accepted with --database-delay is postgres://USER@HOST:PORT/NAME"
        )
    };
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let start = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
    Ok(start..end)
}

/// The one host of a URL, and its port.
fn host_of(url: &str) -> anyhow::Result<(String, u16)> {
    let named = &url[authority(url)?];
    if named.is_empty() || named.contains(',') || url.contains("host=") {
        bail!("--database-url names {named:?}; accepted with --database-delay is one HOST:PORT");
    }
    // Colons within brackets are part of an address.
    let port_at = named.rfind(':').filter(|at| !named[*at..].contains(']'));
    let host = port_at.map_or(named, |at| &named[..at]).trim_matches(['[', ']']).to_owned();
    let port = match port_at {
        Some(at) => named[at + 1..].parse().with_context(|| format!("no port in {named:?}"))?,
        None => DEFAULT_PORT,
    };
    Ok((host, port))
}

/// The same URL with another host.
fn with_host(url: &str, host: &str) -> anyhow::Result<String> {
    let mut through = url.to_owned();
    through.replace_range(authority(url)?, host);
    Ok(through)
}

async fn serve(listener: std::net::TcpListener, to: (String, u16), delay: Arc<AtomicU64>) {
    // A runtime with I/O takes it.
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((client, _)) = listener.accept().await {
        // A database that is away is for the server to notice.
        let Ok(database) = TcpStream::connect((to.0.as_str(), to.1)).await else { continue };
        if client.set_nodelay(true).and_then(|()| database.set_nodelay(true)).is_err() {
            continue;
        }
        let (from_client, to_client) = client.into_split();
        let (from_database, to_database) = database.into_split();
        pass(from_client, to_database, Arc::clone(&delay));
        pass(from_database, to_client, Arc::clone(&delay));
    }
}

/// Passes on until one side is gone.
fn pass(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    delay: Arc<AtomicU64>,
) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        // The other side has ended; whether this one hears of it does not matter.
        let _ = to.shutdown().await;
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + Duration::from_micros(delay.load(Ordering::Relaxed));
            if sender.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_url_is_found_and_replaced() {
        for (url, host, through) in [
            ("postgres://u:p@db:7/b?x=1", ("db", 7), "postgres://u:p@h:1/b?x=1"),
            ("postgres://u:p@ss@db/b", ("db", 5432), "postgres://u:p@ss@h:1/b"),
            ("postgresql://[::1]:7/b", ("::1", 7), "postgresql://h:1/b"),
            ("postgres://db", ("db", 5432), "postgres://h:1"),
        ] {
            assert_eq!(host_of(url).unwrap(), (host.0.to_owned(), host.1), "{url}");
            assert_eq!(with_host(url, "h:1").unwrap(), through);
        }
        for url in ["berth.db", "postgres://a,b/x", "postgres:///x?host=/tmp", "postgres://db:x/y"]
        {
            assert!(host_of(url).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn what_passes_is_delayed_each_way_and_nothing_waits_for_what_was_sent_before() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://u@{}/b", echo.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = echo.accept().await.unwrap();
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let proxy = DelayProxy::start(&url).unwrap();
        let (_, port) = host_of(&proxy.url).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        proxy.delay(Duration::from_millis(200));
        let began = Instant::now();
        for _ in 0..5 {
            stream.write_all(b"x").await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stream.read_exact(&mut [0; 5]).await.unwrap();
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(400), "{took:?}");
        // One after the other would take two seconds.
        assert!(took < Duration::from_millis(1900), "{took:?}");
    }
}
