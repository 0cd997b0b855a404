//! The API as a page to read, made of the document that describes it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use askama::Template;
use axum::response::Response;
use berth_ledger::invariant_ok;
use http::StatusCode;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::frame::{Frame, html};
use crate::access::{Access, ROUTES};
use berth_control::caller::Caller;

/// What a value may be: words, and the name of a schema to go on with.
#[derive(Clone, Debug, Default)]
struct Kind {
    text: String,
    schema: Option<String>,
}

/// A text in segments: plain, or (true) code.
type Prose = Vec<(bool, String)>;

/// A text whose parts in backticks are code.
fn prose(value: &Value, key: &str) -> Prose {
    let text = text(value, key);
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(place, part)| (place % 2 == 1, part.to_owned())).collect()
}

#[derive(Clone, Debug)]
struct Field {
    name: String,
    place: String,
    kind: Kind,
    required: bool,
    about: Prose,
}

#[derive(Clone, Debug)]
struct ResponseRow {
    status: String,
    about: Prose,
    kind: Kind,
}

#[derive(Clone, Debug)]
struct Operation {
    anchor: String,
    method: String,
    path: String,
    summary: String,
    about: Prose,
    roles: String,
    parameters: Vec<Field>,
    body: Option<Kind>,
    answers: Vec<ResponseRow>,
    example: String,
}

