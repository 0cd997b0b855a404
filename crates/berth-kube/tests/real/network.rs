//! What is between the API server and Berth: the addresses of Services, and connections that can be cut.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;

/// Where the pods of Services listen, by `ADDRESS:PORT` of the Service.
#[derive(Clone, Default)]
pub(crate) struct ServiceAddresses(Arc<Mutex<BTreeMap<String, SocketAddr>>>);

impl ServiceAddresses {
    fn find(&self, service: &str) -> Option<SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(service).copied()
    }

    /// A Service has this pod behind it, or none.
    pub(crate) fn set(&self, service: &str, pod: Option<SocketAddr>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match pod {
            Some(address) => all.insert(service.to_owned(), address),
            None => all.remove(service),
        };
    }

    /// Serves the proxy through which the API server reaches Services.
    pub(crate) fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let addresses = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let addresses = addresses.clone();
                // A connection that fails is the API server's to repeat.
                tokio::spawn(async move { drop(addresses.connect(stream).await) });
            }
        });
    }

    async fn connect(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut first = String::new();
        stream.read_line(&mut first).await?;
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 2 {
            line.clear();
        }
        let target = first.split_whitespace().nth(1).and_then(|it| self.find(it));
        let Some(target) = target else {
            return stream
                .write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
                .await;
        };
        let mut pod = TcpStream::connect(target).await?;
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        copy_bidirectional(&mut stream, &mut pod).await.map(drop)
    }
}

/// Connections to the API server that can be cut.
pub(crate) struct CuttableLink {
    /// Where it listens.
    pub(crate) address: String,
    cuts: watch::Sender<u64>,
}

impl CuttableLink {
    /// Connections to an address.
    pub(crate) async fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cuts, cut) = watch::channel(0);
        let to = to.to_owned();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (to, mut cut) = (to.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(&to).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut stream, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, cuts }
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|it| *it += 1);
    }
}
