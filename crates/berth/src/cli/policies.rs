//! `berth policies`: the rules of placement: store, compare, activate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_api::engine::Policy as EnginePolicy;
use berth_api::engine::filter::FILTERS;
use berth_api::engine::score::{SCORERS, Scorer};
use berth_api::engine::{BUILTIN_POLICIES, PolicyError};
use berth_api::{PolicyChange, PolicyDiff, PolicyDiffQuery, PolicyRef, PolicyText, StoredPolicy};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::policies_live;
use super::policies_trace::TraceDiffArgs;
use super::resource::{NameArg, Resource, WatchOption, path_of};
use crate::cmdutil::style::{BOLD, DIM, GOOD, WARN, paint};
use crate::cmdutil::{
    Cell, CmdResult, Column, Failure, Format, Global, Output, RawJson, Session, Table, Tone, age,
    columns, decode, file,
};

/// Manage placement policies.
#[derive(Subcommand, Debug)]
#[command(visible_alias = "policy", after_help = EXAMPLES)]
pub(crate) enum Policies {
    /// List policies, stored and built in.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth policies list")]
    List(WatchOption),
    /// Show a policy. `-o toml` prints a file that can be edited and stored again.
    #[command(
        after_help = "Examples:\n  berth policies show balanced\n  berth policies show active -o toml > mine.toml"
    )]
    Show(NameArg<StoredPolicy>),
    /// Validate a policy file without storing it.
    #[command(after_help = "Example:\n  berth policies validate mine.toml")]
    Validate(FileArg),
    /// Show the differences between two policies.
    #[command(
        after_help = "Examples:\n  berth policies diff balanced mine.toml\n  berth policies diff active mine.toml --on-live\n  berth policies diff active mine.toml --since 7d\n  berth policies diff pack mine.toml --on events.csv --fail-if 'rejected > +0.1%'"
    )]
    Diff(DiffArgs),
    /// Store a policy. It has no effect until it is activated.
    #[command(
        after_help = "Examples:\n  berth policies put mine.toml\n  berth policies put mine.toml --activate"
    )]
    Put(PutArgs),
    /// Activate a policy.
    #[command(
        after_help = "Examples:\n  berth policies activate pack\n  berth policies activate 8158cd606975205a"
    )]
    Activate(NameArg<StoredPolicy>),
    /// Activate the previously active policy again.
    #[command(after_help = "Example:\n  berth policies rollback")]
    Rollback,
    /// List all filters and scorers that a policy can use.
    #[command(after_help = "Example:\n  berth policies reference")]
    Reference,
}

const EXAMPLES: &str = "\
Examples:
  berth policies show active -o toml > mine.toml
  berth policies diff active mine.toml
  berth policies put mine.toml --activate
  berth policies rollback

A policy is a file, the name or hash of a stored policy (or a prefix of the hash), `active` for the
active one, or a built-in policy: balanced, pack, spread, triton or neon.";

#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// First policy.
    from: String,
    /// Second policy.
    to: String,
    /// Also show what would change on the current fleet: decisions, nodes and classes.
    #[arg(long)]
    on_live: bool,
    /// Show at most this many differences of each kind, on the fleet or on traces.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    on_traces: TraceDiffArgs,
}

#[derive(Args, Debug)]
pub(crate) struct FileArg {
    /// Policy in TOML; `-` reads standard input.
    file: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// Policy in TOML; `-` reads standard input.
    file: PathBuf,
    /// Activate it immediately.
    #[arg(long)]
    activate: bool,
}

const TOML: &str = "application/toml";

/// Differences on traces that are listed unless said otherwise.
const DEFAULT_LISTED: usize = 20;