#[derive(Clone, Debug)]
struct Tag {
    name: String,
    operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
struct Schema {
    name: String,
    about: Prose,
    kind: Kind,
    values: Vec<String>,
    fields: Vec<Field>,
    variants: Vec<Kind>,
}

/// The whole document, ready to be shown.
#[derive(Clone, Debug, Template)]
#[template(path = "parts/docs.html")]
struct Docs {
    about: String,
    tags: Vec<Tag>,
    schemas: Vec<Schema>,
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage {
    frame: Frame,
    docs: &'static str,
}

/// The page of the API.
pub(crate) fn docs_page(caller: Option<&Caller>, openapi: impl FnOnce() -> OpenApi) -> Response {
    // The document does not change while the server runs.
    static DOCS: OnceLock<String> = OnceLock::new();
    let docs = DOCS.get_or_init(|| {
        let document = invariant_ok!(openapi().to_json(), "openapi_is_json").unwrap_or_default();
        let document = serde_json::from_str::<Value>(&document);
        let document = invariant_ok!(document, "openapi_is_json").unwrap_or_default();
        invariant_ok!(Docs::of(&document).render(), "docs_page_is_rendered").unwrap_or_default()
    });
    html(StatusCode::OK, &DocsPage { frame: Frame::new("API", caller), docs })
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or("").to_owned()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The type of a value by its schema.
fn kind(schema: &Value) -> Kind {
    if let Some(name) = referred(schema) {
        return Kind { text: name.to_owned(), schema: Some(name.to_owned()) };
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        let some: Vec<Kind> =
            list(schema, key).iter().filter(|one| !is_null(one)).map(kind).collect();
        if let Some(first) = some.first() {
            let texts: Vec<&str> = some.iter().map(|kind| kind.text.as_str()).collect();
            return Kind {
                text: texts.join(" or "),
                schema: first.schema.clone().filter(|_| some.len() == 1),
            };
        }
    }
    let named = match schema.get("type") {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".to_owned(),
    };
    match named.as_str() {
        "array" => {
            let items = kind(schema.get("items").unwrap_or(&Value::Null));
            Kind { text: format!("list of {}", items.text), schema: items.schema }
        }
        "object" => match schema.get("additionalProperties").filter(|of| of.is_object()) {
            Some(values) => {
                let values = kind(values);
                Kind { text: format!("map to {}", values.text), schema: values.schema }
            }
            None => Kind { text: "object".to_owned(), schema: None },
        },
        _ => Kind { text: format!("{named}{}", bounds(schema)), schema: None },
    }
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null")
}

fn referred(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/components/schemas/")
}

/// Format and limits of a plain value.
fn bounds(schema: &Value) -> String {
    let mut parts = Vec::new();
    parts.extend(schema.get("format").and_then(Value::as_str).map(str::to_owned));
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(least), Some(most)) => parts.push(format!("{least} to {most}")),
        (Some(least), None) => parts.push(format!("at least {least}")),
        (None, Some(most)) => parts.push(format!("at most {most}")),
        (None, None) => {}
    }
    parts.extend(schema.get("default").map(|usual| format!("{usual} if absent")));
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Who may use a route, in words.
fn roles(method: &str, path: &str) -> String {
    let route = ROUTES.iter().find(|(known, at, _)| *known == method && *at == path);
    match route {
        Some((_, _, Access::Open)) => "anyone".to_owned(),
        Some((_, _, Access::Roles(roles))) => {
            roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ")
        }
        None => "no role".to_owned(),
    }
}

fn content(value: &Value) -> Option<&Value> {
    let content = value.get("content")?.as_object()?;
    content.values().next()?.get("schema")
}

fn field(parameter: &Value) -> Field {
    Field {
        name: text(parameter, "name"),
        place: text(parameter, "in"),
        kind: kind(parameter.get("schema").unwrap_or(&Value::Null)),
        required: parameter.get("required").and_then(Value::as_bool).unwrap_or(false),
        about: prose(parameter, "description"),
    }
}

impl Docs {
    fn of(document: &Value) -> Self {
        let none = Map::new();
        let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
        let schemas = schemas.unwrap_or(&none);
        let paths = document.get("paths").and_then(Value::as_object).unwrap_or(&none);
        let mut tags: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
        for (path, item) in paths {
            for method in ["get", "post", "put", "patch", "delete"] {
                let Some(found) = item.get(method) else { continue };
                let tag = list(found, "tags").first().and_then(Value::as_str).unwrap_or("other");
                let operation = operation(&method.to_uppercase(), path, found, schemas);
                tags.entry(tag.to_owned()).or_default().push(operation);
            }
        }
        // The most used tags come first.
        let first = ["placements", "queue", "claims", "instances", "nodes", "decisions", "events"];
        let rank = |name: &str| first.iter().position(|of| *of == name).unwrap_or(first.len());
        let tags = tags.into_iter().map(|(name, operations)| Tag { name, operations });
        let mut tags: Vec<Tag> = tags.collect();
        tags.sort_by_key(|tag| rank(&tag.name));
        let about = document.pointer("/info/description").and_then(Value::as_str);
        let schemas = schemas.iter().map(|(name, schema)| described(name, schema)).collect();
        Self { about: about.unwrap_or("").to_owned(), tags, schemas }
    }
}

fn operation(method: &str, path: &str, found: &Value, schemas: &Map<String, Value>) -> Operation {
    let parameters: Vec<Field> = list(found, "parameters").iter().map(field).collect();
    let body = found.get("requestBody").and_then(content);
    let answers = found.get("responses").and_then(Value::as_object);
    let answers = answers.into_iter().flatten().map(|(status, answer)| ResponseRow {
        status: if status == "default" { "else".to_owned() } else { status.clone() },
        about: prose(answer, "description"),
        kind: content(answer).map(kind).unwrap_or_default(),
    });
    let anchor = format!("{}{}", method.to_lowercase(), path.replace(['/', '{', '}'], "-"));
    Operation {
        anchor,
        method: method.to_owned(),
        path: path.to_owned(),
        summary: text(found, "summary"),
        about: prose(found, "description"),
        roles: roles(method, path),
        example: curl(method, path, body, schemas),
        body: body.map(kind),
        answers: answers.collect(),
        parameters,
    }
}

fn described(name: &str, schema: &Value) -> Schema {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = list(schema, "required");
    let fields = properties.iter().map(|(name, of)| Field {
        name: name.clone(),
        place: String::new(),
        kind: kind(of),
        required: required.iter().any(|field| field == name),
        about: prose(of, "description"),
    });
    let values = list(schema, "enum").iter();
    let values =
        values.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let variants = list(schema, "oneOf").iter().map(|variant| {
        let about = text(variant, "description");
        let kind = kind(variant);
        let sole = list(variant, "enum").first().and_then(Value::as_str);
        let named = sole.unwrap_or(&kind.text).to_owned();
        let text = if about.is_empty() { named } else { format!("{named}: {about}") };
        Kind { text, schema: kind.schema }
    });
    Schema {
        name: name.to_owned(),
        about: prose(schema, "description"),
        kind: kind(schema),
        values: values.collect(),
        fields: fields.collect(),
        variants: variants.collect(),
    }
}

/// A call that shows how the operation is used, with the least that it needs.
fn curl(method: &str, path: &str, body: Option<&Value>, schemas: &Map<String, Value>) -> String {
    let mut line = String::from("curl");
    if method != "GET" {
        line.push_str(&format!(" -X {method}"));
    }
    if roles(method, path) != "anyone" {
        line.push_str(" -H \"Authorization: Bearer $BERTH_TOKEN\"");
    }
    line.push_str(&format!(" \"$BERTH_URL{}\"", with_variables(path)));
    if let Some(schema) = body {
        let example = example(schema, schemas, 0);
        let text = serde_json::to_string_pretty(&example).unwrap_or_default();
        line.push_str(&format!(" \\\n  -H \"Content-Type: application/json\" \\\n  -d '{text}'"));
    }
    line
}

/// A path whose variable parts are variables of a shell.
fn with_variables(path: &str) -> String {
    let parts = path.split('/').map(|part| {
        let inner = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        inner.map_or_else(|| part.to_owned(), |name| format!("${}", name.to_uppercase()))
    });
    parts.collect::<Vec<_>>().join("/")
}

/// The least that a schema accepts.
fn example(schema: &Value, schemas: &Map<String, Value>, depth: u32) -> Value {
    const DEEPEST: u32 = 12;
    if depth > DEEPEST {
        return json!({});
    }
    if let Some(stated) = schema.get("example") {
        return stated.clone();
    }
    if let Some(name) = referred(schema) {
        let refers = schemas.get(name).unwrap_or(&Value::Null);
        return example(refers, schemas, depth + 1);
    }
    if let Some(first) = list(schema, "enum").first() {
        return first.clone();
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(one) = list(schema, key).iter().find(|one| !is_null(one)) {
            return example(one, schemas, depth + 1);
        }
    }
    let is = |name: &str| match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(some)) => some.iter().any(|one| one == name),
        _ => false,
    };
    if is("object") {
        let required = list(schema, "required").iter().filter_map(Value::as_str);
        let fields = required.filter_map(|name| {
            let of = schema.get("properties")?.get(name)?;
            Some((name.to_owned(), example(of, schemas, depth + 1)))
        });
        return Value::Object(fields.collect());
    }
    if is("array") {
        return json!([example(schema.get("items").unwrap_or(&Value::Null), schemas, depth + 1)]);
    }
    if is("integer") || is("number") {
        return schema.get("minimum").cloned().unwrap_or_else(|| json!(1));
    }
    if is("boolean") {
        return json!(false);
    }
    match schema.get("format").and_then(Value::as_str) {
        Some("uuid") => json!("01890a5d-ac96-774b-bcce-b302099a8057"),
        Some("date-time") => json!("2026-01-31T12:00:00Z"),
        _ => json!("…"),
    }
}

