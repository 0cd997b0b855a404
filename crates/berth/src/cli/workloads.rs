//! `berth workloads`: what should run.

use std::path::PathBuf;

use berth_api::{InstanceSpec, NewWorkload, Rolling, ScaleWorkload, Workload};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::{Done, Failure};
use super::place::file;
use super::place::flags::InstanceFlags;
use super::session::{Raw, Session, given};
use super::table::{Cell, Table, Tone, pairs};
use super::words::{amounts, map};

/// See and store workloads.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Workloads {
    /// List workloads.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth workloads list --owner acme")]
    List(List),
    /// Show one workload.
    #[command(after_help = "Example:\n  berth workloads show acme/web")]
    Show(One),
    /// Store a workload, or change it.
    #[command(after_help = SET_EXAMPLES)]
    Set(Box<Set>),
    /// Change how many should run.
    #[command(after_help = "Example:\n  berth workloads scale acme/web 5")]
    Scale(Scale),
    /// Remove workloads.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth workloads remove acme/web")]
    Remove(Names),
}

const EXAMPLES: &str = "\
Examples:
  berth workloads set acme/web --replicas 3 --cpu 1 --memory 2GiB --tag role=web
  berth workloads scale acme/web 5";

const SET_EXAMPLES: &str = "\
Examples:
  berth workloads set acme/web --replicas 3 --cpu 1 --memory 2GiB --tag role=web
  berth workloads set acme/web --replicas 3 -f template.yaml";

/// Which workloads.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Of this tenant.
    #[arg(long)]
    owner: Option<String>,
}

/// One workload.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its owner and name: acme/web.
    #[arg(value_name = "OWNER/NAME")]
    workload: String,
}

/// Some workloads.
#[derive(Args, Debug)]
pub(crate) struct Names {
    /// Their owners and names.
    #[arg(value_name = "OWNER/NAME", required = true)]
    workloads: Vec<String>,
}

/// A workload as it is stored.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Its owner and name: acme/web.
    #[arg(value_name = "OWNER/NAME")]
    which: String,
    /// How many should run.
    #[arg(long, value_name = "N")]
    replicas: u32,
    /// What each replica asks for, in JSON, YAML or TOML; flags change it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    instance: InstanceFlags,
}

/// How many should run.
#[derive(Args, Debug)]
pub(crate) struct Scale {
    /// Its owner and name: acme/web.
    #[arg(value_name = "OWNER/NAME")]
    workload: String,
    /// How many should run.
    replicas: u32,
}

fn path(workload: &str) -> Done<String> {
    match workload.split_once('/') {
        Some((owner, name)) if !owner.is_empty() && !name.is_empty() => {
            Ok(format!("/v1/workloads/{}/{}", escape(owner), escape(name)))
        }
        _ => Err(Failure::usage(format!("{workload:?} is no workload"))
            .accepted("an owner and a name, such as acme/web")),
    }
}

impl Workloads {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List(list) => {
                let query = given(&[("owner", &list.owner)]);
                let human = |workloads: Vec<Workload>| {
                    out.table(&table(&workloads), "There are no workloads.");
                };
                session.show_list("/v1/workloads", &query, None, human).await
            }
            Self::Show(one) => {
                let raw = session.get(&path(&one.workload)?, &[]).await?;
                print(session, &raw)
            }
            Self::Set(set) => {
                let template = match &set.file {
                    Some(file) => {
                        let mut spec: InstanceSpec = file::read(file, "an instance")?;
                        set.instance.apply(&mut spec);
                        spec
                    }
                    None => set.instance.spec()?,
                };
                let new = NewWorkload {
                    replicas: Some(set.replicas),
                    process: None,
                    template,
                    pools: Vec::new(),
                    release: None,
                    capacity: None,
                    rolling: Rolling::default(),
                    paused: false,
                };
                let raw: Raw = session.client.put(&path(&set.which)?, &new).await?;
                print(session, &raw)
            }
            Self::Scale(scale) => {
                let path = path(&scale.workload)?;
                let new = ScaleWorkload { replicas: scale.replicas };
                let raw: Raw = session.client.post(&format!("{path}/scale"), &new).await?;
                print(session, &raw)
            }
            Self::Remove(names) => {
                for workload in &names.workloads {
                    session.client.delete(&path(workload)?).await?;
                    out.note(format!("removed workload {workload}"));
                }
                Ok(())
            }
        }
    }
}

fn running(workload: &Workload) -> Cell {
    let active = workload.status.active;
    match workload.spec.replicas {
        Some(replicas) => {
            let tone = if active >= replicas { Tone::Good } else { Tone::Warn };
            Cell::toned(format!("{active} of {replicas}"), tone)
        }
        None => active.to_string().into(),
    }
}

fn table(workloads: &[Workload]) -> Table {
    let mut table = Table::new(&["WORKLOAD", "ACTIVE", ">PLACED", "EACH", ">REVISION"]);
    for workload in workloads {
        table.row([
            format!("{}/{}", workload.owner, workload.name).into(),
            running(workload),
            workload.status.placed.to_string().into(),
            amounts(&workload.spec.template.resources.amounts()).into(),
            workload.revision.to_string().into(),
        ]);
    }
    table
}

fn print(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |workload: Workload| {
        let template = &workload.spec.template;
        let rules: Vec<&str> = template.affinity.iter().map(|rule| rule.as_str()).collect();
        session.out.line(pairs(&[
            ("workload", format!("{}/{}", workload.owner, workload.name)),
            ("should run", workload.spec.replicas.map(|n| n.to_string()).unwrap_or_default()),
            ("active", workload.status.active.to_string()),
            ("placed", workload.status.placed.to_string()),
            ("each", amounts(&template.resources.amounts())),
            ("image", template.image.clone().unwrap_or_default()),
            ("tags", map(&template.tags)),
            ("traits", map(&template.traits)),
            ("groups", template.groups.join(" ")),
            ("rules", rules.join("\n")),
            ("revision", workload.revision.to_string()),
        ]));
        Ok(())
    })
}
