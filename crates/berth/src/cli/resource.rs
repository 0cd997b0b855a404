//! The verbs that all resources share: list, show, set and remove.
//!
//! A noun describes its resource once, by implementing [`Resource`]. Paging, output formats, empty
//! lists and messages are the same for all of them, and live here.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

use berth_api::Page;
use berth_client::escape;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::watch;
use crate::cmdutil::{
    CmdResult, Column, Exit, Failure, Output, Query, RawJson, Session, Table, decode, decode_all,
};

/// How often the progress of an operation is polled.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The note below a list that was cut off.
pub(crate) const MORE: &str = "More items exist; show more with --limit.";

/// A kind of resource of the API.
pub(crate) trait Resource: DeserializeOwned + 'static {
    /// What one is called: `group`.
    const KIND: &'static str;
    /// What names one: `name` or `id`.
    const KEY: &'static str = "name";
    /// The placeholder of an argument that names one.
    const VALUE_NAME: &'static str = match Self::COLUMNS {
        [first, ..] => first.title,
        [] => "NAME",
    };
    /// The help of an argument that names one, where it is not the key alone.
    const HELP: &'static str = "";
    /// The path of the collection, `/v1/groups`, where there is one.
    const PATH: &'static str = "";
    /// The command that lists them, where it is not the path's last word: `berth groups list`.
    const LIST_COMMAND: &'static str = "";
    /// What is printed instead of an empty list.
    const EMPTY: &'static str = "";
    /// The columns of a list. The first one names the resource.
    const COLUMNS: &'static [Column<Self>] = &[];

    /// Names and values of a single resource; those without a value are not printed.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let field = |column: &Column<Self>| {
            let label = column.title.trim_start_matches(['+', '?', '>']);
            (label, (column.cell)(self).value())
        };
        Self::COLUMNS.iter().map(field).collect()
    }

    /// What names this one in commands.
    fn key(&self) -> String {
        Self::COLUMNS.first().map(|column| (column.cell)(self).value()).unwrap_or_default()
    }

    /// Prints a single resource for people.
    fn print(&self, out: &Output) {
        out.pairs(&self.fields());
    }
}

/// The path of a resource.
pub(crate) fn path_of<R: Resource>(name: &str) -> String {
    format!("{}/{}", R::PATH, escape(name))
}

impl Session {
    /// Lists resources, once or until interrupted.
    pub(crate) async fn list<R: Resource>(
        &self,
        query: Query<'_>,
        options: impl Into<ListOptions>,
    ) -> CmdResult {
        let options = options.into();
        let is_empty = Cell::new(false);
        let fetch = async || {
            let page = self.get_list(R::PATH, query, options.limit()).await?;
            is_empty.set(page.items.is_empty());
            Ok(page)
        };
        self.print_or_watch::<R>(options, fetch, R::EMPTY).await?;
        let tenant = query.iter().find(|(name, _)| *name == "tenant");
        if let Some((_, tenant)) = tenant.filter(|_| is_empty.get())
            && let Some(hint) = self.tenant_hint(tenant).await
        {
            self.out.note(hint);
        }
        Ok(())
    }

    /// Prints what is fetched, once or until interrupted.
    pub(crate) async fn print_or_watch<R: Resource>(
        &self,
        options: ListOptions,
        fetch: impl AsyncFn() -> CmdResult<Page<RawJson>>,
        when_empty: &str,
    ) -> CmdResult {
        if options.watch {
            return watch::run::<R>(self, fetch, when_empty).await;
        }
        let page = fetch().await?;
        if self.out.is_data() {
            return self.out.data(&page);
        }
        self.print_list::<R>(&decode_all(&page.items)?, when_empty);
        if page.next.is_some() {
            self.out.note(MORE);
        }
        Ok(())
    }

    /// Adds the closest existing name to a failure about a resource that does not exist. A caller that
    /// may not list them gets the failure as it is.
    pub(crate) async fn suggest<R: Resource>(&self, failure: Failure, name: &str) -> Failure {
        let Some(known) = self.existing::<R>(&failure, R::PATH).await else { return failure };
        let known: Vec<String> = known.iter().map(R::key).collect();
        let noun = R::PATH.rsplit('/').next().unwrap_or_default();
        let command = match R::LIST_COMMAND {
            "" => format!("berth {noun} list"),
            command => command.to_owned(),
        };
        let otherwise = format!("list them with: {command}");
        failure.did_you_mean(name, known.iter().map(String::as_str), &otherwise)
    }

    /// Prints a list of resources as a table.
    pub(crate) fn print_list<R: Resource>(&self, items: &[R], when_empty: &str) {
        self.out.table(&Table::of(items, self.out.is_wide(), R::COLUMNS), when_empty);
    }

    /// Shows one resource.
    pub(crate) async fn show<R: Resource>(&self, name: &str) -> CmdResult {
        match self.get(&path_of::<R>(name), &[]).await {
            Ok(raw) => self.print::<R>(&raw),
            Err(failure) => Err(self.suggest::<R>(failure, name).await),
        }
    }

    /// Creates or replaces a resource, and shows it.
    pub(crate) async fn put<R: Resource>(
        &self,
        name: &str,
        body: &(impl Serialize + Sync),
    ) -> CmdResult {
        let raw: RawJson = self.client.put(&path_of::<R>(name), body).await?;
        self.print::<R>(&raw)
    }

