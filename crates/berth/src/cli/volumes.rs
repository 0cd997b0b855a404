//! `berth volumes`: local volumes, where they live, and attachments: sets of them.

use berth_api::engine::Volume;
use berth_api::{Attachment, MoveVolume, NewAttachment, NewVolume, VolumeMove, VolumeMoveState};
use berth_client::escape;
use clap::{ArgGroup, Args, Subcommand};

use super::resource::{NameArg, NameArgs, Operation, Resource, WatchOption, deadline, path_of};
use crate::cmdutil::{CmdResult, Column, RawJson, Session, age, api_name, args, columns};

/// Manage local volumes.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth volumes set data-1 --home node-000012\n  berth place --memory 4GiB --volume data-1"
)]
pub(crate) enum Volumes {
    /// List volumes.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth volumes list")]
    List(WatchOption),
    /// Show a volume.
    #[command(after_help = "Example:\n  berth volumes show data-1")]
    Show(NameArg<Volume>),
    /// Create or replace a volume.
    #[command(after_help = "Example:\n  berth volumes set data-1 --home node-000012 --tenant acme")]
    Set(SetArgs),
    /// Move a volume to another node, together with the instance that uses it.
    #[command(after_help = MOVE_EXAMPLES)]
    Move(MoveArgs),
    /// Remove unused volumes.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth volumes remove data-1")]
    Remove(NameArgs<Volume>),
    /// Manage attachments: sets of volumes that instances use together.
    #[command(subcommand)]
    Attachments(Attachments),
}

const MOVE_EXAMPLES: &str = "\
Examples:
  berth volumes move data-1 --to node-000013 --dry-run
  berth volumes move data-1 --to node-000013 --wait
  berth volumes move data-1 --status
  berth volumes move data-1 --cancel";

/// Manage attachments: sets of volumes that instances use together.
#[derive(Subcommand, Debug)]
#[command(after_help = "Example:\n  berth volumes attachments set db data-1 data-2 --tenant acme")]
pub(crate) enum Attachments {
    /// List attachments.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth volumes attachments list")]
    List(WatchOption),
    /// Show an attachment.
    #[command(after_help = "Example:\n  berth volumes attachments show db --tenant acme")]
    Show(AttachmentArg),
    /// Create or replace an attachment.
    #[command(
        after_help = "Example:\n  berth volumes attachments set db data-1 data-2 --tenant acme"
    )]
    Set(SetAttachmentArgs),
    /// Remove an attachment.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  berth volumes attachments remove db --tenant acme"
    )]
    Remove(AttachmentArg),
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Name of the volume.
    name: String,
    /// Node that holds it.
    #[arg(long, value_name = "NODE")]
    home: String,
    /// Only tenant that may use it.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("action").required(true).args(["to", "status", "cancel"]))]
pub(crate) struct MoveArgs {
    /// Name of the volume.
    volume: String,
    /// Node to move it to.
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    /// Check whether it can be moved, and change nothing.
    #[arg(long, requires = "to")]
    dry_run: bool,
    /// Wait until the move has ended.
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this time.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, requires = "wait")]
    timeout: Option<u32>,
    /// Show the progress of the move.
    #[arg(long)]
    status: bool,
    /// Cancel the move; the volume stays where it is.
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AttachmentArg {
    /// Name of the attachment.
    name: String,
    /// Tenant; a tenant's token implies its own.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct SetAttachmentArgs {
    /// Name of the attachment.
    name: String,
    /// Volumes, all on one node.
    #[arg(required = true)]
    volumes: Vec<String>,
    /// Tenant; a tenant's token implies its own.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
}

impl Resource for Volume {
    const KIND: &'static str = "volume";
    const PATH: &'static str = "/v1/volumes";
    const EMPTY: &'static str = "There are no volumes.";
    const COLUMNS: &'static [Column<Self>] = columns![volume;
        "VOLUME" => volume.id.as_str(),
        "TENANT" => volume.tenant.as_deref(),
        "HOME" => volume.home.as_str(),
        "USED BY" => volume.attached_to.map(|id| id.to_string()),
    ];
}

