//! The screen of `berth top`, line by line.

use berth_api::engine::NodeState;
use berth_api::units;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::data::{Fleet, NodeCell, RecentDecision, SIZE, Snapshot, Usage, amount};
use crate::cmdutil::plural;

/// What the keys have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Nothing is read any more.
    pub(crate) paused: bool,
    /// Lines that are above the screen.
    pub(crate) above: usize,
}

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, view: &mut View) {
    let area = frame.area();
    if area.height == 0 || area.width == 0 {
        return;
    }
    let header = Rect { height: 1, ..area };
    frame.render_widget(Paragraph::new(title(snapshot, *view)), header);
    let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
    let lines = body_lines(snapshot, usize::from(area.width), usize::from(body.height));
    let most = lines.len().saturating_sub(usize::from(body.height));
    view.above = view.above.min(most);
    let shown: Vec<Line<'_>> = lines.into_iter().skip(view.above).collect();
    frame.render_widget(Paragraph::new(shown), body);
}

fn title(snapshot: &Snapshot, view: View) -> Line<'static> {
    let rate = snapshot.rate_tenths();
    let fleet = &snapshot.fleet;
    let mut spans = vec![
        Span::styled("berth", BOLD),
        Span::raw(format!(
            "  {}, {}, {} waiting, {}.{} decisions/s",
            plural(fleet.nodes(), "node"),
            plural(usize::try_from(fleet.instances).unwrap_or(0), "instance"),
            snapshot.waiting.len(),
            rate / 10,
            rate % 10,
        )),
    ];
    if let Some(error) = &snapshot.error {
        spans.push(Span::styled(format!("  {error}"), Style::new().fg(Color::Red)));
    }
    let hint = if view.paused { "  PAUSED" } else { "" };
    spans.push(Span::styled(hint, Style::new().fg(Color::Yellow)));
    spans.push(Span::styled(format!("  q quit, p pause, ↑↓ scroll  {}", snapshot.url), DIM));
    Line::from(spans)
}

fn body_lines(snapshot: &Snapshot, width: usize, height: usize) -> Vec<Line<'static>> {
    let fleet = &snapshot.fleet;
    let mut lines = vec![
        usage("cpu", fleet.cpu, &promised_cpu(fleet), width),
        usage("memory", fleet.memory, &sum(fleet.memory), width),
        usage("disk", fleet.disk, &sum(fleet.disk), width),
        states(snapshot),
    ];
    // A small screen has room for the sums and the latest decisions only.
    let small = height < 14;
    if !small {
        lines.push(Line::default());
        let largest = fleet.zones.values().map(Vec::len).max().unwrap_or(0);
        // The same for all zones, so that they can be compared.
        let each = largest.div_ceil(cells_in_row(width) * ZONE_LINES).max(1);
        for (zone, cells) in &fleet.zones {
            lines.extend(zone_lines(zone, cells, width, each));
        }
        if each > 1 {
            lines.push(Line::styled(format!("{:ZONE_NAME$} each cell is {each} nodes", ""), DIM));
        }
        if fleet.zones.is_empty() {
            lines.push(Line::styled("no nodes yet", DIM));
        }
        lines.push(Line::default());
        lines.push(refusals(snapshot));
        lines.extend(waiting(snapshot));
        lines.push(Line::default());
    }
    lines.push(Line::styled("latest decisions", BOLD));
    lines.extend(snapshot.decisions.iter().map(|one| decision_line(one, snapshot)));
    if snapshot.decisions.is_empty() {
        lines.push(Line::styled("  none yet", DIM));
    }
    lines
}

fn tone(percent: u64) -> Color {
    match percent {
        0..75 => Color::Green,
        75..90 => Color::Yellow,
        _ => Color::Red,
    }
}

/// What is used of memory or disk.
fn sum(part: Usage) -> String {
    format!("{} of {}", amount(part.used, SIZE), amount(part.total, SIZE))
}

/// The CPU promised in the fleet, in cores.
fn promised_cpu(fleet: &Fleet) -> String {
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    units::promised_cores(signed(fleet.cpu.used), signed(fleet.cores), signed(fleet.cpu.total))
}

fn usage(name: &str, part: Usage, text: &str, width: usize) -> Line<'static> {
    let percent = part.percent();
    let words = format!(" {percent:>3}%  {text}");
    let room = width.saturating_sub(8 + words.chars().count()).min(50);
    let filled = room * usize::try_from(percent.min(100)).unwrap_or(0) / 100;
    Line::from(vec![
        Span::raw(format!("{name:<7} ")),
        Span::styled("█".repeat(filled), Style::new().fg(tone(percent))),
        Span::styled("░".repeat(room - filled), DIM),
        Span::raw(words),
    ])
}

