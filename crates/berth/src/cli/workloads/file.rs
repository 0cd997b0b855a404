//! Workloads in files: TOML, YAML or JSON, one or several per file.

use std::path::Path;

use berth_api::NewWorkload;
use serde_json::{Map, Value};

use crate::cmdutil::{CmdResult, Failure, file, from_value, resolve_instance_units};

/// A workload in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    /// The file and the number of the document.
    pub(crate) place: String,
    /// The tenant, if given.
    pub(crate) tenant: Option<String>,
    pub(crate) name: String,
    pub(crate) new: NewWorkload,
}

/// All workloads of a file, or the failure of each that cannot be parsed.
pub(crate) fn read(path: &Path) -> CmdResult<Vec<CmdResult<Document>>> {
    let name = if path.as_os_str() == "-" {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let values = file::values(path, &file::text(path)?)
        .map_err(|error| parse_failure(&error).within(&name))?
        .into_iter()
        .flat_map(several)
        .filter(|value| !value.is_null())
        .collect::<Vec<_>>();
    if values.is_empty() {
        return Err(Failure::usage(format!("{name} holds no workload"))
            .accepted("tenant, name, replicas and template; see berth workloads apply --help"));
    }
    let alone = values.len() == 1;
    let documents = values.into_iter().enumerate().map(|(index, value)| {
        let place = if alone { name.clone() } else { format!("{name}, document {}", index + 1) };
        document(place.clone(), value).map_err(|failure| failure.within(&place))
    });
    Ok(documents.collect())
}

fn parse_failure(error: &str) -> Failure {
    let line = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    Failure::usage(format!("cannot be parsed: {line}")).accepted(file::FORMATS)
}

/// The workloads in a value: itself, the items of a list, or what is below `workload` or `items`.
fn several(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        Value::Object(mut map) if map.len() == 1 => {
            for key in ["workload", "workloads", "items"] {
                if let Some(Value::Array(values)) = map.get_mut(key) {
                    return std::mem::take(values);
                }
            }
            vec![Value::Object(map)]
        }
        // A list as the API returns it.
        Value::Object(map) if map.contains_key("items") && map.contains_key("next") => {
            map.get("items").cloned().map_or_else(Vec::new, several)
        }
        other => vec![other],
    }
}

fn document(place: String, value: Value) -> CmdResult<Document> {
    let Value::Object(mut map) = value else {
        return Err(Failure::usage(format!("{} is not a workload", kind(&value)))
            .accepted("a document with tenant, name, replicas and template"));
    };
    // Version 0.1 called it owner.
    let tenant = text(&mut map, "tenant")?.or(text(&mut map, "owner")?);
    let Some(name) = text(&mut map, "name")? else {
        return Err(Failure::usage("name is missing").accepted("the workload's name, such as web"));
    };
    // The output of `berth workloads show -o yaml` can be edited and applied.
    if let Some(Value::Object(spec)) = map.get_mut("spec") {
        map = std::mem::take(spec);
    }
    let new = new(Value::Object(map)).map_err(|wrong| Failure::usage(wrong).within(&name))?;
    Ok(Document { place, tenant, name, new })
}

fn new(mut value: Value) -> Result<NewWorkload, String> {
    if let Some(template) = value.get_mut("template") {
        resolve_instance_units(template).map_err(|wrong| format!("template.{wrong}"))?;
    }
    from_value(value)
}

fn text(map: &mut Map<String, Value>, field: &str) -> CmdResult<Option<String>> {
    match map.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(other) => Err(Failure::usage(format!("{field} is {other}")).accepted("a name")),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a switch",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "this",
    }
}

#[cfg(test)]
mod tests {
    use berth_api::{CapacityMode, Share, Strategy};

    use super::*;

    const TOML: &str = r#"
tenant = "acme"
name = "web"
replicas = 5
pools = ["ip"]
[template]
image = "web:7"
resources = { cpu = "500m", memory = "2GiB" }
[capacity]
max_on_demand = 3
mode = { fallback-after = "5m" }
[rolling]
strategy = "rolling"
max_surge = "25%"
max_unavailable = 1
"#;

    const YAML: &str = "
tenant: acme
name: web
replicas: 5
pools: [ip]
template:
  image: web:7
  resources: {cpu: 500m, memory: 2GiB}
capacity:
  max_on_demand: 3
  mode: {fallback-after: 5m}
rolling:
  strategy: rolling
  max_surge: 25%
  max_unavailable: 1
";

