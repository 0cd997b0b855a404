//! `berth events`: the event log, and new events as they happen.

use std::time::Duration;

use berth_api::{Event, Page};
use berth_client::ClientError;
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use crate::cmdutil::style::{BOLD, DIM, paint};
use crate::cmdutil::{
    CmdResult, Output, RawJson, Session, args, decode, decode_all, now, query_params, shorten,
    timestamp,
};

const EXAMPLES: &str = "\
Examples:
  berth events
  berth events --since 10m --kind node
  berth events --follow --limit 20
  berth events --follow --after 1200 --kind instance --kind node.state -o json

The newest events come last. -o wide prints all fields of each event. -o json with --follow prints one
event per line.";

/// How many events are listed unless said otherwise.
const LATEST: usize = 50;

/// List the latest events, or follow them as they happen.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// Print new events as they happen, and reconnect when the connection is lost; earlier ones only
    /// with --limit, --since or --after.
    #[arg(long, short)]
    follow: bool,
    /// Start after the event with this number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    after: Option<i64>,
    /// Show only events of this last time, such as 10m; all of them, unless --limit is given.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, conflicts_with = "after")]
    since: Option<u32>,
    /// Show only this kind: instance.allocated, or a prefix such as instance; may be repeated.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// Show at most this many: the latest, or with --after the first [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// The longest pause before reconnecting.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

impl Events {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        if !self.follow {
            return self.list(session).await;
        }
        let is_earlier_wanted = self.limit.is_some() || self.since.is_some();
        if self.after.is_some() || !is_earlier_wanted {
            let after = self.after.map(|after| after.to_string());
            return self.stream(session, after).await;
        }
        let earlier = self.latest(session).await?;
        for raw in &earlier {
            line(&session.out, raw.get())?;
        }
        let last = decode_all::<Event>(&earlier)?.last().map(|event| event.seq.to_string());
        self.stream(session, last).await
    }

    fn limit(&self) -> Option<usize> {
        self.limit.and_then(|limit| usize::try_from(limit).ok())
    }

    async fn list(&self, session: &Session) -> CmdResult {
        let out = &session.out;
        let page = match self.after {
            Some(after) => {
                let kinds = self.kinds();
                let query = query_params(&[("kinds", &kinds)]);
                let from = ("after", Some(after.to_string()));
                session.get_list_from("/v1/events", &query, self.limit(), from).await?
            }
            None => Page { items: self.latest(session).await?, next: None },
        };
        if out.is_data() {
            return out.data(&page);
        }
        for event in decode_all::<Event>(&page.items)? {
            print(out, &event);
        }
        if page.items.is_empty() {
            out.note("No events match.");
        } else if let Some(next) = &page.next {
            out.note(format!("More events exist; show them with: berth events --after {next}"));
        }
        Ok(())
    }

    /// The latest events, the newest last.
    async fn latest(&self, session: &Session) -> CmdResult<Vec<RawJson>> {
        let default = if self.since.is_some() { usize::MAX } else { LATEST };
        let limit = self.limit().unwrap_or(default);
        let start =
            self.since.map(|seconds| now() - jiff::SignedDuration::from_secs(seconds.into()));
        let kinds = self.kinds();
        let (mut items, mut before) = (Vec::new(), None::<String>);
        loop {
            let size = (limit - items.len()).min(1000).to_string();
            let mut query = query_params(&[("kinds", &kinds), ("before", &before)]);
            query.extend([("order", "newest"), ("limit", &size)]);
            let page: Page<RawJson> = session.client.get("/v1/events", &query).await?;
            let events: Vec<Event> = decode_all(&page.items)?;
            let is_recent = |event: &Event| start.is_none_or(|start| event.at >= start);
            let recent = events.iter().take_while(|event| is_recent(event)).count();
            let is_end = recent < events.len() || page.next.is_none();
            items.extend(page.items.into_iter().take(recent));
            before = page.next;
            if is_end || items.len() >= limit {
                items.reverse();
                return Ok(items);
            }
        }
    }

    /// The kinds to show, as the API takes them.
    fn kinds(&self) -> Option<String> {
        (!self.kinds.is_empty()).then(|| self.kinds.join(","))
    }

    async fn stream(&self, session: &Session, mut last: Option<String>) -> CmdResult {
        let kinds = self.kinds();
        let query = query_params(&[("kinds", &kinds)]);
        let mut pause = Duration::from_millis(250);
        loop {
            let opened = session.client.events("/v1/events/stream", &query, last.as_deref()).await;
            let lost = match opened {
                Ok(mut events) => {
                    pause = Duration::from_millis(250);
                    loop {
                        match events.next().await {
                            Ok(Some(event)) => {
                                line(&session.out, &event.data)?;
                                last = event.id.or(last);
                            }
                            Ok(None) => break None,
                            Err(error) => break Some(error),
                        }
                    }
                }
                Err(error @ (ClientError::Unreachable { .. } | ClientError::Transport(_)))
                    if last.is_some() =>
                {
                    Some(error)
                }
                Err(error) => return Err(error.into()),
            };
            let why =
                lost.map_or_else(|| "closed by the server".to_owned(), |error| error.to_string());
            session.out.note(paint(DIM, &format!("connection lost ({why}); reconnecting")));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
    }
}

