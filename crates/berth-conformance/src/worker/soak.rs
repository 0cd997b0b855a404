//! A random life of many claims, and a model of what must have become of each.
//!
//! Every worker has instances of its own, so it knows where each must stand; the room, the groups
//! and the pools are everybody's.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use berth_engine::{Amounts, InstanceId, InstanceRequest};
use berth_ledger::{
    Advance, ClaimKey, ClaimRejection, ClaimState, ClaimStatus, Move, Release, Resize, Step, Text,
};

use super::{Server, id_in};
use crate::protocol::{ModelClaim, Outcome, PlaceTask, SoakReport, SoakTask};
use crate::timing::stopwatch;

/// Most claims that one worker keeps.
const CLAIMS: usize = 60;

/// Answers that are repeated later, to see whether they come out the same.
const REMEMBERED: usize = 32;

/// What the worker believes of one of its claims.
struct Model {
    request: InstanceRequest,
    held: ModelClaim,
}

struct Soak<'a> {
    server: &'a Server,
    ask: &'a SoakTask,
    random: fastrand::Rng,
    claims: BTreeMap<InstanceId, Model>,
    granted: Vec<(PlaceTask, Outcome)>,
    number: u64,
    done: SoakReport,
}

/// Runs for as long as asked, and reports what should be stored at the end.
pub(super) fn run(server: &Server, ask: &SoakTask) -> anyhow::Result<SoakReport> {
    let mut soak = Soak {
        server,
        ask,
        random: fastrand::Rng::with_seed(ask.seed),
        claims: BTreeMap::new(),
        granted: Vec::new(),
        number: 0,
        done: SoakReport::default(),
    };
    let started = stopwatch();
    while started.elapsed() < Duration::from_millis(ask.millis) {
        soak.done.steps += 1;
        soak.step()?;
    }
    let mut done = soak.done;
    done.held = soak.claims.into_values().map(|model| model.held).collect();
    Ok(done)
}

