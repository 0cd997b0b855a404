//! Carries out a request, and builds the HTTP response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use hyper::body::Frame;
use serde_json::{Value, json};

use super::route::RequestTarget;
use super::{IncomingRequest, header};
use crate::api::{Api, WriteResult, Writer};
use crate::delete::{DeleteOptions, DeleteOutcome};
use crate::failure::{Failure, success};
use crate::list::ListQuery;
use crate::object::{self, Key, Object};
use crate::patch::Patch;
use crate::subresources::scale::{ScaleChange, scale_of};
use crate::update::ObjectPart;
use crate::watch::{Chunks, ConnectionCut};

/// A response body: complete, or a stream.
pub(crate) enum Body {
    Complete(Option<Bytes>),
    Chunks(Chunks),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = ConnectionCut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionCut>>> {
        match self.get_mut() {
            Self::Complete(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Chunks(chunks) => {
                chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
            }
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Complete(Some(bytes)) => hyper::body::SizeHint::with_exact(bytes.len() as u64),
            Self::Complete(None) => hyper::body::SizeHint::with_exact(0),
            Self::Chunks(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// The outcome of a request.
pub(crate) struct Answer {
    pub(crate) code: u16,
    body: Body,
    media_type: &'static str,
    warnings: Vec<String>,
    retry_after_s: Option<u64>,
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        let mut answer = Self::json(failure.code, &failure.status());
        answer.retry_after_s = failure.retry_after_s();
        answer
    }
}

impl Answer {
    fn bytes(code: u16, bytes: Bytes) -> Self {
        Self {
            code,
            body: Body::Complete(Some(bytes)),
            media_type: "application/json",
            warnings: Vec::new(),
            retry_after_s: None,
        }
    }

    pub(super) fn json(code: u16, value: &Value) -> Self {
        Self::bytes(code, Bytes::from(value.to_string()))
    }

    pub(super) fn text(text: &'static str) -> Self {
        let bytes = Bytes::from_static(text.as_bytes());
        Self { media_type: "text/plain; charset=utf-8", ..Self::bytes(200, bytes) }
    }

    fn object(code: u16, object: &Object) -> Self {
        Self::bytes(code, object.whole())
    }

    fn written(written: &WriteResult) -> Self {
        let mut answer = Self::object(written.code, &written.object);
        answer.warnings.clone_from(&written.warnings);
        answer
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = http::StatusCode::from_u16(self.code)
            .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert("content-type", http::HeaderValue::from_static(self.media_type));
        headers.insert("cache-control", http::HeaderValue::from_static("no-cache, private"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert("retry-after", http::HeaderValue::from(seconds));
        }
        for warning in &self.warnings {
            let text = warning.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
            if let Ok(value) = http::HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                headers.append("warning", value);
            }
        }
        response
    }
}

fn parse(body: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type JSON): {error}"
        ))
    })
}

/// Bodies must be JSON.
fn parse_typed(request: &IncomingRequest) -> Result<Value, Failure> {
    let media_type = header(&request.headers, "content-type");
    let plain = media_type.split(';').next().unwrap_or_default().trim();
    if !["", "application/json"].contains(&plain) {
        return Err(Failure::unsupported_media_type("application/json"));
    }
    parse(&request.body)
}

/// Whether only metadata is requested.
fn metadata_only(request: &IncomingRequest) -> bool {
    header(&request.headers, "accept").contains("as=PartialObjectMetadata")
}

