//! `/v1/state` and `/v1/debug/state`: everything, as of one moment; the ledger, and the inside of a
//! server.

use std::io::Write;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::header;
use tokio::sync::mpsc::{self, Receiver, Sender};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::problem::ApiResult;
use berth_control::ControlPlane;
use berth_control::debug;

/// Bytes that are sent at a time.
const PIECE: usize = 64 << 10;

/// Pieces that may wait for a slow reader.
pub(in crate::http) const WAITING: usize = 4;

type Piece = Result<Bytes, std::io::Error>;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(export)).routes(routes!(dump))
}

/// Read everything
///
/// The whole ledger as of one moment, one row per line: what `berth export` writes and
/// `berth import` reads. Its last line counts and hashes the others, so that a part of it is never
/// taken for all.
#[utoipa::path(get, path = "/v1/state", tag = "state",
    responses((status = 200, description = "The export.", content_type = "application/x-ndjson", body = String)))]
async fn export(State(control): State<Arc<ControlPlane>>) -> Response {
    let ledger = control.ledger.clone();
    let write = move |out: &mut Pieces| ledger.export(out).map(drop).map_err(|it| it.to_string());
    streamed(control, "application/x-ndjson", "berth-state.jsonl", write)
}

/// Read everything inside
///
/// What the server knows and decides by, in one document: the ledger's rows of nodes, claims,
/// groups, tenants and migrations as of one moment, and with them what its copies in memory make
/// of each node. `berth debug check` says whether all of it agrees. No tokens and no keys.
#[utoipa::path(get, path = "/v1/debug/state", tag = "state",
    responses((status = 200, description = "The dump, schema version 1.", content_type = "application/json", body = Object)))]
async fn dump(State(control): State<Arc<ControlPlane>>) -> ApiResult<Response> {
    let dump = debug::take(&control).await?;
    let write = move |out: &mut Pieces| {
        serde_json::to_writer(&mut *out, &dump).map_err(|error| error.to_string())?;
        out.flush().map_err(|error| error.to_string())
    };
    Ok(streamed(control, "application/json", "berth-dump.json", write))
}

/// Sends what a thread that may wait writes, piece by piece.
fn streamed(
    control: Arc<ControlPlane>,
    kind: &'static str,
    file: &str,
    write: impl FnOnce(&mut Pieces) -> Result<(), String> + Send + 'static,
) -> Response {
    let (sender, pieces) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut out = Pieces { sender, buffer: Vec::with_capacity(PIECE) };
        if let Err(error) = write(&mut out) {
            tracing::warn!(%error, "export aborted");
            // An aborted connection shows the client that data is missing. It may be gone already.
            let _ = out.sender.blocking_send(Err(std::io::Error::other("export aborted")));
        }
    });
    let reading = Reading { control, pieces };
    let pieces = futures_util::stream::unfold(reading, |mut reading| async move {
        let piece = reading.next().await?;
        Some((piece, reading))
    });
    // The compression layer may ask once more after the end.
    let body = Body::from_stream(pieces.fuse());
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{file}\"")),
    ];
    (headers, body).into_response()
}

/// The reading end, which gives up when the server stops: a slow reader must not hold it.
struct Reading {
    control: Arc<ControlPlane>,
    pieces: Receiver<Piece>,
}

impl Reading {
    async fn next(&mut self) -> Option<Piece> {
        if self.pieces.is_closed() && self.pieces.is_empty() {
            return None;
        }
        tokio::select! {
            biased;
            () = self.control.lifecycle.stopping().cancelled() => {
                self.pieces.close();
                while self.pieces.try_recv().is_ok() {}
                Some(Err(std::io::Error::other("the server stops")))
            }
            piece = self.pieces.recv() => piece,
        }
    }
}

/// The writing end, on a thread that may wait.
struct Pieces {
    sender: Sender<Piece>,
    buffer: Vec<u8>,
}

impl Pieces {
    fn send(&mut self) -> std::io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        let gone = |_| std::io::Error::new(std::io::ErrorKind::BrokenPipe, "reader disconnected");
        self.sender.blocking_send(Ok(Bytes::from(piece))).map_err(gone)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.send()
    }
}
