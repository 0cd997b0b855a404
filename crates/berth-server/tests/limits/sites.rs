//! The texts, lists and maps of a request body, as its schema has them, and bodies that fill one of
//! them.

use serde_json::{Map, Value, json};

/// A step from a value to a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A field of an object.
    Field(String),
    /// An item of a list.
    Item,
    /// A value of a map.
    Entry,
    /// A key of a map.
    Key,
    /// One of several schemas.
    Choice(usize),
}

/// What can be too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    List,
    Map,
}

/// A text, list or map in a body.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) path: Vec<Step>,
    pub(crate) kind: Kind,
    /// The most that the document says it may hold.
    pub(crate) most: Option<usize>,
}

impl Site {
    /// The innermost field.
    pub(crate) fn field(&self) -> &str {
        let fields = self.path.iter().rev().filter_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        });
        fields.into_iter().next().unwrap_or("")
    }
}

/// The document, to resolve references.
pub(crate) struct Schemas(pub(crate) Value);

impl Schemas {
    fn resolve<'a>(&'a self, mut schema: &'a Value) -> &'a Value {
        while let Some(reference) = schema["$ref"].as_str() {
            schema = self.0.pointer(reference.trim_start_matches('#')).unwrap();
        }
        schema
    }

    fn choices<'a>(&self, schema: &'a Value) -> Option<&'a Vec<Value>> {
        ["oneOf", "anyOf", "allOf"].into_iter().find_map(|key| schema[key].as_array())
    }

    /// All texts, lists and maps in a body of this schema.
    pub(crate) fn sites(&self, schema: &Value) -> Vec<Site> {
        let mut found = Vec::new();
        self.walk(schema, &[], &mut found);
        found
    }

    fn walk(&self, schema: &Value, path: &[Step], found: &mut Vec<Site>) {
        assert!(path.len() < 32, "a schema contains itself: {path:?}");
        let schema = self.resolve(schema);
        let within = |step: Step, inner: &Value, found: &mut Vec<Site>| {
            self.walk(inner, &[path, &[step]].concat(), found);
        };
        if let Some(choices) = self.choices(schema) {
            for (number, choice) in choices.iter().enumerate() {
                within(Step::Choice(number), choice, found);
            }
            return;
        }
        let most = |key: &str| schema[key].as_u64().map(|most| usize::try_from(most).unwrap());
        if has_type(schema, "string") && is_free(schema) {
            found.push(Site { path: path.to_vec(), kind: Kind::Text, most: most("maxLength") });
        }
        if has_type(schema, "array") {
            within(Step::Item, &schema["items"], found);
            // A pair cannot be too long: it would be something else.
            if !schema["minItems"].is_null() && schema["minItems"] == schema["maxItems"] {
                return;
            }
            found.push(Site { path: path.to_vec(), kind: Kind::List, most: most("maxItems") });
        }
        if has_type(schema, "object") {
            if schema["additionalProperties"].is_object() {
                within(Step::Entry, &schema["additionalProperties"], found);
                let keys = self.resolve(&schema["propertyNames"]);
                if is_free(keys) {
                    let most =
                        keys["maxLength"].as_u64().map(|most| usize::try_from(most).unwrap());
                    let path = [path, &[Step::Key]].concat();
                    found.push(Site { path, kind: Kind::Text, most });
                }
                let most = most("maxProperties");
                found.push(Site { path: path.to_vec(), kind: Kind::Map, most });
            }
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                within(Step::Field(name.clone()), property, found);
            }
        }
    }

    /// A body that is valid but for the part at a path, which `make` makes of its schema.
    pub(crate) fn body(
        &self,
        schema: &Value,
        path: &[Step],
        make: &dyn Fn(&Value) -> Value,
    ) -> Value {
        let schema = self.resolve(schema);
        let Some((step, rest)) = path.split_first() else { return make(schema) };
        match step {
            Step::Choice(number) => self.body(&self.choices(schema).unwrap()[*number], rest, make),
            Step::Field(name) => {
                let mut body = self.example(schema);
                body[name] = self.body(&schema["properties"][name], rest, make);
                body
            }
            Step::Item => {
                let mut items = self.items(schema, schema["minItems"].as_u64().unwrap_or(1).max(1));
                items[0] = self.body(&schema["items"], rest, make);
                Value::Array(items)
            }
            Step::Entry => json!({"k": self.body(&schema["additionalProperties"], rest, make)}),
            Step::Key => {
                let key = make(&schema["propertyNames"]).as_str().unwrap().to_owned();
                json!({key: self.example(&schema["additionalProperties"])})
            }
        }
    }

    /// So many items of a list.
    pub(crate) fn items(&self, schema: &Value, count: u64) -> Vec<Value> {
        (0..count).map(|_| self.example(&schema["items"])).collect()
    }

    /// So many entries of a map.
    pub(crate) fn entries(&self, schema: &Value, count: usize) -> Value {
        let is_version = self.resolve(&schema["propertyNames"])["pattern"].is_string();
        let key = |number| if is_version { format!("1.{number}") } else { format!("k{number}") };
        let value = self.example(&schema["additionalProperties"]);
        Value::Object((0..count).map(|number| (key(number), value.clone())).collect())
    }

    /// The smallest valid value.
    fn example(&self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        if let Some(choices) = self.choices(schema) {
            let choice = choices.iter().find(|choice| choice["type"] != "null").unwrap();
            return self.example(choice);
        }
        if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
            return first.clone();
        }
        if !schema["const"].is_null() {
            return schema["const"].clone();
        }
        if has_type(schema, "object") {
            let required = schema["required"].as_array().into_iter().flatten();
            let fields = required
                .map(|name| name.as_str().unwrap())
                .map(|name| (name.to_owned(), self.example(&schema["properties"][name])));
            return Value::Object(fields.collect::<Map<_, _>>());
        }
        match () {
            () if has_type(schema, "array") => {
                Value::Array(self.items(schema, schema["minItems"].as_u64().unwrap_or(0)))
            }
            () if has_type(schema, "boolean") => json!(false),
            () if schema["format"] == "uuid" => json!("00000000-0000-4000-8000-000000000000"),
            () if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
            () if schema["pattern"].is_string() => json!("1.0"),
            () if has_type(schema, "string") => json!("x"),
            () => json!(schema["minimum"].as_u64().unwrap_or(0).max(1)),
        }
    }
}

fn has_type(schema: &Value, name: &str) -> bool {
    let kind = &schema["type"];
    kind == name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name))
}

/// Whether any text is accepted: a format, a pattern or a choice limits it by itself.
fn is_free(schema: &Value) -> bool {
    ["format", "enum", "const", "pattern"].iter().all(|key| schema[*key].is_null())
}
