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
    /// When the last answer asks to come again, in seconds; 0 if it does not.
    pub(super) retry_after_s: u32,
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Where the body starts, and how long it is.
    body: usize,
    length: usize,
    retry_after_s: u32,
}

impl HttpConnection {
    #[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(super) async fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("failed to connect")?;
        stream.set_nodelay(true)?;
        let (read, since) = (Vec::with_capacity(1024), Instant::now());
        Ok(Self { stream, read, since, retry_after_s: 0 })
    }

    /// Sends a request as it is and waits for its answer: status and body.
    pub(super) async fn send(&mut self, request: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let Head { status, body, length, retry_after_s } = loop {
            self.read_more().await?;
            if let Some(head) = head(&self.read)? {
                break head;
            }
        };
        while self.read.len() < body + length {
            self.read_more().await?;
        }
        self.retry_after_s = retry_after_s;
        Ok((status, &self.read[body..body + length]))
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            bail!("the connection was closed");
        }
        Ok(())
    }
}

/// The head; none until it is complete.
fn head(read: &[u8]) -> anyhow::Result<Option<Head>> {
    let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = str::from_utf8(&read[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.with_context(|| format!("no status in {head:?}"))?.parse()?;
    let number = |wanted: &str| {
        lines.clone().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim().parse::<usize>().ok())?
        })
    };
    let length = number("content-length").with_context(|| format!("no length in {head:?}"))?;
    let retry_after_s = number("retry-after").unwrap_or(0).try_into().unwrap_or(u32::MAX);
    Ok(Some(Head { status, body: end + 4, length, retry_after_s }))
}

#[cfg(test)]
mod tests {
    use super::{Head, head};

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let whole = b"HTTP/1.1 429 Busy\r\nretry-after: 2\r\nContent-Length: 12\r\nx: y\r\n\r\n{";
        assert_eq!(head(&whole[..whole.len() - 3]).ok(), Some(None));
        let expected = Head { status: 429, body: whole.len() - 1, length: 12, retry_after_s: 2 };
        assert_eq!(head(whole).ok(), Some(Some(expected)));
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
