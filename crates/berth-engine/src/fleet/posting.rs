//! How many members of something live on which node, rack or zone.
//!
//! Most postings hold a handful of places, a few hold a hundred thousand, and there is one for
//! each workload, group, tenant and tag value; so the form follows the size. Places are visited in no
//! particular order: whatever is made of a posting must not depend on it.

use rustc_hash::FxHashMap;

use super::domains::NO_DOMAIN;

/// Above this many places a sorted vector's insertions cost more than a table's.
const VECTOR_MAX: usize = 256;

/// Counts per place. A place with none is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Posting {
    /// Nothing anywhere.
    #[default]
    Empty,
    /// One place.
    One(u32, u32),
    /// A few places, sorted.
    Few(Vec<(u32, u32)>),
    /// Many places.
    Many(FxHashMap<u32, u32>),
}

impl Posting {
    /// From counts that were made elsewhere.
    pub(crate) fn from_counts(counts: FxHashMap<u32, u32>) -> Self {
        let mut posting = Self::Many(counts);
        posting.shrink();
        posting.shrink();
        posting
    }

    /// How many are at this place.
    pub(crate) fn count(&self, place: u32) -> u32 {
        match self {
            Self::Empty => 0,
            Self::One(at, count) => {
                if *at == place {
                    *count
                } else {
                    0
                }
            }
            Self::Few(places) => {
                places.binary_search_by_key(&place, |&(at, _)| at).map_or(0, |i| places[i].1)
            }
            Self::Many(places) => places.get(&place).copied().unwrap_or(0),
        }
    }

    /// One more at this place.
    pub(crate) fn add(&mut self, place: u32) {
        self.add_many(place, 1);
    }

    /// Several more at this place.
    pub(crate) fn add_many(&mut self, place: u32, more: u32) {
        match self {
            Self::Empty => *self = Self::One(place, more),
            Self::One(at, count) if *at == place => *count += more,
            Self::One(at, count) => {
                let mut places = vec![(*at, *count), (place, more)];
                places.sort_unstable();
                *self = Self::Few(places);
            }
            Self::Few(places) => {
                match places.binary_search_by_key(&place, |&(at, _)| at) {
                    Ok(i) => places[i].1 += more,
                    Err(i) => places.insert(i, (place, more)),
                }
                if places.len() > VECTOR_MAX {
                    *self = Self::Many(places.iter().copied().collect());
                }
            }
            Self::Many(places) => *places.entry(place).or_insert(0) += more,
        }
    }

    /// One less at this place.
    pub(crate) fn remove(&mut self, place: u32) {
        match self {
            Self::Empty => {}
            Self::One(at, count) => {
                if *at == place {
                    *count -= 1;
                    if *count == 0 {
                        *self = Self::Empty;
                    }
                }
            }
            Self::Few(places) => {
                if let Ok(i) = places.binary_search_by_key(&place, |&(at, _)| at) {
                    places[i].1 -= 1;
                    if places[i].1 == 0 {
                        places.remove(i);
                    }
                }
                self.shrink();
            }
            Self::Many(places) => {
                if let Some(count) = places.get_mut(&place) {
                    *count -= 1;
                    if *count == 0 {
                        places.remove(&place);
                    }
                }
                self.shrink();
            }
        }
    }

    /// Falls back to the smaller form, so that equal contents have equal forms.
    fn shrink(&mut self) {
        match self {
            Self::Few(places) if places.len() == 1 => *self = Self::One(places[0].0, places[0].1),
            Self::Few(places) if places.is_empty() => *self = Self::Empty,
            Self::Many(places) if places.len() <= VECTOR_MAX => {
                let mut few: Vec<_> = places.iter().map(|(&at, &count)| (at, count)).collect();
                few.sort_unstable();
                *self = Self::Few(few);
            }
            Self::Empty | Self::One(..) | Self::Few(_) | Self::Many(_) => {}
        }
    }

    /// Whether nothing is anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Calls back for every place with its count.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32, u32)) {
        match self {
            Self::Empty => {}
            Self::One(at, count) => visit(*at, *count),
            Self::Few(places) => places.iter().for_each(|&(at, count)| visit(at, count)),
            Self::Many(places) => places.iter().for_each(|(&at, &count)| visit(at, count)),
        }
    }

    /// The fewest and the most in one of `domains` domains, absent ones counting as none. What is
    /// in no domain does not count.
    pub(crate) fn range(&self, domains: usize) -> (u32, u32) {
        let (mut least, mut most, mut seen) = (u32::MAX, 0, 0);
        self.for_each(|domain, count| {
            if domain != NO_DOMAIN {
                least = least.min(count);
                most = most.max(count);
                seen += 1;
            }
        });
        if seen < domains { (0, most) } else { (least.min(most), most) }
    }
}

/// Where members of one workload or group live, on each level of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Presence {
    /// By node index.
    pub(crate) nodes: Posting,
    /// By rack number.
    pub(crate) racks: Posting,
    /// By zone number.
    pub(crate) zones: Posting,
}

impl Presence {
    /// One more member there.
    pub(crate) fn add(&mut self, index: u32, rack: u32, zone: u32) {
        self.nodes.add(index);
        self.racks.add(rack);
        self.zones.add(zone);
    }

    /// One member less there.
    pub(crate) fn remove(&mut self, index: u32, rack: u32, zone: u32) {
        self.nodes.remove(index);
        self.racks.remove(rack);
        self.zones.remove(zone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_counts_alike_and_shrinks_back() {
        let mut posting = Posting::default();
        for round in 0..2 {
            for place in 0..1000 {
                posting.add((place * 37) % 1000);
                assert_eq!(posting.count((place * 37) % 1000), round + 1);
            }
        }
        assert_eq!(posting.range(999), (2, 2), "place 0 is no domain");
        assert_eq!(posting.range(1000), (0, 2));
        for _ in 0..2 {
            (0..1000).for_each(|place| posting.remove(place));
        }
        assert_eq!(posting, Posting::Empty);
    }

    #[test]
    fn the_form_follows_the_content_not_the_history() {
        let mut long_way = Posting::default();
        (0..1000).for_each(|place| long_way.add(place));
        (2..1000).for_each(|place| long_way.remove(place));
        let mut short_way = Posting::default();
        (0..2).for_each(|place| short_way.add(place));
        assert_eq!(long_way, short_way);
    }
}
