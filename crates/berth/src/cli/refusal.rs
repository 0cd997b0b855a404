//! A refusal drawn for people: which filter removed how many nodes, how close the nearest one came, and
//! what would help, as commands that can be pasted.

use std::fmt::Write as _;
use std::path::Path;

use berth_api::engine::{FilterCount, Fix, NearestMiss, NodeId, Refusal, SearchEnd};
use berth_api::{InstanceSpec, Mode, NewWorkload, PlaceRequest, Problem, Workload};

use super::changed_request;
use super::fixes::{change_flags, describe};
use super::place::flags::RequestFlags;
use crate::cmdutil::style::{BAD, BOLD, COMMAND, DIM, WARN, paint};
use crate::cmdutil::{args, plural};

/// The width of the longest bar.
const BAR: usize = 24;

/// What is needed to write a changed request as a command.
pub(crate) struct Advice<'a> {
    flags: Option<&'a RequestFlags>,
    /// Flags that a changed request keeps.
    kept: Vec<String>,
    /// What was sent: what flags and file ask for together.
    request: Option<&'a PlaceRequest>,
    /// The name of the instance that was refused.
    refused: Option<&'a str>,
    /// How many instances were placed.
    placed: u32,
    /// What the request is of, if it was made earlier.
    origin: Origin<'a>,
}

