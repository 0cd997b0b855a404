//! Read-only HTTP endpoints of the scheduler: its state, and explanations of pods.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::sync::{mpsc, oneshot};

use super::explain::{as_json, as_text};
use super::messages::{Message, Query};
use crate::cluster::pod::Key;

/// How long the core may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

type Inbox = mpsc::Sender<Message>;

/// The routes.
pub(super) fn router(inbox: Inbox) -> Router {
    Router::new()
        .route("/v1/state", get(get_state))
        .route("/debug/state", get(get_debug_state))
        .route("/v1/debug/state", get(get_debug_state))
        .route("/v1/pods/{namespace}/{name}/explain", get(explain_pod))
        .with_state(inbox)
}

async fn get_state(State(inbox): State<Inbox>) -> Response {
    match query_core(&inbox, Query::Counts).await {
        Some(counts) => json(&serde_json::json!(counts)),
        None => unavailable(),
    }
}

/// Everything that is known and decided. It is put into text here, so that the core only copies it.
async fn get_debug_state(State(inbox): State<Inbox>) -> Response {
    let Some(state) = query_core(&inbox, Query::DebugState).await else { return unavailable() };
    let written = tokio::task::spawn_blocking(move || serde_json::to_string(&state)).await;
    match written {
        Ok(Ok(text)) => ([(CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(_) => unavailable(),
    }
}

async fn explain_pod(
    State(inbox): State<Inbox>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let key = Key::new(&namespace, &name);
    let accepts = headers.get(ACCEPT).and_then(|it| it.to_str().ok());
    let plain = accepts.is_some_and(|it| it.starts_with("text/plain"));
    match query_core(&inbox, |reply| Query::Explain(key.clone(), reply)).await {
        None => unavailable(),
        Some(None) => (StatusCode::NOT_FOUND, format!("pod {key} not found\n")).into_response(),
        Some(Some(found)) if plain => as_text(&found).into_response(),
        Some(Some(found)) => json(&as_json(&found)),
    }
}

async fn query_core<T>(
    inbox: &Inbox,
    query: impl FnOnce(oneshot::Sender<T>) -> Query,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    let asked = async {
        inbox.send(Message::Query(query(reply))).await.ok()?;
        answer.await.ok()
    };
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok().flatten()
}

fn json(body: &serde_json::Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

fn unavailable() -> Response {
    let message = "the scheduler is stopping, or too busy to answer\n";
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}
