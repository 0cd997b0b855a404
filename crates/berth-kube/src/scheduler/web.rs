//! What the scheduler tells of itself over HTTP: why a pod is where it is, and how many of what there are.
//!
//! Only reads.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::ACCEPT;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use tokio::sync::{mpsc, oneshot};

use super::explain::{as_json, as_text};
use super::messages::{Ask, Message};
use crate::cluster::pod::Key;
use crate::probes::{json, text};

/// How long the brain may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Response<Full<Bytes>>;

/// See the module.
#[derive(Clone)]
pub(super) struct Answers {
    brain: Arc<mpsc::Sender<Message>>,
}

impl Answers {
    pub(super) fn new(brain: mpsc::Sender<Message>) -> Self {
        Self { brain: Arc::new(brain) }
    }

    /// The answer to a request for one of our paths.
    pub(super) fn answer(&self, request: &Request<Incoming>) -> Option<BoxFuture<'static, Answer>> {
        let path = request.uri().path();
        let answers = self.clone();
        if path == "/v1/state" {
            return Some(async move { answers.state().await }.boxed());
        }
        let mut parts = path.strip_prefix("/v1/pods/")?.split('/');
        let (namespace, name) = (parts.next()?, parts.next()?);
        if parts.next() != Some("explain") || parts.next().is_some() {
            return None;
        }
        let key = Key::new(namespace, name);
        let accepts = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
        let plain = accepts.is_some_and(|it| it.starts_with("text/plain"));
        Some(async move { answers.explain(key, plain).await }.boxed())
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.brain.send(Message::Ask(question(reply))).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
    }

    async fn state(&self) -> Answer {
        match self.ask(Ask::Counts).await {
            Some(counts) => json(StatusCode::OK, &serde_json::json!(counts)),
            None => busy(),
        }
    }

    async fn explain(&self, key: Key, plain: bool) -> Answer {
        let name = key.to_string();
        match self.ask(|reply| Ask::Explain(key, reply)).await {
            None => busy(),
            Some(None) => text(StatusCode::NOT_FOUND, format!("there is no pod {name}\n")),
            Some(Some(found)) if plain => text(StatusCode::OK, as_text(&found)),
            Some(Some(found)) => json(StatusCode::OK, &as_json(&found)),
        }
    }
}

fn busy() -> Answer {
    text(StatusCode::SERVICE_UNAVAILABLE, "the scheduler is stopping, or too busy to answer\n")
}