impl Resource for StoredPolicy {
    const KIND: &'static str = "policy";
    const VALUE_NAME: &'static str = "POLICY";
    const HELP: &'static str = "File, hash or name of the policy, `active`, or a built-in policy";
    const PATH: &'static str = "/v1/policies";
    const EMPTY: &'static str = "There are no policies.";
    const COLUMNS: &'static [Column<Self>] = columns![policy;
        "HASH" => policy.hash.as_str(),
        "NAME" => policy.name.as_str(),
        "ACTIVE" => policy.active.then(|| Cell::with_tone("yes", Tone::Good)),
        "STORED" => policy.stored_at.map_or_else(|| "built in".to_owned(), age),
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("name", paint(BOLD, &self.name)),
            ("hash", self.hash.clone()),
            ("active", if self.active { paint(GOOD, "yes") } else { "no".to_owned() }),
            ("stored", self.stored_at.map(age).unwrap_or_default()),
        ]
    }

    fn print(&self, out: &Output) {
        out.pairs(&self.fields());
        let mut table = Table::new(&["KEY", "VALUE"]);
        for (key, value) in flatten(&self.body) {
            table.row([key.into(), value.to_string().into()]);
        }
        out.line(format!("\n{}", out.text_of(&table)));
    }
}

impl Policies {
    /// Whether the command can print TOML.
    pub(crate) const fn has_toml(&self) -> bool {
        matches!(self, Self::Show(_))
    }

    pub(crate) async fn run(self, global: &Global) -> CmdResult {
        if matches!(self, Self::Reference) {
            return reference(&global.out());
        }
        let session = &global.session()?;
        let out = &session.out;
        match self {
            Self::Reference => Ok(()),
            Self::List(watch) => session.list::<StoredPolicy>(&[], watch).await,
            Self::Show(arg) => {
                let policy = find(session, &arg.name).await?;
                if out.format == Format::Toml {
                    out.line(toml_of(&policy)?.trim_end());
                    return Ok(());
                }
                if out.is_data() {
                    return out.data(&policy);
                }
                policy.print(out);
                Ok(())
            }
            Self::Validate(FileArg { file }) => {
                let text = file::text(&file)?;
                let raw: RawJson =
                    session.client.post_text("/v1/policies/validate", TOML, text).await?;
                out.response(&raw, |policy: StoredPolicy| {
                    let valid = paint(GOOD, "valid");
                    out.line(format!("{valid}: {} ({})", policy.name, policy.hash));
                })
            }
            Self::Diff(diff) if diff.on_live => diff_on_live(session, diff).await,
            Self::Diff(diff) if diff.on_traces.is_wanted() => diff_on_traces(session, diff).await,
            Self::Diff(DiffArgs { from, to, .. }) => {
                let (from, to) = (find(session, &from).await?, find(session, &to).await?);
                print_diff(out, &from, &to)
            }
            Self::Put(PutArgs { file, activate: true }) => store_and_activate(session, &file).await,
            Self::Put(PutArgs { file, .. }) => {
                out.response(&store(session, &file).await?, |policy: StoredPolicy| {
                    out.line(format!("stored {} ({})", policy.name, policy.hash));
                    out.note(format!("Activate it with: berth policies activate {}", policy.hash));
                })
            }
            Self::Activate(arg) if is_file(&arg.name) => {
                store_and_activate(session, Path::new(&arg.name)).await
            }
            Self::Activate(arg) => activate(session, &arg.name).await,
            Self::Rollback => switch(session, "/v1/policies/rollback").await,
        }
    }
}

async fn store(session: &Session, file: &Path) -> CmdResult<RawJson> {
    let text = file::text(file)?;
    Ok(session.client.post_text(StoredPolicy::PATH, TOML, text).await?)
}

async fn store_and_activate(session: &Session, file: &Path) -> CmdResult {
    let stored: StoredPolicy = decode(&store(session, file).await?)?;
    activate(session, &stored.hash).await
}

async fn activate(session: &Session, policy: &str) -> CmdResult {
    switch(session, &format!("{}/activate", path_of::<StoredPolicy>(policy))).await
}

/// Makes another policy active, and prints which one it is.
async fn switch(session: &Session, path: &str) -> CmdResult {
    let raw: RawJson = session.client.post(path, &serde_json::Map::new()).await?;
    session.out.response(&raw, |policy: StoredPolicy| {
        session.out.line(format!("{} ({}) is active", policy.name, policy.hash));
    })
}

