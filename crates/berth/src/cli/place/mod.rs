//! `berth place`: instances onto nodes, or the reasons why not.

pub(crate) mod amounts;
mod elastic;
pub(crate) mod file;
pub(crate) mod flags;
mod print;
mod wait;

use berth_api::{ExplainLevel, Mode, PlaceRequest, Placed};
use berth_client::{ClientError, PlaceOutcome};
use clap::Args;

use self::flags::{RequestFlags, Words};
use super::failure::{Done, Exit, Failure};
use super::session::{Raw, Session, read_as};
use super::{args, picture, why};

const EXAMPLES: &str = "\
Examples:
  berth place --cpu 2 --memory 4GiB --owner acme
  berth place --cpu 2 --memory 4GiB --count 50 --tag role=web --affinity 'role!=~web@rack'
  berth place --memory 16GiB --trait ssd --explain
  berth place --memory 512GiB --wait 5m
  berth place --cpu 1 --memory 4GiB --min 0.5,1GiB --max 4,16GiB
  berth place -f web.yaml --count 3 --dry-run";

/// Place instances: choose a node for each and claim room on it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Place {
    #[command(flatten)]
    request: RequestFlags,
    #[command(flatten)]
    how: How,
}

/// How the request is handled.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "How it is handled")]
struct How {
    /// How long the claims may stay unbound; 2m when not given.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    lease: Option<u32>,
    /// At least so many, or none.
    #[arg(long, value_name = "N", conflicts_with_all = ["best_effort", "wait"], value_parser = clap::value_parser!(u32).range(1..))]
    at_least: Option<u32>,
    /// As many as fit.
    #[arg(long, conflicts_with = "wait")]
    best_effort: bool,
    /// If there is no room now, wait so long for it; 10m when no duration is given.
    #[arg(long, value_parser = args::duration, value_name = "DURATION", num_args = 0..=1, default_missing_value = "10m", conflicts_with = "dry_run")]
    wait: Option<u32>,
    /// Decide and claim nothing.
    #[arg(long)]
    dry_run: bool,
    /// Say why: winner beside runner-up; `=full` adds every node.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "summary", value_parser = level)]
    explain: Option<ExplainLevel>,
    /// A retry under the same id gets the first answer.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

fn level(text: &str) -> Result<ExplainLevel, String> {
    match text {
        "summary" => Ok(ExplainLevel::Summary),
        "full" => Ok(ExplainLevel::Full),
        _ => Err("accepted is summary or full".to_owned()),
    }
}

impl Place {
    fn request(&self) -> Done<PlaceRequest> {
        let mut request = self.request.request()?;
        let how = &self.how;
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
        // A lost answer can then be asked for again; the server would make one we never learn.
        request.request_id.get_or_insert_with(|| uuid::Uuid::now_v7().to_string());
        Ok(request)
    }

    /// The flags that a changed request should keep.
    fn kept(&self) -> Vec<String> {
        let mut words = Words::default();
        let lease = self.how.lease.map(|lease| berth_api::units::duration_exact(i64::from(lease)));
        words.flag("--lease", lease);
        words.flag("--at-least", self.how.at_least.map(|least| least.to_string()));
        words.switch("--best-effort", self.how.best_effort);
        words.0
    }

    pub(crate) async fn run(self, session: &Session) -> Done {
        let request = self.request()?;
        let answer: Result<Raw, ClientError> =
            session.client.post("/v1/placements", &request).await;
        let raw = match answer {
            Ok(raw) => raw,
            Err(error) => return Err(self.explained(error.into(), &request)),
        };
        match read_as::<PlaceOutcome>(&raw)? {
            PlaceOutcome::Placed(placed) => self.granted(session, &raw, placed, &request),
            PlaceOutcome::Waiting(ticket) => {
                let (raw, placed) = wait::until_granted(session, *ticket)
                    .await
                    .map_err(|failure| self.explained(failure, &request))?;
                match placed {
                    Some(placed) => self.granted(session, &raw, placed, &request),
                    None if session.out.is_data() => session.out.data(&raw),
                    None => Ok(()),
                }
            }
        }
    }

