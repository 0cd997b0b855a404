//! The pods of a gang are bound all or none, as far as the API server lets it be told beforehand.
//!
//! Their volumes are prepared first; then every binding is tried without effect; only when none was
//! refused are they made. A binding that is made cannot be taken back, so from then on all are tried
//! until they succeed.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::bind::Fate;
use super::{Failure, Hands, back_off};
use crate::cluster::outcome::Reservation;
use crate::cluster::pod::Key;

/// How often a trial is repeated that was not answered.
const TRIES: u32 = 8;

impl Hands {
    pub(super) async fn bind_gang(&self, gang: &Key, members: Vec<Reservation>) {
        let began = Instant::now();
        // All volumes before the first rehearsal: they may take minutes, and who could be bound then
        // is asked at the end.
        let mut prepared = join_all(members.iter().map(|member| self.ready_volumes(member))).await;
        if prepared.iter().all(Option::is_none) {
            prepared = join_all(members.iter().map(|member| self.rehearse(member))).await;
        }
        let spoiled = prepared.iter().zip(&members).find(|(fate, _)| fate.is_some());
        if let Some((_, first)) = spoiled {
            let why = format!("gang {}: {} could not be bound, so none is", gang.name, first.pod);
            for (member, fate) in members.iter().zip(prepared) {
                let fate = fate.unwrap_or_else(|| Fate::Failed(why.clone()));
                self.bound(member, fate, began).await;
            }
            return;
        }
        let binds = members.iter().map(|member| async move {
            let fate = self.bind(member).await;
            self.bound(member, fate, began).await;
        });
        join_all(binds).await;
    }

    /// Whether a member's volumes could be had; if not, its fate.
    async fn ready_volumes(&self, member: &Reservation) -> Option<Fate> {
        if member.volumes.is_empty() {
            return None;
        }
        self.prepare_volumes(member).await.err()
    }

    /// Whether a member could be bound; if not, its fate.
    async fn rehearse(&self, member: &Reservation) -> Option<Fate> {
        let mut last = String::new();
        for failures in 1..=TRIES {
            let answer = {
                let Ok(_permit) = self.inner.permits.acquire().await else {
                    return Some(Fate::NotLeading);
                };
                if !self.leads() {
                    return Some(Fate::NotLeading);
                }
                self.post_binding(member, true).await
            };
            match answer {
                Ok(()) => return None,
                Err(Failure::Gone(_)) => return Some(Fate::Gone),
                Err(Failure::Conflict(why) | Failure::Refused(why)) => {
                    return Some(Fate::Failed(format!(
                        "binding to {} was refused: {why}",
                        member.node
                    )));
                }
                Err(Failure::Later { why, .. } | Failure::Unknown(why)) => last = why,
            }
            tokio::time::sleep(back_off(failures)).await;
        }
        Some(Fate::Failed(format!("binding to {} could not be tried: {last}", member.node)))
    }
}
