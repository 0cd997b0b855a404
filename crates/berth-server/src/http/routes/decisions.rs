//! `/v1/decisions`: the record of every choice, and its replay.

use std::sync::Arc;

use berth_api::{Decision, DecisionExplanation, DecisionOutcome, Page, PlacedAt, Replay};
use berth_engine::{Fix, InstanceId, Refusal};
use berth_ledger::DecisionRecord;
use serde::Deserialize;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::{Path, Query, RequestContext};
use crate::http::list::{MAX_LIMIT, invalid_cursor, list_query, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::instance_spec::{read_stored_request, shown_request};
use berth_control::placement::{Audience, decision_id};
use berth_control::{ControlPlane, ExplanationRange, clock::moment, explanations};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(explain))
        .routes(routes!(replay))
}

/// Decisions read at once.
const STEP: usize = 500;

/// Maximum number of decisions read for one page, however few of them match.
const MAX_SCANNED: usize = 20_000;

list_query! {
    /// The query of `GET /v1/decisions`.
    pub(crate) struct ListDecisionsQuery {
        /// Of this tenant.
        #[serde(alias = "owner")]
        tenant: Option<String>,
        /// With this outcome.
        outcome: Option<DecisionOutcome>,
        /// With this reason code; only refusals have one.
        code: Option<String>,
    }
}

impl ListDecisionsQuery {
    fn matches(&self, record: &DecisionRecord) -> bool {
        let (outcome, code) = match &record.outcome {
            berth_ledger::DecisionOutcome::Granted(_) => (DecisionOutcome::Granted, None),
            berth_ledger::DecisionOutcome::Refused { code, .. } => {
                (DecisionOutcome::Refused, Some(code))
            }
        };
        self.tenant.as_deref().is_none_or(|tenant| tenant == &*record.tenant)
            && self.outcome.is_none_or(|wanted| wanted == outcome)
            && self.code.as_ref().is_none_or(|wanted| Some(wanted) == code)
    }
}

/// Where a list continues: the time and the id of the last decision that was read.
fn cursor(decision: &berth_ledger::Decision) -> String {
    format!("{}.{}", decision.at.0, decision_id(&decision.id))
}

fn read_cursor(text: &str) -> ApiResult<(i64, String)> {
    let read = || {
        let (at, id) = text.split_once('.')?;
        Some((at.parse().ok()?, stored_id(id)?))
    };
    read().ok_or_else(|| invalid_cursor(text))
}

/// A decision's id as the ledger writes it.
fn stored_id(id: &str) -> Option<String> {
    let whole = id.split('.').count() == 3 && !id.contains('/');
    whole.then(|| id.replace('.', "/"))
}

/// What is stored with a refusal: why no node could take it, or which limit refused it.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredDetail {
    Refusals(Vec<Refusal>),
    Limit {
        reason: String,
        #[serde(default)]
        fixes: Vec<Fix>,
    },
}

/// A decision as a caller may see it.
pub(super) fn view(decision: &berth_ledger::Decision, audience: &Audience) -> Decision {
    let record = &decision.record;
    let (mut placed, mut code, mut reason) = (Vec::new(), None, None);
    let (mut refusals, mut fixes) = (Vec::new(), Vec::new());
    let outcome = match &record.outcome {
        berth_ledger::DecisionOutcome::Granted(at) => {
            placed.extend(at.iter().map(|at| PlacedAt {
                instance: at.instance,
                name: audience.name_of(at.instance),
                node: audience.sees_nodes().then(|| at.node.clone()),
                score: at.score,
            }));
            DecisionOutcome::Granted
        }
        berth_ledger::DecisionOutcome::Refused { code: why, detail } => {
            code = Some(why.clone());
            // One that cannot be read is shown by its code alone.
            let json = detail.as_ref().and_then(|detail| detail.json());
            match json.and_then(|json| serde_json::from_str(&json).ok()) {
                Some(StoredDetail::Refusals(stored)) => refusals = audience.refusals(stored),
                Some(StoredDetail::Limit { reason: limit, fixes: tried }) => {
                    reason = Some(limit);
                    fixes = audience.fixes(tried);
                }
                None => {}
            }
            DecisionOutcome::Refused
        }
    };
    Decision {
        id: decision_id(&decision.id),
        at: moment(decision.at),
        request_id: record.request_id.to_string(),
        tenant: record.tenant.to_string(),
        outcome,
        asked: u32::try_from(record.asked().count()).unwrap_or(u32::MAX),
        policy: record.basis.policy.clone(),
        fleet_version: record.basis.fleet_version,
        placed,
        preempted: audience.preempted(&record.preempted),
        code,
        reason,
        fixes,
        refusals,
        requests: Vec::new(),
    }
}

