//! The meaning and the remedy of each problem code: the pages that a problem's `type` links to.

use askama::Template;
use berth_engine::filter::FILTERS;

use super::frame::Frame;
use berth_control::caller::Caller;

/// Codes that are no filter's: the code, what it means, what to do.
const CODES: &[(&str, &str, &str)] = &[
    ("already_placed", "The instance has a claim already.", "Release it first, or use a new id."),
    ("already_there", "The volume or instance is on that node already.", "Name another node."),
    ("ambiguous_policy", "Several stored policies have that name.", "Name the policy by its hash."),
    (
        "attachment_split",
        "The volumes of one attachment live on different nodes.",
        "Move the volumes to one node, or attach them apart.",
    ),
    (
        "body_too_large",
        "The body is larger than the server accepts.",
        "Send it in parts, or have an operator raise http.body_limit.",
    ),
    (
        "called_off",
        "The migration was cancelled or timed out: the instance stays on its source.",
        "Stop the instance on the target; it keeps running on the source.",
    ),
    (
        "contended",
        "Too many concurrent placements: others claimed the same room in every attempt.",
        "Send the request again with the same request id.",
    ),
    (
        "contention",
        "The database was busy with other transactions for too long.",
        "Send the request again with the same request id.",
    ),
    (
        "crash_loop",
        "Members of the workload keep exiting, so the next attempt is delayed.",
        "See why they exit: berth events --kind instance.released.",
    ),
    (
        "cross_site",
        "A page of another origin caused the browser to send this request.",
        "Send it from this server's own pages or from a program that is no browser.",
    ),
    (
        "cursor_too_old",
        "The log no longer contains the requested event.",
        "Read the current state, and continue from its cursor.",
    ),
    (
        "defect",
        "Internal error. It is not known whether the request was carried out.",
        "See the server log, and report the error.",
    ),
    (
        "deleting",
        "The workload is being removed; its members are released first.",
        "Wait until it is gone, then store it again.",
    ),
    (
        "foreign_host",
        "The server needs no sign-in, and the request names a host that is not its own address.",
        "Use localhost or a loopback address with the server's port, or send a token.",
    ),
    (
        "impossible",
        "The current state does not allow the change; see the detail.",
        "Resolve what the detail names, then try again.",
    ),
    (
        "instance_id_unavailable",
        "The instance id in the request cannot be used.",
        "Leave the id out to get a new one, or choose another.",
    ),
    (
        "invalid_request",
        "The request is invalid; the fields name what is wrong and what is accepted.",
        "Correct the fields that are named.",
    ),
    (
        "invalid_size",
        "The instance cannot have that size; the fields name what is wrong and what is accepted.",
        "Ask for a size within its bounds, in whole compute units.",
    ),
    ("last_admin", "It is the last token of an administrator.", "Make another admin token first."),
    (
        "lease_expired",
        "The claim's lease expired before it was bound.",
        "Place the instance again, with a longer lease_s or earlier renewals.",
    ),
    (
        "ledger_failed",
        "The ledger cannot be read or written: internal error or damaged database.",
        "See the server log; restore the database if it is damaged.",
    ),
    (
        "ledger_unreachable",
        "The database cannot be reached. Whether the change was made is not known.",
        "Send the request again with the same request id once the database is back.",
    ),
    (
        "malformed_plan",
        "The request names an instance twice, or asks for no memory.",
        "Correct the request.",
    ),
    (
        "method_not_allowed",
        "The path exists, but does not support the method.",
        "See the API's page for the methods of this path.",
    ),
    (
        "migrating",
        "The instance is being migrated, and cannot change until that ends.",
        "Wait for it, or cancel it: berth migrations cancel ID.",
    ),
    ("name_taken", "Something else has that name.", "Choose another name."),
    (
        "no_claim",
        "There is no such claim, or it is gone.",
        "Nothing to do: its resources are free.",
    ),
    (
        "no_earlier_revision",
        "The workload has no earlier revision to go back to.",
        "Store the template that should run.",
    ),
    ("no_policy", "No policy is active.", "Store and activate one."),
    (
        "no_policy_before",
        "There is no earlier policy to go back to.",
        "Activate a stored policy by its hash.",
    ),
    (
        "no_preemption",
        "No instances of lower priority that the caller may preempt would make room.",
        "Raise its priority, ask for less, or wait for room with mode wait.",
    ),
    (
        "no_room",
        "There is no capacity yet; the reasons were reported before.",
        "Wait, release instances, or add a node.",
    ),
    (
        "node_changed",
        "The node's facts or state changed since the plan was made.",
        "Send the request again: it is planned again.",
    ),
    (
        "node_lost",
        "A member with a volume is on a node that is lost.",
        "Bring the node back, or restore the volume elsewhere and release the instance.",
    ),
    (
        "node_not_active",
        "The node accepts no instances: it is cordoned, draining, lost or still joining.",
        "Choose an active node, or uncordon this one.",
    ),
    ("not_allowed", "The role of this token may not do this.", "Use a token of another role."),
    (
        "not_draining",
        "The node is not being drained.",
        "Start a drain with berth nodes drain NODE.",
    ),
    (
        "not_elastic",
        "The instance is not elastic: its size is fixed.",
        "Place it with elastic bounds: min and max.",
    ),
    (
        "not_found",
        "The resource does not exist, or this caller may not see it.",
        "Check the name and the tenant.",
    ),
    ("not_moving", "The volume is not being moved.", "Read its last move to see the outcome."),
    ("not_owner", "It belongs to another tenant.", "Use a token of its tenant."),
    (
        "not_ready",
        "The database does not answer, or a thread of the server stalled or ended.",
        "See the detail; requests in flight can be sent again with the same request id.",
    ),
    (
        "not_signed_in",
        "The request has no valid token.",
        "Send Authorization: Bearer TOKEN, or sign in.",
    ),
    (
        "not_syncing",
        "An agent reported a volume as synced while it may still be written to.",
        "Sync when the response to a heartbeat says so.",
    ),
    (
        "not_waiting",
        "The request no longer waits: it was granted, refused, cancelled, or it expired.",
        "Read the ticket to see the outcome.",
    ),
    (
        "out_of_order",
        "The migration is not as far as the report says, or this server does not know it yet.",
        "Do what the tasks of the node say, and report again.",
    ),
    (
        "overloaded",
        "More is under way than can be served in time, of all tenants together, or too much waits for the database. Nothing was done for this request.",
        "Send it again with the same request id when Retry-After has passed; an operator sees what is full in berth_queue_length.",
    ),
    (
        "place_left",
        "An earlier migration still holds a claim on another node.",
        "It is released when the agent confirms it, or when the node is lost; an operator may \
         release it: berth claims release ID --role migration_target --confirmed.",
    ),
    (
        "policy_changed",
        "Another policy was put in force since the plan was made.",
        "Send the request again: it is planned again.",
    ),
    (
        "pool_exhausted",
        "A pool of numbers has no free value.",
        "Release instances that hold its values, wait for quarantined values, or widen its range.",
    ),
    (
        "preemption_outdated",
        "The instances that were to be preempted would not make enough room any more. Nobody was released.",
        "Ask for a proposal again.",
    ),
    (
        "quarantined",
        "A stored workload or waiting request exceeds a limit of this version of Berth.",
        "Store the workload again within the limit, or remove it; send the request again.",
    ),
    (
        "queue_full",
        "Too many requests of this tenant are already queued.",
        "Cancel some, or wait until some are granted.",
    ),
    (
        "quota_exceeded",
        "The tenant would use more than its quota.",
        "Ask for less, release instances, or have an operator raise the quota.",
    ),
    (
        "rate_limited",
        "The tenant asks for more in a second than it may: instances, dry runs, queued requests, or \
         requests that are refused.",
        "Wait as long as Retry-After says, or have an operator raise the setting under limits.",
    ),
    (
        "request_id_reused",
        "The request id was used for something else.",
        "Send the first body again to get the first response, or use a new id.",
    ),
    (
        "rules_changed",
        "An instance with a hard rule was placed on the node since the plan was made.",
        "Send the request again: it is planned again.",
    ),
    (
        "secrets_changed",
        "The secrets of the environment were changed or removed since the plan was made.",
        "Send the request again: it is planned again.",
    ),
    ("slot_taken", "Another instance holds that slot of the workload.", "Choose another slot."),
    (
        "stale",
        "It changed since it was read.",
        "Read it again, and send the change with its new version.",
    ),
    (
        "stale_fence",
        "A later holder has the claim.",
        "Stop what runs under the old fence, and read the claim again.",
    ),
    (
        "stopping",
        "The server is stopping.",
        "Send the request again in a moment; another server may answer.",
    ),
    (
        "storage_full",
        "The database has no space left. Nothing was written.",
        "Free space; the server then continues without a restart.",
    ),
    (
        "tenant_busy",
        "This tenant has more requests under way than its share, too many explanations are being derived, or every place that was found was gone when it was to be claimed.",
        "Send the request again with the same request id after a moment, and fewer at a time.",
    ),
    (
        "tenant_removing",
        "The tenant is being removed: nothing is granted to it or made for it.",
        "Wait until the tenant is no longer found, or use another name.",
    ),
    (
        "timeout",
        "The request took longer than the server allows. Its outcome is unknown: it may still complete.",
        "Send it again with the same request id.",
    ),
    (
        "too_few_running",
        "Stopping this member would leave fewer members of the workload running than must run.",
        "Wait until others run, then send the request again.",
    ),
    (
        "too_late",
        "It is on the other node already: a volume whose home is being switched, or an instance.",
        "Wait for it, and move it back if necessary.",
    ),
    (
        "too_many_rules",
        "The placed instances of the tenant would have more different hard != rules than every further request can be matched with.",
        "Select others by a workload or a tag that they share instead of one rule for each, or release instances.",
    ),
    (
        "total_queue_full",
        "Too many requests of all tenants together are already queued.",
        "Retry later, or have an operator raise queue.total.",
    ),
    ("unknown_attachment", "There is no such attachment.", "Define it first, or leave it out."),
    ("unknown_group", "There is no such group.", "Define it first, or leave it out."),
    ("unknown_node", "There is no such node.", "Register it first."),
    ("unknown_pool", "There is no such pool.", "Define it first, or leave it out."),
    ("unknown_volume", "There is no such volume.", "Define it first, or leave it out."),
    (
        "unsupported_media_type",
        "The media type of the body is not supported.",
        "Send application/json.",
    ),
    (
        "victim_changed",
        "An instance that was to make room is gone, was placed again, is moving or is leaving. Nobody was released.",
        "Ask for a proposal again.",
    ),
    (
        "volume_homes_differ",
        "The volumes of a workload are on different nodes, and a member must run on the node of all of them.",
        "Move one of them with berth volumes move.",
    ),
    (
        "volume_moving",
        "The volume is being moved to another node.",
        "Wait for it, or cancel the move: berth volumes move VOLUME --cancel.",
    ),
    (
        "volume_needs_move",
        "The instance uses a volume on the node that is being drained.",
        "Move the volume: berth volumes move VOLUME --to NODE.",
    ),
    (
        "volume_single_writer",
        "A workload with a volume can have one replica: one instance at a time may write.",
        "Ask for one replica, or take the volumes out of the template.",
    ),
    (
        "workload_changed",
        "The workload was changed or removed since the plan was made.",
        "Send the request again: it is planned again.",
    ),
    (
        "wrong_state",
        "The claim is not in the state that the step requires.",
        "Read the claim, and take a step that its state allows.",
    ),
];

