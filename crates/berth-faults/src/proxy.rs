//! A wire between a client and a server that can be slow, or cut at the worst moment: when the server
//! has heard everything and the client has not heard the answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_ledger::Backend;

#[derive(Default)]
struct State {
    /// The answer to the next commit, and all after it, are not to be passed on.
    armed: AtomicBool,
    /// Answers are not passed on.
    deaf: AtomicBool,
    /// New connections are turned away.
    closed: AtomicBool,
    stopped: AtomicBool,
    /// How long each byte is under way, in milliseconds, in each direction.
    delay_ms: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

/// Passes connections on to a server.
pub struct Proxy {
    state: Arc<State>,
    address: SocketAddr,
}

impl Proxy {
    /// Listens on a port of its own for connections to a server on this machine.
    ///
    /// # Errors
    /// When there is no port.
    pub fn start(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (address, state) = (listener.local_addr()?, Arc::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().filter_map(Result::ok) {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                if !shared.closed.load(Ordering::SeqCst) {
                    // A server that is away is for the client to notice.
                    let _ = connect(&shared, client, server);
                }
            }
        });
        Ok(Self { state, address })
    }

    /// A wire to the database of a test, and the address of the database through it.
    ///
    /// # Errors
    /// When there is no port, or the database has none.
    pub fn to_database(url: &str) -> anyhow::Result<(Self, Backend)> {
        let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next());
        let port: u16 = port.context("no port")?.parse()?;
        let proxy = Self::start(SocketAddr::from(([127, 0, 0, 1], port)))?;
        let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.address.port()));
        Ok((proxy, Backend::Postgres(through)))
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on requests reach the server and its answers are dropped.
    pub fn swallow_answers(&self) {
        self.state.deaf.store(true, Ordering::SeqCst);
    }

    /// From the next commit on, of any connection, the same: the commit happens, and its answer is dropped.
    pub fn swallow_next_commit(&self) {
        self.state.armed.store(true, Ordering::SeqCst);
    }

    /// From now on everything is this long under way, in each direction.
    pub fn delay(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.state.delay_ms.store(delay, Ordering::SeqCst);
    }

    /// Whether answers are being swallowed.
    #[must_use]
    pub fn swallows(&self) -> bool {
        self.state.deaf.load(Ordering::SeqCst)
    }

    /// Cuts all connections and turns new ones away.
    pub fn cut(&self) {
        self.state.closed.store(true, Ordering::SeqCst);
        let mut open = self.state.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets clients in again.
    pub fn mend(&self) {
        self.state.armed.store(false, Ordering::SeqCst);
        self.state.deaf.store(false, Ordering::SeqCst);
        self.state.closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the listener, so that it sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

fn connect(state: &Arc<State>, client: TcpStream, server: SocketAddr) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut open = state.open.lock().unwrap_or_else(PoisonError::into_inner);
    open.extend([client.try_clone()?, server.try_clone()?]);
    drop(open);
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    let (requests, answers) = (Arc::clone(state), Arc::clone(state));
    thread::spawn(move || {
        let mut commit = None;
        pass(&requests, from_client, to_server, |bytes| {
            if is_commit(bytes, &mut commit) && requests.armed.swap(false, Ordering::SeqCst) {
                requests.deaf.store(true, Ordering::SeqCst);
            }
            true
        });
    });
    thread::spawn(move || {
        pass(&answers, server, client, |_| !answers.deaf.load(Ordering::SeqCst));
    });
    Ok(())
}

/// Passes bytes on until one side is gone, as far as they are wanted. What is under way does not hold up
/// what follows it.
fn pass(
    state: &State,
    mut from: TcpStream,
    mut to: TcpStream,
    mut is_wanted: impl FnMut(&[u8]) -> bool,
) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::scope(|scope| {
        scope.spawn(move || {
            for (due, bytes) in receiver {
                thread::sleep(due.saturating_duration_since(now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            let due = now() + Duration::from_millis(state.delay_ms.load(Ordering::SeqCst));
            if is_wanted(bytes) && sender.send((due, bytes.to_vec())).is_err() {
                break;
            }
        }
        drop(sender);
    });
}

#[allow(clippy::disallowed_methods, reason = "delays by the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Whether a client asks for a commit. Statements are prepared once and then called by name, so the
/// name is taken down when it is given.
fn is_commit(bytes: &[u8], name: &mut Option<Vec<u8>>) -> bool {
    const PREPARED: &[u8] = b"\0COMMIT\0";
    if let Some(end) = bytes.windows(PREPARED.len()).position(|window| window == PREPARED) {
        let named = &bytes[..end];
        let start = named.iter().rposition(|byte| !byte.is_ascii_alphanumeric());
        // Called as: no portal, the name, and their ends.
        let called = [b"\0", &named[start.map_or(0, |start| start + 1)..], b"\0"].concat();
        *name = Some(called);
        return false;
    }
    let called = |name: &Vec<u8>| bytes.windows(name.len()).any(|window| window == name);
    name.as_ref().is_some_and(called)
}
