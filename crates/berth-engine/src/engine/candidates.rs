//! Candidates for a caller with rules of its own, such as the Kubernetes scheduler.
//!
//! The engine filters and scores; the caller keeps its own columns, by the same positions as the
//! engine's, and makes the choice. Nothing is claimed here.

use super::scan::{Inputs, scan_all};
use super::{Engine, eligibility_bits};
use crate::filter::{Needs, passes_request_tests};
use crate::model::{InstanceRequest, InvalidRequest, Timestamp};
use crate::prepared_request::PreparedRequest;
use crate::score::{BlockScores, all_totals};

impl Engine {
    /// Calls `visit` for every node that could take the instance, with the node's position, its total
    /// and its rank in the order of ids. Bit `p % 64` of word `p / 64` of `admitted` says whether the
    /// caller's own rules admit the node at position `p`; others are skipped. Missing words admit no
    /// node.
    ///
    /// # Errors
    /// When the request is not valid.
    pub fn for_each_candidate(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        admitted: &[u64],
        mut visit: impl FnMut(usize, i32, u32),
    ) -> Result<(), InvalidRequest> {
        self.validate(request)?;
        self.catch_up(now);
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        if !passes_request_tests(&prepared) {
            return Ok(());
        }
        let mask = self.masks.get(&self.fleet, &self.policy, request);
        let needs = Needs::new(&self.fleet, request, &self.policy);
        let inputs = Inputs {
            prepared: &prepared,
            scorers: &self.scorers,
            derived: &self.derived,
            mask,
            needs: &needs,
            blocks: BlockScores::new(&self.scorers.blocks, &prepared),
        };
        eligibility_bits::fill_eligible(
            &prepared,
            self.derived.eligible.words(),
            mask,
            &mut self.words,
        );
        for (place, word) in self.words.iter_mut().enumerate() {
            *word &= admitted.get(place).copied().unwrap_or(0);
        }
        scan_all(&mut self.totals, &self.words, &inputs);
        if self.scorers.is_columnar {
            self.totals.for_each(self.fleet.columns(), &mut visit);
        } else {
            let indexes = self.totals.survivors();
            let totals = all_totals(&prepared, &self.derived.scale, &indexes);
            for (index, total) in indexes.into_iter().zip(totals) {
                visit(index.as_usize(), total, self.fleet.columns().rank.get(index));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use crate::engine::Engine;
    use crate::model::{Amounts, InstanceId, InstanceRequest, NodeFacts, NodeId, Timestamp};
    use crate::policy::Policy;

    #[test]
    fn the_best_candidate_shown_is_the_one_the_engine_would_choose()
    -> Result<(), Box<dyn std::error::Error>> {
        for policy in ["balanced", "pack", "spread", "triton"] {
            let mut engine = Engine::new(Policy::builtin(policy)?);
            for number in 0..150_u32 {
                let capacity = Amounts::new(8000 + number % 7 * 1000, 16_384 + number % 5 * 4096);
                let facts = NodeFacts::new(&format!("n{number:03}"), capacity.with_disk(1 << 20));
                engine.fleet_mut().add_node(&facts)?;
            }
            for number in 0..300_u128 {
                let amounts = Amounts::new(500, 1024).with_disk(1024);
                let request = InstanceRequest::new(InstanceId::from_u128(number + 1), "t", amounts);
                let admitted = vec![u64::MAX; engine.fleet().position_count() / 64];
                let mut best: Option<(i32, Reverse<u32>, usize)> = None;
                engine.for_each_candidate(
                    &request,
                    Timestamp(0),
                    &admitted,
                    |place, total, rank| {
                        best = best.max(Some((total, Reverse(rank), place)));
                    },
                )?;
                let placed = engine.place(&request, Timestamp(0))?;
                let found = best.map(|(total, _, place)| (i64::from(total), Some(place)));
                let place = engine.fleet().position_of(&placed.node);
                assert_eq!(found, Some((placed.score, place)), "{policy}");
                engine.fleet_mut().claim(&request, &placed.node)?;
            }
        }
        Ok(())
    }

    #[test]
    fn nodes_that_the_caller_does_not_admit_are_not_shown() -> Result<(), Box<dyn std::error::Error>>
    {
        let mut engine = Engine::new(Policy::builtin("balanced")?);
        for name in ["a", "b", "c"] {
            let capacity = Amounts::new(8000, 16_384).with_disk(65_536);
            engine.fleet_mut().add_node(&NodeFacts::new(name, capacity))?;
        }
        let place = engine.fleet().position_of(&NodeId::new("b")).unwrap_or(0);
        let request = InstanceRequest::new(InstanceId::from_u128(1), "t", Amounts::new(100, 100));
        let mut seen = Vec::new();
        engine
            .for_each_candidate(&request, Timestamp(0), &[1 << place], |at, _, _| seen.push(at))?;
        assert_eq!(seen, [place]);
        seen.clear();
        engine.for_each_candidate(&request, Timestamp(0), &[], |at, _, _| seen.push(at))?;
        assert!(seen.is_empty());
        Ok(())
    }
}