/// What a code means.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CodeMeaning {
    meaning: String,
    remedy: String,
    /// The filter that gives it, if one does.
    filter: Option<&'static str>,
    waiting: Option<bool>,
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn meaning(code: &str) -> Option<CodeMeaning> {
    if let Some(filter) = FILTERS.iter().find(|filter| filter.code == code) {
        let meaning = format!(
            "No node can take the instance: the last nodes that were left were removed by the \
             filter {}. The refusal says for each filter how many nodes it removed, and which node \
             came closest.",
            filter.name
        );
        let remedy = format!("{}.", capital(filter.remedy));
        return Some(CodeMeaning {
            meaning,
            remedy,
            filter: Some(filter.name),
            waiting: Some(filter.transient),
        });
    }
    let (_, meaning, remedy) = CODES.iter().find(|(known, _, _)| *known == code)?;
    let (meaning, remedy) = ((*meaning).to_owned(), (*remedy).to_owned());
    Some(CodeMeaning { meaning, remedy, filter: None, waiting: None })
}

/// The page of one code.
#[derive(Template)]
#[template(path = "problem.html")]
pub(crate) struct ProblemPage {
    frame: Frame,
    code: String,
    about: CodeMeaning,
    others: Vec<&'static str>,
}

impl ProblemPage {
    /// The page of a code; absent when there is no such code.
    pub(crate) fn of(code: &str, caller: Option<&Caller>) -> Option<Self> {
        let about = meaning(code)?;
        let filters = FILTERS.iter().map(|filter| filter.code);
        let mut others: Vec<&str> = CODES.iter().map(|(code, _, _)| *code).chain(filters).collect();
        others.sort_unstable();
        others.dedup();
        Some(Self { frame: Frame::new(code, caller), code: code.to_owned(), about, others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn is_code(text: &str) -> bool {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
    }

    /// The first text in quotes of a call, if it is its code: a status or nothing stands before it.
    fn quoted(rest: &str) -> Option<&str> {
        let call = rest.split(';').next().unwrap_or("");
        let (before, rest) = call.split_once('"')?;
        let text = rest.split('"').next()?;
        let is_argument = before.trim().is_empty() || before.contains("tatus");
        (is_argument && is_code(text)).then_some(text)
    }

    #[test]
    fn every_code_that_is_used_has_a_meaning() {
        let mut texts = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut texts);
        let calls = ["ApiError::new(", "Self::new(", "conflict(", "unavailable("];
        let mut codes = BTreeSet::new();
        for text in &texts {
            for call in calls {
                let used = text.split(call).skip(1);
                // Others than errors are made with `new` too, and have no status.
                let used = used.filter(|rest| !call.contains("new") || !rest.starts_with('"'));
                codes.extend(used.filter_map(quoted).map(str::to_owned));
            }
        }
        let answers = include_str!("../../../berth-ledger/src/model/answer.rs");
        for body in answers.split("fn code(").skip(1) {
            let body = body.split("\n    }").next().unwrap_or("");
            codes.extend(body.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        assert!(codes.len() > 30, "{codes:?}");
        let unknown: Vec<&String> = codes.iter().filter(|code| meaning(code).is_none()).collect();
        assert!(unknown.is_empty(), "add to the table: {unknown:?}");
    }

    #[test]
    fn codes_are_listed_once_and_in_order() {
        assert!(CODES.iter().map(|(code, _, _)| code).is_sorted_by(|a, b| a < b));
        let is_filters = |code: &str| FILTERS.iter().any(|filter| filter.code == code);
        assert!(CODES.iter().all(|(code, _, _)| is_code(code) && !is_filters(code)));
    }
}
