//! What went wrong, as a person and as a script read it: a line, what helps, and an exit code.

use std::fmt::Write as _;

use berth_api::Problem;
use berth_client::ClientError;

use super::output::{Output, style};

/// Exit codes of all commands; `berth --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Something else.
    Failed = 1,
    /// The arguments, or what was sent, mean nothing.
    Usage = 2,
    /// No node has room, or a limit is reached.
    Refused = 3,
    /// There is no such thing.
    NotFound = 4,
    /// Not signed in, or not allowed.
    Denied = 5,
    /// The present state forbids it, or it changed meanwhile.
    Conflict = 6,
    /// No server answers, or it cannot answer now.
    Unreachable = 7,
}

/// The table of exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  wrong usage, or a value that is not accepted
  3  refused: no room, or a limit is reached
  4  not found
  5  not signed in, or not allowed
  6  conflict: the present state forbids it, or it changed meanwhile
  7  no server answers, or it cannot answer now";

/// A command that did not do what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    /// How the process ends.
    pub(crate) exit: Exit,
    /// One line.
    message: String,
    /// What would help: a label and a text each.
    help: Vec<(&'static str, String)>,
    /// What the server said, for scripts.
    problem: Option<Box<Problem>>,
    /// A picture instead of the line.
    picture: Option<String>,
}

/// How a command ends.
pub(crate) type Done<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with its line.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit, message, help: Vec::new(), problem: None, picture: None }
    }

    /// Arguments that mean nothing.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The same with something that would help.
    pub(crate) fn remedy(mut self, text: impl Into<String>) -> Self {
        self.help.push(("remedy", text.into()));
        self
    }

    /// The same with what would be accepted.
    pub(crate) fn accepted(mut self, text: impl Into<String>) -> Self {
        self.help.push(("accepted", text.into()));
        self
    }

    /// The same with where it went wrong before its line.
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The same shown as a picture.
    pub(crate) fn picture(mut self, picture: String) -> Self {
        self.picture = Some(picture);
        self
    }

    /// What the server said, if it did.
    pub(crate) fn problem(&self) -> Option<&Problem> {
        self.problem.as_deref()
    }

    /// Whether there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        self.exit == Exit::NotFound
    }

    /// What the server said, as a failure.
    pub(crate) fn from_problem(problem: Problem) -> Self {
        let mut failure = Self::new(exit_of(&problem), problem.detail.clone());
        for field in &problem.fields {
            if !problem.detail.contains(&field.accepted) {
                failure = failure.accepted(format!("{}: {}", field.field, field.accepted));
            }
        }
        // What a server advises is about HTTP; who is not signed in here needs flags.
        match (problem.status, &problem.remedy) {
            (401, _) => {
                let text = "give a token by --token, --token-file or BERTH_TOKEN; on the server's \
                            machine, berth token create --database-url makes one";
                failure = failure.remedy(text);
            }
            (_, Some(remedy)) => failure = failure.remedy(remedy.clone()),
            (403, None) => {
                failure = failure.remedy("use a token of another role; berth whoami tells yours");
            }
            (_, None) => {}
        }
        failure.problem = Some(Box::new(problem));
        failure
    }

    /// The text for people, on standard error.
    pub(crate) fn text(&self) -> String {
        if let Some(picture) = &self.picture {
            return picture.clone();
        }
        let mut text =
            format!("{}error:{} {}", style::BAD, style::BAD.render_reset(), self.message);
        for (label, help) in &self.help {
            let _ = write!(text, "\n  {}{label}:{} {help}", style::DIM, style::DIM.render_reset());
        }
        text
    }

    /// Tells people on standard error, and scripts on standard output.
    pub(crate) fn report(&self, out: &Output) {
        if let Some(problem) = &self.problem
            && out.is_data()
        {
            // What cannot be printed to a script is still told below.
            let _ = out.data(problem);
        }
        anstream::eprintln!("{}", self.text());
    }
}

fn exit_of(problem: &Problem) -> Exit {
    let no_room = !problem.refusals.is_empty()
        || problem.code.starts_with("no_capacity")
        || matches!(problem.code.as_str(), "quota_exceeded" | "pool_exhausted");
    match problem.status {
        _ if no_room => Exit::Refused,
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
        let exit = match &error {
            ClientError::Problem { .. } => Exit::Failed,
            ClientError::Url { .. } | ClientError::Token | ClientError::Certificate(_) => {
                Exit::Usage
            }
            ClientError::Unreachable { .. } | ClientError::Transport(_) => Exit::Unreachable,
            ClientError::Status { status: 401 | 403, .. } => Exit::Denied,
            ClientError::Status { status: 502..=504, .. } => Exit::Unreachable,
            ClientError::Status { .. } | ClientError::Setup(_) | ClientError::Unreadable(_) => {
                Exit::Failed
            }
        };
        match error {
            ClientError::Problem { problem, .. } => Self::from_problem(*problem),
            // The client's own line says all of it; what lies below is about sockets.
            ClientError::Unreachable { url, .. } => {
                Self::new(exit, format!("no server answers at {url}"))
                    .remedy("start one with: berth up, or name another with --url or BERTH_URL")
            }
            error => Self::new(exit, chain(&error)),
        }
    }
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
        let line = format!("the server's answer cannot be read: {error}");
        Self::new(Exit::Failed, line).remedy("use a berth of the server's version")
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
        let (fields, refusals) = (Vec::new(), Vec::new());
        let (remedy, retry, trace) = (None, None, None);
        Problem { kind, title, status, code, detail, remedy, fields, refusals, retry, trace }
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
            (409, "quota_exceeded", Exit::Refused),
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
