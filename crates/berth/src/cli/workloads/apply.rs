//! `berth workloads apply`: what files say should run, all of it or nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_api::{NewWorkload, WhoAmI, Workload};
use clap::Args;
use futures_util::StreamExt as _;
use serde::Serialize;

use super::diff::{self, Change, Field};
use super::file::{self, Document};
use super::wait::{self, Wait};
use super::{Key, finished};
use crate::cli::failure::{Done, Exit, Failure};
use crate::cli::output::style::{DIM, paint};
use crate::cli::session::{Raw, Session, read_as};
use crate::cli::words::many;

/// How many are checked at once.
const AT_ONCE: usize = 16;

const EXAMPLES: &str = "\
Examples:
  berth workloads apply -f web.toml
  berth workloads apply -f web.yaml -f worker.yaml --dry-run
  berth workloads apply -f - --owner acme --wait=2m < app.yaml

A file is TOML, YAML or JSON. It holds one workload, or several: YAML documents, TOML [[workload]], a
JSON list. In TOML:

  owner = \"acme\"
  name = \"web\"
  replicas = 5
  template = { image = \"web:7\", resources = { cpu = \"500m\", memory = \"2GiB\" } }
  capacity = { max_on_demand = 3, mode = { fallback-after = \"5m\" } }
  rolling = { strategy = \"rolling\", max_surge = \"25%\" }

docs/workloads.md says what each of them means.";

/// Files of workloads.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Apply {
    /// A file of workloads, may be given again; `-` reads standard input.
    #[arg(long = "file", short, value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The tenant of workloads that name none; a tenant's token knows its own.
    #[arg(long)]
    owner: Option<String>,
    /// Say what would change, field by field, and store nothing.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    #[command(flatten)]
    wait: Wait,
}

/// A workload that could be stored, and what is there now.
struct Checked {
    which: Key,
    place: String,
    new: NewWorkload,
    before: Option<Workload>,
}

/// What would change, for scripts.
#[derive(Serialize)]
struct Planned<'a> {
    owner: &'a str,
    name: &'a str,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    fields: Vec<Field>,
}

impl Apply {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let documents = self.documents(session).await?;
        let all = documents.len();
        let checks = futures_util::stream::iter(documents)
            .map(|(which, document)| checked(session, which, document))
            .buffered(AT_ONCE);
        let checks: Vec<Done<Checked>> = checks.collect().await;
        let checked = all_right(checks, all)?;
        if self.dry_run {
            return dry_run(session, &checked);
        }
        self.store(session, checked).await
    }

    /// All workloads of all files, each with its owner.
    async fn documents(&self, session: &Session) -> Done<Vec<(Key, Document)>> {
        let mut read = Vec::new();
        for path in &self.files {
            match file::read(path) {
                Ok(documents) => read.extend(documents),
                Err(failure) => read.push(Err(failure)),
            }
        }
        let all = read.len();
        let documents = all_right(read, all)?;
        let owner = match &self.owner {
            None if documents.iter().any(|document| document.owner.is_none()) => {
                let who: WhoAmI = read_as(&session.get("/v1/whoami", &[]).await?)?;
                who.namespaces.into_iter().next()
            }
            owner => owner.clone(),
        };
        let mut known: BTreeMap<Key, String> = BTreeMap::new();
        let named = documents.into_iter().map(|document| {
            let place = &document.place;
            let Some(owner) = document.owner.clone().or_else(|| owner.clone()) else {
                return Err(Failure::usage(format!(
                    "{place}: {}: owner is missing",
                    document.name
                ))
                .accepted("owner in the document, or --owner"));
            };
            let which = Key { owner, name: document.name.clone() };
            match known.insert(which.clone(), place.clone()) {
                None => Ok((which, document)),
                Some(other) => {
                    let line = format!("{place}: {which} is in {other} as well");
                    Err(Failure::usage(line).accepted("each workload once"))
                }
            }
        });
        let named: Vec<Done<_>> = named.collect();
        all_right(named, all)
    }

    async fn store(&self, session: &Session, checked: Vec<Checked>) -> Done {
        let out = &session.out;
        let (mut stored, mut answers) = (Vec::new(), Vec::new());
        let all = checked.len();
        for Checked { which, place, new, before } in checked {
            let raw: Raw = match session.client.put(&which.path(), &new).await {
                Ok(raw) => raw,
                Err(error) => {
                    let failure = Failure::from(error).within(&format!("{place}: {which}"));
                    let done = many(stored.len(), "workload");
                    let rest = format!("{done} of {all} stored before it; the rest was not");
                    return Err(if all > 1 { failure.remedy(rest) } else { failure });
                }
            };
            let after: Workload = read_as(&raw)?;
            let change = match Change::of(before.as_ref(), &after.spec) {
                Change::Revision(_) => Change::Revision(after.revision),
                other => other,
            };
            if !out.is_data() {
                out.line(if out.quiet { which.to_string() } else { format!("{which} {change}") });
            }
            stored.push((which, after.version));
            answers.push(raw);
        }
        if let Some(limit) = self.wait.wait {
            return waited(session, &stored, limit).await;
        }
        match &answers[..] {
            _ if !out.is_data() => Ok(()),
            [one] => out.data(one),
            many => out.data(many),
        }
    }
}

/// Waits for all of them, and fails for the first that is not as it should be.
async fn waited(session: &Session, stored: &[(Key, i64)], limit_s: u32) -> Done {
    let waits = stored
        .iter()
        .map(|(which, version)| wait::until_complete(session, which, *version, Some(limit_s)));
    let ended = futures_util::future::try_join_all(waits).await?;
    if session.out.is_data() && ended.len() > 1 {
        session.out.data(&ended.iter().map(|ended| &ended.raw).collect::<Vec<_>>())?;
        return ended.into_iter().find_map(|ended| ended.failure).map_or(Ok(()), Err);
    }
    let mut failures = Vec::new();
    for ended in ended {
        failures.extend(finished(session, ended).err());
    }
    told(failures, stored.len(), "did not become as they should be")
}

async fn checked(session: &Session, which: Key, document: Document) -> Done<Checked> {
    let Document { place, new, .. } = document;
    let at = format!("{place}: {which}");
    let wrong = |failure: Failure| failure.within(&at);
    let found = match session.get(&which.path(), &[]).await {
        Ok(raw) => Some(raw),
        Err(failure) if failure.is_not_found() => None,
        Err(failure) => return Err(wrong(failure)),
    };
    let before: Option<Workload> = found.as_ref().map(|raw| read_as(raw)).transpose()?;
    if before.as_ref().is_some_and(|before| before.deleting) {
        let line = format!("{at}: it is being removed");
        let failure = Failure::new(Exit::Conflict, line);
        return Err(failure.remedy("apply it again when it is gone"));
    }
    let check = session.client.post::<_, ()>(&format!("{}/check", which.path()), &new).await;
    check.map_err(|error| wrong(error.into()))?;
    Ok(Checked { which, place, new, before })
}

/// All of them, or what is wrong with those that are.
fn all_right<T>(results: Vec<Done<T>>, all: usize) -> Done<Vec<T>> {
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => right.push(value),
            Err(failure) => wrong.push(failure),
        }
    }
    if wrong.len() == 1 && all > 1 {
        let failure = wrong.remove(0);
        return Err(failure.remedy("mend it and apply again; nothing was stored"));
    }
    told(wrong, all, "cannot be accepted; nothing was stored")?;
    Ok(right)
}

