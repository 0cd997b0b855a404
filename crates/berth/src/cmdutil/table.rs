//! Tables without borders, with a dim header and numbers aligned right.

use comfy_table::{Attribute, CellAlignment, Color, ContentArrangement, TableStyle};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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
    /// Titles of columns that are left out, since the terminal is too narrow for them.
    hidden: Vec<String>,
}

impl Table {
    /// A table with these columns. A name that begins with `>` is a column of numbers.
    pub(crate) fn new(header: &[&str]) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { header, ..Self::default() }
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
            hidden: Vec::new(),
        }
    }

    /// A table of items with all columns, also those without values.
    pub(crate) fn of_all<'a, T: 'a>(
        items: impl IntoIterator<Item = &'a T>,
        wide: bool,
        columns: &[Column<T>],
    ) -> Self {
        let shown = || columns.iter().filter(|column| wide || !column.title.starts_with('+'));
        let header = shown().map(|column| column.title.trim_start_matches(['+', '?']).to_owned());
        let row = |item| shown().map(|column| (column.cell)(item)).collect();
        let rows = items.into_iter().map(row).collect();
        Self { header: header.collect(), rows, hidden: Vec::new() }
    }

    /// What each row says, without times that pass by themselves.
    pub(crate) fn states(&self) -> impl Iterator<Item = String> {
        let is_age =
            |text: &str| text == "now" || text.ends_with(" ago") || text.starts_with("in ");
        self.rows.iter().map(move |row| {
            let cells = row.iter().map(|cell| cell.text.as_str()).filter(|text| !is_age(text));
            cells.collect::<Vec<_>>().join("\t")
        })
    }

    /// The texts of all cells, row by row.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().flatten().map(|cell| cell.text.as_str())
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

    /// The table as text, with colors and without trailing spaces. With a width, long texts are cut
    /// off so that lines are not longer, as far as that is possible, and the last columns are left out
    /// and named where nothing readable would be left of them.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let fitted = width.and_then(|width| self.fitted(width));
        let Self { header, rows, hidden } = fitted.as_ref().unwrap_or(self);
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new());
        table.set_content_arrangement(ContentArrangement::Disabled);
        // The stream removes colors where they are not wanted.
        table.enforce_styling();
        let titles = header.iter().map(|name| name.trim_start_matches('>'));
        table.set_header(
            titles.map(|name| comfy_table::Cell::new(name).add_attribute(Attribute::Dim)),
        );
        for row in rows {
            table.add_row(row.iter().map(to_styled_cell));
        }
        for (index, name) in header.iter().enumerate() {
            let Some(column) = table.column_mut(index) else { continue };
            column.set_padding((0, GAP));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut lines: Vec<String> = table.lines().map(|line| trim_styled_end(&line)).collect();
        if !hidden.is_empty() {
            let note = format!("-o wide shows {} too.", hidden.join(", "));
            lines.push(style::paint(style::DIM, &note));
        }
        lines.join("\n")
    }
}

/// The spaces between two columns.
const GAP: u16 = 2;

/// The least width that is left of a column that is cut off.
const NARROWEST: usize = 4;

/// The width at which something readable is left of a column, and of the first one, which names the item.
const READABLE: usize = 8;
const READABLE_NAME: usize = 13;

/// Columns that are never left out.
const KEPT: usize = 4;

