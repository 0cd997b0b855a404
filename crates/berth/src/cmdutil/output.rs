//! Printing: tables for people, the API's own JSON or YAML for scripts.
//!
//! Results go to standard output, everything else to standard error. Whatever is printed goes through
//! [`printable`](super::printable), and nothing else prints. Text is always written with color; the stream removes it when it is not a terminal or `NO_COLOR` is set.

use std::io::IsTerminal;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::document::Document;
use super::failure::{CmdResult, Exit, Failure};
use super::printable::{printable, printable_json};
use super::session::{RawJson, decode};
use super::table::{Table, pairs};

/// Few colors, each with one meaning.
pub(crate) mod style {
    use anstyle::{AnsiColor, Style};

    pub(crate) const BOLD: Style = Style::new().bold();
    pub(crate) const DIM: Style = Style::new().dimmed();
    pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
    pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
    pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
    /// A command that can be pasted into a shell.
    pub(crate) const COMMAND: Style = AnsiColor::Cyan.on_default();

    /// A text in a style.
    pub(crate) fn paint(style: Style, text: &str) -> String {
        format!("{style}{text}{style:#}")
    }
}

/// The output format, `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Format {
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    Json,
    Yaml,
    /// For what is written in TOML: policies.
    Toml,
}

impl Format {
    const NAMES: [(&str, Self); 5] = [
        ("table", Self::Table),
        ("wide", Self::Wide),
        ("json", Self::Json),
        ("yaml", Self::Yaml),
        ("toml", Self::Toml),
    ];

    /// Parses a format by name. The values have no help of their own, which would make every help
    /// text long.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        let names = PossibleValuesParser::new(Self::NAMES.map(|(name, _)| name));
        names.map(|text| {
            let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
            found.map_or_else(Self::default, |(_, format)| format)
        })
    }
}

/// Where and how results are printed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    pub(crate) format: Format,
    /// Print names only, and no progress.
    pub(crate) quiet: bool,
    /// Print tables as wide as they are.
    pub(crate) no_trunc: bool,
}

impl Output {
    /// Whether the output is for scripts.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml | Format::Toml)
    }

    /// Whether tables have their additional columns.
    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Prints a value as JSON or YAML. Results have no TOML form, except for policies.
    pub(crate) fn data<T: Serialize + ?Sized>(&self, value: &T) -> CmdResult {
        if self.format == Format::Toml {
            let accepted = "only `berth policies show` prints TOML; use -o json or -o yaml";
            return Err(Failure::usage(accepted));
        }
        // Through `Document`, which keeps the order of keys that the server sent.
        let document: Document = serde_json::from_str(&serde_json::to_string(value)?)?;
        let text = if self.format == Format::Yaml {
            serde_saphyr::to_string(&document)
                .map_err(|error| Failure::new(Exit::Failed, format!("writing YAML: {error}")))?
        } else {
            serde_json::to_string_pretty(&document)?
        };
        let text = text.trim_end();
        let is_yaml = self.format == Format::Yaml;
        let text = if is_yaml { printable(text) } else { printable_json(text) };
        anstream::println!("{text}");
        Ok(())
    }

    /// Prints responses as JSON or YAML: one as it is, several as a list.
    pub(crate) fn data_of(&self, responses: &[RawJson]) -> CmdResult {
        match responses {
            [response] => self.data(response),
            responses => self.data(responses),
        }
    }

    /// Prints a response: as it came for scripts, otherwise by `print`.
    pub(crate) fn response<T: DeserializeOwned>(
        &self,
        raw: &RawValue,
        print: impl FnOnce(T),
    ) -> CmdResult {
        if self.is_data() {
            return self.data(raw);
        }
        print(decode(raw)?);
        Ok(())
    }

    /// Prints a table: its first column when quiet, a note when it has no rows.
    pub(crate) fn table(&self, table: &Table, when_empty: &str) {
        if self.quiet {
            table.first_column().for_each(|name| self.line(name));
        } else if table.is_empty() {
            self.note(when_empty);
        } else {
            self.line(self.text_of(table));
        }
    }

    /// A table as text that fits the terminal. Elsewhere nothing is cut off.
    pub(crate) fn text_of(&self, table: &Table) -> String {
        table.text(self.width())
    }

    /// The width that lines should not exceed.
    pub(crate) fn width(&self) -> Option<usize> {
        if self.no_trunc || self.is_wide() || !std::io::stdout().is_terminal() {
            return None;
        }
        let (columns, _) = crossterm::terminal::size().ok()?;
        // A terminal that does not know its size says zero.
        (columns > 0).then_some(usize::from(columns))
    }

    /// Prints names and values below each other.
    pub(crate) fn pairs(&self, fields: &[(&str, String)]) {
        self.line(pairs(fields));
    }

    /// Prints a line of the result.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        anstream::println!("{}", printable(text.as_ref()));
    }

    /// Prints a line to standard error, unless quiet.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            anstream::eprintln!("{}", printable(text.as_ref()));
        }
    }

    /// A progress bar, shown on a terminal only.
    pub(crate) fn bar(&self, length: usize, message: &str) -> ProgressBar {
        let template = "{msg} {bar:30} {pos}/{len} {eta}";
        let bar = ProgressBar::with_draw_target(Some(length as u64), self.target());
        // The template is a constant; should it ever be wrong, the default will do.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.with_message(printable(message).into_owned())
    }

    /// A spinner, shown on a terminal only.
    pub(crate) fn spinner(&self, message: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, self.target());
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        bar.with_message(printable(message).into_owned())
    }

    /// The progress of something that is waited for.
    pub(crate) fn progress(&self, message: &str) -> Progress {
        Progress { out: *self, bar: self.spinner(message), last: String::new() }
    }

    /// Where progress is drawn.
    pub(crate) fn target(&self) -> ProgressDrawTarget {
        if self.quiet || self.is_data() || !std::io::stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        }
    }
}

/// The progress of something that is waited for: a spinner on a terminal, otherwise a line for each step.
pub(crate) struct Progress {
    out: Output,
    bar: ProgressBar,
    last: String,
}

impl Progress {
    /// Shows a step: its message on a terminal, otherwise its line, unless it was the last one already.
    pub(crate) fn update(&mut self, message: &str, line: &str) {
        if message == self.last {
            return;
        }
        if self.bar.is_hidden() {
            self.out.note(line);
        }
        self.bar.set_message(printable(message).into_owned());
        self.last = message.to_owned();
    }

    /// Shows a message on a terminal only, until the next step.
    pub(crate) fn interrupt(&self, message: &'static str) {
        self.bar.set_message(message);
    }

    /// Removes the spinner.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What a change does where nobody can be asked for confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonInteractive {
    /// It was given by name, and is made.
    Proceed,
    /// It was selected by a rule, and needs `--yes`.
    Refuse,
}

/// Asks on a terminal whether an action shall be carried out.
pub(crate) fn confirm(action: &str, non_interactive: NonInteractive) -> CmdResult {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return match non_interactive {
            NonInteractive::Proceed => Ok(()),
            NonInteractive::Refuse => {
                let line = format!(
                    "this would {action}; nothing was changed, because there is no terminal to \
                     ask for confirmation"
                );
                Err(Failure::usage(line).accepted("--yes to do it without confirmation"))
            }
        };
    }
    anstream::eprint!("{}? [y/N] ", printable(action));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, "nothing was changed"))
}
