//! Serving connections: listening, encryption, limits on slow and many clients, and a stop that
//! loses no answer.
//!
//! A stop has three steps, so that no request is interrupted. First, responses tell clients to
//! reconnect; then no connection is accepted and idle ones are closed; connections left after a
//! grace period are aborted.

mod connection;
mod self_signed;
mod stall;
#[cfg(test)]
mod tests;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use berth_control::supervision::ThreadMonitor;
use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use connection::STREAMS_MAX;
pub use self_signed::{Authority, CertificateError};
pub use tls::{Tls, TlsError, TlsFiles};

/// Limits of connections. Changes hold for connections that come after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// How long a connection may be idle, or take to send the head of a request.
    pub header_timeout: Duration,
    /// How long a client may take nothing of an answer or send nothing of a body.
    pub stall_timeout: Duration,
    /// The most connections at once.
    pub max_connections: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(30),
            max_connections: 50_000,
        }
    }
}

/// The steps of a stop, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Responses tell clients to reconnect.
    pub draining: CancellationToken,
    /// No connection is accepted, idle ones are closed.
    pub closing: CancellationToken,
    /// Every connection is aborted.
    pub cut: CancellationToken,
}

/// What all connections share.
struct Shared {
    app: Router,
    tls: Option<Arc<Tls>>,
    limits: Arc<ArcSwap<ConnectionLimits>>,
    stop: Stop,
    open: AtomicUsize,
}

/// Listening sockets, before anything is served on them.
pub struct Server {
    listeners: Vec<TcpListener>,
    tls: Option<Arc<Tls>>,
    limits: Arc<ArcSwap<ConnectionLimits>>,
    monitors: Vec<ThreadMonitor>,
}

/// Connections that the system holds for us until they are taken.
pub(crate) const BACKLOG: u32 = 4096;

impl Server {
    /// Takes the addresses.
    ///
    /// # Errors
    /// The address that cannot be had, and why.
    pub fn bind(addresses: &[SocketAddr]) -> Result<Self, (SocketAddr, io::Error)> {
        let listeners = addresses.iter().map(|at| listen(*at).map_err(|error| (*at, error)));
        let listeners = listeners.collect::<Result<_, _>>()?;
        let limits = Arc::new(ArcSwap::from_pointee(ConnectionLimits::default()));
        Ok(Self { listeners, tls: None, limits, monitors: Vec::new() })
    }

    /// The addresses as they are: a port that was left open is known now.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// With limits that may change while it serves.
    #[must_use]
    pub fn with_limits(mut self, limits: Arc<ArcSwap<ConnectionLimits>>) -> Self {
        self.limits = limits;
        self
    }

    /// With encryption.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<Tls>>) -> Self {
        self.tls = tls;
        self
    }

    /// With a monitor for each address: if connections are no longer accepted there, it says so.
    #[must_use]
    pub fn with_monitors(mut self, monitor: impl Fn() -> ThreadMonitor) -> Self {
        self.monitors = self.listeners.iter().map(|_| monitor()).collect();
        self
    }

    /// Serves until stopped and the last connection has ended.
    pub async fn run(self, app: Router, stop: Stop) {
        let open = AtomicUsize::new(0);
        let shared = Arc::new(Shared { app, tls: self.tls, limits: self.limits, stop, open });
        let tracker = TaskTracker::new();
        let monitors = self.monitors.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (listener, monitor) in self.listeners.into_iter().zip(monitors) {
            let (shared, connections) = (Arc::clone(&shared), tracker.clone());
            tracker.spawn(async move {
                accept(&listener, &shared, &connections, monitor.as_ref()).await;
                if let Some(monitor) = monitor {
                    monitor.stop();
                }
            });
        }
        shared.stop.closing.cancelled().await;
        tracker.close();
        tracker.wait().await;
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server must not wait for old connections of its predecessor to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    connections: &TaskTracker,
    monitor: Option<&ThreadMonitor>,
) {
    let mut failures = 0_u64;
    loop {
        let accepted = tokio::select! {
            () = shared.stop.closing.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                failures = 0;
                start_connection(stream, peer, shared, connections);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Out of file descriptors, most likely: others will end.
                failures += 1;
                if let Some(monitor) = monitor {
                    monitor.count_error();
                }
                // Tried twenty times a second; not all of these are logged.
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "failed to accept connections; retrying");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Clients that are connected already are served, too.
    while let Some(Ok((stream, peer))) = listener.accept().now_or_never() {
        start_connection(stream, peer, shared, connections);
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// One of the places for connections; free again when dropped.
struct ConnectionSlot(Arc<Shared>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn start_connection(
    stream: TcpStream,
    peer: SocketAddr,
    shared: &Arc<Shared>,
    connections: &TaskTracker,
) {
    let limits = **shared.limits.load();
    let slot = ConnectionSlot(Arc::clone(shared));
    let before = shared.open.fetch_add(1, Ordering::Relaxed);
    if before >= limits.max_connections {
        drop(slot);
        // An encrypted client could not read it, and is only cut off.
        if shared.tls.is_none() {
            connections.spawn(connection::refuse(stream));
        }
        return;
    }
    let shared = Arc::clone(shared);
    connections.spawn(async move {
        connection::serve(stream, peer, &shared, limits).await;
        drop(slot);
    });
}
