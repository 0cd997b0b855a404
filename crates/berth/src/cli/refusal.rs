//! A refusal drawn for people: which filter removed how many nodes, how close the nearest one came, and
//! what would help, as commands that can be pasted.

use std::fmt::Write as _;

use berth_api::PlaceRequest;
use berth_api::engine::{FilterCount, NearestMiss, NodeId, Refusal, SearchEnd};

use super::fixes::describe;
use super::place::flags::RequestFlags;
use crate::cmdutil::plural;
use crate::cmdutil::style::{BAD, BOLD, COMMAND, DIM, WARN, paint};

/// The width of the longest bar.
const BAR: usize = 24;

/// What is needed to write a changed request as a command.
pub(crate) struct Advice<'a> {
    flags: Option<&'a RequestFlags>,
    /// Flags that a changed request keeps.
    kept: Vec<String>,
    /// Whether there is one instance spec, so that a flag changes what was refused.
    uniform: bool,
    disk_requested: bool,
    /// How many instances were placed.
    placed: u32,
}

impl<'a> Advice<'a> {
    /// For a request that was made with flags.
    pub(crate) fn new(flags: &'a RequestFlags, kept: Vec<String>, request: &PlaceRequest) -> Self {
        let disk_requested = request.instances.iter().any(|spec| spec.resources.disk_mib.is_some());
        let uniform = request.instances.len() == 1;
        Self { flags: Some(flags), kept, uniform, disk_requested, placed: 0 }
    }

    /// Only for the rest, after some instances were placed.
    pub(crate) fn after(self, placed: u32) -> Self {
        Self { placed, ..self }
    }

    /// For a request that this command did not make, such as one in the log.
    pub(crate) const fn none() -> Self {
        Self { flags: None, kept: Vec::new(), uniform: false, disk_requested: false, placed: 0 }
    }

    /// The command of the changed request, if flags can express it.
    pub(super) fn with_change(
        &self,
        change: impl FnOnce(&mut RequestFlags) -> bool,
    ) -> Option<String> {
        let mut flags = self.flags.filter(|_| self.uniform)?.clone();
        change(&mut flags).then(|| self.line(&flags, &[]))
    }

    /// The command that places at least so many of the batch.
    pub(super) fn with_fewer(&self, count: u32) -> Option<String> {
        let mut kept = Vec::new();
        let mut words = self.kept.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--at-least" => drop(words.next()),
                "--best-effort" => {}
                _ => kept.push(word.clone()),
            }
        }
        kept.extend(["--at-least".to_owned(), count.to_string()]);
        let flags = self.flags?;
        Some(
            Advice { kept, ..Advice { flags: Some(flags), kept: Vec::new(), ..*self } }
                .line(flags, &[]),
        )
    }

    /// Whether the disk was asked for, and not left to the default.
    pub(super) const fn names_disk(&self) -> bool {
        self.disk_requested
    }

    fn line(&self, flags: &RequestFlags, after: &[&str]) -> String {
        let mut flags = flags.clone();
        if self.placed > 0 {
            // Instances that were placed are not requested again.
            flags.count = flags.count.map(|count| count.saturating_sub(self.placed).max(1));
        }
        let after: Vec<&str> =
            self.kept.iter().map(String::as_str).chain(after.iter().copied()).collect();
        flags.line("berth place", &after)
    }
}

/// Draws refusals.
pub(crate) fn draw_refusals(refusals: &[Refusal], advice: &Advice<'_>) -> String {
    let drawings: Vec<String> = refusals.iter().map(|refusal| draw(refusal, advice)).collect();
    drawings.join("\n\n")
}

fn draw(refusal: &Refusal, advice: &Advice<'_>) -> String {
    let mut text = headline(refusal, advice);
    if let Some(search) = refusal.search.and_then(search) {
        let _ = write!(text, "\n{search}");
    }
    text.push_str(&bars(refusal));
    if let Some((filter, admits)) = &refusal.best_relaxation {
        let nodes = plural(*admits, "node");
        let _ = write!(text, "\n\nWithout {} alone, {nodes} could take it.", paint(BOLD, filter));
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

/// What would help, each with a command where there is one.
fn fixes(refusal: &Refusal, advice: &Advice<'_>) -> String {
    if refusal.fixes.is_empty() {
        // What was not tried is not said to help.
        return format!("\n\nNothing that was tried would help. In general: {}.", refusal.remedy);
    }
    let mut text = "\n\nWhat would help (each was tried):".to_owned();
    for (place, fix) in refusal.fixes.iter().enumerate() {
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
            let alone = Advice { kept: Vec::new(), flags: advice.flags, ..*advice };
            let command = alone.line(flags, &["--wait", "10m"]);
            format!("\n\nWaiting may help:\n     {}", paint(COMMAND, &command))
        }
        None => "\n\nWaiting may help.".to_owned(),
    }
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
