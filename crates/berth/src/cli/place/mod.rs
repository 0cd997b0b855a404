//! `berth place`: place instances on nodes, or say why not.

mod elastic;
pub(crate) mod flags;
mod place_flags;
mod preempt;
mod print;
mod wait;

use berth_api::{ExplainLevel, Mode, PlaceRequest, Placed};
use berth_client::{ClientError, PlaceOutcome};
use clap::Args;

use self::flags::{CommandLine, RequestFlags};
use super::explanation;
use super::refusal::{Advice, draw_limit, draw_refusals};
use crate::cmdutil::{CmdResult, Exit, Failure, RawJson, Session, args, decode};

const EXAMPLES: &str = "\
Examples:
  berth place --cpu 2 --memory 4GiB --tenant acme
  berth place --cpu 2 --memory 4GiB --count 50 --tag role=web --affinity 'role!=~web@rack'
  berth place --memory 16GiB --trait ssd --explain
  berth place --memory 512GiB --wait 5m
  berth place --memory 64GiB --priority 10 --preempt --dry-run
  berth place --cpu 1 --memory 4GiB --min 0.5,1GiB --max 4,16GiB
  berth place -f web.yaml --count 3 --dry-run";

/// Place instances: choose a node for each and claim room on it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Place {
    #[command(flatten)]
    request: RequestFlags,
    #[command(flatten)]
    handling: HandlingFlags,
}

/// How the request is handled.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Handling of the request")]
struct HandlingFlags {
    /// Lease of the claims until they are bound; 2m by default.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    lease: Option<u32>,
    /// Place at least this many, or none.
    #[arg(long, value_name = "N", conflicts_with_all = ["best_effort", "wait"], value_parser = clap::value_parser!(u32).range(1..))]
    at_least: Option<u32>,
    /// Place as many as fit.
    #[arg(long, conflicts_with = "wait")]
    best_effort: bool,
    /// Wait for room if there is none now; 10m if no duration is given.
    #[arg(long, value_parser = args::duration, value_name = "DURATION", num_args = 0..=1, default_missing_value = "10m", conflicts_with = "dry_run")]
    wait: Option<u32>,
    /// Decide, and claim nothing.
    #[arg(long)]
    dry_run: bool,
    /// Explain the choice: the winner and the runner-up; `=full` adds every node.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "summary", value_parser = args::api_value::<ExplainLevel>("summary or full"))]
    explain: Option<ExplainLevel>,
    /// If there is no room, release instances of lower priority to make some, after showing them.
    #[arg(long, conflicts_with_all = ["at_least", "best_effort", "wait", "explain"])]
    preempt: bool,
    /// With --preempt: skip the confirmation.
    #[arg(long, short, requires = "preempt")]
    yes: bool,
    /// Idempotency key: a retry with the same id gets the first answer.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

impl Place {
    fn request(&self) -> CmdResult<PlaceRequest> {
        let mut request = self.request.request()?;
        let how = &self.handling;
        if let Some(at_least) = how.at_least {
            (request.mode, request.at_least) = (Mode::AtLeast, Some(at_least));
        }
        if how.best_effort {
            request.mode = Mode::BestEffort;
        }
        if let Some(wait_s) = how.wait {
            (request.mode, request.wait_s) = (Mode::Wait, Some(wait_s));
        }
        request.lease_s = how.lease.or(request.lease_s);
        request.dry_run |= how.dry_run;
        request.explain = how.explain.unwrap_or(request.explain);
        if how.request_id.is_some() {
            request.request_id.clone_from(&how.request_id);
        }
        // A request whose answer was lost can then be repeated.
        request.request_id.get_or_insert_with(|| uuid::Uuid::now_v7().to_string());
        Ok(request)
    }

    /// The flags that a changed request keeps.
    fn kept_flags(&self) -> Vec<String> {
        let mut line = CommandLine::default();
        let lease =
            self.handling.lease.map(|lease| berth_api::units::duration_exact(i64::from(lease)));
        line.flag("--lease", lease);
        line.flag("--at-least", self.handling.at_least.map(|least| least.to_string()));
        line.switch("--best-effort", self.handling.best_effort);
        line.switch("--dry-run", self.handling.dry_run);
        line.0
    }

    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let request = self.request()?;
        if self.handling.preempt {
            return self.run_preempting(session, request).await;
        }
        self.place(session, request).await
    }

    async fn place(&self, session: &Session, request: PlaceRequest) -> CmdResult {
        let answer: Result<RawJson, ClientError> =
            session.client.post("/v1/placements", &request).await;
        let raw = match answer {
            Ok(raw) => raw,
            Err(error) => {
                return Err(self.draw_failure(session, error.into(), &request).await);
            }
        };
        match decode::<PlaceOutcome>(&raw)? {
            PlaceOutcome::Placed(placed) => self.print(session, &raw, &placed, &request),
            PlaceOutcome::Waiting(ticket) => {
                let (raw, placed) = match wait::until_granted(session, *ticket).await {
                    Ok(granted) => granted,
                    Err(failure) => {
                        return Err(self.draw_failure(session, failure, &request).await);
                    }
                };
                match placed {
                    Some(placed) => self.print(session, &raw, &placed, &request),
                    None if session.out.is_data() => session.out.data(&raw),
                    None => Ok(()),
                }
            }
        }
    }

