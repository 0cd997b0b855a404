//! Printing: tables for people, the API's own JSON or YAML for scripts.
//!
//! Results go to standard output, everything else to standard error. Colour is always asked for
//! here and taken away by the stream when it is not a terminal or `NO_COLOR` is set.

use std::io::IsTerminal;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::document::Document;
use super::failure::{Done, Exit, Failure};
use super::table::Table;

/// Few colours, each with one meaning.
pub(crate) mod style {
    use anstyle::{AnsiColor, Style};

    /// What stands out.
    pub(crate) const BOLD: Style = Style::new().bold();
    /// What stands back.
    pub(crate) const DIM: Style = Style::new().dimmed();
    /// As it should be.
    pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
    /// Worth a look.
    pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
    /// Wrong.
    pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
    /// What can be pasted.
    pub(crate) const COMMAND: Style = AnsiColor::Cyan.on_default();

    /// A text in a style.
    pub(crate) fn paint(style: Style, text: &str) -> String {
        format!("{style}{text}{style:#}")
    }
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Format {
    /// A table for people.
    #[default]
    Table,
    /// The same with more columns.
    Wide,
    /// The API's JSON.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Format {
    const NAMES: [(&str, Self); 4] =
        [("table", Self::Table), ("wide", Self::Wide), ("json", Self::Json), ("yaml", Self::Yaml)];

    /// Reads a format by its name. The names need no words of their own, which would make every
    /// help text long.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        let names = PossibleValuesParser::new(Self::NAMES.map(|(name, _)| name));
        names.map(|text| {
            let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
            found.map_or_else(Self::default, |(_, format)| format)
        })
    }
}

/// Where and how answers are printed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Output {
    /// How.
    pub(crate) format: Format,
    /// Names only, and no word about progress.
    pub(crate) quiet: bool,
}

impl Output {
    /// Whether a script reads the answer.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    /// Whether more columns were asked for.
    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Prints something for scripts.
    pub(crate) fn data<T: Serialize + ?Sized>(&self, value: &T) -> Done {
        let text = if self.format == Format::Yaml {
            // Through JSON, since what came from the server is kept as its own JSON.
            let document: Document = serde_json::from_str(&serde_json::to_string(value)?)?;
            serde_saphyr::to_string(&document)
                .map_err(|error| Failure::new(Exit::Failed, format!("writing YAML: {error}")))?
        } else {
            let document: Document = serde_json::from_str(&serde_json::to_string(value)?)?;
            serde_json::to_string_pretty(&document)?
        };
        anstream::println!("{}", text.trim_end());
        Ok(())
    }

    /// Prints an answer: as it came for scripts, else as `human` makes it.
    pub(crate) fn answer<T: DeserializeOwned>(
        &self,
        raw: &RawValue,
        human: impl FnOnce(T) -> Done,
    ) -> Done {
        if self.is_data() { self.data(raw) } else { human(serde_json::from_str(raw.get())?) }
    }

    /// Prints a list: as it came for scripts, the first column when quiet, else all of it.
    pub(crate) fn table(&self, table: &Table, when_empty: &str) {
        if self.quiet {
            for name in table.first_column() {
                anstream::println!("{name}");
            }
        } else if table.is_empty() {
            self.note(when_empty);
        } else {
            anstream::println!("{}", table.text());
        }
    }

    /// Prints a line of the answer.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        anstream::println!("{}", text.as_ref());
    }

    /// Says something beside the answer; not when quiet.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            anstream::eprintln!("{}", text.as_ref());
        }
    }

    /// A bar for something long. Shown on a terminal only.
    pub(crate) fn bar(&self, length: u64, what: &str) -> ProgressBar {
        let template = "{msg} {bar:30} {pos}/{len} {eta}";
        let bar = ProgressBar::with_draw_target(Some(length), self.target());
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| {
            // The template is a constant; should it ever be wrong, the default will do.
            ProgressStyle::default_bar()
        }));
        bar.set_message(what.to_owned());
        bar
    }

    /// A mark that something goes on. Shown on a terminal only.
    pub(crate) fn spinner(&self, what: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, self.target());
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        bar
    }

    /// Where progress is shown.
    pub(crate) fn target(&self) -> ProgressDrawTarget {
        if self.quiet || self.is_data() || !std::io::stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        }
    }
}

/// Asks a question on a terminal; where nobody can answer, the answer is yes.
pub(crate) fn confirm(question: &str) -> Done<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(true);
    }
    anstream::eprint!("{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
