//! Queued requests, and unmet demand.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::place::{PlaceRequest, Placed};
use crate::problem::Problem;

/// The state of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TicketState {
    /// No room yet.
    Waiting,
    /// Claimed.
    Granted,
    /// Its deadline passed.
    Expired,
    /// Its tenant or an operator cancelled it.
    Cancelled,
    /// It can never be granted.
    Refused,
}

impl TicketState {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Waiting, Self::Granted, Self::Expired, Self::Cancelled, Self::Refused];

    /// Whether a request may go from this state to another, or stay in it. One that is closed stays as it
    /// was closed.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Waiting => true,
            Self::Granted => matches!(next, Self::Granted),
            Self::Expired => matches!(next, Self::Expired),
            Self::Cancelled => matches!(next, Self::Cancelled),
            Self::Refused => matches!(next, Self::Refused),
        }
    }
}

/// A queued request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ticket {
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: TicketState,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Its place in the queue, from 1; only while it waits. Further back than 1,000 it is only in
    /// lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Since when it waits.
    pub since: Timestamp,
    /// Until when it waits.
    pub deadline: Timestamp,
    /// Number of attempts.
    pub tries: u64,
    /// The request.
    pub request: PlaceRequest,
    /// The response, once granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<Placed>,
    /// Why there was no room when it was last tried, or why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Identical requests that found no room: a signal for autoscalers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Demand {
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// The refusal's code.
    pub code: String,
    /// The request.
    #[schema(value_type = Object)]
    pub request: serde_json::Value,
    /// How often.
    pub times: i64,
    /// When first.
    pub first_at: Timestamp,
    /// When last.
    pub last_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_closed_once() {
        for from in TicketState::ALL {
            for to in TicketState::ALL {
                let expected = from == TicketState::Waiting || from == to;
                assert_eq!(from.may_become(to), expected, "{from:?} {to:?}");
            }
        }
    }
}