    /// Prints what was placed, and why the rest was not.
    fn print(
        &self,
        session: &Session,
        raw: &RawJson,
        placed: &Placed,
        request: &PlaceRequest,
    ) -> CmdResult {
        let out = &session.out;
        out.response(raw, |_: serde::de::IgnoredAny| {
            print::print_placement(out, placed);
            if let Some(explanation) = &placed.explanation {
                out.line("");
                out.line(explanation::winner(explanation));
                if self.handling.explain == Some(ExplainLevel::Full) {
                    out.line("");
                    out.line(explanation::table(explanation, out.is_wide(), 50));
                }
            }
        })?;
        if !placed.refusals.is_empty() && !out.is_data() {
            let count = u32::try_from(placed.instances.len()).unwrap_or(u32::MAX);
            let advice = Advice::new(&self.request, self.kept_flags(), request).after(count);
            out.note(format!("\n{}", draw_refusals(&placed.refusals, &advice)));
        }
        if placed.instances.is_empty() {
            return Err(Failure::new(Exit::Refused, "nothing was placed"));
        }
        Ok(())
    }

    async fn draw_failure(
        &self,
        session: &Session,
        failure: Failure,
        request: &PlaceRequest,
    ) -> Failure {
        draw_failure(session, failure, &self.request, self.kept_flags(), request).await
    }
}

/// Draws a refusal, with commands that can be pasted, and names that were probably meant.
pub(crate) async fn draw_failure(
    session: &Session,
    failure: Failure,
    flags: &RequestFlags,
    kept: Vec<String>,
    request: &PlaceRequest,
) -> Failure {
    let Some(problem) = failure.problem() else { return failure };
    let advice = Advice::new(flags, kept, request);
    let drawing = match () {
        () if !problem.refusals.is_empty() => draw_refusals(&problem.refusals, &advice),
        () if !problem.fixes.is_empty() => draw_limit(problem, &advice),
        () => {
            let notes = session.reference_hints(&problem.code, request).await;
            return failure.with_notes(notes);
        }
    };
    let notes = if problem.refusals.is_empty() {
        session.reference_hints(&problem.code, request).await
    } else {
        problem.hints.clone()
    };
    failure.with_drawing(drawing).with_notes(notes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        place: Place,
    }

    fn parse(line: &str) -> Place {
        Line::try_parse_from(std::iter::once("place").chain(line.split(' '))).unwrap().place
    }

    #[test]
    fn flags_make_the_request_that_they_name() {
        let place = parse(
            "--cpu 2 --memory 4GiB --disk 10GiB --bandwidth 1Gbit --count 50 --name web --tenant acme \
             --workload web --tag role=web --trait ssd --trait cpu=amd|arm --network a|b --group g \
             --volume v --image i --affinity role!=db@rack --near role=cache --capacity spot \
             --zone z1 --zone z2 --where label:tier=gold --prefer-rack r1 --extra gpu=1 --pool ip --lease 2m --at-least 3 --dry-run --explain=full --request-id r",
        );
        let request = serde_json::to_value(place.request().unwrap()).unwrap();
        let expected = serde_json::json!({
            "request_id": "r", "tenant": "acme", "mode": "at_least", "at_least": 3, "lease_s": 120,
            "pools": ["ip"], "dry_run": true, "explain": "full",
            "instances": [{
                "count": 50, "name": "web", "workload": "web", "image": "i",
                "resources": {"cpu_milli": 2000, "memory_mib": 4096, "disk_mib": 10240, "bandwidth_mbps": 1000},
                "extra": {"gpu": 1}, "tags": {"role": "web"},
                "traits": {"ssd": true, "cpu": ["amd", "arm"]},
                "networks": [["a", "b"]], "capacity_type": "spot", "volumes": ["v"],
                "where": "zone in (z1, z2) and label:tier = gold", "prefer": ["rack = r1"], "groups": ["g"],
                "affinity": ["role!=db@rack"],
                "locality": {"near": [{"tag": ["role", "cache"]}], "far": [], "strict": false}
            }]
        });
        assert_eq!(request, expected);
    }

    #[test]
    fn a_line_that_is_written_again_is_read_as_the_same_request() {
        let line =
            "--cpu 500m --memory 4GiB --trait ssd --network a|b --affinity role!=db --count 2";
        let place = parse(line);
        let words = place.request.to_words();
        let again =
            Line::try_parse_from(std::iter::once("place").chain(words.iter().map(String::as_str)));
        assert_eq!(again.unwrap().place.request, place.request);
    }

    #[test]
    fn wait_needs_no_duration_and_explain_needs_an_equals_sign() {
        assert_eq!(parse("--memory 1GiB --wait").handling.wait, Some(600));
        assert_eq!(parse("--memory 1GiB --wait 5m").handling.wait, Some(300));
        assert_eq!(parse("--memory 1GiB --explain").handling.explain, Some(ExplainLevel::Summary));
        assert_eq!(parse("--memory 1GiB").handling.explain, None);
    }

    #[test]
    fn missing_memory_is_named() {
        let text = parse("--cpu 1").request().unwrap_err().text();
        assert!(text.contains("--memory 4GiB"), "{text}");
    }
}
