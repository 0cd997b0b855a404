//! A connection to one server, and how its answers are printed.

use std::path::PathBuf;

use berth_api::Page;
use berth_api::engine::InstanceId;
use berth_client::{Client, Connect, escape};
use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::context::{self, Context};
use super::failure::{Done, Exit, Failure};
use super::names;
use super::output::{Format, Output};

/// The server that is asked when nobody names one.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Options of every command that talks to a server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server and output")]
pub(crate) struct Global {
    /// The server; http://127.0.0.1:7070 when nothing says otherwise.
    #[arg(long, global = true, env = "BERTH_URL", value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The token to present.
    #[arg(long, global = true, env = "BERTH_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// A file that holds the token.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates in PEM to trust beside those of the system.
    #[arg(long, global = true, env = "BERTH_CA_CERT", value_name = "FILE")]
    pub(crate) ca_cert: Option<PathBuf>,
    /// How to print.
    #[arg(long, short, global = true, value_parser = Format::parser(), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Names and ids only, and no word about progress.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// No colours; so does the environment variable NO_COLOR.
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
}

impl Global {
    /// How answers are printed.
    pub(crate) fn out(&self) -> Output {
        Output { format: self.output, quiet: self.quiet }
    }

    /// What is known of the server: from the flags, else the environment, else the file.
    pub(crate) fn context(&self) -> Done<Context> {
        let stored = context::load()?;
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => Some(read(file)?.trim().to_owned()),
            // A token is for its server; it is not presented to another.
            (None, None) if self.url.is_none() || self.url == stored.url => stored.token,
            (None, None) => None,
        };
        Ok(Context {
            url: self.url.clone().or(stored.url),
            token,
            ca_cert: self.ca_cert.clone().or(stored.ca_cert),
        })
    }

    /// A client of the server.
    pub(crate) fn session(&self) -> Done<Session> {
        let Context { url, token, ca_cert } = self.context()?;
        let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let ca_pem = match ca_cert {
            Some(file) => Some(read(&file)?.into_bytes()),
            None => None,
        };
        let client = Client::new(Connect { url, token, ca_pem, ..Connect::default() })?;
        Ok(Session { client, out: self.out() })
    }
}

fn read(file: &PathBuf) -> Done<String> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", file.display())))
}

/// A connection to one server.
pub(crate) struct Session {
    /// The client.
    pub(crate) client: Client,
    /// How answers are printed.
    pub(crate) out: Output,
}

/// What an answer is kept as, so that scripts get it as it came.
pub(crate) type Raw = Box<RawValue>;

/// What the parts of a query are.
pub(crate) type Query<'a> = &'a [(&'a str, &'a str)];

/// Most items that are asked for at once.
const PAGE: usize = 1000;

impl Session {
    /// Reads something.
    pub(crate) async fn get(&self, path: &str, query: Query<'_>) -> Done<Raw> {
        Ok(self.client.get(path, query).await?)
    }

    /// Reads something and prints it.
    pub(crate) async fn show<T: DeserializeOwned>(
        &self,
        path: &str,
        human: impl FnOnce(T) -> Done,
    ) -> Done {
        let raw = self.get(path, &[]).await?;
        self.out.answer(&raw, human)
    }

    /// Reads a list, page after page, up to a limit.
    pub(crate) async fn list(
        &self,
        path: &str,
        query: Query<'_>,
        limit: Option<usize>,
    ) -> Done<Page<Raw>> {
        let mut all = Page { items: Vec::new(), next: None };
        loop {
            let left = limit.map_or(PAGE, |limit| limit.saturating_sub(all.items.len()).min(PAGE));
            let (left, cursor) = (left.to_string(), all.next.take());
            let mut query = query.to_vec();
            query.push(("limit", &left));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page<Raw> = self.client.get(path, &query).await?;
            all.items.extend(page.items);
            all.next = page.next;
            let enough = limit.is_some_and(|limit| all.items.len() >= limit);
            if all.next.is_none() || enough {
                return Ok(all);
            }
        }
    }

    /// Reads a list and prints it as a table, or as it came.
    pub(crate) async fn show_list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: Query<'_>,
        limit: Option<usize>,
        human: impl FnOnce(Vec<T>),
    ) -> Done {
        let page = self.list(path, query, limit).await?;
        if self.out.is_data() {
            return self.out.data(&page);
        }
        human(typed(&page.items)?);
        if page.next.is_some() {
            self.out.note("There is more; --limit says how many to show.");
        }
        Ok(())
    }

    /// Removes things by name, one after the other.
    pub(crate) async fn remove(&self, what: &str, folder: &str, names: &[String]) -> Done {
        for name in names {
            self.client.delete(&format!("{folder}/{}", escape(name))).await?;
            self.out.note(format!("removed {what} {name}"));
        }
        Ok(())
    }

    /// The instance that a text means: an id, the beginning of one, or a name.
    pub(crate) async fn instance(&self, text: &str) -> Done<InstanceId> {
        if let Ok(id) = text.parse() {
            return Ok(InstanceId(id));
        }
        #[derive(Deserialize)]
        struct Known {
            instance: InstanceId,
            name: Option<String>,
        }
        let page = self.list("/v1/instances", &[], None).await?;
        let known: Vec<Known> = typed(&page.items)?;
        let lower = text.to_ascii_lowercase();
        let begins =
            |known: &Known| text.len() >= 4 && known.instance.to_string().starts_with(&lower);
        let named = |known: &Known| known.name.as_deref() == Some(text);
        let meant: Vec<&Known> =
            known.iter().filter(|known| named(known) || begins(known)).collect();
        match meant[..] {
            [one] => Ok(one.instance),
            [] => {
                let failure =
                    Failure::new(Exit::NotFound, format!("there is no instance {text:?}"));
                let all = known.iter().filter_map(|known| known.name.as_deref());
                Err(match names::closest(text, all) {
                    Some(name) => failure.remedy(format!("did you mean {name}?")),
                    None => failure.remedy("berth instances list shows names and ids"),
                })
            }
            _ => {
                let ids: Vec<String> =
                    meant.iter().map(|known| known.instance.to_string()).collect();
                Err(Failure::usage(format!("{text:?} means {} instances", meant.len()))
                    .accepted(format!("one of {}", ids.join(", "))))
            }
        }
    }
}

/// Items that were kept as they came, in their type.
pub(crate) fn typed<T: DeserializeOwned>(items: &[Raw]) -> Done<Vec<T>> {
    items.iter().map(|raw| Ok(serde_json::from_str(raw.get())?)).collect()
}

/// Something in its type.
pub(crate) fn read_as<T: DeserializeOwned>(raw: &RawValue) -> Done<T> {
    Ok(serde_json::from_str(raw.get())?)
}

/// Only the parts of a query that were given.
pub(crate) fn given<'a>(parts: &[(&'a str, &'a Option<String>)]) -> Vec<(&'a str, &'a str)> {
    parts.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect()
}