impl Soak<'_> {
    fn step(&mut self) -> anyhow::Result<()> {
        match self.random.u32(..100) {
            0..30 if self.claims.len() < CLAIMS => self.place(),
            0..45 => self.release(),
            45..60 => self.relocate(),
            60..75 => self.advance(),
            75..88 => self.resize(),
            88..96 => self.repeat(),
            _ => {
                self.server.ledger().reap()?;
                Ok(())
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn request_id(&mut self, what: &str) -> String {
        format!("{what}-{}-{}", self.ask.space, self.next())
    }

    fn amounts(&mut self) -> Amounts {
        let size = 1 << self.random.u32(..4);
        Amounts::new(size * 100, size * 128).with_disk(size * 16)
    }

    fn wrong(&mut self, what: String) {
        if self.done.wrong.len() < 10 {
            self.done.wrong.push(what);
        }
    }

    fn place(&mut self) -> anyhow::Result<()> {
        let many = if self.random.u32(..4) == 0 { 3 } else { 1 };
        let amounts = self.amounts();
        let group = (self.random.u32(..5) == 0).then(|| self.random.choice(&self.ask.groups));
        let pool = (self.random.u32(..5) == 0).then(|| self.random.choice(&self.ask.pools));
        let with_gpu = self.random.u32(..6) == 0;
        let mut ask = PlaceTask::all(&self.request_id("soak"), Vec::new());
        for _ in 0..many {
            let id = id_in(self.ask.space, self.next());
            let mut instance = InstanceRequest::new(id, "soak", amounts);
            instance.groups.extend(group.flatten().cloned());
            if with_gpu {
                instance.extra.insert("gpu".to_owned(), 1);
            }
            ask.instances.push(instance);
        }
        ask.pools.extend(pool.flatten().cloned());
        let short = self.random.u32(..6) == 0;
        ask.lease_s = if short { 1 } else { 3600 };
        let outcome = self.server.place(&ask);
        match &outcome {
            Outcome::Granted { claims, .. } => {
                for (claim, request) in claims.iter().zip(&ask.instances) {
                    self.done.grants += 1;
                    let held = ModelClaim {
                        instance: claim.instance,
                        node: claim.node.to_string(),
                        state: ClaimState::Held,
                        fence: claim.fence,
                        amounts: request.resources,
                        may_expire: short,
                    };
                    let model = Model { request: request.clone(), held };
                    self.claims.insert(claim.instance, model);
                }
                if self.granted.len() >= REMEMBERED {
                    self.granted.remove(0);
                }
                self.granted.push((ask, outcome));
            }
            Outcome::NoRoom(_) | Outcome::Refused(_) | Outcome::Contended { .. } => {}
            Outcome::Invalid(_) | Outcome::Unknown(_) => {
                self.wrong(format!("a place got {outcome:?}"));
            }
        }
        Ok(())
    }

    /// A retry of what was granted gets the first answer, whatever became of it since.
    fn repeat(&mut self) -> anyhow::Result<()> {
        let Some((ask, first)) = self.random.choice(&self.granted).cloned() else { return Ok(()) };
        let again = self.server.place(&ask);
        if again != first {
            self.wrong(format!("{} got first {first:?}, then {again:?}", ask.request_id));
        }
        Ok(())
    }

    fn any(&mut self) -> Option<InstanceId> {
        let ids: Vec<InstanceId> = self.claims.keys().copied().collect();
        self.random.choice(ids)
    }

    fn release(&mut self) -> anyhow::Result<()> {
        let Some(instance) = self.any() else { return Ok(()) };
        let confirmed = self.random.bool();
        let answer = self.server.ledger().release(Release {
            request_id: Text::from(self.request_id("release")),
            key: ClaimKey::primary(instance),
            tenant: None,
            fence: None,
            confirmed,
            reason: Text::from("soak"),
        })?;
        self.follow(instance, answer, "release")
    }

    fn relocate(&mut self) -> anyhow::Result<()> {
        let Some(instance) = self.any() else { return Ok(()) };
        let Some(node) = self.random.choice(&self.ask.nodes).cloned() else { return Ok(()) };
        let request_id = Text::from(self.request_id("move"));
        let Some(model) = self.claims.get(&instance) else { return Ok(()) };
        let mut request = model.request.clone();
        request.resources = model.held.amounts;
        let (fence, to) = (Some(model.held.fence), self.server.planned(&request, &node));
        let answer = self.server.ledger().relocate(Move {
            request_id,
            fence,
            to,
            restart: false,
            guard: None,
        })?;
        self.follow(instance, answer, "move")
    }

    fn advance(&mut self) -> anyhow::Result<()> {
        let Some(instance) = self.any() else { return Ok(()) };
        let step = match self.random.u32(..3) {
            0 => Step::Renew { lease_s: 3600 },
            1 => Step::Bind,
            _ => Step::Activate,
        };
        let Some(model) = self.claims.get(&instance) else { return Ok(()) };
        let (key, fence) = (ClaimKey::primary(instance), model.held.fence);
        let advance = Advance { key, tenant: None, fence, step };
        let answer = self.server.ledger().advance(advance)?;
        if answer.is_ok()
            && let Some(model) = self.claims.get_mut(&instance)
        {
            model.held.may_expire = false;
        }
        self.follow(instance, answer, "step")
    }

    fn resize(&mut self) -> anyhow::Result<()> {
        let Some(instance) = self.any() else { return Ok(()) };
        let amounts = self.amounts();
        let request_id = Text::from(self.request_id("resize"));
        let answer = self.server.ledger().resize(Resize {
            request_id,
            key: ClaimKey::primary(instance),
            tenant: None,
            fence: None,
            amounts,
            cpu_hard: true,
            host_cpu_milli: None,
        })?;
        if let Ok(standing) = &answer
            && standing.amounts != amounts
        {
            self.wrong(format!("a resize to {amounts:?} gave {standing:?}"));
        }
        self.follow(instance, answer, "resize")
    }

    /// Takes an answer into the model.
    fn follow(
        &mut self,
        instance: InstanceId,
        answer: Result<ClaimStatus, ClaimRejection>,
        what: &str,
    ) -> anyhow::Result<()> {
        let Some(model) = self.claims.get_mut(&instance) else {
            bail!("an answer about {instance}, which is not in the model");
        };
        match answer {
            Ok(ClaimStatus { state: None, .. }) => drop(self.claims.remove(&instance)),
            Ok(standing) => {
                model.held.node = standing.node.to_string();
                model.held.fence = standing.fence;
                model.held.amounts = standing.amounts;
                if let Some(state) = standing.state {
                    model.held.state = state;
                }
            }
            // Its lease expired, and it may have been reaped.
            Err(ClaimRejection::NoClaim(_)) if model.held.may_expire => {
                self.claims.remove(&instance);
            }
            Err(ClaimRejection::LeaseExpired { .. }) if model.held.may_expire => {}
            Err(ClaimRejection::WrongState { found, .. }) if found == model.held.state => {}
            Err(ClaimRejection::Guard(_) | ClaimRejection::Refused(_)) => {}
            Err(rejected) => {
                let held = model.held.clone();
                self.wrong(format!("a {what} of {held:?} was rejected: {rejected:?}"));
            }
        }
        Ok(())
    }
}
