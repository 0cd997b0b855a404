//! Tables without borders, with a dim header and numbers aligned right.

use comfy_table::{Attribute, CellAlignment, Color, ContentArrangement, TableStyle};

use super::output::style;
use super::printable::one_line;
use super::text::dash;

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// How a cell is emphasized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Dim,
    Good,
    Warn,
    Bad,
}

impl Tone {
    /// The style of texts outside of tables.
    pub(crate) const fn style(self) -> anstyle::Style {
        match self {
            Self::Plain => anstyle::Style::new(),
            Self::Dim => style::DIM,
            Self::Good => style::GOOD,
            Self::Warn => style::WARN,
            Self::Bad => style::BAD,
        }
    }
}

impl Cell {
    /// Its text, or nothing where there is only a dash.
    pub(crate) fn value(self) -> String {
        if self == dash() { String::new() } else { self.text }
    }

    /// A cell in a tone.
    pub(crate) fn with_tone(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: one_line(text.into()), tone }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::with_tone(text, Tone::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::with_tone(text, Tone::Plain)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&style::paint(self.tone.style(), &self.text))
    }
}

macro_rules! cell_from {
    ($($number:ty),*) => {
        $(impl From<$number> for Cell {
            fn from(number: $number) -> Self {
                number.to_string().into()
            }
        })*
    };
}

cell_from!(u32, u64, i64, usize);

/// A dash when there is none.
impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(dash, Into::into)
    }
}

/// A column of a table: its title, and the cell of each item.
///
/// A title may have prefixes: `+` for a column of wide tables only, `?` for one that is left out when
/// all of its cells are dim, as dashes are, and last `>` for numbers, which are aligned right.
pub(crate) struct Column<T: ?Sized> {
    pub(crate) title: &'static str,
    pub(crate) cell: fn(&T) -> Cell,
}

/// Columns of a table: `columns![node; "NODE" => node.id.as_str(), ">CPU" => node.cpu]`.
macro_rules! columns {
    ($item:ident: $type:ty; $($title:literal => $cell:expr),* $(,)?) => {{
        let columns: &[$crate::cmdutil::Column<$type>] =
            $crate::cmdutil::columns![$item; $($title => $cell),*];
        columns
    }};
    ($item:ident; $($title:literal => $cell:expr),* $(,)?) => {
        &[$($crate::cmdutil::Column {
            title: $title,
            cell: |$item| $crate::cmdutil::Cell::from($cell),
        }),*]
    };
}

pub(crate) use columns;

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

    /// A table of items, one in each row.
    pub(crate) fn of<'a, T: 'a>(
        items: impl IntoIterator<Item = &'a T> + Clone,
        wide: bool,
        columns: &[Column<T>],
    ) -> Self {
        let has_values = |column: &Column<T>| {
            items.clone().into_iter().any(|item| (column.cell)(item).tone != Tone::Dim)
        };
        let shown: Vec<_> = columns
            .iter()
            .filter(|column| wide || !column.title.starts_with('+'))
            .filter(|column| !column.title.starts_with('?') || has_values(column))
            .collect();
        let header = shown.iter().map(|column| column.title.trim_start_matches(['+', '?']));
        let row = |item| shown.iter().map(|column| (column.cell)(item)).collect();
        Self {
            header: header.map(str::to_owned).collect(),
            rows: items.clone().into_iter().map(row).collect(),
        }
    }

    /// Adds a column.
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

    /// The table as text, with colors and without trailing spaces.
    pub(crate) fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new());
        table.set_content_arrangement(ContentArrangement::Disabled);
        // The stream removes colors where they are not wanted.
        table.enforce_styling();
        let titles = self.header.iter().map(|name| name.trim_start_matches('>'));
        table.set_header(
            titles.map(|name| comfy_table::Cell::new(name).add_attribute(Attribute::Dim)),
        );
        for row in &self.rows {
            table.add_row(row.iter().map(to_styled_cell));
        }
        for (index, name) in self.header.iter().enumerate() {
            let Some(column) = table.column_mut(index) else { continue };
            column.set_padding((0, 2));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|line| trim_styled_end(&line)).collect::<Vec<_>>().join("\n")
    }
}

/// A line without trailing spaces, also where its end is styled.
fn trim_styled_end(line: &str) -> String {
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

fn to_styled_cell(cell: &Cell) -> comfy_table::Cell {
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
    let dim = style::DIM;
    let lines = pairs.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| {
        let value = value.replace('\n', &format!("\n{:1$}", "", width + 2));
        let name = name.to_lowercase();
        format!("{dim}{name:<width$}{dim:#}  {value}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_borders_and_numbers_aligned_right() {
        let mut table = Table::new(&["NODE", ">CPU", "STATE"]);
        table.row(["a".into(), "1.5".into(), Cell::with_tone("active", Tone::Good)]);
        table.row(["longer-name".into(), "128".into(), "lost".into()]);
        let text = anstream::adapter::strip_str(&table.text()).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["NODE         CPU  STATE", "a            1.5  active", "longer-name  128  lost"]
        );
    }

    #[test]
    fn a_prefix_says_when_a_column_is_shown() {
        type Item = (&'static str, Option<&'static str>, Option<u32>);
        let columns = columns![item: Item;
            "NAME" => item.0, "?TENANT" => item.1, "?>SIZE" => item.2, "+IMAGE" => item.0];
        let items: [Item; 2] = [("x", None, Some(1)), ("y", None, None)];
        let header = |wide| Table::of(&items, wide, columns).header;
        assert_eq!(header(false), ["NAME", ">SIZE"]);
        assert_eq!(header(true), ["NAME", ">SIZE", "IMAGE"]);
    }
}