/// Panics unless every operation of a document has roles, a summary and known schemas.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
pub(crate) fn assert_complete(document: &OpenApi) {
    let document: Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    let docs = Docs::of(&document);
    let known: Vec<&str> = docs.schemas.iter().map(|schema| schema.name.as_str()).collect();
    let operations = docs.tags.iter().flat_map(|tag| &tag.operations);
    let mut count = 0;
    for operation in operations {
        count += 1;
        let route = format!("{} {}", operation.method, operation.path);
        assert_ne!(operation.roles, "no role", "{route} is not in the table of permissions");
        assert!(!operation.summary.is_empty(), "{route} has no summary");
        let kinds = operation.body.iter().chain(operation.answers.iter().map(|one| &one.kind));
        for schema in kinds.filter_map(|kind| kind.schema.as_deref()) {
            assert!(known.contains(&schema), "{route} names {schema}");
        }
    }
    assert!(count > 20, "{count}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_has_what_is_required() {
        let schemas = json!({ "A": { "type": "object", "required": ["n"],
            "properties": { "n": { "type": "integer", "minimum": 3 }, "m": { "type": "string" } } } });
        let schemas = schemas.as_object().unwrap();
        let body = json!({ "$ref": "#/components/schemas/A" });
        assert_eq!(example(&body, schemas, 0), json!({ "n": 3 }));
        let line = curl("PUT", "/v1/nodes/{node}", Some(&body), schemas);
        assert!(line.contains("$BERTH_URL/v1/nodes/$NODE"), "{line}");
    }
}