/// Handles read requests.
fn read(
    api: &Arc<Api>,
    request: &IncomingRequest,
    target: &RequestTarget,
    key: &Key,
) -> Result<Answer, Failure> {
    let (id, query, metadata_only) = (target.table, &request.head.query, metadata_only(request));
    match (target.verb, target.subresource.as_str()) {
        ("list", _) if metadata_only => {
            let page = api.list(id, query)?.metadata_only();
            Ok(Answer::bytes(200, page.encode(crate::view::metadata_kind())))
        }
        ("list", _) => {
            let page = api.list(id, query)?;
            Ok(Answer::bytes(200, page.encode(&target.resource)))
        }
        ("watch", _) => {
            let query = &ListQuery { metadata_only, ..query.clone() };
            let body = Body::Chunks(api.watch(id, query)?);
            Ok(Answer { body, ..Answer::bytes(200, Bytes::new()) })
        }
        ("get", "scale") => {
            let object = api.get(id, key)?;
            Ok(Answer::json(200, &scale_of(&target.resource, &object.value)?))
        }
        ("get", "" | "status" | "resize" | "ephemeralcontainers") => {
            let object = api.get(id, key)?;
            if metadata_only {
                return Ok(Answer::object(200, &crate::view::metadata(&object)));
            }
            Ok(Answer::object(200, &object))
        }
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Handles write requests.
pub(crate) async fn handle_request(
    api: &Arc<Api>,
    request: IncomingRequest,
) -> Result<Answer, Failure> {
    let Some(target) = request.head.target.clone() else { return Err(Failure::no_such_path()) };
    let writer = Writer {
        user: request.user.clone(),
        dry_run: request.head.dry_run,
        field_manager: request.head.field_manager.clone(),
    };
    let namespace = target.namespace.as_deref();
    let key = Key::new(namespace.unwrap_or_default(), &target.name);
    let id = target.table;
    match (target.verb, target.subresource.as_str()) {
        ("list" | "watch" | "get", _) => read(api, &request, &target, &key),
        ("create", "") if target.name.is_empty() => {
            let value = parse_typed(&request)?;
            Ok(Answer::written(&api.create(&writer, id, namespace, value).await?))
        }
        ("create", "binding") => {
            let body = parse_typed(&request)?;
            let writer = with_body_dry_run(writer, &body);
            Ok(Answer::json(201, &api.bind(&writer, &key, &body).await?))
        }
        ("create", "eviction") => {
            let body = parse_typed(&request)?;
            let writer = with_body_dry_run(writer, &body["deleteOptions"]);
            Ok(Answer::json(201, &api.evict(&writer, &key, &body).await?))
        }
        ("update" | "patch", "scale") => {
            let change = if target.verb == "update" {
                ScaleChange::Put(parse_typed(&request)?)
            } else {
                ScaleChange::Patch(read_patch(&request)?)
            };
            let (scale, _) = api.write_scale(&writer, id, &key, &change).await?;
            Ok(Answer::json(200, &scale))
        }
        ("update", below) => {
            let value = parse_typed(&request)?;
            let written = api.replace(&writer, id, &key, part(below)?, value).await?;
            Ok(Answer::written(&written))
        }
        ("patch", below) => {
            let patch = read_patch(&request)?;
            let written = api.patch(&writer, id, &key, part(below)?, &patch).await?;
            Ok(Answer::written(&written))
        }
        ("delete", "") => delete_one(api, &request, writer, &key).await,
        ("deletecollection", "") => delete_many(api, &request, writer).await,
        _ => Err(Failure::method_not_allowed()),
    }
}

fn part(subresource: &str) -> Result<ObjectPart, Failure> {
    match subresource {
        "" => Ok(ObjectPart::Main),
        "status" => Ok(ObjectPart::Status),
        "resize" => Ok(ObjectPart::Resize),
        _ => Err(Failure::method_not_allowed()),
    }
}

fn read_patch(request: &IncomingRequest) -> Result<Patch, Failure> {
    Patch::read(header(&request.headers, "content-type"), &request.body)
}

/// Some clients request a dry run in the body.
fn with_body_dry_run(mut writer: Writer, options: &Value) -> Writer {
    writer.dry_run |= object::items(&options["dryRun"]).any(|word| word == "All");
    writer
}

fn delete_options(request: &IncomingRequest) -> Result<(Value, DeleteOptions), Failure> {
    let mut body = if request.body.is_empty() { json!({}) } else { parse(&request.body)? };
    let parameters = &request.head.parameters;
    if let Some(grace) = parameters.get("gracePeriodSeconds") {
        let grace: i64 =
            grace.parse().map_err(|_| Failure::bad_request("gracePeriodSeconds is no number"))?;
        body["gracePeriodSeconds"] = json!(grace);
    }
    if let Some(policy) = parameters.get("propagationPolicy") {
        body["propagationPolicy"] = json!(policy);
    }
    let options = DeleteOptions::read(&body)?;
    Ok((body, options))
}

async fn delete_one(
    api: &Arc<Api>,
    request: &IncomingRequest,
    writer: Writer,
    key: &Key,
) -> Result<Answer, Failure> {
    let Some(target) = &request.head.target else { return Err(Failure::no_such_path()) };
    let (body, options) = delete_options(request)?;
    let writer = with_body_dry_run(writer, &body);
    let deleted = api.delete(&writer, target.table, key, &options).await?;
    let resource = &target.resource;
    match &deleted {
        DeleteOutcome::Gone(object) if !resource.returns_deleted => {
            let mut details = json!({
                "name": &*key.name, "kind": resource.plural, "uid": object::uid(&object.value),
            });
            if !resource.group.is_empty() {
                details["group"] = json!(resource.group);
            }
            Ok(Answer::json(200, &success(200, Some(details))))
        }
        _ => Ok(Answer::object(200, &crate::view::as_resource(resource, deleted.object()))),
    }
}

async fn delete_many(
    api: &Arc<Api>,
    request: &IncomingRequest,
    writer: Writer,
) -> Result<Answer, Failure> {
    let Some(target) = &request.head.target else { return Err(Failure::no_such_path()) };
    let (body, options) = delete_options(request)?;
    let writer = with_body_dry_run(writer, &body);
    let page = api.list(target.table, &request.head.query)?;
    for object in &page.items {
        match api.delete(&writer, target.table, &object.key(), &options).await {
            Ok(_) | Err(Failure { code: 404, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(Answer::bytes(200, page.encode(&target.resource)))
}
