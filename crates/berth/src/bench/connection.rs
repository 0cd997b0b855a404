//! A minimal HTTP/1.1 connection, kept alive, with one request at a time, so that the load leaves the
//! machine to the server.

use std::time::Instant;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection.
pub(super) struct HttpConnection {
    stream: TcpStream,
    read: Vec<u8>,
    /// When it was made.
    pub(super) since: Instant,
}

impl HttpConnection {
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(super) async fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("failed to connect")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(1024), since: Instant::now() })
    }

    /// Sends a request as it is and waits for its answer: status and body.
    pub(super) async fn send(&mut self, request: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let (status, body, length) = loop {
            self.read_more().await?;
            if let Some(head) = head(&self.read)? {
                break head;
            }
        };
        while self.read.len() < body + length {
            self.read_more().await?;
        }
        Ok((status, &self.read[body..body + length]))
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            bail!("the connection was closed");
        }
        Ok(())
    }
}

/// The status, the start of the body and its length; none until the head is complete.
fn head(read: &[u8]) -> anyhow::Result<Option<(u16, usize, usize)>> {
    let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = str::from_utf8(&read[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.with_context(|| format!("no status in {head:?}"))?.parse()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Ok(Some((status, end + 4, length.with_context(|| format!("no length in {head:?}"))?)))
}

#[cfg(test)]
mod tests {
    use super::head;

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let whole = b"HTTP/1.1 409 Conflict\r\nContent-Length: 12\r\nx: y\r\n\r\n{";
        assert_eq!(head(&whole[..whole.len() - 3]).ok(), Some(None));
        assert_eq!(head(whole).ok(), Some(Some((409, whole.len() - 1, 12))));
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
