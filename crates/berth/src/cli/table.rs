//! Calm tables: no borders, a dim header, numbers to the right.

use comfy_table::{Attribute, CellAlignment, Color, ContentArrangement, TableStyle};

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// How a cell stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Not at all.
    Plain,
    /// It stands back.
    Dim,
    /// As it should be.
    Good,
    /// Worth a look.
    Warn,
    /// Wrong.
    Bad,
}

impl Cell {
    /// A cell in a tone.
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A table for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns. A name that begins with `>` is a column of numbers.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// The same with one more column.
    pub(crate) fn column(&mut self, name: &str) {
        self.header.push(name.to_owned());
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The texts of the first column.
    pub(crate) fn first_column(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(|row| row.first()).map(|cell| cell.text.as_str())
    }

    /// The table as text, with colours. Lines have no space at their end.
    pub(crate) fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new());
        table.set_content_arrangement(ContentArrangement::Disabled);
        // The stream takes colours away where they are not wanted.
        table.enforce_styling();
        let titles = self.header.iter().map(|name| name.trim_start_matches('>'));
        table.set_header(
            titles.map(|name| comfy_table::Cell::new(name).add_attribute(Attribute::Dim)),
        );
        for row in &self.rows {
            table.add_row(row.iter().map(styled));
        }
        for (index, name) in self.header.iter().enumerate() {
            let Some(column) = table.column_mut(index) else { continue };
            column.set_padding((0, 2));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|line| trimmed(&line)).collect::<Vec<_>>().join("\n")
    }
}

/// A line without space at its end, also where the end is styled.
fn trimmed(line: &str) -> String {
    let (mut text, mut codes) = (line.trim_end(), String::new());
    while let Some(start) = text.rfind('\x1b').filter(|_| text.ends_with('m')) {
        // Only a code that is the very end of the line.
        if text[start..].find('m') != Some(text.len() - start - 1) {
            break;
        }
        codes.insert_str(0, &text[start..]);
        text = text[..start].trim_end();
    }
    format!("{text}{codes}")
}

fn styled(cell: &Cell) -> comfy_table::Cell {
    let styled = comfy_table::Cell::new(&cell.text);
    match cell.tone {
        Tone::Plain => styled,
        Tone::Dim => styled.add_attribute(Attribute::Dim),
        Tone::Good => styled.fg(Color::Green),
        Tone::Warn => styled.fg(Color::Yellow),
        Tone::Bad => styled.fg(Color::Red),
    }
}

/// Names and values below each other, names dim.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let dim = super::output::style::DIM;
    let lines = pairs.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| {
        let value = value.replace('\n', &format!("\n{:1$}", "", width + 2));
        format!("{dim}{name:<width$}{dim:#}  {value}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_borders_and_numbers_to_the_right() {
        let mut table = Table::new(&["NODE", ">CPU", "STATE"]);
        table.row(["a".into(), "1.5".into(), Cell::toned("active", Tone::Good)]);
        table.row(["longer-name".into(), "128".into(), "lost".into()]);
        let text = anstream::adapter::strip_str(&table.text()).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["NODE         CPU  STATE", "a            1.5  active", "longer-name  128  lost"]
        );
    }
}
