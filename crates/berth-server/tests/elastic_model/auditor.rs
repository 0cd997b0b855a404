//! Judges what servers say, step by step, by rules of its own: it shares no code and no arithmetic
//! with what it checks.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::picture::{NodePicture, Pair, PermitPicture, Picture};

/// What is true of an instance, whatever servers say: only its agent knows.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub(crate) node: String,
    /// What it really uses.
    pub(crate) uses: Pair,
    /// How it is charged: thousandths of what it uses may be given for one.
    pub(crate) permille: i64,
    pub(crate) elastic: bool,
    /// Between which sizes it may be, as was last said.
    pub(crate) bounds: (Pair, Pair),
    /// The highest number that its agent was answered.
    pub(crate) seq: u64,
    /// The role and node of the claim that it must have in addition to the primary one while it moves.
    pub(crate) second_claim: Option<(&'static str, String)>,
}

/// What may have happened in a step, beyond growth that was granted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Excuse {
    /// The configuration changed: limits are others.
    pub(crate) configured: bool,
    /// Something was found on this node that nobody had promised.
    pub(crate) found_on: Option<String>,
}

/// A wish and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) instance: String,
    pub(crate) wanted: Pair,
    pub(crate) permit: Pair,
    pub(crate) limited_by: Option<String>,
    pub(crate) unit: Pair,
}

/// What was seen last.
#[derive(Default)]
pub(crate) struct Auditor {
    pub(crate) last: Picture,
    /// Nodes that were over their limit at a look, and growth that was judged.
    pub(crate) counted: (u64, u64),
}

/// What a node is charged for so much: rounded up.
pub(crate) fn charge(raw: Pair, permille: i64) -> Pair {
    raw.of(|raw| (raw * 1000 + permille - 1) / permille)
}

/// How long a picture may keep changing before it is judged as it is.
const PATIENCE: Duration = Duration::from_secs(60);

impl Auditor {
    /// Reads everything and says what is wrong.
    ///
    /// The lists of a picture are read one after another. If it looks wrong it is read again: when
    /// nothing has changed meanwhile, it was of one moment and the complaint stands; when something
    /// has, it is the new picture that is judged.
    pub(crate) async fn audit(
        &mut self,
        read: impl AsyncFn() -> Picture,
        truth: &BTreeMap<String, Truth>,
        excuse: &Excuse,
        answers: &[Answered],
    ) -> Vec<String> {
        let began = Instant::now();
        let (last, counted) = (self.last.clone(), self.counted);
        let mut seen = read().await;
        loop {
            let wrong = self.look(seen.clone(), truth, excuse, answers);
            if wrong.is_empty() {
                return wrong;
            }
            let again = read().await;
            if again == seen || began.elapsed() > PATIENCE {
                return wrong;
            }
            (self.last, self.counted) = (last.clone(), counted);
            seen = again;
        }
    }

    /// Looks at everything after a step, and says what is wrong. What was seen becomes the last.
    pub(crate) fn look(
        &mut self,
        seen: Picture,
        truth: &BTreeMap<String, Truth>,
        excuse: &Excuse,
        answers: &[Answered],
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (id, node) in &seen.nodes {
            sums(id, node, &seen, truth, &mut wrong);
            self.limits(id, node, excuse, &mut wrong);
            real_use(id, node, &seen, truth, &mut wrong);
        }
        for (id, truth) in truth {
            claims(id, truth, &seen, &mut wrong);
            if truth.elastic {
                self.permit(id, truth, &seen, &mut wrong);
            }
        }
        let known = |id: &String| truth.contains_key(id);
        for claim in seen.claims.iter().filter(|claim| !known(&claim.instance)) {
            wrong.push(format!("{} has a {} claim and is gone", claim.instance, claim.role));
        }
        for answer in answers {
            self.counted.1 += 1;
            self.answer(answer, &seen, &mut wrong);
        }
        self.last = seen;
        wrong
    }

    /// Nothing but configuration and what was found may break a limit, and nothing grows beyond one.
    fn limits(&mut self, id: &str, node: &NodePicture, excuse: &Excuse, wrong: &mut Vec<String>) {
        let Some(before) = self.last.nodes.get(id) else { return };
        if before.limit() != node.limit() && !excuse.configured {
            wrong.push(format!("{id} has other limits, and nobody changed them"));
        }
        let found = excuse.found_on.as_deref() == Some(id);
        let limits = node.limit().named().into_iter().zip(node.reserved.named());
        for (((what, limit), (_, reserved)), (_, was)) in limits.zip(before.reserved.named()) {
            if reserved <= limit {
                continue;
            }
            self.counted.0 += 1;
            if reserved > was && !found {
                wrong.push(format!(
                    "{id} is over its {what}: {reserved} of {limit}, and had {was} before"
                ));
            }
        }
    }

