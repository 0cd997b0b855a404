//! Text that a terminal prints as it is: names and messages come from servers, tenants and agents,
//! and must not move the cursor, hide other text or change the terminal.
//!
//! Only the colors that this program uses itself pass; every other control character is shown by its
//! number. Output for scripts is the same data with the same characters escaped.

use std::borrow::Cow;
use std::fmt::Write as _;

use berth_api::limits::is_control;

/// A text for people: of control characters only line ends, tabs and own colors are left.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(|character| !is_control(character) || matches!(character, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if let Some(length) = color_length(rest) {
            shown.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if is_control(character) && !matches!(character, '\n' | '\t') {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
        rest = &rest[character.len_utf8()..];
    }
    Cow::Owned(shown)
}

/// A text without any control character, for one cell of a table.
pub(crate) fn one_line(text: String) -> String {
    if !text.chars().any(is_control) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            character if is_control(character) => shown.extend(character.escape_unicode()),
            character => shown.push(character),
        }
    }
    shown
}

/// JSON with those control characters escaped that JSON leaves as they are.
pub(crate) fn printable_json(json: &str) -> Cow<'_, str> {
    let is_raw = |character: char| is_control(character) && !matches!(character, '\n' | '\t');
    if !json.chars().any(is_raw) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_raw(character) {
            // All of them are in the first plane; writing to a string cannot fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(character));
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// The length of a color that this program uses, at the start of a text.
fn color_length(text: &str) -> Option<usize> {
    let codes = text.strip_prefix("\u{1b}[")?;
    let end = codes.find('m')?;
    let codes = &codes[..end];
    // No code at all means plain.
    let number = |code: &str| if code.is_empty() { Some(0) } else { code.parse::<u8>().ok() };
    let mut codes = codes.split(';').map(number);
    while let Some(code) = codes.next() {
        let is_own = match code? {
            // Plain, bold, dim, neither; a color, but not black, which would hide the text.
            0..=2 | 22 | 31..=36 | 39 => true,
            38 => codes.next() == Some(Some(5)) && matches!(codes.next(), Some(Some(1..=14))),
            _ => false,
        };
        if !is_own {
            return None;
        }
    }
    Some("\u{1b}[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::super::output::style;
    use super::super::table::{Table, Tone};
    use super::*;

    #[test]
    fn own_colors_pass_and_everything_else_is_shown_by_its_number() {
        for style in [style::BOLD, style::DIM, style::GOOD, style::WARN, style::BAD, style::COMMAND]
        {
            let text = style::paint(style, "web");
            assert_eq!(printable(&text), text);
            assert_eq!(printable("\u{1b}[mweb"), "\u{1b}[mweb");
        }
        let table = [
            ("plain\n\ttext", "plain\n\ttext"),
            ("\u{1b}[2J\u{1b}[H", "\\u{1b}[2J\\u{1b}[H"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{1b}[8mhidden", "\\u{1b}[8mhidden"),
            ("\u{1b}[30mblack", "\\u{1b}[30mblack"),
            ("\u{1b}[38;5;0m", "\\u{1b}[38;5;0m"),
            ("\u{1b}[38;2;1;1;1m", "\\u{1b}[38;2;1;1;1m"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\rb\u{8}", "a\\u{d}b\\u{8}"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
            ("\u{1b}", "\\u{1b}"),
            ("größe 名前", "größe 名前"),
        ];
        for (text, expected) in table {
            assert_eq!(printable(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_cell_is_one_line_in_its_own_tone() {
        let mut table = Table::new(&["NAME"]);
        let name = "web\u{1b}[2K\nfake  active";
        table.row([super::super::table::Cell::with_tone(name, Tone::Good)]);
        let text = table.text(None);
        assert_eq!(printable(&text), text, "tables use own colors only");
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "NAME\nweb\\u{1b}[2K\\nfake  active");
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"name": "a\u{1b}b\u{9b}c\u{202e}\u{7f}\nd"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = printable_json(&text);
        assert!(!shown.chars().any(|it| is_control(it) && it != '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
