//! A command that failed, as a person and as a script read it: a line, hints, and an exit code.

use std::fmt::Write as _;

use berth_api::Problem;
use berth_api::engine::filter::FILTERS;
use berth_client::{ClientError, ConnectionError};

use super::output::{Output, style};
use super::printable::printable;
use super::suggest::closest;
use super::text::plural;

/// Exit codes of all commands; `berth --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Any other failure.
    Failed = 1,
    /// Invalid arguments, or a value that is not accepted.
    Usage = 2,
    /// No node has room, or a limit is reached.
    Refused = 3,
    NotFound = 4,
    /// Not authenticated, or not allowed.
    Denied = 5,
    /// The current state does not allow it, or it changed in the meantime.
    Conflict = 6,
    /// The server cannot be reached, or is unavailable.
    Unreachable = 7,
}

/// The table of exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failure
  2  invalid usage, or a value that is not accepted
  3  refused: no room, or a limit is reached
  4  not found
  5  not authenticated, or not allowed
  6  conflict: the current state does not allow it, or it changed in the meantime
  7  the server cannot be reached, or is unavailable";

/// The label of hints that are also printed below a drawing.
const NOTE: &str = "note";

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code of the process.
    pub(crate) exit: Exit,
    /// One line.
    message: String,
    /// Hints: a label and a text each.
    hints: Vec<(&'static str, String)>,
    /// The server's problem document, for scripts.
    problem: Option<Box<Problem>>,
    /// The refusal drawn for people, printed instead of the line.
    drawing: Option<String>,
}

/// The result of a command, or of a part of it.
pub(crate) type CmdResult<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with its line.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit, message, hints: Vec::new(), problem: None, drawing: None }
    }

    /// Invalid arguments.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Adds what to do about it.
    pub(crate) fn remedy(mut self, text: impl Into<String>) -> Self {
        self.hints.push(("remedy", text.into()));
        self
    }

    /// Adds what would be accepted.
    pub(crate) fn accepted(mut self, text: impl Into<String>) -> Self {
        self.hints.push(("accepted", text.into()));
        self
    }

    /// Adds the existing name that is closest to the given one, or else how to list them.
    pub(crate) fn did_you_mean<'a>(
        self,
        name: &str,
        existing: impl Iterator<Item = &'a str>,
        otherwise: &str,
    ) -> Self {
        match closest(name, existing) {
            Some(near) => self.remedy(format!("did you mean {near}?")),
            None => self.remedy(otherwise),
        }
    }

    /// Prefixes the line with where it went wrong.
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Prints a drawing instead of the line.
    pub(crate) fn with_drawing(mut self, drawing: String) -> Self {
        self.drawing = Some(drawing);
        self
    }

    /// Adds lines below the failure, also below a drawing.
    pub(crate) fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.hints.extend(notes.into_iter().map(|note| (NOTE, note)));
        self
    }

    /// What became of `total` attempts. The failure of the only attempt is returned as it is, like a
    /// lone failure without a name; otherwise each is printed, and the returned one counts them.
    pub(crate) fn of_many(
        mut failures: Vec<(String, Self)>,
        total: usize,
        noun: &str,
        outcome: &str,
    ) -> CmdResult {
        let exit = match &failures[..] {
            [] => return Ok(()),
            [(name, _)] if total == 1 || name.is_empty() => return Err(failures.swap_remove(0).1),
            // That there is no room says more than any other failure.
            [(_, first), ..] => {
                let is_refused = |(_, failure): &(String, Self)| failure.exit == Exit::Refused;
                if failures.iter().any(is_refused) { Exit::Refused } else { first.exit }
            }
        };
        for (name, failure) in &failures {
            let separator = if name.is_empty() { "" } else { ": " };
            let text = format!("{name}{separator}{}", failure.text());
            anstream::eprintln!("{}", printable(&text));
        }
        Err(Self::new(exit, format!("{} of {} {outcome}", failures.len(), plural(total, noun))))
    }

    /// The server's problem document.
    pub(crate) fn problem(&self) -> Option<&Problem> {
        self.problem.as_deref()
    }

    /// Whether the resource does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.exit == Exit::NotFound
    }

    /// A problem document as a failure.
    pub(crate) fn from_problem(problem: Problem) -> Self {
        let exit = exit_of(&problem);
        let mut message = problem.detail.clone();
        // Scripts and people search for the code of a refusal, whatever refused.
        if exit == Exit::Refused && !message.contains(&problem.code) {
            let _ = write!(message, " ({})", problem.code);
        }
        let mut failure = Self::new(exit, message);
        for field in &problem.fields {
            if !problem.detail.contains(&field.accepted) {
                failure = failure.accepted(format!("{}: {}", field.field, field.accepted));
            }
        }
        // The server's remedy for 401 is about HTTP headers; a user of this program needs flags.
        match (problem.status, &problem.remedy) {
            (401, _) => {
                let text = "give a token with --token, --token-file or BERTH_TOKEN; on the server's \
                            machine, create one with: berth tokens create --database-url";
                failure = failure.remedy(text);
            }
            (_, Some(remedy)) => failure = failure.remedy(remedy.clone()),
            (403, None) => {
                failure = failure.remedy("use a token with another role; berth whoami shows yours");
            }
            (_, None) => {}
        }
        failure.problem = Some(Box::new(problem));
        failure
    }

    /// The text for people, on standard error.
    pub(crate) fn text(&self) -> String {
        let mut text = match &self.drawing {
            Some(drawing) => drawing.clone(),
            None => format!("{}error:{} {}", style::BAD, style::BAD.render_reset(), self.message),
        };
        let is_drawn = self.drawing.is_some();
        for (label, hint) in self.hints.iter().filter(|(label, _)| !is_drawn || *label == NOTE) {
            let _ = write!(text, "\n  {}{label}:{} {hint}", style::DIM, style::DIM.render_reset());
        }
        text
    }

    /// Prints it for people to standard error, and for scripts to standard output.
    pub(crate) fn report(&self, out: &Output) {
        if let Some(problem) = &self.problem
            && out.is_data()
        {
            // If this fails, the line below still says what happened.
            let _ = out.data(problem);
        }
        anstream::eprintln!("{}", printable(&self.text()));
    }
}