    fn permit(&self, id: &str, truth: &Truth, seen: &Picture, wrong: &mut Vec<String>) {
        let Some(permit) = seen.permits.get(id) else {
            wrong.push(format!("{id} is elastic and has no permit"));
            return;
        };
        let PermitPicture { granted, buffer, min, max, .. } = *permit;
        let primary = seen.claims.iter().find(|it| it.instance == id && it.role == "primary");
        let Some(primary) = primary else { return };
        if (permit.charged, &permit.node, permit.fence)
            != (primary.charged, &primary.node, primary.fence)
        {
            wrong.push(format!("{id}: its permit is not its claim's"));
        }
        if charge(granted + buffer, truth.permille) != permit.charged {
            wrong
                .push(format!("{id} is charged {:?} for {granted:?} + {buffer:?}", permit.charged));
        }
        if (min, max) != truth.bounds {
            wrong.push(format!("{id} has bounds {min:?} and {max:?}, not {:?}", truth.bounds));
        }
        if permit.seq > truth.seq {
            wrong.push(format!("{id}: request {} was never made", permit.seq));
        }
        let before = self.last.permits.get(id);
        if before.is_some_and(|before| before.seq > permit.seq) {
            wrong.push(format!("{id}: its number went back to {}", permit.seq));
        }
        // What was granted or signed before its bounds changed stands, and nothing goes further out
        // of them.
        let was = before.map_or(granted, |before| before.granted);
        let held = before.map_or(granted, |before| before.granted + before.buffer);
        let bounds = min.named().into_iter().zip(max.named()).zip(granted.named());
        let before = was.named().into_iter().zip(held.named());
        for ((((what, min), (_, max)), (_, granted)), ((_, was), (_, held))) in bounds.zip(before) {
            if granted > max && granted > held {
                wrong.push(format!("{id} has {granted} {what}, above its maximum {max}"));
            }
            if granted < min && granted < was {
                wrong.push(format!("{id} has {granted} {what}, below its minimum {min}"));
            }
        }
    }

    /// Between what it had and what it wants; as much as there was room for.
    fn answer(&self, answer: &Answered, seen: &Picture, wrong: &mut Vec<String>) {
        let Answered { instance: id, wanted, permit, .. } = answer;
        let Some(before) = self.last.permits.get(id) else { return };
        let frozen = before.frozen;
        let had = before.granted.named().into_iter().zip(before.buffer.named());
        let both = wanted.named().into_iter().zip(permit.named());
        for (((what, wanted), (_, permit)), ((_, had), (_, buffer))) in both.zip(had) {
            if permit < had.min(wanted) || permit > wanted {
                wrong.push(format!("{id} had {had} {what}, wants {wanted}, and got {permit}"));
            }
            // What was set aside for it is its own, also while it moves.
            if frozen && permit > had + buffer {
                wrong.push(format!("{id} grew in {what} while it was moved"));
            }
        }
        let Some(node) = seen.nodes.get(&before.node) else { return };
        let free = node.limit() - node.reserved;
        let more = *wanted - *permit;
        // A whole unit of everything that it wants more of would have been granted.
        if answer.limited_by.as_deref() == Some("node") {
            let lacks = free.named().into_iter().zip(answer.unit.named()).zip(more.named());
            if !lacks.into_iter().any(|(((_, free), (_, unit)), (_, more))| more > 0 && free < unit)
            {
                wrong.push(format!("{id} was denied {more:?} though {free:?} is free"));
            }
        }
        if more == Pair::default() && answer.limited_by.is_some() {
            wrong.push(format!("{id} got all, and was held back"));
        }
    }
}

