//! Completion in shells: of commands and flags, and of names that a server knows.
//!
//! A shell calls this program for every completion. It must never keep the shell waiting nor print
//! anything else: without an answer in a second, or with an error, there are no names.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use berth_api::engine::{NodeFacts, Volume};
use berth_api::{Env, Group, Instance, Node, Pool, Workload};
use berth_client::Connect;
use clap::{Arg, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::resource::Resource;
use crate::cmdutil::client_config::ServerFlags;
use crate::cmdutil::{Output, Session, args, decode_all};

/// The environment variable by which a shell asks for completions.
pub(crate) const VARIABLE: &str = "BERTH_COMPLETE";

/// How long a shell waits for names.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most names that are offered.
const MOST: usize = 1000;

/// Answers a shell that asks for completions; returns whether one did.
pub(crate) fn answer_shell(command: impl Fn() -> Command) -> bool {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(|| with_names(command()))
        .var(VARIABLE)
        .try_complete(std::env::args_os(), folder.as_deref())
        // An error must not appear in the line that is being typed.
        .unwrap_or(true)
}

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameKind {
    Node,
    Zone,
    Rack,
    Instance,
    Workload,
    Policy,
    Tenant,
    Group,
    Pool,
    Volume,
    Environment,
}

impl NameKind {
    /// By the placeholder of the argument.
    fn of(arg: &Arg) -> Option<Self> {
        match arg.get_value_names()?.first()?.as_str() {
            "NODE" => Some(Self::Node),
            "ZONE" => Some(Self::Zone),
            "RACK" => Some(Self::Rack),
            "INSTANCE" => Some(Self::Instance),
            "WORKLOAD" | "TENANT/NAME" => Some(Self::Workload),
            "POLICY" => Some(Self::Policy),
            "TENANT" => Some(Self::Tenant),
            "GROUP" => Some(Self::Group),
            "POOL" => Some(Self::Pool),
            "VOLUME" => Some(Self::Volume),
            "ENV" | "ENVIRONMENT" => Some(Self::Environment),
            _ => None,
        }
    }
}

/// The command line with completers of names.
fn with_names(command: Command) -> Command {
    let command = command.mut_args(|arg| match NameKind::of(&arg) {
        Some(kind) => arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(kind, typed))),
        None => arg,
    });
    command.mut_subcommands(with_names)
}

fn candidates(kind: NameKind, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let mut names = fetch(kind, typed).unwrap_or_default();
    names.retain(|name| name.starts_with(typed));
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The names that the server knows; none if it does not answer in time.
fn fetch(kind: NameKind, typed: &str) -> Option<Vec<String>> {
    let session = session(&std::env::args_os().collect::<Vec<_>>())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let names = async { tokio::time::timeout(PATIENCE, names(&session, kind, typed)).await };
    let names = runtime.block_on(names).ok();
    // A lookup of a host's name may still block a thread, and is not waited for.
    runtime.shutdown_background();
    names
}

async fn names(session: &Session, kind: NameKind, typed: &str) -> Vec<String> {
    let facts = |of: fn(&NodeFacts) -> Option<&str>| async move {
        let nodes = nodes(session, "").await;
        nodes.iter().filter_map(|node| of(&node.facts)).map(str::to_owned).collect()
    };
    match kind {
        NameKind::Node => nodes(session, typed).await.iter().map(Node::key).collect(),
        NameKind::Zone => facts(|facts| facts.zone.as_deref()).await,
        NameKind::Rack => facts(|facts| facts.rack.as_deref()).await,
        NameKind::Instance => {
            let page = session.get_list(Instance::PATH, &[], Some(MOST)).await;
            let all: Vec<Instance> =
                page.ok().and_then(|page| decode_all(&page.items).ok()).unwrap_or_default();
            // Names are easier to read; ids are unique.
            let ids = all.iter().map(|one| one.claim.instance.to_string());
            ids.chain(all.iter().filter_map(|one| one.claim.name.clone())).collect()
        }
        NameKind::Workload => session.keys::<Workload>().await,
        NameKind::Policy => session.policy_names().await.into_iter().collect(),
        NameKind::Tenant => session.tenants().await.into_iter().collect(),
        NameKind::Group => session.keys::<Group>().await,
        NameKind::Pool => session.keys::<Pool>().await,
        NameKind::Volume => session.keys::<Volume>().await,
        NameKind::Environment => session.keys::<Env>().await,
    }
}

/// The nodes whose names start so.
async fn nodes(session: &Session, typed: &str) -> Vec<Node> {
    let pattern = format!("id ~ {}", args::selector_quote(&format!("{typed}*")));
    let query: &[(&str, &str)] = if typed.is_empty() { &[] } else { &[("where", &pattern)] };
    let page = session.get_list(Node::PATH, query, Some(MOST)).await;
    page.ok().and_then(|page| decode_all(&page.items).ok()).unwrap_or_default()
}

/// A connection by the flags of the line that is being completed, the environment and the file.
#[allow(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn session(words: &[OsString]) -> Option<Session> {
    let given = |flag: &str, variable: &str| {
        let flag = value_of(words, flag);
        flag.or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
    };
    let flags = ServerFlags {
        url: given("--url", "BERTH_URL"),
        token: given("--token", "BERTH_TOKEN"),
        token_file: value_of(words, "--token-file").map(Into::into),
        ca_cert: given("--ca-cert", "BERTH_CA_CERT").map(Into::into),
    };
    let options = Connect { timeout: Some(PATIENCE), ..Connect::default() };
    let client = flags.resolve().ok()?.client(options).ok()?;
    Some(Session { client, out: Output::default() })
}

/// The value of a flag among words: `--url X` or `--url=X`.
fn value_of(words: &[OsString], flag: &str) -> Option<String> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let joined = words.iter().find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
    let next = || words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
    joined.or_else(|| next().copied()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_the_one_of_the_line_that_is_typed() {
        let words: Vec<OsString> =
            ["berth", "--", "berth", "--url=http://a", "nodes", "--token-file", "t"]
                .map(OsString::from)
                .to_vec();
        assert_eq!(value_of(&words, "--url").as_deref(), Some("http://a"));
        assert_eq!(value_of(&words, "--token-file").as_deref(), Some("t"));
        assert_eq!(value_of(&words, "--token"), None);
    }
}
