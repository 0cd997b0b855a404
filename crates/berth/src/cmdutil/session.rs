//! A connection to one server.

use std::path::PathBuf;

use berth_api::Page;
use berth_api::engine::InstanceId;
use berth_client::{Client, Connect};
use clap::Args;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::client_config::{ServerConfig, ServerFlags};
use super::failure::{CmdResult, Exit, Failure};
use super::output::{Format, Output};
use super::text::plural;

/// Options of every command that talks to a server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server and output")]
pub(crate) struct Global {
    /// URL of the server; http://127.0.0.1:7070 when nothing is configured.
    #[arg(long, global = true, env = "BERTH_URL", value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Token to authenticate with.
    #[arg(long, global = true, env = "BERTH_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// File that holds the token.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file of CA certificates to trust in addition to the system's.
    #[arg(long, global = true, env = "BERTH_CA_CERT", value_name = "FILE")]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Output format.
    #[arg(long, short, global = true, value_parser = Format::parser(), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Print names and ids only, and no progress.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Do not shorten tables to the width of the terminal.
    #[arg(long, global = true)]
    pub(crate) no_trunc: bool,
    /// Disable colors, like the environment variable NO_COLOR.
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
}

impl Global {
    /// How results are printed.
    pub(crate) fn out(&self) -> Output {
        Output { format: self.output, quiet: self.quiet, no_trunc: self.no_trunc }
    }

    /// The server: from flags, then the environment, then the file.
    pub(crate) fn server(&self) -> CmdResult<ServerConfig> {
        let Self { url, token, token_file, ca_cert, .. } = self.clone();
        ServerFlags { url, token, token_file, ca_cert }.resolve()
    }

    /// A client of the server.
    pub(crate) fn session(&self) -> CmdResult<Session> {
        let client = self.server()?.client(Connect::default())?;
        Ok(Session { client, out: self.out() })
    }
}

/// A connection to one server.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) out: Output,
}

/// A response as it came, so that scripts get every field in its order.
pub(crate) type RawJson = Box<RawValue>;

/// Query parameters.
pub(crate) type Query<'a> = &'a [(&'a str, &'a str)];

/// Items requested per page.
const PAGE_SIZE: usize = 1000;

/// Requests of one command that are in flight at once.
const CONCURRENCY: usize = 16;

impl Session {
    /// Reads a resource.
    pub(crate) async fn get(&self, path: &str, query: Query<'_>) -> CmdResult<RawJson> {
        Ok(self.client.get(path, query).await?)
    }

    /// Reads a list, page by page, up to a limit.
    pub(crate) async fn get_list(
        &self,
        path: &str,
        query: Query<'_>,
        limit: Option<usize>,
    ) -> CmdResult<Page<RawJson>> {
        self.get_list_from(path, query, limit, ("cursor", None)).await
    }

    /// Reads a list from a given position. Its parameter also names the next page.
    pub(crate) async fn get_list_from(
        &self,
        path: &str,
        query: Query<'_>,
        limit: Option<usize>,
        (parameter, start): (&str, Option<String>),
    ) -> CmdResult<Page<RawJson>> {
        let mut all = Page { items: Vec::new(), next: start };
        loop {
            let left = limit.map_or(PAGE_SIZE, |limit| (limit - all.items.len()).min(PAGE_SIZE));
            let (left, position) = (left.to_string(), all.next.take());
            let mut query = query.to_vec();
            query.push(("limit", &left));
            query.extend(position.as_deref().map(|position| (parameter, position)));
            let page: Page<RawJson> = self.client.get(path, &query).await?;
            all.items.extend(page.items);
            all.next = page.next;
            let enough = limit.is_some_and(|limit| all.items.len() >= limit);
            if all.next.is_none() || enough {
                return Ok(all);
            }
        }
    }

    /// All items of a list, to find the name that was meant; none unless nothing was found.
    pub(crate) async fn existing<T: DeserializeOwned>(
        &self,
        failure: &Failure,
        path: &str,
    ) -> Option<Vec<T>> {
        if !failure.is_not_found() {
            return None;
        }
        decode_all(&self.get_list(path, &[], None).await.ok()?.items).ok()
    }

    /// Resolves an instance by id, by a unique prefix of it, or by name.
    pub(crate) async fn instance(&self, text: &str) -> CmdResult<InstanceId> {
        if let Ok(id) = text.parse() {
            return Ok(InstanceId(id));
        }
        #[derive(Deserialize)]
        struct NamedInstance {
            instance: InstanceId,
            name: Option<String>,
            tenant: String,
        }
        let page = self.get_list("/v1/instances", &[], None).await?;
        let all: Vec<NamedInstance> = decode_all(&page.items)?;
        let prefix = text.to_ascii_lowercase();
        let matches: Vec<&NamedInstance> = all
            .iter()
            .filter(|one| {
                let has_prefix = text.len() >= 4 && one.instance.to_string().starts_with(&prefix);
                has_prefix || one.name.as_deref() == Some(text)
            })
            .collect();
        let describe = |one: &&NamedInstance| match &one.name {
            Some(name) => format!("{} ({name} of {})", one.instance, one.tenant),
            None => format!("{} (of {})", one.instance, one.tenant),
        };
        match matches[..] {
            [one] => Ok(one.instance),
            [] => {
                let names = all.iter().filter_map(|one| one.name.as_deref());
                Err(Failure::new(Exit::NotFound, format!("instance {text:?} not found"))
                    .did_you_mean(text, names, "list names and ids with: berth instances list"))
            }
            _ => Err(ambiguous(text, "instance", matches.iter().map(describe))),
        }
    }
}

/// Most candidates that a failure lists.
const LISTED: usize = 10;

/// The failure of a text that several resources match.
fn ambiguous(text: &str, kind: &str, matches: impl ExactSizeIterator<Item = String>) -> Failure {
    let count = matches.len();
    let mut lines: Vec<String> = matches.take(LISTED).collect();
    if count > LISTED {
        lines.push(format!("and {} more", count - LISTED));
    }
    Failure::usage(format!("{text:?} matches {}", plural(count, kind)))
        .accepted(format!("one of\n    {}", lines.join("\n    ")))
}

/// Runs the same request for many items, some at a time, and returns the results in order.
pub(crate) async fn concurrently<I, F: Future>(
    items: impl IntoIterator<Item = I>,
    request: impl FnMut(I) -> F,
) -> Vec<F::Output> {
    futures_util::stream::iter(items).map(request).buffered(CONCURRENCY).collect().await
}

/// The values of those that succeeded, and the errors of the others.
pub(crate) fn partition<T, E>(results: impl IntoIterator<Item = Result<T, E>>) -> (Vec<T>, Vec<E>) {
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    (values, errors)
}

/// A response in its type.
pub(crate) fn decode<T: DeserializeOwned>(raw: &RawValue) -> CmdResult<T> {
    Ok(serde_json::from_str(raw.get())?)
}

/// Items of a list in their type.
pub(crate) fn decode_all<T: DeserializeOwned>(items: &[RawJson]) -> CmdResult<Vec<T>> {
    items.iter().map(|raw| decode(raw)).collect()
}

/// The query parameters that were given.
pub(crate) fn query_params<'a>(
    params: &[(&'a str, &'a Option<String>)],
) -> Vec<(&'a str, &'a str)> {
    params.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect()
}