/// The page of decisions that match a query and that the caller may see, newest first.
pub(crate) async fn list_decisions(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    query: ListDecisionsQuery,
) -> ApiResult<Page<Decision>> {
    let limit = page_limit(query.limit)?;
    let mut before = query.cursor.as_deref().map(read_cursor).transpose()?;
    let (mut items, mut scanned) = (Vec::new(), 0);
    loop {
        let from = before.clone();
        // A query that matches every decision needs to read no more than one page.
        let step = STEP.min((limit + 1 - items.len()).max(64));
        let page = control.read(move |ledger| ledger.decisions(from, step)).await?;
        scanned += page.len();
        let Some(last) = page.last() else { return Ok(Page { items, next: None }) };
        let mut next = cursor(last);
        before = Some((last.at.0, last.id.clone()));
        let is_end = page.len() < step;
        for (place, decision) in page.iter().enumerate() {
            let record = &decision.record;
            if !caller.sees(&record.tenant) || !query.matches(record) {
                continue;
            }
            if items.len() == limit {
                return Ok(Page { items, next: Some(next) });
            }
            items.push(view(decision, &Audience::of(control, caller, &record.tenant)));
            if items.len() == limit {
                next = cursor(decision);
                if is_end && place + 1 == page.len() {
                    return Ok(Page { items, next: None });
                }
            }
        }
        if is_end {
            return Ok(Page { items, next: None });
        }
        if items.len() == limit || scanned >= MAX_SCANNED {
            return Ok(Page { items, next: Some(next) });
        }
    }
}

/// List decisions
///
/// Newest first. A page may be short or empty although there are more: continue while there is a
/// `next`.
#[utoipa::path(get, path = "/v1/decisions", tag = "decisions", params(ListDecisionsQuery),
    responses((status = 200, description = "Decisions.", body = Page<Decision>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListDecisionsQuery>,
) -> ApiResult<axum::Json<Page<Decision>>> {
    list_decisions(&control, &caller, query).await.map(axum::Json)
}

/// A decision as stored, if the caller may see it.
async fn stored(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    id: &str,
) -> ApiResult<berth_ledger::Decision> {
    let hidden = || ApiError::not_found("decision", id);
    let key = stored_id(id).ok_or_else(hidden)?;
    let found = control.read(move |ledger| ledger.decision(&key)).await?;
    found.filter(|decision| caller.sees(&decision.record.tenant)).ok_or_else(hidden)
}

/// One decision with its requests, as a caller may see it.
async fn get_decision(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    id: &str,
) -> ApiResult<Decision> {
    let decision = stored(control, caller, id).await?;
    let mut seen = view(&decision, &Audience::of(control, caller, &decision.record.tenant));
    for (instance, spec) in decision.record.asked() {
        let mut request = read_stored_request(spec.as_str());
        if let Some(request) = request.as_object_mut() {
            request.insert("id".to_owned(), Value::from(instance.to_string()));
        }
        seen.requests.push(shown_request(request));
    }
    Ok(seen)
}

/// Read a decision
#[utoipa::path(get, path = "/v1/decisions/{id}", tag = "decisions",
    params(("id" = String, Path, description = "The decision.")),
    responses((status = 200, description = "The decision, with what was asked for.", body = Decision)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Decision>> {
    get_decision(&control, &caller, &id).await.map(axum::Json)
}

/// Replay a decision
///
/// The fleet is rebuilt from the log as the deciding server knew it, and the same request is given to
/// the same engine under the same policy. This reads the log from its first event, so it takes longer
/// the longer the log is; one replay runs at a time.
#[utoipa::path(get, path = "/v1/decisions/{id}/replay", tag = "decisions",
    params(("id" = String, Path, description = "The decision.")),
    responses((status = 200, description = "Whether the result is the same.", body = Replay)))]
