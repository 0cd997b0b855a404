//! `berth policy`: the rules of choice: stored, compared, put in force.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_api::engine::BUILTIN_POLICIES;
use berth_api::engine::Policy as EnginePolicy;
use berth_api::engine::filter::FILTERS;
use berth_api::engine::score::SCORERS;
use berth_api::{PolicyChange, PolicyDiff, PolicyDiffQuery, PolicyRef, PolicyText, StoredPolicy};
use berth_client::escape;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::failure::{Done, Failure};
use super::output::Output;
use super::output::style::{BOLD, DIM, GOOD, WARN, paint};
use super::place::file;
use super::policy_live;
use super::session::{Global, Raw, Session, read_as};
use super::table::{Cell, Table, Tone, pairs};
use super::words::{age, or_dash};

/// See, check, compare and activate policies.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Policy {
    /// List stored policies.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth policy list")]
    List,
    /// Show a policy.
    #[command(
        after_help = "Examples:\n  berth policy show balanced\n  berth policy show mine.toml -o yaml"
    )]
    Show(One),
    /// Check a file, and store nothing.
    #[command(after_help = "Example:\n  berth policy validate mine.toml")]
    Validate(File),
    /// Say how two policies differ.
    #[command(
        after_help = "Examples:\n  berth policy diff balanced mine.toml\n  berth policy diff active mine.toml --on-live"
    )]
    Diff(Two),
    /// Store a policy; it decides nothing until it is activated.
    #[command(
        after_help = "Examples:\n  berth policy put mine.toml\n  berth policy put mine.toml --activate"
    )]
    Put(Put),
    /// Put a policy in force.
    #[command(
        after_help = "Examples:\n  berth policy activate pack\n  berth policy activate 8158cd606975205a"
    )]
    Activate(One),
    /// Put the policy in force that was before.
    #[command(after_help = "Example:\n  berth policy rollback")]
    Rollback,
    /// List every filter and every scorer that a policy can name.
    #[command(after_help = "Example:\n  berth policy reference")]
    Reference,
}

const EXAMPLES: &str = "\
Examples:
  berth policy diff balanced mine.toml
  berth policy put mine.toml --activate
  berth policy rollback

A policy is named by a file, by its hash or the beginning of it, by its name, by `active` for the one
in force, or by the name of a built-in one: balanced, pack, spread, triton or neon.";

/// One policy.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// A file, a hash, a name, `active`, or a built-in one.
    #[arg(value_name = "POLICY")]
    policy: String,
}

/// Two policies.
#[derive(Args, Debug)]
pub(crate) struct Two {
    /// The first.
    from: String,
    /// The second.
    to: String,
    /// Say also what would change on the fleet as it is now: which decisions, nodes and classes.
    #[arg(long)]
    on_live: bool,
    /// With --on-live: how many to show of each.
    #[arg(long, value_name = "NUMBER", requires = "on_live")]
    limit: Option<usize>,
}

/// A policy in a file.
#[derive(Args, Debug)]
pub(crate) struct File {
    /// The policy in TOML; `-` reads standard input.
    file: PathBuf,
}

/// A policy to store.
#[derive(Args, Debug)]
pub(crate) struct Put {
    /// The policy in TOML; `-` reads standard input.
    file: PathBuf,
    /// Put it in force at once.
    #[arg(long)]
    activate: bool,
}

const TOML: &str = "application/toml";

