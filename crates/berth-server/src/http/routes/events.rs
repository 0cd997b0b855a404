//! `/v1/events`: the change feed, as a list and as a stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use berth_api::{Event, Page};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::access::AccessControl;
use crate::http::extract::{Query, RequestContext};
use crate::http::list::page_limit;
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::feed::{Reader, Subscription};
use berth_control::placement::Audience;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(stream))
}

/// Which events.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListEventsQuery {
    /// After this event. A list starts at the oldest kept, a stream at the newest.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Before this event; of a list in the order `newest`.
    #[param(minimum = 1)]
    before: Option<i64>,
    /// The order of a list; `oldest` first unless said otherwise.
    #[serde(default)]
    #[param(inline)]
    order: EventOrder,
    /// Only these kinds, with commas between: `instance.allocated,node` (a part before a dot means
    /// all that begin with it).
    kinds: Option<String>,
    /// How many at most; of a list.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// In which order events are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EventOrder {
    /// The oldest first.
    #[default]
    Oldest,
    /// The newest first.
    Newest,
}

impl ListEventsQuery {
    fn reader(&self, control: &ControlPlane, caller: &Caller) -> Reader {
        let kinds = self.kinds.as_deref().unwrap_or("").split(',').map(str::trim);
        let kinds = kinds.filter(|kind| !kind.is_empty()).map(str::to_owned).collect();
        Reader { kinds, sees_nodes: Audience::of(control, caller, "").sees_nodes() }
    }

    /// The position after the newest event that a list in the order `newest` may contain.
    fn before(&self) -> ApiResult<Option<i64>> {
        match (self.before, self.order) {
            (Some(before), _) if before < 1 => {
                Err(ApiError::field("before", Some(before.to_string()), "the number of an event"))
            }
            (Some(before), EventOrder::Oldest) => Err(ApiError::field(
                "before",
                Some(before.to_string()),
                "none, unless order is newest",
            )),
            (before, _) => Ok(before),
        }
    }

    fn after(&self) -> ApiResult<Option<i64>> {
        match self.after {
            Some(after) if after < 0 => Err(ApiError::field(
                "after",
                Some(after.to_string()),
                "0 or the number of an event",
            )),
            after => Ok(after),
        }
    }
}

/// List events
///
/// In order, without gaps. `next` is the number to go on after, or before if the order is `newest`;
/// absent at the end of the log.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(ListEventsQuery),
    responses((status = 200, description = "Events.", body = Page<Event>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListEventsQuery>,
) -> ApiResult<axum::Json<Page<Event>>> {
    let (limit, reader) = (page_limit(query.limit)?, query.reader(&control, &caller));
    let before = query.before()?;
    if query.order == EventOrder::Newest {
        let span = (query.after()?, before);
        return newest_first(&control, &caller, &reader, span, limit).await;
    }
    let mut cursor = match query.after()? {
        Some(after) => after,
        None => control.read(|ledger| ledger.oldest_event()).await? - 1,
    };
    let mut items = Vec::new();
    loop {
        let page = control.feed.page(cursor, 1000).await?;
        let Some(last) = page.last() else { return Ok(axum::Json(Page { items, next: None })) };
        cursor = last.seq;
        for event in &page {
            items.extend(event.seen_by(&caller, &reader));
            if items.len() == limit {
                let next = Some(event.seq.to_string());
                return Ok(axum::Json(Page { items, next }));
            }
        }
    }
}

/// Events between two positions, the newest first.
async fn newest_first(
    control: &ControlPlane,
    caller: &Caller,
    reader: &Reader,
    (after, before): (Option<i64>, Option<i64>),
    limit: usize,
) -> ApiResult<axum::Json<Page<Event>>> {
    const WINDOW: i64 = 1000;
    let oldest = control.read(|ledger| ledger.oldest_event()).await? - 1;
    let after = after.unwrap_or(oldest).max(oldest);
    let newest = control.feed.newest().await?;
    let mut end = before.map_or(newest, |before| newest.min(before - 1));
    let mut items = Vec::new();
    while end > after {
        let start = (end - WINDOW).max(after);
        let mut window = Vec::new();
        let mut cursor = start;
        while cursor < end {
            let page = control.feed.page(cursor, 1000).await?;
            let Some(last) = page.last() else { break };
            cursor = last.seq;
            window.extend(page.into_iter().filter(|event| event.seq <= end));
        }
        for event in window.iter().rev() {
            items.extend(event.seen_by(caller, reader));
            if items.len() == limit {
                let next = Some(event.seq.to_string()).filter(|_| event.seq - 1 > after);
                return Ok(axum::Json(Page { items, next }));
            }
        }
        end = start;
    }
    Ok(axum::Json(Page { items, next: None }))
}

/// Stream events
///
/// Server-sent events as they happen. `Last-Event-ID` resumes after the last one that was seen,
/// without a gap; 410 when the log no longer reaches back to it.
#[utoipa::path(get, path = "/v1/events/stream", tag = "events",
    params(ListEventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "Resume after this event.")),
    responses((status = 200, description = "A stream of events.", content_type = "text/event-stream", body = String)))]