fn states(snapshot: &Snapshot) -> Line<'static> {
    let mut spans = vec![Span::raw("states  ")];
    for (state, count) in &snapshot.fleet.states {
        let color = match state {
            NodeState::Active => Color::Green,
            NodeState::Lost => Color::Red,
            NodeState::Joining => Color::Reset,
            NodeState::Cordoned | NodeState::Draining | NodeState::Degraded => Color::Yellow,
        };
        spans.push(Span::styled(format!("{count} {}  ", state.name()), Style::new().fg(color)));
    }
    let over_promised = snapshot.fleet.over_promised;
    if over_promised > 0 {
        let text = format!("{over_promised} with over-promised CPU");
        spans.push(Span::styled(text, Style::new().fg(Color::Red)));
    }
    Line::from(spans)
}

/// Most lines that one zone takes.
const ZONE_LINES: usize = 4;

/// How wide the names of zones are.
const ZONE_NAME: usize = 16;

/// How many cells are next to the name of a zone.
fn cells_in_row(width: usize) -> usize {
    width.saturating_sub(ZONE_NAME + 1).max(8)
}

/// A zone: its name, and a cell for so many nodes each.
fn zone_lines(zone: &str, cells: &[NodeCell], width: usize, each: usize) -> Vec<Line<'static>> {
    let spans: Vec<Span<'static>> = cells.chunks(each).map(cell).collect();
    let name: String = format!("{zone} ({})", cells.len()).chars().take(ZONE_NAME).collect();
    let mut lines = Vec::new();
    for (place, row) in spans.chunks(cells_in_row(width)).enumerate() {
        let name = if place == 0 { name.as_str() } else { "" };
        let mut line = vec![Span::raw(format!("{name:<ZONE_NAME$} "))];
        line.extend(row.iter().cloned());
        lines.push(Line::from(line));
    }
    lines
}

/// Some nodes as one cell: how full they are on average, and the worst of their states.
fn cell(nodes: &[NodeCell]) -> Span<'static> {
    const LEVELS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let worst = nodes.iter().map(|node| node.state).max().unwrap_or_default();
    match worst {
        NodeState::Lost => return Span::styled("!", Style::new().fg(Color::Red)),
        NodeState::Degraded => return Span::styled("~", Style::new().fg(Color::Yellow)),
        NodeState::Draining => return Span::styled("d", Style::new().fg(Color::Yellow)),
        NodeState::Cordoned => return Span::styled("c", Style::new().fg(Color::Yellow)),
        NodeState::Joining if nodes.len() == 1 => return Span::styled("j", DIM),
        NodeState::Joining | NodeState::Active => {}
    }
    let count = u64::try_from(nodes.len()).unwrap_or(1).max(1);
    let full = nodes.iter().map(|node| node.full.min(100)).sum::<u64>() / count;
    let level = usize::try_from(full * 8 / 101).unwrap_or(0).min(7);
    Span::styled(LEVELS[level], Style::new().fg(tone(full)))
}

fn refusals(snapshot: &Snapshot) -> Line<'static> {
    let mut spans = vec![Span::styled("refusals  ", BOLD)];
    let refusals = snapshot.refusals();
    if refusals.is_empty() {
        spans.push(Span::styled("none recently", DIM));
    }
    for (code, count) in refusals.into_iter().take(5) {
        spans.push(Span::raw(format!("{count} × {code}  ")));
    }
    Line::from(spans)
}

fn waiting(snapshot: &Snapshot) -> Vec<Line<'static>> {
    const SHOWN: usize = 5;
    let mut lines = vec![Line::from(vec![
        Span::styled("queue  ", BOLD),
        Span::raw(match snapshot.waiting.len() {
            0 => "nothing waits".to_owned(),
            count => plural(count, "request"),
        }),
    ])];
    for (place, one) in snapshot.waiting.iter().take(SHOWN).enumerate() {
        let since = snapshot.at.as_second() - one.since.as_second();
        lines.push(Line::raw(format!(
            "  {}. {}: {}, for {}, tried {} times",
            place + 1,
            one.tenant,
            one.requested,
            units::duration(since.max(0)),
            one.tries
        )));
    }
    lines
}

fn decision_line(one: &RecentDecision, snapshot: &Snapshot) -> Line<'static> {
    let ago = (snapshot.at.as_second() - one.at.as_second()).max(0);
    let (word, color) =
        if one.granted { ("granted", Color::Green) } else { ("refused", Color::Red) };
    Line::from(vec![
        Span::styled(format!("  {:>7} ", units::duration(ago)), DIM),
        Span::styled(format!("{word} "), Style::new().fg(color)),
        Span::raw(format!("{:>4} × {:<16} ", one.requested, one.tenant)),
        Span::raw(one.result.clone()),
    ])
}