    fn granted(
        &self,
        session: &Session,
        raw: &Raw,
        placed: Placed,
        request: &PlaceRequest,
    ) -> Done {
        let out = &session.out;
        let short: Vec<_> = placed.refusals.clone();
        out.answer(raw, |_: serde::de::IgnoredAny| {
            print::placed(out, &placed);
            if let Some(explanation) = &placed.explanation {
                out.line("");
                out.line(why::winner(explanation));
                if self.how.explain == Some(ExplainLevel::Full) {
                    out.line("");
                    out.line(why::table(explanation, out.is_wide(), 50));
                }
            }
            Ok(())
        })?;
        if !short.is_empty() && !out.is_data() {
            let placed = u32::try_from(placed.instances.len()).unwrap_or(u32::MAX);
            let advice = picture::Advice::new(&self.request, self.kept(), request).after(placed);
            out.note(format!("\n{}", picture::picture(&short, &advice)));
        }
        if placed.instances.is_empty() {
            return Err(Failure::new(Exit::Refused, "nothing was placed"));
        }
        Ok(())
    }

    /// A refusal as a picture, with commands that can be pasted.
    fn explained(&self, failure: Failure, request: &PlaceRequest) -> Failure {
        explained(failure, &self.request, self.kept(), request)
    }
}

/// A refusal as a picture, with commands that can be pasted.
pub(crate) fn explained(
    failure: Failure,
    flags: &RequestFlags,
    kept: Vec<String>,
    request: &PlaceRequest,
) -> Failure {
    let Some(problem) = failure.problem() else { return failure };
    if problem.refusals.is_empty() {
        return failure;
    }
    let advice = picture::Advice::new(flags, kept, request);
    let picture = picture::picture(&problem.refusals, &advice);
    failure.picture(picture)
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
            "--cpu 2 --memory 4GiB --disk 10GiB --bandwidth 1Gbit --count 50 --name web --owner acme \
             --workload web --tag role=web --trait ssd --trait cpu=amd|arm --network a|b --group g \
             --volume v --image i --affinity role!=db@rack --near role=cache --capacity spot \
             --extra gpu=1 --pool ip --lease 2m --at-least 3 --dry-run --explain=full --request-id r",
        );
        let request = serde_json::to_value(place.request().unwrap()).unwrap();
        let expected = serde_json::json!({
            "request_id": "r", "owner": "acme", "mode": "at_least", "at_least": 3, "lease_s": 120,
            "pools": ["ip"], "dry_run": true, "explain": "full",
            "instances": [{
                "count": 50, "name": "web", "workload": "web", "image": "i",
                "resources": {"cpu_milli": 2000, "memory_mib": 4096, "disk_mib": 10240, "bandwidth_mbps": 1000},
                "extra": {"gpu": 1}, "tags": {"role": "web"},
                "traits": {"ssd": true, "cpu": ["amd", "arm"]},
                "networks": [["a", "b"]], "capacity_type": "spot", "volumes": ["v"], "groups": ["g"],
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
        let words = place.request.words();
        let again =
            Line::try_parse_from(std::iter::once("place").chain(words.iter().map(String::as_str)));
        assert_eq!(again.unwrap().place.request, place.request);
    }

    #[test]
    fn wait_needs_no_duration_and_explain_needs_an_equals_sign() {
        assert_eq!(parse("--memory 1GiB --wait").how.wait, Some(600));
        assert_eq!(parse("--memory 1GiB --wait 5m").how.wait, Some(300));
        assert_eq!(parse("--memory 1GiB --explain").how.explain, Some(ExplainLevel::Summary));
        assert_eq!(parse("--memory 1GiB").how.explain, None);
    }

    #[test]
    fn memory_is_asked_for_by_name_when_it_is_missing() {
        let text = parse("--cpu 1").request().unwrap_err().text();
        assert!(text.contains("--memory 4GiB"), "{text}");
    }
}