/// One failure is told in full; several are told one after the other, and then how many.
fn told(mut failures: Vec<Failure>, all: usize, what: &str) -> Done {
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        several => {
            for failure in &failures {
                anstream::eprintln!("{}", failure.text());
            }
            let line = format!("{several} of {} {what}", many(all, "workload"));
            // That there is no room says more than that something takes long.
            let refused = failures.iter().find(|failure| failure.exit == Exit::Refused);
            let exit = refused.or(failures.first()).map_or(Exit::Failed, |failure| failure.exit);
            Err(Failure::new(exit, line))
        }
    }
}

fn dry_run(session: &Session, checked: &[Checked]) -> Done {
    let out = &session.out;
    let planned = checked.iter().map(|Checked { which, new, before, .. }| {
        let change = Change::of(before.as_ref(), new);
        let fields =
            before.as_ref().map(|before| diff::fields(&before.spec, new)).unwrap_or_default();
        (which, change, fields)
    });
    if out.is_data() {
        let planned = planned.map(|(which, change, fields)| Planned {
            owner: &which.owner,
            name: &which.name,
            change: change.name(),
            revision: if let Change::Revision(revision) = change { Some(revision) } else { None },
            fields,
        });
        return out.data(&planned.collect::<Vec<_>>());
    }
    for (which, change, fields) in planned {
        out.line(match change {
            _ if out.quiet => which.to_string(),
            Change::Unchanged => format!("{which} unchanged"),
            change => format!("{which} would be {change}"),
        });
        for field in fields.iter().filter(|_| !out.quiet) {
            out.line(format!("  {}", paint(DIM, &field.to_string())));
        }
    }
    Ok(())
}