/// Where a request comes from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// This command, or nobody knows.
    Command,
    /// A ticket with this id that still waits: it is cancelled before another request takes its place.
    Waiting(&'a str),
    /// A workload, whose template is changed.
    Workload(&'a Workload),
}

impl<'a> Advice<'a> {
    /// For a request that was made with flags.
    pub(crate) const fn new(
        flags: &'a RequestFlags,
        kept: Vec<String>,
        request: &'a PlaceRequest,
    ) -> Self {
        let origin = Origin::Command;
        Self { flags: Some(flags), kept, request: Some(request), refused: None, placed: 0, origin }
    }

    /// Only for the rest, after some instances were placed.
    pub(crate) fn after(self, placed: u32) -> Self {
        Self { placed, ..self }
    }

    /// For a request that this command did not make, such as one in the log.
    pub(crate) const fn none() -> Self {
        let kept = Vec::new();
        let origin = Origin::Command;
        Self { flags: None, kept, request: None, refused: None, placed: 0, origin }
    }

    /// For a request that waits, or waited, under this id.
    pub(crate) fn of_ticket(request: &'a PlaceRequest, waiting: Option<&'a str>) -> Self {
        let origin = match waiting {
            Some(id) => Origin::Waiting(id),
            None => Origin::Command,
        };
        Self { request: Some(request), origin, ..Self::none() }
    }

    /// For a member of a workload; `request` asks for one with its template and pools.
    pub(crate) fn of_workload(workload: &'a Workload, request: &'a PlaceRequest) -> Self {
        Self { request: Some(request), origin: Origin::Workload(workload), ..Self::none() }
    }

    /// The same about one refusal.
    fn about<'b>(&'b self, refusal: &'b Refusal) -> Advice<'b> {
        Advice { kept: self.kept.clone(), refused: refusal.name.as_deref(), ..*self }
    }

    fn specs(&self) -> &[InstanceSpec] {
        self.request.map_or(&[], |request| &request.instances)
    }

    /// Whether there is one instance spec, so that a flag changes what was refused.
    fn is_uniform(&self) -> bool {
        self.specs().len() == 1
    }

    /// Whether the request was read from a stream, which a command cannot read again.
    fn was_read_from_stream(&self) -> bool {
        let file = self.flags.and_then(|flags| flags.file.as_deref());
        file.is_some_and(|file| file == Path::new("-"))
    }

    /// The command of the changed request: by flags, or as a whole where they cannot express it.
    pub(super) fn with_changes(&self, fixes: &[&Fix]) -> Option<String> {
        let by_flags = || {
            let flags = self.flags.filter(|_| self.is_uniform() && !self.was_read_from_stream());
            let mut flags = flags?.clone();
            let changed = fixes.iter().all(|fix| change_flags(&mut flags, fix, self));
            changed.then(|| self.line(&flags, &[]))
        };
        by_flags().or_else(|| self.as_whole(fixes, &self.kept))
    }

    /// The same, with at least so many of the batch to be placed.
    pub(super) fn for_fewer(&self, count: u32) -> Self {
        let mut kept = self.kept_without_mode();
        kept.extend(["--at-least".to_owned(), count.to_string()]);
        Self { kept, ..*self }
    }

    /// The command that places at least so many of the batch.
    pub(super) fn with_fewer(&self, count: u32) -> Option<String> {
        let fewer = self.for_fewer(count);
        match self.flags.filter(|_| !self.was_read_from_stream()) {
            Some(flags) => Some(fewer.line(flags, &[])),
            None => self.as_whole(&[], &fewer.kept),
        }
    }

    /// The command that asks for so many, and for no fewer.
    pub(super) fn with_count(&self, fix: &Fix) -> Option<String> {
        let Fix::Count { count, .. } = fix else { return None };
        let kept = self.kept_without_mode();
        let uniform = self.flags.filter(|_| self.is_uniform() && !self.was_read_from_stream());
        let Some(mut flags) = uniform.cloned() else { return self.as_whole(&[fix], &kept) };
        flags.count = Some(*count);
        Some(Advice { kept, ..*self }.line(&flags, &[]))
    }

    /// Whether it is tried again by itself when the fleet has changed.
    pub(super) const fn tries_again(&self) -> bool {
        matches!(self.origin, Origin::Waiting(_) | Origin::Workload(_))
    }

    /// A command that has the whole request in it, changed.
    fn as_whole(&self, fixes: &[&Fix], after: &[String]) -> Option<String> {
        let mut request = self.request?.clone();
        if self.placed > 0 {
            // Of several kinds of instances it is not known which were placed.
            let [spec] = request.instances.as_mut_slice() else { return None };
            spec.count = Some(spec.count.unwrap_or(1).saturating_sub(self.placed).max(1));
        }
        let changed =
            fixes.iter().all(|fix| changed_request::apply(&mut request, fix, self.refused));
        if !changed {
            return None;
        }
        if let Origin::Workload(workload) = self.origin {
            let text = args::shell_quote(&workload_text(workload, request)?);
            return Some(format!("printf %s {text} | berth workloads apply -f -"));
        }
        let text = changed_request::text(&request)?;
        let words = ["place", "-f", "-"].into_iter().chain(after.iter().map(String::as_str));
        let line =
            format!("printf %s {} | berth {}", args::shell_quote(&text), args::shell_line(words));
        Some(match self.origin {
            Origin::Waiting(id) => {
                format!("berth queue cancel {} && {line}", args::shell_quote(id))
            }
            Origin::Command | Origin::Workload(_) => line,
        })
    }

    /// The command that places it in the room of instances of lower priority.
    pub(super) fn with_preemption(&self) -> Option<String> {
        if matches!(self.origin, Origin::Workload(_)) {
            return None;
        }
        let can_repeat = self.is_uniform() && !self.was_read_from_stream() && self.placed == 0;
        let mut kept = self.kept_without_mode();
        let Some(flags) = self.flags.filter(|_| can_repeat) else {
            // Who reads the request from a stream cannot be asked.
            kept.extend(["--preempt", "--yes"].map(str::to_owned));
            return self.as_whole(&[], &kept);
        };
        Some(Advice { kept, ..*self }.line(flags, &["--preempt"]))
    }

    /// The flags that are kept, but for how many must be placed.
    fn kept_without_mode(&self) -> Vec<String> {
        let mut kept = Vec::new();
        let mut words = self.kept.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--at-least" => drop(words.next()),
                "--best-effort" => {}
                _ => kept.push(word.clone()),
            }
        }
        kept
    }

    /// Whether several instances were asked for, all of which must be placed.
    pub(super) fn is_batch(&self) -> bool {
        let count: u64 = self.specs().iter().map(|spec| u64::from(spec.count.unwrap_or(1))).sum();
        count > 1 && self.request.is_some_and(|request| !is_partial(request.mode))
    }

    /// Whether the disk was asked for, and not left to the default.
    pub(super) fn names_disk(&self) -> bool {
        self.specs().iter().any(|spec| spec.resources.disk_mib.is_some())
    }

    fn line(&self, flags: &RequestFlags, after: &[&str]) -> String {
        let mut flags = flags.clone();
        if self.placed > 0
            && let [spec] = self.specs()
        {
            // Instances that were placed are not requested again.
            let asked = flags.count.or(spec.count);
            flags.count = asked.map(|count| count.saturating_sub(self.placed).max(1));
        }
        let after: Vec<&str> =
            self.kept.iter().map(String::as_str).chain(after.iter().copied()).collect();
        flags.line("berth place", &after)
    }
}