fn is_file(text: &str) -> bool {
    text == "-" || text.ends_with(".toml") || Path::new(text).is_file()
}

/// Prints the differences between two policies, also on the current fleet.
async fn diff_on_live(session: &Session, diff: DiffArgs) -> CmdResult {
    let (from, to) = (policy_ref(diff.from)?, policy_ref(diff.to)?);
    let body = PolicyDiffQuery { from, to, live: true, limit: diff.limit, after: None };
    let raw: RawJson = session.client.post("/v1/policies/diff", &body).await?;
    let out = &session.out;
    out.response(&raw, |diff: PolicyDiff| {
        print_changes(out, ("first", &diff.from), ("second", &diff.to), &diff.changes);
        diff.live.iter().for_each(|live| policies_live::print(out, live));
    })
}

/// Prints what two policies make of the same arrivals. A built-in policy and a file need no server.
async fn diff_on_traces(session: &Session, diff: DiffArgs) -> CmdResult {
    let mut policies = Vec::new();
    for name in [&diff.from, &diff.to] {
        let is_builtin = !is_file(name) && BUILTIN_POLICIES.contains(&name.as_str());
        let policy = if is_builtin {
            EnginePolicy::builtin(name)
        } else {
            EnginePolicy::from_stored(&find(session, name).await?.body.to_string())
        };
        policies.push(policy.map_err(|error| Failure::usage(error.to_string()))?);
    }
    diff.on_traces.run(session, &policies, diff.limit.unwrap_or(DEFAULT_LISTED)).await
}

/// A policy as the API takes it: the text of a file, or a name.
fn policy_ref(text: String) -> CmdResult<PolicyRef> {
    if is_file(&text) {
        let toml = file::text(Path::new(&text))?;
        return Ok(PolicyRef::Text(PolicyText { toml }));
    }
    Ok(PolicyRef::Named(text))
}

/// A policy by file, hash, name or built-in name.
async fn find(session: &Session, text: &str) -> CmdResult<StoredPolicy> {
    let invalid = |error: PolicyError| Failure::usage(error.to_string());
    if is_file(text) {
        let text = file::text(Path::new(text))?;
        let problems = EnginePolicy::problems_in_toml(&text);
        if !problems.is_empty() {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(lines.join("\n")));
        }
        return to_unstored(&EnginePolicy::from_toml(&text).map_err(invalid)?);
    }
    match session.get(&path_of::<StoredPolicy>(text), &[]).await {
        Ok(raw) => decode(&raw),
        Err(failure) if failure.is_not_found() && BUILTIN_POLICIES.contains(&text) => {
            to_unstored(&EnginePolicy::builtin(text).map_err(invalid)?)
        }
        Err(failure) if failure.is_not_found() => {
            let known = session.policy_names().await;
            let otherwise = "list policies with: berth policies list";
            Err(failure.did_you_mean(text, known.iter().map(String::as_str), otherwise))
        }
        Err(failure) => Err(failure),
    }
}

/// A policy as a file that can be edited and stored again.
fn toml_of(policy: &StoredPolicy) -> CmdResult<String> {
    let read = EnginePolicy::from_json(&policy.body.to_string());
    let read = read.map_err(|error| {
        Failure::usage(format!("this version of berth cannot read the policy: {error}"))
    })?;
    Ok(read.to_toml())
}

/// A policy that the server has not stored.
fn to_unstored(policy: &EnginePolicy) -> CmdResult<StoredPolicy> {
    Ok(StoredPolicy {
        name: policy.name().to_owned(),
        hash: policy.hash().to_string(),
        active: false,
        stored_at: None,
        body: serde_json::from_str(&policy.to_json())?,
    })
}

/// Keys with dots between levels, and their values.
fn flatten(value: &Value) -> BTreeMap<String, Value> {
    fn walk(prefix: &str, value: &Value, keys: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    let dot = if prefix.is_empty() { "" } else { "." };
                    walk(&format!("{prefix}{dot}{key}"), value, keys);
                }
            }
            value => drop(keys.insert(prefix.to_owned(), value.clone())),
        }
    }
    let mut keys = BTreeMap::new();
    walk("", value, &mut keys);
    keys
}