async fn replay(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Replay>> {
    let decision = stored(&control, &caller, &id).await?;
    Ok(axum::Json(explanations::replay_decision(&control, &caller, decision).await?))
}

/// Which instance is explained, and on which nodes.
#[derive(Clone, Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExplainQuery {
    /// The instance; the first when absent.
    #[param(value_type = Option<uuid::Uuid>)]
    instance: Option<InstanceId>,
    /// Maximum number of nodes to return; of a decision, none when absent.
    #[param(minimum = 0, maximum = 1000)]
    limit: Option<usize>,
    /// Where to continue: the `next` of the previous page.
    cursor: Option<String>,
}

impl ExplainQuery {
    /// The query of one instance.
    pub(super) fn of_instance(
        instance: InstanceId,
        limit: Option<usize>,
        cursor: Option<String>,
    ) -> Self {
        Self { instance: Some(instance), limit, cursor }
    }

    /// The range that is asked for, with this many nodes unless it says otherwise.
    pub(crate) fn range(&self, default_limit: usize) -> ApiResult<ExplanationRange> {
        let limit = self.limit.unwrap_or(default_limit);
        if limit > MAX_LIMIT {
            return Err(ApiError::field("limit", Some(limit.to_string()), "0 to 1000"));
        }
        let position = |cursor: &str| cursor.parse().map_err(|_| invalid_cursor(cursor));
        let from = self.cursor.as_deref().map(position).transpose()?.unwrap_or(0);
        Ok(ExplanationRange { instance: self.instance, from, limit })
    }
}

/// Explain a decision
///
/// Winner and runner-up with every term, how many nodes each filter removed, and on request every
/// node with every filter that it failed. All of it is derived again: the fleet is rebuilt from the
/// log as the deciding server knew it. When the log no longer reaches back that far, the answer says
/// so. One explanation of a decision is derived at a time.
#[utoipa::path(get, path = "/v1/decisions/{id}/explain", tag = "decisions",
    params(("id" = String, Path, description = "The decision."), ExplainQuery),
    responses((status = 200, description = "Why it came out as it did.", body = DecisionExplanation)))]
async fn explain(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
    Query(query): Query<ExplainQuery>,
) -> ApiResult<axum::Json<DecisionExplanation>> {
    let range = query.range(0)?;
    explain_stored(&control, &caller, &id, range).await.map(axum::Json)
}

/// Why a decision came out as it did, as a caller may see it.
async fn explain_stored(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    id: &str,
    range: ExplanationRange,
) -> ApiResult<DecisionExplanation> {
    let decision = stored(control, caller, id).await?;
    let asked: Vec<InstanceId> = decision.record.asked().map(|(id, _)| id).collect();
    if let Some(other) = range.instance.filter(|instance| !asked.contains(instance)) {
        let value = Some(other.to_string());
        return Err(ApiError::field("instance", value, "an instance of the decision"));
    }
    Ok(explanations::explain_decision(control, caller, decision, range).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_cursors_are_read_as_they_are_written() {
        assert_eq!(stored_id("00ff.12.3").as_deref(), Some("00ff/12/3"));
        assert_eq!(stored_id("00ff/12.3.4"), None);
        assert_eq!(stored_id("00ff.12"), None);
        let read = read_cursor("1700.00ff.12.3").unwrap();
        assert_eq!(read, (1700, "00ff/12/3".to_owned()));
        assert!(read_cursor("nonsense").is_err());
    }
}