/// A node is the sum of what is on it.
fn sums(
    id: &str,
    node: &NodePicture,
    seen: &Picture,
    truth: &BTreeMap<String, Truth>,
    wrong: &mut Vec<String>,
) {
    let mut reserved = node.other;
    let (mut buffer, mut pressure, mut leaving) = <(Pair, Pair, Pair)>::default();
    let mut instances = 0;
    for claim in seen.claims.iter().filter(|claim| claim.node == id) {
        reserved = reserved + claim.charged + Pair::new(0, node.overhead);
        instances += 1;
        let permit = seen.permits.get(&claim.instance).filter(|_| claim.role == "primary");
        let factor = truth.get(&claim.instance).map_or(1000, |truth| truth.permille);
        let lacking = permit.map_or(Pair::default(), |permit| {
            let all = permit.granted + permit.buffer;
            buffer = buffer + charge(all, factor) - charge(permit.granted, factor);
            charge(all + permit.pressure, factor) - charge(all, factor)
        });
        pressure = pressure + lacking;
        let leaves = claim.role == "migration_source"
            || (claim.role == "primary"
                && seen.leaving.get(&claim.instance).is_some_and(|from| from == id));
        if leaves {
            leaving = leaving + claim.charged + lacking;
        }
    }
    let mut same = |what: &str, told: Pair, sum: Pair| {
        if told != sum {
            wrong.push(format!("{id} says {told:?} {what}, and its instances {sum:?}"));
        }
    };
    same("reserved", node.reserved, reserved);
    same("buffer", node.buffer, buffer);
    if node.instances != instances {
        wrong.push(format!("{id} says {} instances, and has {instances}", node.instances));
    }
    // Wishes fade: by a half in a day, so by a hundredth at most in any run.
    let mut faded = |what: &str, told: Pair, sum: Pair, fading: Pair| {
        let least = sum - fading.of(|amount| amount / 100 + 10);
        if !(least.within(told) && told.within(sum)) {
            wrong.push(format!("{id} says {told:?} {what}, and its instances {sum:?}"));
        }
    };
    faded("capacity pressure", node.pressure, pressure, pressure);
    faded("pressure accounted for", node.accounted_for, leaving, pressure);
}

/// What really runs on a node is within what it is charged for, also while it is over its limit.
fn real_use(
    id: &str,
    node: &NodePicture,
    seen: &Picture,
    truth: &BTreeMap<String, Truth>,
    wrong: &mut Vec<String>,
) {
    let mut all = node.other;
    for (instance, truth) in truth.iter().filter(|(_, truth)| truth.node == id) {
        let uses = charge(truth.uses, truth.permille);
        all = all + uses + Pair::new(0, node.overhead);
        let charged = seen.claims.iter().filter(|it| it.instance == *instance && it.node == id);
        if !charged.into_iter().any(|claim| uses.within(claim.charged)) {
            wrong.push(format!("{instance} uses {uses:?} on {id}, which is not charged for it"));
        }
    }
    if !all.within(node.reserved) {
        wrong.push(format!("{id} has {:?} reserved, and {all:?} is in use", node.reserved));
    }
    let holds = node.reserved.within(node.limit());
    if holds && !all.within(node.limit()) {
        wrong.push(format!("{id} is oversold: {all:?} of {:?} in use", node.limit()));
    }
}

/// Exactly one place where it runs, and where that is.
fn claims(id: &str, truth: &Truth, seen: &Picture, wrong: &mut Vec<String>) {
    let of = |role: &str| {
        seen.claims.iter().filter(|it| it.instance == id && it.role == role).collect::<Vec<_>>()
    };
    let (primary, target, source) = (of("primary"), of("migration_target"), of("migration_source"));
    match primary.as_slice() {
        [one] if one.node == truth.node => {}
        [one] => wrong.push(format!("{id} runs on {}, and is said to on {}", truth.node, one.node)),
        others => wrong.push(format!("{id} has {} primary claims", others.len())),
    }
    if target.len() + source.len() > 1 {
        let (targets, sources) = (target.len(), source.len());
        wrong.push(format!("{id} has {targets} places to go to and {sources} that it came from"));
    }
    let mut second = target.iter().chain(&source);
    let expected = truth.second_claim.as_ref();
    if expected.is_some_and(|(role, node)| !second.any(|it| it.role == *role && it.node == *node)) {
        wrong.push(format!("{id} has no second claim, and should have {expected:?}"));
    }
    if expected.is_none() && target.len() + source.len() > 0 {
        wrong.push(format!("{id} does not move, and has a second claim"));
    }
    if target.iter().chain(&source).any(|it| it.node == truth.node) {
        wrong.push(format!("{id} moves to where it is"));
    }
}