fn changes(from: &Value, to: &Value) -> Vec<PolicyChange> {
    let (from, to) = (flatten(from), flatten(to));
    let keys: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let change = |key: &String| {
        let (from, to) = (from.get(key).cloned(), to.get(key).cloned());
        (from != to).then(|| PolicyChange { key: key.clone(), from, to })
    };
    keys.into_iter().filter_map(change).collect()
}

fn print_diff(out: &Output, from: &StoredPolicy, to: &StoredPolicy) -> CmdResult {
    let changes = changes(&from.body, &to.body);
    if out.is_data() {
        let (from, to) = (from.hash.clone(), to.hash.clone());
        return out.data(&PolicyDiff { from, to, changes, live: None });
    }
    print_changes(out, (&from.name, &from.hash), (&to.name, &to.hash), &changes);
    Ok(())
}

/// Prints the differences key by key, each policy with its name and hash.
fn print_changes(out: &Output, from: (&str, &str), to: (&str, &str), changes: &[PolicyChange]) {
    if changes.is_empty() {
        out.line(format!("{} and {} are the same", from.0, to.0));
        return;
    }
    let title = |(name, hash): (&str, &str)| format!("{name} ({hash})");
    let mut table = Table::new(&["KEY", &title(from), &title(to)]);
    for change in changes {
        let value = |value: &Option<Value>| Cell::from(value.as_ref().map(Value::to_string));
        table.row([change.key.as_str().into(), value(&change.from), value(&change.to)]);
    }
    out.line(out.text_of(&table));
}

/// Prints everything that a policy can use, from the engine itself.
fn reference(out: &Output) -> CmdResult {
    if out.is_data() {
        let filters = FILTERS.iter().map(|filter| {
            serde_json::json!({
                "name": filter.name, "code": filter.code, "remedy": filter.remedy,
                "transient": filter.transient, "optional": filter.is_optional(),
            })
        });
        let scorers = SCORERS
            .iter()
            .map(|scorer| serde_json::json!({ "name": scorer.name, "formula": scorer.formula }));
        let (filters, scorers): (Vec<_>, Vec<_>) = (filters.collect(), scorers.collect());
        return out.data(&serde_json::json!({
            "filters": filters, "scorers": scorers, "builtin": BUILTIN_POLICIES,
        }));
    }
    out.line(paint(BOLD, "Filters, in the order in which they run"));
    let table = Table::of(
        FILTERS,
        false,
        columns![filter;
            "FILTER" => filter.name,
            "CODE" => filter.code,
            "OPTIONAL" => filter.is_optional().then_some("yes"),
            "TRANSIENT" => filter.transient.then_some("yes"),
            "REMEDY" => filter.remedy,
        ],
    );
    out.line(out.text_of(&table));
    out.line(paint(
        DIM,
        "A policy may disable an OPTIONAL filter. For a TRANSIENT one, waiting may help.",
    ));
    out.line(format!("\n{}", paint(BOLD, "Scorers")));
    let columns = columns![scorer: Scorer; "SCORER" => scorer.name, "VALUE" => scorer.formula];
    let table = Table::of(SCORERS, false, columns);
    out.line(out.text_of(&table));
    out.line(format!("\n{} {}", paint(BOLD, "Built-in policies:"), BUILTIN_POLICIES.join(", ")));
    out.note(paint(WARN, "docs/policy.md explains each setting."));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_policies_differ_key_by_key() {
        let builtin = |name: &str| to_unstored(&EnginePolicy::builtin(name).unwrap()).unwrap();
        let (balanced, pack) = (builtin("balanced"), builtin("pack"));
        assert!(changes(&balanced.body, &balanced.body).is_empty());
        let changes = changes(&balanced.body, &pack.body);
        assert!(changes.iter().any(|change| change.key == "name"));
        assert!(changes.iter().any(|change| change.key.starts_with("scores.")), "{changes:?}");
    }
}
