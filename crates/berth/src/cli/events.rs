//! `berth events`: what happened, and what happens.

use std::time::Duration;

use berth_api::{Event, Page};
use berth_client::ClientError;
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use super::failure::Done;
use super::output::Output;
use super::output::style::{BOLD, DIM, paint};
use super::session::{Raw, Session, read_as, typed};
use super::words::moment;

const EXAMPLES: &str = "\
Examples:
  berth events --limit 20
  berth events --follow
  berth events --follow --after 1200 --kind instance --kind node.state -o json

-o wide prints all of each event. With -o json and --follow there is one event on each line.";

/// List events, or follow them as they happen.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// Go on and print events as they happen, across lost connections.
    #[arg(long, short)]
    follow: bool,
    /// Begin after this event.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    after: Option<i64>,
    /// Only this kind: instance.allocated, or instance for all that begin so.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// How many at most, from the first; not with --follow.
    #[arg(long, value_name = "N", conflicts_with = "follow", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// How long a lost connection is left alone at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Events {
    pub(crate) async fn run(self, session: &Session) -> Done {
        if self.follow { self.stream(session).await } else { self.list(session).await }
    }

    async fn list(&self, session: &Session) -> Done {
        let out = &session.out;
        let most = self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let kinds = self.kinds.join(",");
        let mut all: Page<Raw> =
            Page { items: Vec::new(), next: self.after.map(|n| n.to_string()) };
        loop {
            let limit = (most - all.items.len()).min(1000).to_string();
            let after = all.next.take();
            let mut query = vec![("limit", limit.as_str())];
            query.extend(after.as_deref().map(|after| ("after", after)));
            query.extend((!kinds.is_empty()).then_some(("kinds", kinds.as_str())));
            let page: Page<Raw> = session.client.get("/v1/events", &query).await?;
            all.items.extend(page.items);
            all.next = page.next;
            if all.next.is_none() || all.items.len() >= most {
                break;
            }
        }
        if out.is_data() {
            return out.data(&all);
        }
        for event in typed::<Event>(&all.items)? {
            print(out, &event);
        }
        if all.items.is_empty() {
            out.note("Nothing happened yet.");
        } else if let Some(next) = &all.next {
            out.note(format!("There is more: berth events --after {next}"));
        }
        Ok(())
    }

    async fn stream(&self, session: &Session) -> Done {
        let kinds = self.kinds.join(",");
        let mut last = self.after.map(|after| after.to_string());
        let mut pause = Duration::from_millis(250);
        loop {
            let mut query = Vec::new();
            query.extend((!kinds.is_empty()).then_some(("kinds", kinds.as_str())));
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
                lost.map_or_else(|| "the server ended it".to_owned(), |error| error.to_string());
            session.out.note(paint(DIM, &format!("connection lost ({why}); trying again")));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn line(out: &Output, data: &str) -> Done {
    if out.is_data() {
        out.line(data);
        return Ok(());
    }
    let raw: Raw = serde_json::from_str(data)?;
    print(out, &read_as(&raw)?);
    Ok(())
}

fn print(out: &Output, event: &Event) {
    let mut fields = Vec::new();
    if out.is_wide() {
        flat("", &event.body, &mut fields);
    } else {
        brief(&event.body, &mut fields);
    }
    let number = paint(DIM, &format!("{:>8}", event.seq));
    let at = paint(DIM, &moment(event.at));
    let kind = paint(BOLD, &format!("{:<20}", event.kind));
    out.line(format!("{number}  {at}  {kind}  {}", fields.join(" ")));
}

/// What people look for in an event: the plain fields of its body, and of facts the state.
fn brief(body: &Value, fields: &mut Vec<String>) {
    const INNER: [&str; 4] = ["spec_hash", "constraint_gen", "fence", "body"];
    let Some(map) = body.as_object() else { return flat("", body, fields) };
    for (key, value) in map.iter().filter(|(key, _)| !INNER.contains(&key.as_str())) {
        match value {
            Value::Object(facts) if key == "facts" => {
                for key in ["id", "state", "zone", "rack"] {
                    flat(key, facts.get(key).unwrap_or(&Value::Null), fields);
                }
            }
            Value::Object(_) | Value::Array(_) => {}
            Value::Number(micros) if key.ends_with("_until") || key.ends_with("_at") => {
                let at = micros.as_i64().and_then(|at| Timestamp::from_microsecond(at).ok());
                fields.push(format!(
                    "{key}={}",
                    at.map(moment).unwrap_or_default().replace(' ', "T")
                ));
            }
            value => flat(key, value, fields),
        }
    }
}

/// Everything in a body, as `key=value`; long things are cut.
fn flat(prefix: &str, value: &Value, fields: &mut Vec<String>) {
    const LONGEST: usize = 60;
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flat(&key, value, fields);
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
