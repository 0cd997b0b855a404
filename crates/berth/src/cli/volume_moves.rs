//! `berth volumes move`: a volume goes to another node, and whoever uses it with it.

use std::time::Duration;

use berth_api::{MoveVolume, VolumeMove, VolumeMoveState};
use berth_client::escape;
use clap::Args;
use tokio::time::Instant;

use super::args::duration;
use super::failure::{Done, Exit, Failure};
use super::session::{Raw, Session, read_as};
use super::table::pairs;
use super::words::age;

/// How often a move that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Which volume, and where to.
#[derive(Args, Debug)]
pub(crate) struct MoveTo {
    /// The volume.
    volume: String,
    /// The node it goes to.
    #[arg(long, value_name = "NODE", required_unless_present_any = ["status", "cancel"])]
    to: Option<String>,
    /// Say whether it could be done, and do nothing.
    #[arg(long, requires = "to")]
    dry_run: bool,
    /// Wait until it lives there.
    #[arg(long)]
    wait: bool,
    /// With --wait: how long at most.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "wait")]
    timeout: Option<u32>,
    /// Say how far the move is, and change nothing.
    #[arg(long, conflicts_with_all = ["to", "cancel"])]
    status: bool,
    /// Call the move off: the volume stays where it is.
    #[arg(long, conflicts_with_all = ["to", "wait"])]
    cancel: bool,
}

impl MoveTo {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let path = format!("/v1/volumes/{}/move", escape(&self.volume));
        if self.cancel {
            let nothing = serde_json::Map::new();
            let raw: Raw = session.client.post(&format!("{path}/cancel"), &nothing).await?;
            return print(session, &raw);
        }
        let limit = self.timeout.map(|s| Instant::now() + Duration::from_secs(u64::from(s)));
        let Some(to) = self.to.filter(|_| !self.status) else {
            return match self.wait {
                true => follow(session, &path, limit).await,
                false => print(session, &session.get(&path, &[]).await?),
            };
        };
        let body = MoveVolume { to: to.as_str().into(), dry_run: self.dry_run };
        let raw: Raw = session.client.post(&path, &body).await?;
        if self.wait && !self.dry_run {
            return follow(session, &path, limit).await;
        }
        print(session, &raw)?;
        if !self.dry_run {
            session
                .out
                .note(format!("Follow it with: berth volumes move {} --status", self.volume));
        }
        Ok(())
    }
}

fn name(state: VolumeMoveState) -> &'static str {
    match state {
        VolumeMoveState::Planned => "planned",
        VolumeMoveState::Copying => "copying",
        VolumeMoveState::Stopping => "stopping",
        VolumeMoveState::Syncing => "syncing",
        VolumeMoveState::Done => "done",
        VolumeMoveState::Failed => "failed",
        VolumeMoveState::Cancelled => "cancelled",
    }
}

fn print(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |found: VolumeMove| {
        let copied = found.copied_permille.map(|share| format!("{}.{}%", share / 10, share % 10));
        session.out.line(pairs(&[
            ("volume", found.volume),
            ("from", found.from.to_string()),
            ("to", found.to.to_string()),
            ("state", name(found.state).to_owned()),
            ("copied", copied.unwrap_or_default()),
            ("since", age(found.since)),
            ("message", found.message),
        ]));
        Ok(())
    })
}

/// Watches a move until it has ended, or the time is over.
async fn follow(session: &Session, path: &str, limit: Option<Instant>) -> Done {
    let bar = session.out.spinner("");
    let mut told = String::new();
    loop {
        let raw = session.get(path, &[]).await?;
        let found: VolumeMove = read_as(&raw)?;
        if found.message != told {
            bar.set_message(found.message.clone());
            if bar.is_hidden() {
                session.out.note(format!("{}: {}", name(found.state), found.message));
            }
            told.clone_from(&found.message);
        }
        match found.state {
            VolumeMoveState::Done => {
                bar.finish_and_clear();
                return print(session, &raw);
            }
            VolumeMoveState::Failed | VolumeMoveState::Cancelled => {
                bar.finish_and_clear();
                return Err(Failure::new(Exit::Failed, found.message));
            }
            _ if limit.is_some_and(|limit| limit <= Instant::now()) => {
                bar.finish_and_clear();
                let message = format!("not moved in time: {}; the move goes on", found.message);
                return Err(Failure::new(Exit::Failed, message));
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
