//! A workload as it is stored: what is asked for, which revision that is, and what it was before.

use berth_api::{CapacityRule, InstanceSpec, NewWorkload, PastRevision, Rolling};
use berth_engine::InstanceRequest;
use berth_ledger::{Slot, SlotKey, Text, Workload, invariant_ok};
use serde::{Deserialize, Serialize};

use super::quarantine;
use crate::instance_spec::request_of;

/// A tenant and one of its workloads.
pub type WorkloadKey = (Text, Text);

/// Earlier revisions that are kept.
const KEPT: usize = 10;

/// What stands for "the caller creates the members" in the ledger's column.
const NO_REPLICAS: i64 = -1;

/// A workload as the server knows it.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The tenant and the name.
    pub key: WorkloadKey,
    /// Rises with every change.
    pub version: i64,
    /// How many should run; absent: the caller creates the members.
    pub replicas: Option<u32>,
    /// Everything else; of a quarantined workload nothing but its revision.
    pub body: Body,
    /// Why it is quarantined: it exceeds a limit of this version. Nothing is placed for it until it
    /// is stored again or removed.
    pub quarantined: Option<String>,
}

/// What the ledger keeps as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// Rises with every change of what members are.
    pub revision: i64,
    /// What members ask for.
    pub template: InstanceSpec,
    /// The process type, if it is not the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Pools that each member takes a value from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// The release that members run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// How members are shared between on-demand and spot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityRule>,
    /// How changes are made.
    #[serde(default)]
    pub rolling: Rolling,
    /// Whether roll-outs stand still.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Whether it is being removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// What members were before, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastRevision>,
}

impl Definition {
    /// A workload that came out of the ledger.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn read(row: &Workload) -> Result<Self, serde_json::Error> {
        let (body, quarantined) = match quarantine::read_body(row)? {
            Ok(body) => (body, None),
            // What it asks for is not even kept in memory.
            Err(why) => (Body::first(InstanceSpec::default(), row.revision), Some(why)),
        };
        Ok(Self {
            quarantined,
            key: (Text::from(row.tenant.as_str()), Text::from(row.name.as_str())),
            version: row.revision,
            replicas: u32::try_from(row.replicas).ok(),
            body,
        })
    }

    /// The same as the ledger stores it.
    #[must_use]
    pub fn row(&self) -> Workload {
        Workload {
            tenant: self.tenant().to_owned(),
            name: self.name().to_owned(),
            revision: self.version,
            replicas: self.replicas.map_or(NO_REPLICAS, i64::from),
            body: invariant_ok!(serde_json::to_string(&self.body), "workload_is_json")
                .unwrap_or_default(),
        }
    }

    /// A workload as requested, in place of the stored one, if there is one.
    #[must_use]
    pub fn ask(key: WorkloadKey, new: NewWorkload, now: Option<&Self>) -> Self {
        let replicas = new.replicas;
        let mut body = Body {
            revision: 1,
            template: new.template,
            process: new.process,
            pools: new.pools,
            release: new.release,
            capacity: new.capacity,
            rolling: new.rolling,
            paused: new.paused,
            deleting: false,
            history: Vec::new(),
        };
        let version = now.map_or(1, |now| now.version + 1);
        match now {
            // What it was is not known.
            Some(now) if now.quarantined.is_some() => body.revision = now.body.revision + 1,
            Some(now) => body.follow(&now.body),
            None => {}
        }
        Self { key, version, replicas, body, quarantined: None }
    }

    /// The same with a change, in its next version.
    #[must_use]
    pub fn changed(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = Self { quarantined: None, ..self.clone() };
        change(&mut next);
        next.version = self.version + 1;
        next
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.key.0
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key.1
    }

    /// Its environment.
    #[must_use]
    pub fn env(&self) -> Option<&str> {
        self.body.template.env.as_deref()
    }

    /// Its process type.
    #[must_use]
    pub fn process(&self) -> &str {
        self.body.process.as_deref().unwrap_or_else(|| self.name())
    }

    /// How many should run now.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        if self.body.deleting { 0 } else { self.replicas.unwrap_or(0) }
    }

    /// Whether only one instance at a time may use what it uses.
    #[must_use]
    pub fn is_single_writer(&self) -> bool {
        let template = &self.body.template;
        !template.volumes.is_empty() || !template.attachments.is_empty()
    }

    /// What a member asks for, but for its id and its sets of volumes.
    #[must_use]
    pub fn request(&self) -> InstanceRequest {
        let mut request = request_of(self.tenant(), &self.body.template);
        request.workload = Some(self.name().to_owned());
        request
    }

    /// A slot's name in the ledger.
    #[must_use]
    pub fn slot_key(&self, slot: Slot) -> SlotKey {
        let (tenant, workload) = self.key.clone();
        SlotKey { tenant, workload, revision: slot.revision, slot: slot.slot }
    }

    /// The request that would make the same workload.
    #[must_use]
    pub fn spec(&self) -> NewWorkload {
        let body = &self.body;
        NewWorkload {
            replicas: self.replicas,
            process: body.process.clone(),
            template: body.template.clone(),
            pools: body.pools.clone(),
            release: body.release.clone(),
            capacity: body.capacity,
            rolling: body.rolling,
            paused: body.paused,
        }
    }
}

impl Body {
    pub(super) fn first(template: InstanceSpec, revision: i64) -> Self {
        Self {
            revision,
            template,
            process: None,
            pools: Vec::new(),
            release: None,
            capacity: None,
            rolling: Rolling::default(),
            paused: false,
            deleting: false,
            history: Vec::new(),
        }
    }

    /// What members are now, to be kept.
    fn past(&self) -> PastRevision {
        PastRevision {
            revision: self.revision,
            template: self.template.clone(),
            pools: self.pools.clone(),
            release: self.release.clone(),
        }
    }

    /// Takes the place of another: a new revision if members differ from what they were.
    fn follow(&mut self, before: &Self) {
        self.history.clone_from(&before.history);
        self.revision = before.revision;
        let same = self.template == before.template
            && self.pools == before.pools
            && self.release == before.release;
        if !same {
            self.advance(before.past());
        }
    }

    /// Goes on to the next revision, and keeps what was.
    fn advance(&mut self, past: PastRevision) {
        self.revision = past.revision + 1;
        self.history.push(past);
        let surplus = self.history.len().saturating_sub(KEPT);
        self.history.drain(..surplus);
    }

    /// New members of the same kind take the place of those there are.
    pub fn restart(&mut self) {
        let past = self.past();
        self.advance(past);
    }

    /// Goes back to an earlier revision, as a new one; the one before when none is named. Returns
    /// whether it is kept.
    pub fn undo(&mut self, to: Option<i64>) -> bool {
        let found = match to {
            Some(revision) => self.history.iter().find(|past| past.revision == revision),
            None => self.history.last(),
        };
        let Some(found) = found.cloned() else { return false };
        let past = self.past();
        (self.template, self.pools) = (found.template, found.pools);
        self.release = found.release;
        self.advance(past);
        true
    }
}
