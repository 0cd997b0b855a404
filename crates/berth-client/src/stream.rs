//! Server-sent events.

use reqwest::Response;

use crate::ClientError;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServerEvent {
    /// Its id, from which a stream is resumed.
    pub id: Option<String>,
    /// Its name.
    pub event: Option<String>,
    /// Its data.
    pub data: String,
}

/// A stream of events.
#[derive(Debug)]
pub struct ServerEvents {
    response: Response,
    buffer: Vec<u8>,
}

impl ServerEvents {
    pub(crate) const fn new(response: Response) -> Self {
        Self { response, buffer: Vec::new() }
    }

    /// The next event; none if the server ended the stream.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        loop {
            if let Some(event) = self.take() {
                return Ok(Some(event));
            }
            match self.response.chunk().await.map_err(ClientError::Transport)? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// A complete event in the buffer, if there is one. Comments, which keep a connection open, are skipped.
    fn take(&mut self) -> Option<ServerEvent> {
        loop {
            let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
            let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let event = parse(&String::from_utf8_lossy(&block));
            if !event.data.is_empty() || event.event.is_some() {
                return Some(event);
            }
        }
    }
}

fn parse(block: &str) -> ServerEvent {
    let mut event = ServerEvent::default();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => event.id = Some(value.to_owned()),
            "event" => event.event = Some(value.to_owned()),
            "data" => {
                if !event.data.is_empty() {
                    event.data.push('\n');
                }
                event.data.push_str(value);
            }
            _ => {}
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_event_are_parsed_and_comments_skipped() {
        let event = parse(": keep\nid: 7\nevent: node.state\ndata: {\"a\":1}\ndata: x\n\n");
        let data = "{\"a\":1}\nx".to_owned();
        let (id, name) = (Some("7".to_owned()), Some("node.state".to_owned()));
        assert_eq!(event, ServerEvent { id, event: name, data });
    }
}
