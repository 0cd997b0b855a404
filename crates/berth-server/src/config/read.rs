//! Reading: a file, variables and flags become one configuration, or a list of all that is wrong.

use berth_engine::suggest::closest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, Key, SECTIONS};
use super::value::{GivenValue, Value};
use super::{BadSetting, Config, LoadedConfig, Source, check};

/// A file and its name.
#[derive(Clone, Copy, Debug)]
pub struct FileText<'a> {
    /// The name, for messages.
    pub name: &'a str,
    /// What it holds.
    pub text: &'a str,
}

/// What a configuration is made from, each over the one before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layers<'a> {
    /// The file.
    pub file: Option<FileText<'a>>,
    /// Variables: name and value. Those that are no setting's are left alone.
    pub variables: &'a [(String, String)],
    /// Flags: the setting's name, the flag as it is typed, and what it was given.
    pub flags: &'a [(&'static str, &'static str, GivenValue)],
}

/// One given value.
struct Entry {
    key: &'static Key,
    given: GivenValue,
    source: Source,
}

impl Layers<'_> {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// All errors, each with its location and the accepted values.
    pub fn load(&self) -> Result<LoadedConfig, Vec<BadSetting>> {
        let mut problems = Vec::new();
        let mut entries = Vec::new();
        if let Some(file) = self.file {
            read_file(file, &mut entries, &mut problems);
        }
        let warnings = self.read_variables(&mut entries);
        for (name, flag, given) in self.flags {
            if let Some(key) = KEYS.iter().find(|key| key.name == *name) {
                entries.push(Entry { key, given: given.clone(), source: Source::Flag(flag) });
            }
        }
        let mut values: Vec<(Value, Source)> =
            KEYS.iter().map(|key| (default_of(key), Source::Default)).collect();
        for entry in entries {
            let Entry { key, given, source } = entry;
            match (key.kind.read(&given), place_of(key)) {
                (Some(value), Some(place)) => values[place] = (value, source),
                (Some(_), None) => {}
                (None, _) => {
                    let (name, accepted) = (key.name, key.kind.accepted());
                    let problem = format!("{name} is {given}; accepted is {accepted}");
                    problems.push(BadSetting { source, problem });
                }
            }
        }
        let mut config = Config::default();
        for (key, (value, _)) in KEYS.iter().zip(&values) {
            (key.set)(&mut config, value.clone());
        }
        let loaded = LoadedConfig { config, values, warnings };
        problems.extend(check::together(&loaded));
        if problems.is_empty() { Ok(loaded) } else { Err(problems) }
    }

    fn read_variables(&self, entries: &mut Vec<Entry>) -> Vec<String> {
        let mut warnings = Vec::new();
        for (name, text) in self.variables {
            // An empty variable is how a shell takes one back.
            if text.is_empty() {
                continue;
            }
            if let Some(key) = KEYS.iter().find(|key| key.variable() == *name) {
                let (given, source) =
                    (GivenValue::Text(text.clone()), Source::Variable(name.clone()));
                entries.push(Entry { key, given, source });
            } else if is_of_a_section(name) {
                // Others put variables into an environment too, so this is no error.
                let known: Vec<String> = KEYS.iter().map(Key::variable).collect();
                let hint = hint(name, known.iter().map(String::as_str));
                warnings.push(format!("{name} sets nothing{hint}"));
            }
        }
        warnings
    }
}

fn place_of(key: &Key) -> Option<usize> {
    KEYS.iter().position(|other| other.name == key.name)
}

/// The default of a setting. A test sees to it that every default can be read.
pub(super) fn default_of(key: &Key) -> Value {
    let given = GivenValue::Text(key.default.to_owned());
    key.kind.read(&given).unwrap_or(Value::Text(String::new()))
}

fn is_of_a_section(variable: &str) -> bool {
    let section = |(name, _): &(&str, &str)| {
        let rest = variable.strip_prefix("BERTH_");
        let rest = rest.and_then(|rest| rest.strip_prefix(&*name.to_uppercase()));
        rest.is_some_and(|rest| rest.starts_with('_'))
    };
    SECTIONS.iter().any(section)
}

fn read_file(file: FileText<'_>, entries: &mut Vec<Entry>, problems: &mut Vec<BadSetting>) {
    let source = |at: usize| {
        let line = 1 + file.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
        Source::File { name: file.name.to_owned(), line }
    };
    let table = match DeTable::parse(file.text) {
        Ok(table) => table,
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            let problem = format!("it is not TOML: {}", error.message().trim_end());
            problems.push(BadSetting { source: source(at), problem });
            return;
        }
    };
    for (section, content) in table.get_ref() {
        let name = section.get_ref().as_ref();
        let bad = |problem| BadSetting { source: source(section.span().start), problem };
        if !SECTIONS.iter().any(|(known, _)| *known == name) {
            let hint = hint_for_section(name);
            problems.push(bad(format!("[{name}] is no section{hint}")));
            continue;
        }
        let DeValue::Table(content) = content.get_ref() else {
            let problem = format!("{name} is a section; accepted is [{name}] with settings below");
            problems.push(bad(problem));
            continue;
        };
        read_section(name, content, &source, entries, problems);
    }
}

fn read_section(
    section: &str,
    content: &DeTable<'_>,
    source: &dyn Fn(usize) -> Source,
    entries: &mut Vec<Entry>,
    problems: &mut Vec<BadSetting>,
) {
    for (short, value) in content {
        let name = format!("{section}.{}", short.get_ref());
        let source = source(short.span().start);
        match KEYS.iter().find(|key| key.name == name) {
            Some(key) => entries.push(Entry { key, given: given(value), source }),
            None => {
                let known = KEYS.iter().map(|key| key.name);
                let hint = hint(&name, known);
                problems
                    .push(BadSetting { source, problem: format!("{name} is no setting{hint}") });
            }
        }
    }
}

fn given(value: &Spanned<DeValue<'_>>) -> GivenValue {
    match value.get_ref() {
        DeValue::String(text) => GivenValue::Text(text.to_string()),
        DeValue::Integer(number) => GivenValue::Number(number.to_string()),
        DeValue::Boolean(flag) => GivenValue::Flag(*flag),
        DeValue::Array(items) => {
            let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                DeValue::String(text) => Some(text.to_string()),
                _ => None,
            };
            let texts: Option<Vec<String>> = items.iter().map(text).collect();
            texts.map_or(GivenValue::Other("a list with more than texts in it"), GivenValue::List)
        }
        DeValue::Float(number) => GivenValue::Number(number.to_string()),
        DeValue::Datetime(_) => GivenValue::Other("a date"),
        DeValue::Table(_) => GivenValue::Other("a section"),
    }
}

/// A setting that was written without its section is the likeliest mistake.
fn hint_for_section(name: &str) -> String {
    if let Some(key) = KEYS.iter().find(|key| key.short() == name) {
        return format!("; did you mean {} in [{}]?", key.short(), key.section());
    }
    let sections: Vec<&str> = SECTIONS.iter().map(|(section, _)| *section).collect();
    let hint = hint(name, sections.iter().copied());
    if hint.is_empty() { format!("; accepted are {}", sections.join(", ")) } else { hint }
}

/// What was probably meant.
fn hint<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    closest(word, known).map_or_else(String::new, |known| format!("; did you mean {known}?"))
}