/// The line and the hints, for logs.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        self.hints.iter().try_for_each(|(label, hint)| write!(f, "; {label}: {hint}"))
    }
}

impl std::error::Error for Failure {}

/// Whether it says that nothing was placed, for want of a node or because of a limit.
fn is_refusal(problem: &Problem) -> bool {
    let code = problem.code.as_str();
    !problem.refusals.is_empty()
        || FILTERS.iter().any(|filter| filter.code == code)
        || !problem.fixes.is_empty()
        || matches!(code, "no_room" | "quota_exceeded" | "pool_exhausted" | "unknown_pool")
}

fn exit_of(problem: &Problem) -> Exit {
    match problem.status {
        _ if is_refusal(problem) => Exit::Refused,
        401 | 403 => Exit::Denied,
        404 => Exit::NotFound,
        _ if problem.code == "request_id_reused" => Exit::Conflict,
        409 | 410 | 412 | 428 => Exit::Conflict,
        400 | 405 | 413 | 415 | 422 => Exit::Usage,
        502..=504 => Exit::Unreachable,
        _ => Exit::Failed,
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::from(&error)
    }
}

impl From<&ClientError> for Failure {
    fn from(error: &ClientError) -> Self {
        let exit = match error {
            ClientError::Url { .. } | ClientError::Token | ClientError::Certificate(_) => {
                Exit::Usage
            }
            ClientError::Unreachable { .. } | ClientError::Transport(_) => Exit::Unreachable,
            ClientError::Status { status: 401 | 403, .. } => Exit::Denied,
            ClientError::Status { status: 502..=504, .. } => Exit::Unreachable,
            ClientError::Problem { .. }
            | ClientError::Status { .. }
            | ClientError::Setup(_)
            | ClientError::Unreadable(_) => Exit::Failed,
        };
        let failure = Self::new(exit, chain(error));
        match error {
            ClientError::Problem { problem, .. } => Self::from_problem((**problem).clone()),
            ClientError::Unreachable { url, cause, .. } => {
                failure.remedy(connection_remedy(cause, url))
            }
            ClientError::Url { .. } => failure.accepted("one such as http://127.0.0.1:7070"),
            ClientError::Status { .. } => {
                failure.remedy("check that the URL is that of a Berth server, not of a proxy")
            }
            _ => failure,
        }
    }
}