/// A workload with the template and pools of a changed request, as a document that can be applied.
fn workload_text(workload: &Workload, request: PlaceRequest) -> Option<String> {
    let PlaceRequest { instances, pools, .. } = request;
    let [template] = <[InstanceSpec; 1]>::try_from(instances).ok()?;
    let spec = NewWorkload { template, pools, ..workload.spec.clone() };
    let document = serde_json::json!({
        "tenant": workload.tenant, "name": workload.name, "spec": spec,
    });
    Some(document.to_string())
}

/// Whether some instances may be placed without the others.
const fn is_partial(mode: Mode) -> bool {
    matches!(mode, Mode::AtLeast | Mode::BestEffort)
}

/// Draws refusals.
pub(crate) fn draw_refusals(refusals: &[Refusal], advice: &Advice<'_>) -> String {
    let drawings: Vec<String> = refusals.iter().map(|refusal| draw(refusal, advice)).collect();
    drawings.join("\n\n")
}

fn draw(refusal: &Refusal, advice: &Advice<'_>) -> String {
    let advice = &advice.about(refusal);
    let mut text = headline(refusal, advice);
    if let Some(search) = refusal.search.and_then(search) {
        let _ = write!(text, "\n{search}");
    }
    text.push_str(&bars(refusal));
    if let Some((filter, admits)) = &refusal.best_relaxation {
        let nodes = plural(*admits, "node");
        let _ =
            write!(text, "\n\nWithout the {} rule, {nodes} could take it.", paint(BOLD, filter));
    }
    for notice in &refusal.notices {
        let _ = write!(text, "\nNote: {notice}");
    }
    text.push_str(&fixes(refusal, advice));
    text.push_str(&waiting(refusal, advice));
    text
}

fn headline(refusal: &Refusal, advice: &Advice<'_>) -> String {
    let code = paint(BOLD, &refusal.code);
    let subject = if advice.placed > 0 {
        format!("{} no room for the rest", paint(WARN, "note:"))
    } else if advice.flags.is_some() {
        format!("{} no room", paint(BAD, "error:"))
    } else {
        // A refusal in the log is no error of the command that shows it.
        "no room".to_owned()
    };
    let subject = match &refusal.name {
        Some(name) if advice.placed == 0 => format!("{subject} for {name}"),
        Some(_) | None => subject,
    };
    match refusal.nodes {
        0 => format!("{subject}: there are no nodes ({code})"),
        1 => format!("{subject}: the one node cannot take it ({code})"),
        nodes => format!("{subject}: none of {nodes} nodes can take it ({code})"),
    }
}

fn search(end: SearchEnd) -> Option<&'static str> {
    match end {
        SearchEnd::DoesNotFit => Some("Every way to place all of them was ruled out."),
        SearchEnd::NotFoundWithinBudget => {
            Some("No way to place all of them was found in time; there may be one.")
        }
        SearchEnd::Greedy | SearchEnd::LargestFirst | SearchEnd::Search => None,
    }
}

