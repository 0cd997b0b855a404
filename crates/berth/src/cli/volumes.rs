//! `berth volumes`: local volumes, where they live, and sets of them.

use berth_api::engine::Volume;
use berth_api::{Attachment, NewAttachment, NewVolume};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::Done;
use super::session::{Raw, Session};
use super::table::{Table, pairs};
use super::volume_moves::MoveTo;
use super::words::or_dash;

/// See and define local volumes.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth volumes set data-1 --home node-000012\n  berth place --memory 4GiB --volume data-1"
)]
pub(crate) enum Volumes {
    /// List volumes.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth volumes list")]
    List,
    /// Show one volume.
    #[command(after_help = "Example:\n  berth volumes show data-1")]
    Show(One),
    /// Define a volume and say where it lives.
    #[command(after_help = "Example:\n  berth volumes set data-1 --home node-000012 --owner acme")]
    Set(Set),
    /// Move a volume to another node, with the instance that uses it.
    #[command(after_help = MOVE_EXAMPLES)]
    Move(MoveTo),
    /// Remove volumes that nobody uses.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth volumes remove data-1")]
    Remove(Names),
    /// Sets of volumes that instances use together.
    #[command(subcommand)]
    Attachments(Attachments),
}

const MOVE_EXAMPLES: &str = "\
Examples:
  berth volumes move data-1 --to node-000013 --dry-run
  berth volumes move data-1 --to node-000013 --wait
  berth volumes move data-1 --status
  berth volumes move data-1 --cancel";

/// See and define sets of volumes.
#[derive(Subcommand, Debug)]
#[command(after_help = "Example:\n  berth volumes attachments set db data-1 data-2 --owner acme")]
pub(crate) enum Attachments {
    /// List sets.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth volumes attachments list")]
    List,
    /// Show one set.
    #[command(after_help = "Example:\n  berth volumes attachments show db --owner acme")]
    Show(OneOf),
    /// Define a set.
    #[command(
        after_help = "Example:\n  berth volumes attachments set db data-1 data-2 --owner acme"
    )]
    Set(SetOf),
    /// Remove a set.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  berth volumes attachments remove db --owner acme"
    )]
    Remove(OneOf),
}

/// One of them.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its name.
    name: String,
}

/// Some of them.
#[derive(Args, Debug)]
pub(crate) struct Names {
    /// Their names.
    #[arg(required = true)]
    names: Vec<String>,
}

/// One set of a tenant.
#[derive(Args, Debug)]
pub(crate) struct OneOf {
    /// Its name.
    name: String,
    /// The tenant; a tenant's token knows its own.
    #[arg(long)]
    owner: Option<String>,
}

impl OneOf {
    fn path(&self) -> String {
        let owner = self.owner.as_deref().map(|owner| format!("?owner={}", escape(owner)));
        format!("/v1/attachments/{}{}", escape(&self.name), owner.unwrap_or_default())
    }
}

/// A volume as it is defined.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Its name.
    name: String,
    /// The node that holds it.
    #[arg(long, value_name = "NODE")]
    home: String,
    /// The only tenant that may use it.
    #[arg(long)]
    owner: Option<String>,
}

/// A set as it is defined.
#[derive(Args, Debug)]
pub(crate) struct SetOf {
    /// Its name.
    name: String,
    /// The volumes; all must live on one node.
    #[arg(required = true)]
    volumes: Vec<String>,
    /// The tenant.
    #[arg(long)]
    owner: Option<String>,
}

impl Volumes {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List => {
                let human = |volumes: Vec<Volume>| {
                    let mut table = Table::new(&["VOLUME", "OWNER", "HOME", "USED BY"]);
                    for volume in &volumes {
                        let used = volume.attached_to.map(|id| id.to_string());
                        let (name, home) = (volume.id.as_str(), volume.home.as_str());
                        let owner = or_dash(volume.owner.as_deref());
                        table.row([name.into(), owner, home.into(), or_dash(used.as_deref())]);
                    }
                    out.table(&table, "There are no volumes.");
                };
                session.show_list("/v1/volumes", &[], None, human).await
            }
            Self::Show(one) => {
                let raw = session.get(&format!("/v1/volumes/{}", escape(&one.name)), &[]).await?;
                print(session, &raw)
            }
            Self::Set(set) => {
                let path = format!("/v1/volumes/{}", escape(&set.name));
                // Whose it is stays so unless it is said.
                let known: Result<berth_api::Volume, _> = session.client.get(&path, &[]).await;
                let owner = set.owner.or_else(|| known.ok()?.owner);
                let new = NewVolume { owner, home: set.home.as_str().into() };
                let raw: Raw = session.client.put(&path, &new).await?;
                print(session, &raw)
            }
            Self::Move(to) => to.run(session).await,
            Self::Remove(names) => session.remove("volume", "/v1/volumes", &names.names).await,
            Self::Attachments(attachments) => attachments.run(session).await,
        }
    }
}

fn print(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |volume: Volume| {
        session.out.line(pairs(&[
            ("volume", volume.id),
            ("owner", volume.owner.unwrap_or_else(|| "anyone".to_owned())),
            ("home", volume.home.to_string()),
            ("used by", volume.attached_to.map(|id| id.to_string()).unwrap_or_default()),
        ]));
        Ok(())
    })
}

impl Attachments {
    async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List => {
                let human = |sets: Vec<Attachment>| {
                    let mut table = Table::new(&["SET", "OWNER", "HOME", "VOLUMES"]);
                    for set in &sets {
                        let home = set.home.as_ref().map(|home| home.as_str());
                        let volumes = set.volumes.join(" ");
                        let (name, owner) = (set.id.as_str(), set.owner.as_str());
                        table.row([name.into(), owner.into(), or_dash(home), volumes.into()]);
                    }
                    out.table(&table, "There are no sets of volumes.");
                };
                session.show_list("/v1/attachments", &[], None, human).await
            }
            Self::Show(one) => {
                let raw = session.get(&one.path(), &[]).await?;
                print_set(session, &raw)
            }
            Self::Set(set) => {
                let new = NewAttachment { owner: set.owner, volumes: set.volumes };
                let path = format!("/v1/attachments/{}", escape(&set.name));
                let raw: Raw = session.client.put(&path, &new).await?;
                print_set(session, &raw)
            }
            Self::Remove(one) => {
                session.client.delete(&one.path()).await?;
                out.note(format!("removed set of volumes {}", one.name));
                Ok(())
            }
        }
    }
}

fn print_set(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |set: Attachment| {
        session.out.line(pairs(&[
            ("set", set.id),
            ("owner", set.owner),
            ("home", set.home.map(|home| home.to_string()).unwrap_or_default()),
            ("volumes", set.volumes.join(" ")),
        ]));
        Ok(())
    })
}