    /// Posts a request that a resource answers, and shows it.
    pub(crate) async fn post<R: Resource>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> CmdResult {
        let raw: RawJson = self.client.post(path, body).await?;
        self.print::<R>(&raw)
    }

    /// Deletes resources one after the other.
    pub(crate) async fn remove<R: Resource>(&self, names: &[String]) -> CmdResult {
        self.delete_each::<R>(names, &format!("removed {}", R::KIND)).await
    }

    /// Deletes resources one after the other, in other words.
    pub(crate) async fn delete_each<R: Resource>(
        &self,
        names: &[String],
        message: &str,
    ) -> CmdResult {
        for name in names {
            if let Err(error) = self.client.delete(&path_of::<R>(name)).await {
                return Err(self.suggest::<R>(error.into(), name).await);
            }
            self.out.note(format!("{message} {name}"));
        }
        Ok(())
    }

    /// Prints a resource: as it came for scripts, otherwise for people.
    pub(crate) fn print<R: Resource>(&self, raw: &RawJson) -> CmdResult {
        self.out.response(raw, |resource: R| resource.print(&self.out))
    }

    /// Polls a long-running operation until it has ended or the deadline has passed.
    pub(crate) async fn follow<R: Operation>(
        &self,
        path: &str,
        deadline: Option<Instant>,
    ) -> CmdResult {
        let mut progress = self.out.progress("");
        loop {
            let raw = self.get(path, &[]).await?;
            let operation: R = decode(&raw)?;
            let message = operation.progress();
            progress.update(&message, &format!("{}: {message}", operation.state()));
            let failure = match operation.succeeded() {
                Some(true) => None,
                Some(false) => Some(operation.message().to_owned()),
                None if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    Some(format!("timed out: {}; the {} continues", operation.message(), R::KIND))
                }
                None => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            progress.finish();
            return match failure {
                None => self.print::<R>(&raw),
                Some(message) => Err(Failure::new(Exit::Failed, message)),
            };
        }
    }
}

/// A resource that stands for work in progress.
pub(crate) trait Operation: Resource {
    /// The name of its state.
    fn state(&self) -> String;
    /// What it is doing, or why it failed.
    fn message(&self) -> &str;
    /// The message with how far it is.
    fn progress(&self) -> String {
        self.message().to_owned()
    }
    /// Whether it succeeded; none while it goes on.
    fn succeeded(&self) -> Option<bool>;
}

/// The instant at which `--timeout` ends.
pub(crate) fn deadline(timeout_s: Option<u32>) -> Option<Instant> {
    timeout_s.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()))
}

/// One resource, as an argument.
#[derive(Debug)]
pub(crate) struct NameArg<R> {
    pub(crate) name: String,
    kind: PhantomData<R>,
}

/// One or more resources, as arguments.
#[derive(Debug)]
pub(crate) struct NameArgs<R> {
    pub(crate) names: Vec<String>,
    kind: PhantomData<R>,
}

/// The argument that names one or more resources.
fn name_arg<R: Resource>(plural: &str) -> Arg {
    let key = R::KEY[..1].to_ascii_uppercase() + &R::KEY[1..];
    let help = match R::HELP {
        "" => format!("{key}{plural} of the {}{plural}", R::KIND),
        help => help.to_owned(),
    };
    Arg::new("name").required(true).value_name(R::VALUE_NAME).help(help)
}

impl<R: Resource> Args for NameArg<R> {
    fn augment_args(command: Command) -> Command {
        command.arg(name_arg::<R>(""))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R> FromArgMatches for NameArg<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
        Ok(Self { name, kind: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<R: Resource> Args for NameArgs<R> {
    fn augment_args(command: Command) -> Command {
        command.arg(name_arg::<R>("s").action(ArgAction::Append).num_args(1..))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R> FromArgMatches for NameArgs<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = matches.get_many::<String>("name").unwrap_or_default().cloned().collect();
        Ok(Self { names, kind: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An instance, as an argument.
#[derive(Args, Debug)]
pub(crate) struct InstanceArg {
    /// Id of the instance, a unique prefix of it, or its name.
    pub(crate) instance: String,
}

/// What a list shows, and for how long.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ListOptions {
    /// Show at most this many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Show changes as they happen, until interrupted.
    #[arg(long, short)]
    watch: bool,
}

impl ListOptions {
    pub(crate) fn limit(self) -> Option<usize> {
        self.limit.and_then(|limit| usize::try_from(limit).ok())
    }
}

/// What a list of the newest items shows, and for how long.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LatestOptions {
    /// Show at most this many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Show changes as they happen, until interrupted.
    #[arg(long, short)]
    watch: bool,
}

impl From<LatestOptions> for ListOptions {
    fn from(LatestOptions { limit, watch }: LatestOptions) -> Self {
        Self { limit: Some(limit), watch }
    }
}

/// Whether a list that is always complete is shown once or for longer.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct WatchOption {
    /// Show changes as they happen, until interrupted.
    #[arg(long, short)]
    watch: bool,
}

impl From<WatchOption> for ListOptions {
    fn from(WatchOption { watch }: WatchOption) -> Self {
        Self { limit: None, watch }
    }
}