async fn stream(
    State(control): State<Arc<ControlPlane>>,
    State(access): State<Arc<AccessControl>>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<ListEventsQuery>,
) -> ApiResult<Response> {
    let reader = query.reader(&control, &caller);
    let cursor = match (headers.get("last-event-id"), query.after()?) {
        (Some(id), _) => {
            let text = id.to_str().unwrap_or("");
            text.trim().parse().map_err(|_| {
                let value = Some(format!("{text:?}"));
                ApiError::field("Last-Event-ID", value, "the id of an event of this stream")
            })?
        }
        (None, Some(after)) => after,
        (None, None) => control.feed.newest().await?,
    };
    let subscription = control.feed.subscribe();
    // Fails now rather than in the stream, where a browser would not see the error.
    control.feed.page(cursor, 1).await?;
    let ready = VecDeque::new();
    let state = Streaming { control, access, caller, reader, subscription, cursor, ready };
    let frames = futures_util::stream::unfold(state, |mut state| async move {
        let frame = state.next().await?;
        Some((Ok::<_, Infallible>(frame), state))
    })
    .fuse();
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(frames)).into_response())
}

/// How long a stream may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A comment, so that whatever is in between does not close a silent connection.
const KEEP_ALIVE: Bytes = Bytes::from_static(b":keep-alive\n\n");

struct Streaming {
    control: Arc<ControlPlane>,
    access: Arc<AccessControl>,
    caller: Caller,
    reader: Reader,
    subscription: Subscription,
    cursor: i64,
    /// Events to be sent. Their bytes are shared with other streams.
    ready: VecDeque<Bytes>,
}

impl Streaming {
    /// What is sent next; absent when the stream ends: the server stops, the token was revoked, or the
    /// log was cut.
    async fn next(&mut self) -> Option<Bytes> {
        let silence = tokio::time::sleep(SILENCE_MAX);
        tokio::pin!(silence);
        while self.ready.is_empty() {
            let control = Arc::clone(&self.control);
            let came = tokio::select! {
                () = control.lifecycle.stopping().cancelled() => return None,
                came = self.subscription.next(self.cursor) => came.ok()?,
                () = &mut silence => return Some(KEEP_ALIVE),
            };
            self.cursor = came.last().map_or(self.cursor, |event| event.seq);
            if !self.may_go_on() {
                return None;
            }
            let frames =
                came.iter().filter_map(|event| event.frame_for(&self.caller, &self.reader));
            self.ready.extend(frames);
        }
        self.ready.pop_front()
    }

    /// Whether the token is still good: a stream may outlive it.
    fn may_go_on(&self) -> bool {
        let Some(id) = &self.caller.token else { return true };
        let record = self.access.tokens.get(id);
        record.is_some_and(|record| {
            let expired = record.token.expires_at.is_some_and(|end| end <= self.control.now());
            record.token.revoked_at.is_none() && !expired
        })
    }
}
