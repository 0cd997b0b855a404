//! `--watch`: a list that is shown again and again. On a terminal it is drawn in place; elsewhere each
//! change is a line, so that it can be piped.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use berth_api::Page;
use crossterm::{cursor, queue, terminal};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::resource::Resource;
use crate::cmdutil::style::{DIM, paint};
use crate::cmdutil::{
    CmdResult, Exit, Failure, Format, RawJson, Session, Table, decode_all, now, shorten,
};

/// How often a list is read; less often if reading it takes long.
const INTERVAL: Duration = Duration::from_secs(2);

/// Shows a list until Ctrl-C.
pub(crate) async fn run<R: Resource>(
    session: &Session,
    fetch: impl AsyncFn() -> CmdResult<Page<RawJson>>,
    when_empty: &str,
) -> CmdResult {
    let out = &session.out;
    if out.is_data() && out.format != Format::Json {
        return Err(Failure::usage("--watch prints tables and JSON only")
            .accepted("-o table, wide or json"));
    }
    let on_screen = std::io::stdout().is_terminal() && !out.is_data() && !out.quiet;
    let mut changes = Changes::default();
    // Registered once, so that Ctrl-C is not lost between two waits.
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let began = Instant::now();
        let fetched = tokio::select! {
            fetched = fetch() => fetched,
            _ = interrupt.recv() => return Ok(()),
        };
        match fetched {
            Ok(page) if on_screen => draw::<R>(session, &page, when_empty)?,
            Ok(page) => changes.print::<R>(session, &page)?,
            // A server that was seen before may be restarting.
            Err(failure) if failure.exit == Exit::Unreachable && changes.has_started => {
                out.note(paint(DIM, &format!("{failure}; trying again")));
            }
            Err(failure) => return Err(failure),
        }
        changes.has_started = true;
        let pause = INTERVAL.max(began.elapsed() * 5);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// Draws the list over the last one.
fn draw<R: Resource>(session: &Session, page: &Page<RawJson>, when_empty: &str) -> CmdResult {
    let out = &session.out;
    let items: Vec<R> = decode_all(&page.items)?;
    let table = Table::of(&items, out.is_wide(), R::COLUMNS);
    let text = if items.is_empty() { when_empty.to_owned() } else { out.text_of(&table) };
    let (_, height) = terminal::size().unwrap_or((80, 24));
    // A line for the title, and one that stays empty for the cursor.
    let room = usize::from(height).saturating_sub(2).max(1);
    let lines: Vec<&str> = text.lines().collect();
    let title = format!(
        "{} of {}, {}; Ctrl-C stops",
        if items.len() == 1 { "1 item".to_owned() } else { format!("{} items", items.len()) },
        session.client.url(),
        now().strftime("%H:%M:%S UTC"),
    );
    let title = shorten(&title, out.width().unwrap_or(usize::MAX));
    let mut stdout = std::io::stdout();
    let clear = terminal::Clear(terminal::ClearType::All);
    queue!(stdout, clear, cursor::MoveTo(0, 0))?;
    stdout.flush()?;
    out.line(paint(DIM, &title));
    let hidden = lines.len().saturating_sub(room);
    let shown = if hidden > 0 { room.saturating_sub(1) } else { room };
    for line in lines.iter().take(shown) {
        out.line(line);
    }
    if hidden > 0 {
        let more = format!("{} more lines; make the terminal larger, or use --limit", hidden + 1);
        out.line(paint(DIM, &more));
    }
    Ok(())
}

/// What was printed last, by what names the items.
#[derive(Default)]
struct Changes {
    rows: BTreeMap<String, (String, RawJson)>,
    has_started: bool,
}

impl Changes {
    /// Prints the items that appeared, changed or disappeared since the last time.
    fn print<R: Resource>(&mut self, session: &Session, page: &Page<RawJson>) -> CmdResult {
        let items: Vec<R> = decode_all(&page.items)?;
        let all = Table::of_all(&items, session.out.is_wide(), R::COLUMNS);
        let mut rows = BTreeMap::new();
        let mut changed = Vec::new();
        for ((item, raw), row) in items.iter().zip(&page.items).zip(all.states()) {
            let key = item.key();
            match self.rows.get(&key) {
                None => changed.push(("added", key.clone(), raw.clone())),
                Some((before, _)) if *before != row => {
                    changed.push(("changed", key.clone(), raw.clone()));
                }
                Some(_) => {}
            }
            rows.insert(key, (row, raw.clone()));
        }
        for (key, (_, raw)) in self.rows.iter().filter(|(key, _)| !rows.contains_key(*key)) {
            changed.push(("removed", key.clone(), raw.clone()));
        }
        self.rows = rows;
        self.print_lines::<R>(session, &changed)
    }

    fn print_lines<R: Resource>(
        &self,
        session: &Session,
        changed: &[(&str, String, RawJson)],
    ) -> CmdResult {
        let out = &session.out;
        for (change, key, raw) in changed {
            if out.is_data() {
                out.line(json!({"change": change, "item": raw}).to_string());
            } else if out.quiet {
                out.line(format!("{change} {key}"));
            } else {
                let item: R = crate::cmdutil::decode(raw)?;
                let table = Table::of_all([&item], out.is_wide(), R::COLUMNS);
                let at = now().strftime("%H:%M:%S");
                let cells: Vec<&str> = table.cells().collect();
                out.line(format!("{at}\t{change}\t{}", cells.join("\t")));
            }
        }
        Ok(())
    }
}