/// What to do about a server that was not reached.
fn connection_remedy(cause: &ConnectionError, url: &str) -> String {
    let with_scheme = |scheme: &str| {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        format!("use {scheme}://{rest}")
    };
    let text = match cause {
        ConnectionError::Refused => {
            "start a server with: berth up; or name another with --url or BERTH_URL"
        }
        ConnectionError::UnknownHost(_) => "check the host in the URL, and this machine's DNS",
        ConnectionError::NoRoute(_) => "check the network between this machine and the server",
        ConnectionError::ConnectTimeout(_) => {
            "check host and port, and whether a firewall is in between"
        }
        ConnectionError::ResponseTimeout(_) => {
            "look at the server's log; berth status says whether it is ready"
        }
        ConnectionError::UnknownAuthority | ConnectionError::BadCertificate(_) => {
            "trust its authority with --ca-cert FILE or BERTH_CA_CERT; a server with --tls self has \
             it in tls/ca.pem of its data directory"
        }
        ConnectionError::Expired => {
            "renew the certificate on the server, and compare the clocks of both machines"
        }
        ConnectionError::NotYetValid => "compare the clocks of both machines",
        ConnectionError::WrongName(_) => {
            "use a name that the certificate has, or add this one on the server with --tls-host"
        }
        ConnectionError::ClientCertificate(_) => {
            "an agent gives its certificate with --client-cert and --client-key"
        }
        ConnectionError::NotTls => return with_scheme("http"),
        ConnectionError::NotHttp => return with_scheme("https"),
        ConnectionError::Closed => "try again; if the port is one for TLS, use https:// in the URL",
        _ => "check the URL and the network between this machine and the server",
    };
    text.to_owned()
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            let _ = write!(text, ": {next}");
        }
        cause = error.source();
    }
    text
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failed, format!("{error:#}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        let line = format!("cannot decode the server's response: {error}");
        Self::new(Exit::Failed, line).remedy("use the version of berth that the server runs")
    }
}

impl From<berth_api::units::UnitError> for Failure {
    fn from(error: berth_api::units::UnitError) -> Self {
        Self::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, code: &str) -> Problem {
        let (kind, title) = (format!("/problems/{code}"), String::new());
        let (code, detail) = (code.to_owned(), "memory is 0".to_owned());
        let (fields, refusals, fixes) = (Vec::new(), Vec::new(), Vec::new());
        let (remedy, explanation, retry, trace) = (None, None, None, None);
        Problem {
            kind,
            title,
            status,
            code,
            detail,
            remedy,
            fields,
            refusals,
            hints: Vec::new(),
            fixes,
            explanation,
            retry,
            trace,
        }
    }

    #[test]
    fn each_kind_of_problem_has_its_exit_code() {
        let cases = [
            (400, "invalid_request", Exit::Usage),
            (401, "unauthorized", Exit::Denied),
            (403, "forbidden", Exit::Denied),
            (404, "not_found", Exit::NotFound),
            (409, "stale_fence", Exit::Conflict),
            (409, "no_capacity_memory", Exit::Refused),
            (409, "no_capacity_class", Exit::Refused),
            (409, "group_no_node", Exit::Refused),
            (409, "no_room", Exit::Refused),
            (409, "quota_exceeded", Exit::Refused),
            (409, "pool_exhausted", Exit::Refused),
            (409, "ipam_exhausted", Exit::Refused),
            (409, "volume_in_use", Exit::Refused),
            (409, "unknown_pool", Exit::Refused),
            (409, "unknown_group", Exit::Conflict),
            (412, "stale", Exit::Conflict),
            (422, "request_id_reused", Exit::Conflict),
            (500, "ledger_failed", Exit::Failed),
            (503, "ledger_unreachable", Exit::Unreachable),
        ];
        for (status, code, exit) in cases {
            assert_eq!(Failure::from_problem(problem(status, code)).exit, exit, "{code}");
        }
    }

    #[test]
    fn a_failure_says_what_would_help_below_its_line() {
        let failure = Failure::usage("count is 0").accepted("1 to 1000").remedy("ask for one");
        let text = anstream::adapter::strip_str(&failure.text()).to_string();
        assert_eq!(text, "error: count is 0\n  accepted: 1 to 1000\n  remedy: ask for one");
    }
}