fn line(out: &Output, data: &str) -> CmdResult {
    if out.is_data() {
        out.line(data);
        return Ok(());
    }
    let raw: RawJson = serde_json::from_str(data)?;
    print(out, &decode(&raw)?);
    Ok(())
}

fn print(out: &Output, event: &Event) {
    let mut fields = Vec::new();
    if out.is_wide() {
        flatten("", &event.body, &mut fields);
    } else {
        summary(&event.body, &mut fields);
    }
    let mut fields = fields.join(" ");
    if let Some(width) = out.width() {
        // Number, time and kind, with the spaces between them.
        let before = 8 + 2 + 19 + 2 + event.kind.len().max(20) + 2;
        fields = shorten(&fields, width.saturating_sub(before).max(20));
    }
    let number = paint(DIM, &format!("{:>8}", event.seq));
    let at = paint(DIM, &timestamp(event.at));
    let kind = paint(BOLD, &format!("{:<20}", event.kind));
    out.line(format!("{number}  {at}  {kind}  {fields}"));
}

/// The fields that people look for: the scalar ones of the body, and the state of a node's facts.
fn summary(body: &Value, fields: &mut Vec<String>) {
    const INNER: [&str; 4] = ["spec_hash", "constraint_gen", "fence", "body"];
    let Some(map) = body.as_object() else { return flatten("", body, fields) };
    for (key, value) in map.iter().filter(|(key, _)| !INNER.contains(&key.as_str())) {
        match value {
            Value::Object(facts) if key == "facts" => {
                for key in ["id", "state", "zone", "rack"] {
                    flatten(key, facts.get(key).unwrap_or(&Value::Null), fields);
                }
            }
            Value::Object(_) | Value::Array(_) => {}
            Value::Number(micros) if key.ends_with("_until") || key.ends_with("_at") => {
                let at = micros.as_i64().and_then(|at| Timestamp::from_microsecond(at).ok());
                fields.push(format!(
                    "{key}={}",
                    at.map(timestamp).unwrap_or_default().replace(' ', "T")
                ));
            }
            value => flatten(key, value, fields),
        }
    }
}

/// All fields as `key=value`; long values are cut off.
fn flatten(prefix: &str, value: &Value, fields: &mut Vec<String>) {
    const LONGEST: usize = 60;
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, fields);
            }
        }
        Value::Null => {}
        value => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let cut: String = text.chars().take(LONGEST).collect();
            let more = if cut.len() < text.len() { "…" } else { "" };
            fields.push(format!("{prefix}={cut}{more}"));
        }
    }
}