impl Policy {
    pub(crate) async fn run(self, global: &Global) -> Done {
        if matches!(self, Self::Reference) {
            return reference(&global.out());
        }
        let session = global.session()?;
        let out = &session.out;
        match self {
            Self::Reference => Ok(()),
            Self::List => {
                let human = |policies: Vec<StoredPolicy>| {
                    out.table(&table(&policies), "There are no policies.");
                };
                session.show_list("/v1/policies", &[], None, human).await
            }
            Self::Show(one) => {
                let policy = find(&session, &one.policy).await?;
                if out.is_data() {
                    return out.data(&policy);
                }
                print(out, &policy);
                Ok(())
            }
            Self::Validate(File { file }) => {
                let text = file::text(&file)?;
                let raw: Raw =
                    session.client.post_text("/v1/policies/validate", TOML, text).await?;
                out.answer(&raw, |policy: StoredPolicy| {
                    let good = paint(GOOD, "valid");
                    out.line(format!("{good}: {} ({})", policy.name, policy.hash));
                    Ok(())
                })
            }
            Self::Diff(Two { from, to, on_live: true, limit }) => {
                diff_on_live(&session, from, to, limit).await
            }
            Self::Diff(Two { from, to, .. }) => {
                let (from, to) = (find(&session, &from).await?, find(&session, &to).await?);
                print_diff(out, &from, &to)
            }
            Self::Put(Put { file, activate }) => {
                let stored = put(&session, &file).await?;
                if activate {
                    let policy: StoredPolicy = read_as(&stored)?;
                    return activated(&session, &policy.hash).await;
                }
                out.answer(&stored, |policy: StoredPolicy| {
                    out.line(format!("stored {} ({})", policy.name, policy.hash));
                    out.note(format!(
                        "Put it in force with: berth policy activate {}",
                        policy.hash
                    ));
                    Ok(())
                })
            }
            Self::Activate(One { policy }) => {
                let path = Path::new(&policy);
                if is_file(&policy) {
                    let stored: StoredPolicy = read_as(&put(&session, path).await?)?;
                    return activated(&session, &stored.hash).await;
                }
                activated(&session, &policy).await
            }
            Self::Rollback => {
                let raw: Raw =
                    session.client.post("/v1/policies/rollback", &serde_json::json!({})).await?;
                in_force(out, &raw)
            }
        }
    }
}

async fn put(session: &Session, file: &Path) -> Done<Raw> {
    let text = file::text(file)?;
    Ok(session.client.post_text("/v1/policies", TOML, text).await?)
}

async fn activated(session: &Session, policy: &str) -> Done {
    let path = format!("/v1/policies/{}/activate", escape(policy));
    let raw: Raw = session.client.post(&path, &serde_json::json!({})).await?;
    in_force(&session.out, &raw)
}

fn in_force(out: &Output, raw: &Raw) -> Done {
    out.answer(raw, |policy: StoredPolicy| {
        out.line(format!("{} ({}) is in force", policy.name, policy.hash));
        Ok(())
    })
}

fn is_file(text: &str) -> bool {
    text == "-" || text.ends_with(".toml") || Path::new(text).is_file()
}

/// How two policies differ, also on the fleet as it is now.
async fn diff_on_live(session: &Session, from: String, to: String, limit: Option<usize>) -> Done {
    let (from, to) = (meant(from)?, meant(to)?);
    let asked = PolicyDiffQuery { from, to, live: true, limit, after: None };
    let raw: Raw = session.client.post("/v1/policies/diff", &asked).await?;
    let out = &session.out;
    out.answer(&raw, |diff: PolicyDiff| {
        print_changes(out, ("first", &diff.from), ("second", &diff.to), &diff.changes);
        diff.live.iter().for_each(|live| policy_live::print(out, live));
        Ok(())
    })
}

/// A policy as it is told to a server: the text of a file, or a name.
fn meant(text: String) -> Done<PolicyRef> {
    if is_file(&text) {
        let toml = file::text(Path::new(&text))?;
        return Ok(PolicyRef::Text(PolicyText { toml }));
    }
    Ok(PolicyRef::Named(text))
}

/// A policy by file, hash, name or built-in name.
async fn find(session: &Session, text: &str) -> Done<StoredPolicy> {
    if is_file(text) {
        let text = file::text(Path::new(text))?;
        let policy = EnginePolicy::from_toml(&text);
        return policy.map_err(|error| Failure::usage(error.to_string())).and_then(|p| local(&p));
    }
    match session.get(&format!("/v1/policies/{}", escape(text)), &[]).await {
        Ok(raw) => read_as(&raw),
        Err(failure) if failure.is_not_found() && BUILTIN_POLICIES.contains(&text) => {
            let policy = EnginePolicy::builtin(text);
            policy.map_err(|error| Failure::usage(error.to_string())).and_then(|p| local(&p))
        }
        Err(failure) if failure.is_not_found() => {
            let near = super::names::closest(text, BUILTIN_POLICIES.into_iter());
            Err(match near {
                Some(near) => failure.remedy(format!("did you mean {near}?")),
                None => failure.remedy("berth policy list shows those that are stored"),
            })
        }
        Err(failure) => Err(failure),
    }
}

fn local(policy: &EnginePolicy) -> Done<StoredPolicy> {
    Ok(StoredPolicy {
        name: policy.name().to_owned(),
        hash: policy.hash().to_string(),
        active: false,
        stored_at: None,
        body: serde_json::from_str(&policy.to_json())?,
    })
}

