//! The score of where a request would rather be.

use super::{Scorer, ScorerKind, Sparse};
use crate::fleet::{Lanes, NodeIndex, NodePlace};
use crate::model::PPM;
use crate::node_selector::NodeSelector;
use crate::policy::Combine;
use crate::prepared_request::{Notice, PreparedRequest};

pub(super) static PREFERRED_PLACE: Scorer = Scorer {
    name: "preferred-place",
    about: "follows the places that a request prefers",
    notes: "0 for every node if nothing is preferred, and 1 under `combine = \"product\"`: either way it changes nothing",
    settings: &[],
    example: |setup| {
        setup.node("a", |facts| facts.zone = Some("z1".to_owned()));
        setup.node("b", |facts| {
            facts.zone = Some("z1".to_owned());
            facts.labels.insert("tier".to_owned(), "gold".to_owned());
        });
        let preferred = ["zone = z1", "label:tier = gold"].map(NodeSelector::parse);
        setup.request.preferred_places = preferred.into_iter().flatten().collect();
    },
    formula: "share of the selectors in the request's `prefer` that select the node",
    kind: ScorerKind::Sparse(Sparse {
        value: preferred_place,
        default: without_any,
        exceptions: |prepared, out| {
            if prepared.request.preferred_places.is_empty() {
                return;
            }
            for index in prepared.fleet.columns().present.indexes() {
                let value = preferred_place(prepared, index);
                out.list(Lanes::one(index), without_any(prepared), value);
            }
        },
    }),
};

/// Notices for the caller, whatever the result is: also that nothing scores what it prefers.
pub(crate) fn notices_of(prepared: &PreparedRequest<'_>) -> Vec<Notice> {
    let mut notices = prepared.notices.clone();
    if !prepared.request.preferred_places.is_empty() {
        let mut scorers = prepared.policy.weights().map(|(id, _)| id.scorer().name);
        if !scorers.any(|name| name == PREFERRED_PLACE.name) {
            notices.push(Notice::PreferenceIgnored { policy: prepared.policy.name().to_owned() });
        }
    }
    notices
}

/// The value of a node that fits none of them.
fn without_any(prepared: &PreparedRequest<'_>) -> u32 {
    let unasked = prepared.request.preferred_places.is_empty();
    // A factor of one changes no product, a term of zero no sum.
    if unasked && prepared.policy.combine == Combine::Product { PPM } else { 0 }
}

fn preferred_place(prepared: &PreparedRequest<'_>, index: NodeIndex) -> u32 {
    let preferred = &prepared.request.preferred_places;
    let (false, Some(row)) = (preferred.is_empty(), prepared.fleet.row(index)) else {
        return without_any(prepared);
    };
    let place = NodePlace { fleet: prepared.fleet, row };
    let met = preferred.iter().filter(|selector| selector.matches(&place)).count();
    let ppm = met * PPM as usize / preferred.len();
    u32::try_from(ppm).unwrap_or(PPM)
}
