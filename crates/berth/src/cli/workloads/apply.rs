//! `berth workloads apply`: store the workloads of files, all or none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_api::{NewWorkload, WhoAmI, Workload};
use clap::Args;
use serde::Serialize;

use super::diff::{self, Change, Field};
use super::file::{self, Document};
use super::wait::{self, Wait};
use super::{Key, print_result};
use crate::cmdutil::style::{DIM, paint};
use crate::cmdutil::{
    CmdResult, Exit, Failure, RawJson, Session, concurrently, decode, partition, plural,
};

const EXAMPLES: &str = "\
Examples:
  berth workloads apply -f web.toml
  berth workloads apply -f web.yaml -f worker.yaml --dry-run
  berth workloads apply -f - --tenant acme --wait=2m < app.yaml

A file is TOML, YAML or JSON, and holds one or several workloads: YAML documents, TOML [[workload]]
tables, or a JSON list. In TOML:

  tenant = \"acme\"
  name = \"web\"
  replicas = 5
  template = { image = \"web:7\", resources = { cpu = \"500m\", memory = \"2GiB\" } }
  capacity = { max_on_demand = 3, mode = { fallback-after = \"5m\" } }
  rolling = { strategy = \"rolling\", max_surge = \"25%\" }

docs/workloads.md explains each field.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Apply {
    /// File of workloads; may be repeated; `-` reads standard input.
    #[arg(long = "file", short, value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Tenant of workloads that name none; a tenant's token implies its own.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
    /// Show what would change, field by field, and store nothing.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    #[command(flatten)]
    wait: Wait,
}

/// A valid workload, and the stored one.
struct CheckedWorkload {
    key: Key,
    place: String,
    new: NewWorkload,
    before: Option<Workload>,
}

/// A planned change, for scripts.
#[derive(Serialize)]
struct PlannedChange<'a> {
    tenant: &'a str,
    name: &'a str,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    fields: Vec<Field>,
}

impl Apply {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let documents = self.documents(session).await?;
        let total = documents.len();
        let check = |(key, document)| check(session, key, document);
        let checked = all_or_failure(concurrently(documents, check).await, total)?;
        if self.dry_run {
            return dry_run(session, &checked);
        }
        self.store(session, checked).await
    }

    /// All workloads of all files, each with its key.
    async fn documents(&self, session: &Session) -> CmdResult<Vec<(Key, Document)>> {
        let mut read = Vec::new();
        for path in &self.files {
            match file::read(path) {
                Ok(documents) => read.extend(documents),
                Err(failure) => read.push(Err(failure)),
            }
        }
        let total = read.len();
        let documents = all_or_failure(read, total)?;
        let tenant = match &self.tenant {
            None if documents.iter().any(|document| document.tenant.is_none()) => {
                let who: WhoAmI = decode(&session.get("/v1/whoami", &[]).await?)?;
                who.tenants.into_iter().next()
            }
            tenant => tenant.clone(),
        };
        let mut known: BTreeMap<Key, String> = BTreeMap::new();
        let named = documents.into_iter().map(|document| {
            let place = &document.place;
            let Some(tenant) = document.tenant.clone().or_else(|| tenant.clone()) else {
                return Err(Failure::usage(format!(
                    "{place}: {}: tenant is missing",
                    document.name
                ))
                .accepted("tenant in the document, or --tenant"));
            };
            let key = Key { tenant, name: document.name.clone() };
            match known.insert(key.clone(), place.clone()) {
                None => Ok((key, document)),
                Some(other) => {
                    let line = format!("{place}: {key} is in {other} as well");
                    Err(Failure::usage(line).accepted("each workload once"))
                }
            }
        });
        all_or_failure(named.collect(), total)
    }

    async fn store(&self, session: &Session, checked: Vec<CheckedWorkload>) -> CmdResult {
        let out = &session.out;
        let (mut stored, mut answers) = (Vec::new(), Vec::new());
        let total = checked.len();
        for CheckedWorkload { key, place, new, before } in checked {
            let raw: RawJson = match session.client.put(&key.path(), &new).await {
                Ok(raw) => raw,
                Err(error) => {
                    let failure = Failure::from(error).within(&format!("{place}: {key}"));
                    let done = plural(stored.len(), "workload");
                    let rest = format!("{done} of {total} were stored before it; the rest was not");
                    return Err(if total > 1 { failure.remedy(rest) } else { failure });
                }
            };
            let after: Workload = decode(&raw)?;
            let change = match Change::between(before.as_ref(), &after.spec) {
                Change::Revision(_) => Change::Revision(after.revision),
                other => other,
            };
            if !out.is_data() {
                out.line(if out.quiet { key.to_string() } else { format!("{key} {change}") });
            }
            stored.push((key, after.version));
            answers.push(raw);
        }
        if let Some(limit) = self.wait.wait {
            return wait_for_all(session, &stored, limit).await;
        }
        if out.is_data() { out.data_of(&answers) } else { Ok(()) }
    }
}

/// Waits for all roll-outs, and fails if one is not complete in time.
async fn wait_for_all(session: &Session, stored: &[(Key, i64)], limit_s: u32) -> CmdResult {
    let waits = stored
        .iter()
        .map(|(key, version)| wait::until_complete(session, key, *version, Some(limit_s)));
    let results = futures_util::future::try_join_all(waits).await?;
    if session.out.is_data() && results.len() > 1 {
        session.out.data(&results.iter().map(|result| &result.raw).collect::<Vec<_>>())?;
        return results.into_iter().find_map(|result| result.failure).map_or(Ok(()), Err);
    }
    let failures = results.into_iter().filter_map(|result| print_result(session, result).err());
    fail(failures.collect(), stored.len(), "are not complete")
}

async fn check(session: &Session, key: Key, document: Document) -> CmdResult<CheckedWorkload> {
    let Document { place, new, .. } = document;
    let at = format!("{place}: {key}");
    let found = match session.get(&key.path(), &[]).await {
        Ok(raw) => Some(raw),
        Err(failure) if failure.is_not_found() => None,
        Err(failure) => return Err(failure.within(&at)),
    };
    let before: Option<Workload> = found.as_ref().map(|raw| decode(raw)).transpose()?;
    if before.as_ref().is_some_and(|before| before.deleting) {
        let line = format!("{at}: it is being removed");
        let failure = Failure::new(Exit::Conflict, line);
        return Err(failure.remedy("apply it again when it is gone"));
    }
    let check = session.client.post::<_, ()>(&format!("{}/check", key.path()), &new).await;
    check.map_err(|error| Failure::from(error).within(&at))?;
    Ok(CheckedWorkload { key, place, new, before })
}

/// All values, or what is wrong with those that are invalid.
fn all_or_failure<T>(results: Vec<CmdResult<T>>, total: usize) -> CmdResult<Vec<T>> {
    let (valid, mut failures) = partition(results);
    if failures.len() == 1 && total > 1 {
        let failure = failures.remove(0);
        return Err(failure.remedy("fix it and apply again; nothing was stored"));
    }
    fail(failures, total, "are invalid; nothing was stored")?;
    Ok(valid)
}

fn fail(failures: Vec<Failure>, total: usize, outcome: &str) -> CmdResult {
    let failures = failures.into_iter().map(|failure| (String::new(), failure)).collect();
    Failure::of_many(failures, total, "workload", outcome)
}

fn dry_run(session: &Session, checked: &[CheckedWorkload]) -> CmdResult {
    let out = &session.out;
    let planned = checked.iter().map(|CheckedWorkload { key, new, before, .. }| {
        let change = Change::between(before.as_ref(), new);
        let fields =
            before.as_ref().map(|before| diff::fields(&before.spec, new)).unwrap_or_default();
        (key, change, fields)
    });
    if out.is_data() {
        let planned = planned.map(|(key, change, fields)| PlannedChange {
            tenant: &key.tenant,
            name: &key.name,
            change: change.name(),
            revision: if let Change::Revision(revision) = change { Some(revision) } else { None },
            fields,
        });
        return out.data(&planned.collect::<Vec<_>>());
    }
    for (key, change, fields) in planned {
        out.line(match change {
            _ if out.quiet => key.to_string(),
            Change::Unchanged => format!("{key} unchanged"),
            change => format!("{key} would be {change}"),
        });
        for field in fields.iter().filter(|_| !out.quiet) {
            out.line(format!("  {}", paint(DIM, &field.to_string())));
        }
    }
    Ok(())
}