fn table(policies: &[StoredPolicy]) -> Table {
    let mut table = Table::new(&["HASH", "NAME", "IN FORCE", "STORED"]);
    for policy in policies {
        let active = if policy.active { Cell::toned("yes", Tone::Good) } else { or_dash(None) };
        let stored = policy.stored_at.map(age);
        let (hash, name) = (policy.hash.as_str(), policy.name.as_str());
        table.row([hash.into(), name.into(), active, or_dash(stored.as_deref())]);
    }
    table
}

/// Keys with dots between levels, and their values.
fn flat(value: &Value) -> BTreeMap<String, Value> {
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

fn print(out: &Output, policy: &StoredPolicy) {
    let force = if policy.active { paint(GOOD, "yes") } else { "no".to_owned() };
    out.line(pairs(&[
        ("name", paint(BOLD, &policy.name)),
        ("hash", policy.hash.clone()),
        ("in force", force),
        ("stored", policy.stored_at.map(age).unwrap_or_default()),
    ]));
    let mut table = Table::new(&["KEY", "VALUE"]);
    for (key, value) in flat(&policy.body) {
        table.row([key.into(), value.to_string().into()]);
    }
    out.line(format!("\n{}", table.text()));
}

fn changes(from: &Value, to: &Value) -> Vec<PolicyChange> {
    let (from, to) = (flat(from), flat(to));
    let keys: std::collections::BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let change = |key: &String| {
        let (from, to) = (from.get(key).cloned(), to.get(key).cloned());
        (from != to).then(|| PolicyChange { key: key.clone(), from, to })
    };
    keys.into_iter().filter_map(change).collect()
}

fn print_diff(out: &Output, from: &StoredPolicy, to: &StoredPolicy) -> Done {
    let changes = changes(&from.body, &to.body);
    if out.is_data() {
        let (from, to) = (from.hash.clone(), to.hash.clone());
        return out.data(&PolicyDiff { from, to, changes, live: None });
    }
    print_changes(out, (&from.name, &from.hash), (&to.name, &to.hash), &changes);
    Ok(())
}

/// What differs, key by key; each policy is told by its name and its hash.
fn print_changes(out: &Output, from: (&str, &str), to: (&str, &str), changes: &[PolicyChange]) {
    if changes.is_empty() {
        out.line(format!("{} and {} are the same", from.0, to.0));
        return;
    }
    let title = |(name, hash): (&str, &str)| format!("{name} ({hash})");
    let mut table = Table::new(&["KEY", &title(from), &title(to)]);
    for change in changes {
        let value = |value: &Option<Value>| match value {
            Some(value) => Cell::from(value.to_string()),
            None => Cell::toned("-", Tone::Dim),
        };
        table.row([change.key.as_str().into(), value(&change.from), value(&change.to)]);
    }
    out.line(table.text());
}

/// Everything that a policy can name, from the engine itself.
fn reference(out: &Output) -> Done {
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
    out.line(paint(BOLD, "Filters, in the order in which they are asked"));
    let mut table = Table::new(&["FILTER", "CODE", "OFF?", "WAIT?", "WHAT HELPS"]);
    for filter in FILTERS {
        table.row([
            filter.name.into(),
            filter.code.into(),
            if filter.is_optional() { "yes".into() } else { Cell::toned("-", Tone::Dim) },
            if filter.transient { "yes".into() } else { Cell::toned("-", Tone::Dim) },
            filter.remedy.into(),
        ]);
    }
    out.line(table.text());
    out.line(paint(DIM, "OFF? may be switched off by a policy. WAIT? waiting may help."));
    out.line(format!("\n{}", paint(BOLD, "Scorers")));
    let mut table = Table::new(&["SCORER", "VALUE"]);
    for scorer in SCORERS {
        table.row([scorer.name.into(), scorer.formula.into()]);
    }
    out.line(table.text());
    out.line(format!("\n{} {}", paint(BOLD, "Built in:"), BUILTIN_POLICIES.join(", ")));
    out.note(paint(WARN, "docs/policy.md says what each setting means."));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_policies_differ_key_by_key() {
        let of = |name: &str| local(&EnginePolicy::builtin(name).unwrap()).unwrap();
        let (balanced, pack) = (of("balanced"), of("pack"));
        assert!(changes(&balanced.body, &balanced.body).is_empty());
        let changes = changes(&balanced.body, &pack.body);
        assert!(changes.iter().any(|change| change.key == "name"));
        assert!(changes.iter().any(|change| change.key.starts_with("scores.")), "{changes:?}");
    }
}