    fn read_text(name: &str, text: &str) -> CmdResult<Vec<CmdResult<Document>>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    fn all(name: &str, text: &str) -> Vec<Document> {
        read_text(name, text).unwrap().into_iter().map(Result::unwrap).collect()
    }

    fn wrong(name: &str, text: &str) -> String {
        let failure = match read_text(name, text) {
            Ok(documents) => documents.into_iter().find_map(Result::err).unwrap(),
            Err(failure) => failure,
        };
        anstream::adapter::strip_str(&failure.text()).to_string()
    }

    #[test]
    fn a_workload_is_the_same_in_three_formats() {
        let toml = all("a.toml", TOML).remove(0);
        assert_eq!(toml.tenant.as_deref(), Some("acme"));
        assert_eq!(toml.new.template.resources.cpu_milli, 500);
        assert_eq!(toml.new.template.resources.memory_mib, 2048);
        assert_eq!(toml.new.capacity.unwrap().mode, CapacityMode::FallbackAfter(300));
        assert_eq!(toml.new.rolling.strategy, Strategy::Rolling);
        assert_eq!(toml.new.rolling.max_surge, Share::Percent(25));
        assert_eq!(all("a.yaml", YAML)[0].new, toml.new);
        let value: Value = ::toml::from_str(TOML).unwrap();
        assert_eq!(all("a.json", &value.to_string())[0].new, toml.new);
        // Without an extension, the content decides.
        assert_eq!(all("a", TOML)[0].new, toml.new);
        assert_eq!(all("a", YAML)[0].new, toml.new);
    }

    #[test]
    fn a_file_may_hold_several() {
        let one = |name: &str| format!("name: {name}\ntemplate: {{resources: {{memory: 1}}}}\n");
        let names = |documents: Vec<Document>| {
            documents.into_iter().map(|document| document.name).collect::<Vec<_>>()
        };
        let yaml = format!("---\n{}---\n{}---\n", one("a"), one("b"));
        assert_eq!(names(all("a.yaml", &yaml)), ["a", "b"]);
        let toml = "[[workload]]\nname = 'a'\ntemplate.resources.memory = 1\n\
                    [[workload]]\nname = 'b'\ntemplate.resources.memory = 2\n";
        assert_eq!(names(all("a.toml", toml)), ["a", "b"]);
        assert_eq!(names(all("-stdin", toml)), ["a", "b"]);
        let json = r#"[{"name":"a","template":{"resources":{"memory":1}}}]"#;
        assert_eq!(names(all("a.json", json)), ["a"]);
    }

    #[test]
    fn an_error_names_file_document_and_field() {
        let two = "name: a\ntemplate: {resources: {memory: 1}}\n---\nname: b\nreplicas: many\n\
                   template: {resources: {memory: 1}}\n";
        let text = wrong("a.yaml", two);
        assert!(text.contains("a.yaml, document 2") && text.contains("replicas"), "{text}");
        let text = wrong("a.toml", "name = 'a'\n[template.resources]\nmemory = '2 apples'\n");
        assert!(text.contains("a.toml: a: template.resources.memory"), "{text}");
        let text =
            wrong("a.toml", "name = 'a'\ncolour = 'red'\n[template]\nresources.memory = 1\n");
        assert!(text.contains("colour"), "{text}");
        let text = wrong("a.yaml", "replicas: 1\n");
        assert!(text.contains("name is missing"), "{text}");
        let text = wrong("a.toml", "name = 'a'\nreplicas = = 2\n");
        assert!(text.contains("line 2"), "{text}");
        assert!(wrong("a.yaml", "").contains("holds no workload"));
    }

    #[test]
    fn a_workload_of_version_0_1_names_its_tenant_as_owner() {
        let old = "owner: acme\nname: web\ntemplate: {resources: {memory: 1}}\n";
        assert_eq!(all("a.yaml", old)[0].tenant.as_deref(), Some("acme"));
    }

    #[test]
    fn the_output_of_show_can_be_applied() {
        let shown = r#"{"tenant":"acme","name":"web","version":3,"revision":2,"env":"prod",
            "spec":{"replicas":2,"template":{"resources":{"memory_mib":64}}},"status":{}}"#;
        assert_eq!(all("a.json", shown)[0].new.replicas, Some(2));
    }
}
