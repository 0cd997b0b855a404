//! Lists in parts.

use std::collections::BTreeMap;
use std::ops::Bound;

use berth_api::Page;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::problem::{Answer, ApiError};

/// Most items in one part.
pub(crate) const MOST: usize = 1000;

/// Items in one part unless asked otherwise.
const USUAL: usize = 100;

/// Which part of a list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<usize>,
    /// Where the last part ended: its `next`.
    pub cursor: Option<String>,
}

/// How many items a caller asks for.
pub(crate) fn limit(asked: Option<usize>) -> Answer<usize> {
    match asked {
        Some(limit) if !(1..=MOST).contains(&limit) => {
            Err(ApiError::field("limit", Some(limit.to_string()), "1 to 1000"))
        }
        asked => Ok(asked.unwrap_or(USUAL)),
    }
}

/// One part of items that come in order, each with the cursor that names it.
pub(crate) fn part<T>(items: impl Iterator<Item = (String, T)>, limit: usize) -> Page<T> {
    let mut taken: Vec<(String, T)> = items.take(limit + 1).collect();
    let more = taken.len() > limit;
    taken.truncate(limit);
    let next = taken.last().filter(|_| more).map(|(cursor, _)| cursor.clone());
    Page { items: taken.into_iter().map(|(_, item)| item).collect(), next }
}

/// What follows a cursor, of items that come in order of the names that are their cursors.
pub(crate) fn after<T>(
    items: impl Iterator<Item = (String, T)>,
    cursor: Option<String>,
) -> impl Iterator<Item = (String, T)> {
    items.skip_while(move |(name, _)| cursor.as_ref().is_some_and(|cursor| name <= cursor))
}

/// One part of a map, of what `view` shows of it.
pub(crate) fn part_of<'a, V, T>(
    map: &'a BTreeMap<String, V>,
    asked: &Part,
    view: impl Fn(&'a V) -> Option<T>,
) -> Answer<Page<T>> {
    let most = limit(asked.limit)?;
    let from = asked.cursor.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let rest = map.range::<str, _>((from, Bound::Unbounded));
    Ok(part(rest.filter_map(|(name, value)| Some((name.clone(), view(value)?))), most))
}
