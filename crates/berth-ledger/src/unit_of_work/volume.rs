//! Volumes: where they live, and that they are about to live elsewhere. Which instance uses one is
//! changed by claims alone, in `charge`.

use berth_engine::{NodeId, Volume};

use super::UnitOfWork;
use super::admin::unknown;
use super::rows::VolumeRow;
use crate::model::{EventBody, Outcome, Text};

impl UnitOfWork {
    /// Defines a volume, or changes where it lives. One that is copied for the last time goes where it is
    /// copied to, and nowhere else.
    pub(super) fn put_volume(&mut self, volume: &Volume) -> Outcome {
        if volume.id.is_empty() {
            return Outcome::Impossible("a volume's id is empty; give it a name".to_owned());
        }
        let id = Text::from(volume.id.as_str());
        let (tenant, home) = (volume.tenant.as_deref().map(Text::from), volume.home.clone());
        let attached_to = volume.attached_to;
        let mut row = VolumeRow { tenant, home, attached_to, moving_to: None };
        if let Some(old) = self.rows.volumes.get(&id) {
            // Only claims change the attachment.
            row.attached_to = old.attached_to;
            let moving_to = old.moving_to.clone().filter(|to| *to != row.home);
            if *old == (VolumeRow { moving_to: moving_to.clone(), ..row.clone() }) {
                return Outcome::Unchanged;
            }
            if let Some(by) = old.attached_to {
                return Outcome::Impossible(format!(
                    "volume {id} is used by instance {by} on {}; \
                     release it before the volume moves or changes its owner",
                    old.home
                ));
            }
            if let Some(to) = moving_to {
                return Outcome::Impossible(format!(
                    "volume {id} is being moved to {to}; wait until it is there, or cancel the move"
                ));
            }
        }
        let attached_to = row.attached_to;
        self.rows.volumes.set(&id, Some(row));
        let volume = Volume { attached_to, ..volume.clone() };
        self.events.push(EventBody::VolumeChanged { volume });
        Outcome::Done
    }

    pub(super) fn remove_volume(&mut self, volume: &Text) -> Outcome {
        let Some(row) = self.rows.volumes.get(volume) else { return Outcome::Unchanged };
        if let Some(by) = row.attached_to {
            let why = format!("volume {volume} is used by instance {by}; release it first");
            return Outcome::Impossible(why);
        }
        self.rows.volumes.set(volume, None);
        self.events.push(EventBody::VolumeRemoved { volume_id: volume.clone() });
        Outcome::Done
    }

    /// Sets or removes the mark of a volume that is copied for the last time. Followers do not need it:
    /// whoever plans without it is refused.
    pub(super) fn mark_volume(&mut self, volume: &Text, moving_to: Option<&NodeId>) -> Outcome {
        let row = self.rows.volumes.get(volume);
        if row.and_then(|row| row.moving_to.as_ref()) == moving_to {
            return match (row, moving_to) {
                (None, Some(_)) => unknown("volume", volume),
                _ => Outcome::Unchanged,
            };
        }
        let Some(row) = row else { return unknown("volume", volume) };
        if let (Some(by), Some(_)) = (row.attached_to, moving_to) {
            let why = format!("volume {volume} is used by instance {by}; stop it first");
            return Outcome::Impossible(why);
        }
        self.rows.volumes.edit(volume, |row| row.moving_to = moving_to.cloned());
        Outcome::Done
    }
}
