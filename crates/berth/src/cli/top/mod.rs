//! `berth top`: a live view of the fleet.

mod data;
mod draw;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use self::data::Reader;
pub(crate) use self::data::{Fleet, Usage};
use self::draw::{View, draw};
use crate::cmdutil::{CmdResult, Exit, Failure, Session, args};

/// Show a live view of the fleet: usage, states, queue and decisions.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// Print one screen as text, and exit.
    #[arg(long)]
    once: bool,
    /// Refresh interval.
    #[arg(long, value_parser = args::duration, default_value = "2s", value_name = "DURATION")]
    every: u32,
    /// With --once: width of the screen.
    #[arg(long, default_value_t = 100, requires = "once", value_parser = clap::value_parser!(u16).range(20..=500), value_name = "COLUMNS")]
    width: u16,
    /// With --once: height of the screen.
    #[arg(long, default_value_t = 30, requires = "once", value_parser = clap::value_parser!(u16).range(5..=500), value_name = "LINES")]
    height: u16,
}

const EXAMPLES: &str = "\
Examples:
  berth top
  berth top --once --width 120

Keys: q quits, p pauses, the arrows scroll. A cell is a node, and its height the usage; c is cordoned,
d draining, ~ degraded, ! lost.";

impl Top {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let mut reader = Reader::new(session);
        reader.read().await?;
        if self.once {
            session.out.line(text(&reader, self.width, self.height)?);
            return Ok(());
        }
        if !std::io::stdout().is_terminal() {
            return Err(Failure::usage("standard output is not a terminal")
                .remedy("berth top --once prints one screen as text"));
        }
        let mut terminal = ratatui::try_init()?;
        let ended = watch(&mut terminal, &mut reader, u64::from(self.every.max(1))).await;
        ratatui::try_restore()?;
        ended
    }
}

/// One screen as text.
fn text(reader: &Reader<'_>, width: u16, height: u16) -> CmdResult<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let _ = terminal.draw(|frame| draw(frame, &reader.snapshot, &mut View::default()));
    let text = terminal.backend().to_string();
    let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
    Ok(lines.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Key presses, from a thread of their own, because reading them blocks.
fn keys() -> tokio::sync::mpsc::UnboundedReceiver<Event> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    reader: &mut Reader<'_>,
    every_s: u64,
) -> CmdResult {
    let mut keys = keys();
    let mut view = View::default();
    let mut clock = tokio::time::interval(Duration::from_secs(every_s));
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| draw(frame, &reader.snapshot, &mut view))?;
        tokio::select! {
            event = keys.recv() => match event {
                Some(event) if quits(&event) => return Ok(()),
                Some(event) => press(&event, &mut view),
                None => return Ok(()),
            },
            _ = clock.tick(), if !view.paused => {
                if let Err(failure) = reader.read().await {
                    let text = anstream::adapter::strip_str(&failure.text()).to_string();
                    reader.snapshot.error = text.lines().next().map(str::to_owned);
                }
            }
        }
    }
}

fn quits(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => control,
        _ => false,
    }
}

fn press(event: &Event, view: &mut View) {
    let Event::Key(key) = event else { return };
    if key.kind == KeyEventKind::Release {
        return;
    }
    match key.code {
        KeyCode::Char('p' | ' ') => view.paused = !view.paused,
        KeyCode::Up => view.above = view.above.saturating_sub(1),
        KeyCode::Down => view.above += 1,
        KeyCode::PageUp => view.above = view.above.saturating_sub(10),
        KeyCode::PageDown => view.above += 10,
        KeyCode::Home => view.above = 0,
        _ => {}
    }
}

#[cfg(test)]
mod tests;