/// A bar for each filter, with the node that came nearest.
fn bars(refusal: &Refusal) -> String {
    let names = refusal.counts.iter().map(|count| count.filter.chars().count());
    let width = names.max().unwrap_or(0);
    let digits = refusal.nodes.to_string().len();
    let mut text = String::new();
    for count in &refusal.counts {
        let bar = bar(count.removed, refusal.nodes);
        let space = " ".repeat(BAR.saturating_sub(bar.chars().count()));
        let mark = if Some(&count.filter) == refusal.filter.as_ref() { BAD } else { DIM };
        let _ = write!(
            text,
            "\n  {:<width$}  {}{space} {:>digits$}",
            count.filter,
            paint(mark, &bar),
            count.removed,
        );
        text.push_str(&nearest(refusal, count, width));
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn nearest(refusal: &Refusal, count: &FilterCount, width: usize) -> String {
    let Some(miss) = refusal.nearest.iter().find(|miss| miss.filter == count.filter) else {
        return String::new();
    };
    format!("\n  {:<width$}  {}", "", paint(DIM, &nearest_miss(miss)))
}

fn nearest_miss(miss: &NearestMiss) -> String {
    let text = miss.evidence.to_string();
    // The name of the filter already precedes the bar.
    let named = format!("{}: ", miss.filter);
    let text = text.strip_prefix(&named).unwrap_or(&text);
    if miss.is_about_request() {
        return text.to_owned();
    }
    format!("nearest {}: {text}", name(miss.node.as_ref()))
}

/// A bar in eighths of a character; anything above zero is visible.
fn bar(part: usize, whole: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if part == 0 || whole == 0 {
        return String::new();
    }
    let eighths = (part.saturating_mul(BAR * 8) / whole).clamp(1, BAR * 8);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

pub(super) fn name(node: Option<&NodeId>) -> &str {
    node.map_or("a node", NodeId::as_str)
}

/// Draws a refusal by a quota or a pool: what is asked for and what there is, and what would help.
pub(crate) fn draw_limit(problem: &Problem, advice: &Advice<'_>) -> String {
    let (error, code) = (paint(BAD, "error:"), paint(BOLD, &problem.code));
    format!("{error} {} ({code}){}", problem.detail, fix_list(&problem.fixes, advice))
}

/// What would have helped against a limit, for a decision of the past.
pub(crate) fn draw_limit_fixes(fixes: &[Fix]) -> String {
    fix_list(fixes, &Advice::none()).trim_start().to_owned()
}

/// What would help, each with a command where there is one.
fn fixes(refusal: &Refusal, advice: &Advice<'_>) -> String {
    if refusal.fixes.is_empty() {
        // What was not tried is not said to help.
        return format!("\n\nNothing that was tried would help. In general: {}.", refusal.remedy);
    }
    fix_list(&refusal.fixes, advice)
}

fn fix_list(fixes: &[Fix], advice: &Advice<'_>) -> String {
    let mut text = "\n\nWhat would help (each was tried):".to_owned();
    for (place, fix) in fixes.iter().enumerate() {
        let (description, command) = describe(fix, advice);
        let _ = write!(text, "\n  {}. {description}", place + 1);
        if let Some(command) = command {
            let _ = write!(text, "\n     {}", paint(COMMAND, &command));
        }
    }
    text
}

fn waiting(refusal: &Refusal, advice: &Advice<'_>) -> String {
    if !refusal.waiting_may_help {
        return "\n\nWaiting will not help.".to_owned();
    }
    match advice.flags {
        Some(flags) => {
            // What is only decided cannot wait.
            if advice.kept.iter().any(|flag| flag == "--dry-run") {
                return "\n\nWaiting may help.".to_owned();
            }
            // A batch that waits is all or nothing.
            let alone = Advice { kept: Vec::new(), ..*advice };
            let wait = ["--wait", "10m"];
            let command = match advice.was_read_from_stream() {
                true => alone.as_whole(&[], &wait.map(str::to_owned)),
                false => Some(alone.line(flags, &wait)),
            };
            let command = command.map(|it| format!(":\n     {}", paint(COMMAND, &it)));
            format!("\n\nWaiting may help{}", command.unwrap_or_else(|| ".".to_owned()))
        }
        None => "\n\nWaiting may help.".to_owned(),
    }
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
