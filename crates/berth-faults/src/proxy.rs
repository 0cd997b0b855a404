//! A wire between a client and a server that can be cut at the worst moment: when the server has
//! heard everything and the client has not heard the answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

#[derive(Default)]
struct State {
    /// Answers are not passed on.
    deaf: AtomicBool,
    /// New connections are turned away.
    closed: AtomicBool,
    stopped: AtomicBool,
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

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the server hears the clients and they do not hear it.
    pub fn swallow_answers(&self) {
        self.state.deaf.store(true, Ordering::SeqCst);
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
    let nobody = Arc::new(State::default());
    thread::spawn(move || pass(from_client, to_server, &nobody));
    let state = Arc::clone(state);
    thread::spawn(move || pass(server, client, &state));
    Ok(())
}

/// Passes bytes on until one side is gone, unless they are to be swallowed.
fn pass(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !state.deaf.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
