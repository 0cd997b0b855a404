//! The rankings that an engine keeps, by class of request.
//!
//! A class gets a ranking when it is requested a second time. Requests whose result depends on more
//! than a ranking can follow (see [`PreparedRequest::is_local`]) are scanned each time.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::ranking::{Choice, Ranking};
use super::scan::{Inputs, Totals};
use crate::model::InstanceRequest;
use crate::prepared_request::PreparedRequest;

/// Rankings that are kept.
pub(super) const MAX_RANKINGS: usize = 64;

/// How many classes that were requested once are remembered, by their hash.
const MAX_SEEN: usize = 256;

/// All rankings of an engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rankings {
    rankings: Vec<Ranking>,
    /// The class hash of each ranking, by themselves so that looking for one is quick.
    hashes: Vec<u64>,
    seen: Vec<u64>,
    uses: u64,
}

/// The result of looking for a ranking.
pub(crate) enum RankingLookup {
    /// There is one at this position, to be repaired.
    Hit(usize),
    /// The class was requested before: keep the next scan.
    SecondUse(u64),
    /// The class is new, or cannot have a ranking.
    Miss,
}

impl Rankings {
    pub(crate) fn clear(&mut self) {
        self.rankings.clear();
        self.hashes.clear();
        self.seen.clear();
    }

    /// Looks for the ranking of a request.
    pub(crate) fn find(&mut self, prepared: &PreparedRequest<'_>) -> RankingLookup {
        if !prepared.is_local() || !prepared.request.volumes.is_empty() {
            return RankingLookup::Miss;
        }
        self.uses += 1;
        let hash = class_hash(prepared.request);
        let same = |place: &usize| {
            self.hashes[*place] == hash && self.rankings[*place].sample.same_class(prepared.request)
        };
        if let Some(place) = (0..self.hashes.len()).find(same) {
            self.rankings[place].last_used = self.uses;
            return RankingLookup::Hit(place);
        }
        if self.seen.contains(&hash) {
            return RankingLookup::SecondUse(hash);
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen.remove(0);
        }
        self.seen.push(hash);
        RankingLookup::Miss
    }

    /// Chooses from a ranking after repairing it; `None` when a new scan is needed.
    pub(crate) fn choose(&mut self, place: usize, inputs: &Inputs<'_>) -> Option<Option<Choice>> {
        let ranking = &mut self.rankings[place];
        if !ranking.repair(inputs) {
            return None;
        }
        Some(ranking.winner(inputs.prepared))
    }

    /// Keeps the totals of a scan as a ranking.
    pub(crate) fn keep(&mut self, found: &RankingLookup, totals: &Totals, inputs: &Inputs<'_>) {
        let ranking = match found {
            RankingLookup::Miss => return,
            RankingLookup::Hit(place) => &mut self.rankings[*place],
            RankingLookup::SecondUse(hash) => {
                let place = self.place_for(*hash, inputs.prepared.request);
                &mut self.rankings[place]
            }
        };
        ranking.rebuild_from_scan(totals, inputs);
    }

    fn place_for(&mut self, hash: u64, request: &InstanceRequest) -> usize {
        let ranking = Ranking::new(request, self.uses);
        if self.rankings.len() < MAX_RANKINGS {
            self.rankings.push(ranking);
            self.hashes.push(hash);
            return self.rankings.len() - 1;
        }
        let oldest = self.rankings.iter().enumerate().min_by_key(|(_, r)| r.last_used);
        let place = oldest.map_or(0, |(place, _)| place);
        self.rankings[place] = ranking;
        self.hashes[place] = hash;
        place
    }
}

/// Everything that makes two requests the same class; equality is checked on top.
fn class_hash(request: &InstanceRequest) -> u64 {
    let mut hasher = FxHasher::default();
    request.resources.hash(&mut hasher);
    request.tenant.hash(&mut hasher);
    request.workload.hash(&mut hasher);
    request.image.hash(&mut hasher);
    request.capacity_type.hash(&mut hasher);
    request.required_place.hash(&mut hasher);
    request.preferred_places.hash(&mut hasher);
    request.groups.hash(&mut hasher);
    request.traits.len().hash(&mut hasher);
    request.affinity.len().hash(&mut hasher);
    hasher.finish()
}