impl Resource for Attachment {
    const KIND: &'static str = "attachment";
    const PATH: &'static str = "/v1/attachments";
    const LIST_COMMAND: &'static str = "berth volumes attachments list";
    const EMPTY: &'static str = "There are no attachments.";
    const COLUMNS: &'static [Column<Self>] = columns![set;
        "ATTACHMENT" => set.id.as_str(),
        "TENANT" => set.tenant.as_str(),
        "HOME" => set.home.as_ref().map(|home| home.as_str()),
        "VOLUMES" => set.volumes.join(" "),
    ];
}

impl Resource for VolumeMove {
    const KIND: &'static str = "move";
    const COLUMNS: &'static [Column<Self>] = columns![moving;
        "VOLUME" => moving.volume.as_str(),
        "FROM" => moving.from.as_str(),
        "TO" => moving.to.as_str(),
        "STATE" => api_name(&moving.state),
        "COPIED" => moving.copied_permille.map(|share| format!("{}.{}%", share / 10, share % 10)),
        "SINCE" => age(moving.since),
        "MESSAGE" => moving.message.as_str(),
    ];
}

impl Operation for VolumeMove {
    fn state(&self) -> String {
        api_name(&self.state)
    }

    fn message(&self) -> &str {
        &self.message
    }

    fn succeeded(&self) -> Option<bool> {
        match self.state {
            VolumeMoveState::Done => Some(true),
            VolumeMoveState::Failed | VolumeMoveState::Cancelled => Some(false),
            _ => None,
        }
    }
}

impl Volumes {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(watch) => session.list::<Volume>(&[], watch).await,
            Self::Show(arg) => session.show::<Volume>(&arg.name).await,
            Self::Set(SetArgs { name, home, tenant }) => {
                // The tenant stays unless another is given.
                let path = path_of::<Volume>(&name);
                let stored: Result<berth_api::Volume, _> = session.client.get(&path, &[]).await;
                let tenant = tenant.or_else(|| stored.ok()?.tenant);
                session
                    .put::<Volume>(&name, &NewVolume { tenant, home: home.as_str().into() })
                    .await
            }
            Self::Move(args) => args.run(session).await,
            Self::Remove(args) => session.remove::<Volume>(&args.names).await,
            Self::Attachments(attachments) => attachments.run(session).await,
        }
    }
}

impl MoveArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let path = format!("{}/move", path_of::<Volume>(&self.volume));
        if self.cancel {
            let body = serde_json::Map::new();
            return session.post::<VolumeMove>(&format!("{path}/cancel"), &body).await;
        }
        let raw = match &self.to {
            Some(to) => {
                let body = MoveVolume { to: to.as_str().into(), dry_run: self.dry_run };
                session.client.post::<_, RawJson>(&path, &body).await?
            }
            None => session.get(&path, &[]).await?,
        };
        if self.wait && !self.dry_run {
            return session.follow::<VolumeMove>(&path, deadline(self.timeout)).await;
        }
        session.print::<VolumeMove>(&raw)?;
        if self.to.is_some() && !self.dry_run {
            let hint =
                format!("Show its progress with: berth volumes move {} --status", self.volume);
            session.out.note(hint);
        }
        Ok(())
    }
}

impl AttachmentArg {
    fn path(&self) -> String {
        let tenant = self.tenant.as_deref().map(|tenant| format!("?tenant={}", escape(tenant)));
        format!("{}{}", path_of::<Attachment>(&self.name), tenant.unwrap_or_default())
    }
}

impl Attachments {
    async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(watch) => session.list::<Attachment>(&[], watch).await,
            Self::Show(arg) => session.print::<Attachment>(&session.get(&arg.path(), &[]).await?),
            Self::Set(SetAttachmentArgs { name, volumes, tenant }) => {
                session.put::<Attachment>(&name, &NewAttachment { tenant, volumes }).await
            }
            Self::Remove(arg) => {
                session.client.delete(&arg.path()).await?;
                session.out.note(format!("removed attachment {}", arg.name));
                Ok(())
            }
        }
    }
}
