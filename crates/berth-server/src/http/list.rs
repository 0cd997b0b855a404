//! Paged lists: their queries, limits and cursors.

use std::collections::BTreeMap;
use std::ops::Bound;

use berth_api::Page;

use crate::problem::{ApiError, ApiResult};

/// Maximum number of items in one page.
pub(crate) const MAX_LIMIT: usize = 1000;

/// Number of items in one page if the caller does not say.
const DEFAULT_LIMIT: usize = 100;

/// Defines the query of a list: its filters, then `limit` and `cursor`, which every list has.
///
/// A shared struct with `#[serde(flatten)]` would not do: serde cannot combine it with
/// `deny_unknown_fields`, and a misspelt filter must be refused rather than ignored.
macro_rules! list_query {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_attribute:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, serde::Deserialize, utoipa::IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        $visibility struct $name {
            $($(#[$field_attribute])* pub(crate) $field: $type,)*
            /// Maximum number of items to return.
            #[param(minimum = 1, maximum = 1000, default = 100)]
            pub(crate) limit: Option<usize>,
            /// Where to continue: the `next` of the previous page.
            pub(crate) cursor: Option<String>,
        }
    };
}
pub(crate) use list_query;

list_query! {
    /// The query of a list without filters.
    pub(crate) struct PageQuery {}
}

/// The number of items to return for a caller's `limit`.
pub(crate) fn page_limit(limit: Option<usize>) -> ApiResult<usize> {
    match limit {
        Some(limit) if !(1..=MAX_LIMIT).contains(&limit) => {
            Err(ApiError::field("limit", Some(limit.to_string()), "1 to 1000"))
        }
        limit => Ok(limit.unwrap_or(DEFAULT_LIMIT)),
    }
}

/// The error for a cursor that no page of this list ended with.
pub(crate) fn invalid_cursor(cursor: &str) -> ApiError {
    ApiError::field("cursor", Some(format!("{cursor:?}")), "the `next` of an earlier page")
}

/// The first page of ordered items, each given with its cursor.
pub(crate) fn first_page<T>(items: impl Iterator<Item = (String, T)>, limit: usize) -> Page<T> {
    let mut taken: Vec<(String, T)> = items.take(limit + 1).collect();
    let has_more = taken.len() > limit;
    taken.truncate(limit);
    let next = taken.last().filter(|_| has_more).map(|(cursor, _)| cursor.clone());
    Page { items: taken.into_iter().map(|(_, item)| item).collect(), next }
}

/// The queried page of items that are ordered by name, with the name as cursor.
pub(crate) fn page_by_name<T>(
    items: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> &str,
    query: &PageQuery,
) -> ApiResult<Page<T>> {
    let limit = page_limit(query.limit)?;
    let cursor = query.cursor.as_deref();
    let named = items.into_iter().map(|item| (name(&item).to_owned(), item));
    let rest = named.skip_while(|(name, _)| cursor.is_some_and(|cursor| name.as_str() <= cursor));
    Ok(first_page(rest, limit))
}

/// The queried page of a map, without the entries that `view` leaves out.
pub(crate) fn page_of_map<'a, V, T>(
    map: &'a BTreeMap<String, V>,
    query: &PageQuery,
    view: impl Fn(&'a V) -> Option<T>,
) -> ApiResult<Page<T>> {
    let limit = page_limit(query.limit)?;
    let from = query.cursor.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let rest = map.range::<str, _>((from, Bound::Unbounded));
    Ok(first_page(rest.filter_map(|(name, value)| Some((name.clone(), view(value)?))), limit))
}