impl Table {
    /// The same table with its widest columns cut off and its last ones left out; none if it fits as it is.
    fn fitted(&self, width: usize) -> Option<Self> {
        let mut widths = vec![0; self.header.len()];
        for (index, title) in self.header.iter().enumerate() {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            let widest = cells.map(|cell| display_width(&cell.text)).max().unwrap_or(0);
            widths[index] = widest.max(display_width(title.trim_start_matches('>')));
        }
        let with_gaps = |widths: &[usize]| {
            widths.iter().sum::<usize>() + usize::from(GAP) * widths.len().saturating_sub(1)
        };
        with_gaps(&widths).checked_sub(width)?;
        let readable = widths.iter().enumerate().map(|(index, &natural)| match index {
            0 => natural.min(READABLE_NAME),
            _ => natural.min(READABLE),
        });
        let mut readable: Vec<usize> = readable.collect();
        while readable.len() > KEPT && with_gaps(&readable) > width {
            readable.pop();
        }
        let hidden = self.header.iter().skip(readable.len());
        let hidden = hidden.map(|title| title.trim_start_matches('>').to_owned()).collect();
        widths.truncate(readable.len());
        let excess = with_gaps(&widths).saturating_sub(width);
        shrink(&mut widths, &readable, excess);
        let cut = |row: &Vec<Cell>| {
            let cells = row.iter().zip(&widths);
            cells.map(|(cell, &width)| Cell { text: shorten(&cell.text, width), ..*cell }).collect()
        };
        let titles = self.header.iter().zip(&widths).map(|(name, &width)| {
            let title = name.trim_start_matches('>');
            let mark = &name[..name.len() - title.len()];
            format!("{mark}{}", shorten(title, width))
        });
        let rows = self.rows.iter().map(cut).collect();
        Some(Self { header: titles.collect(), rows, hidden })
    }
}

/// Takes an excess off the widest columns: while they stay readable, and the first one last.
fn shrink(widths: &mut [usize], readable: &[usize], mut excess: usize) {
    while excess > 0 {
        let widest =
            |widths: &[usize], range: std::ops::Range<usize>, least: &dyn Fn(usize) -> usize| {
                let can_shrink = range.filter(|&index| widths[index] > least(index));
                can_shrink.max_by_key(|&index| widths[index])
            };
        let others = 1..widths.len();
        let as_readable = |index: usize| readable[index];
        let as_narrow = |_: usize| NARROWEST;
        let index = widest(widths, others.clone(), &as_readable)
            .or_else(|| widest(widths, 0..1, &as_readable))
            .or_else(|| widest(widths, others, &as_narrow))
            .or_else(|| widest(widths, 0..1, &as_narrow));
        let Some(index) = index else { break };
        widths[index] -= 1;
        excess -= 1;
    }
}

fn display_width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// A text of at most this width; what is cut off becomes an ellipsis.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut shown = String::new();
    for character in text.chars() {
        let wide = UnicodeWidthChar::width(character).unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        shown.push(character);
    }
    shown.push('…');
    shown
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
        let text = anstream::adapter::strip_str(&table.text(None)).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["NODE         CPU  STATE", "a            1.5  active", "longer-name  128  lost"]
        );
    }

    #[test]
    fn a_table_fits_its_width_and_keeps_the_first_column_whole() {
        let mut table = Table::new(&["NODE", "TRAITS", ">CPU"]);
        table.row(["node-000012".into(), "ssd avx512 sgx confidential".into(), "128".into()]);
        table.row(["node-000013".into(), "ssd".into(), "4".into()]);
        let text = |width| anstream::adapter::strip_str(&table.text(width)).to_string();
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            lines(&text(Some(30))),
            [
                "NODE         TRAITS        CPU",
                "node-000012  ssd avx512 …  128",
                "node-000013  ssd             4"
            ]
        );
        assert_eq!(text(Some(80)), text(None));
        assert!(!text(None).contains('…'));
        // Columns stay readable even where that does not fit.
        assert!(text(Some(5)).contains("nod…"), "{}", text(Some(5)));
    }

    #[test]
    fn columns_that_could_not_be_read_are_left_out_and_named() {
        let mut table =
            Table::new(&["INSTANCE", "NAME", "TENANT", "NODE", "STATE", ">AGE", "PERMIT"]);
        let row =
            ["01a1f453-555a-803c-839e-7f5e74f595c2", "web-32-7", "a-longer-tenant", "node-000012"];
        let row = row.into_iter().chain(["active", "25s", "9 CPU, 16 GiB"]);
        table.row(row.map(Cell::from));
        let text = |width| anstream::adapter::strip_str(&table.text(Some(width))).to_string();
        let lines: Vec<String> = text(60).lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "INSTANCE           NAME      TENANT    NODE      STATE   AGE",
                "01a1f453-555a-80…  web-32-7  a-longe…  node-00…  active  25s",
                "-o wide shows PERMIT too.",
            ]
        );
        assert!(lines.iter().all(|line| display_width(line) <= 60));
        assert!(!text(200).contains("wide shows"));
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(shorten("日本語のノード", 7), "日本語…");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("abcd", 3), "ab…");
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
