//! Requests and other documents in files: JSON, YAML or TOML.

use std::io::Read as _;
use std::path::Path;

use berth_api::engine::NodeFacts;
use berth_api::{InstanceSpec, PlaceRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::amount_fields::{resolve_instance_units, resolve_node_units};
use super::data_error::from_value;
use super::failure::{CmdResult, Failure};

/// A request in a file: a whole one, or one instance.
pub(crate) fn request(path: &Path) -> CmdResult<PlaceRequest> {
    let mut value = value(path)?;
    if let Some(instances) = value.get_mut("instances") {
        for instance in instances.as_array_mut().into_iter().flatten() {
            resolve_instance_units(instance).map_err(|error| invalid(path, &error))?;
        }
        return convert(path, value, "a placement request");
    }
    resolve_instance_units(&mut value).map_err(|error| invalid(path, &error))?;
    let spec = convert(path, value, "an instance, or a request with instances")?;
    Ok(PlaceRequest::new(vec![spec]))
}

/// An instance in a file.
pub(crate) fn instance(path: &Path) -> CmdResult<InstanceSpec> {
    let mut value = value(path)?;
    resolve_instance_units(&mut value).map_err(|error| invalid(path, &error))?;
    convert(path, value, "an instance")
}

/// The facts of a node in a file.
pub(crate) fn node(path: &Path) -> CmdResult<NodeFacts> {
    let mut value = value(path)?;
    resolve_node_units(&mut value).map_err(|error| invalid(path, &error))?;
    convert(path, value, "a node")
}

fn invalid(path: &Path, error: &str) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// The text of a file; `-` is standard input.
pub(crate) fn text(path: &Path) -> CmdResult<String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

/// The values in a text, in the format of the file's extension, or else in the one that fits.
pub(crate) fn values(path: &Path, text: &str) -> Result<Vec<Value>, String> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => json(text),
        Some("toml") => toml(text).map(|value| vec![value]),
        Some("yaml" | "yml") => yaml(text),
        _ => {
            let is_structured = |values: &Vec<Value>| {
                values.iter().all(|it| it.is_object() || it.is_array() || it.is_null())
            };
            // Most TOML is not YAML; where it is, YAML takes it for one long text.
            match yaml(text) {
                Ok(values) if is_structured(&values) => Ok(values),
                wrong => {
                    let value = toml(text).map_err(|error| wrong.err().unwrap_or(error))?;
                    Ok(vec![value])
                }
            }
        }
    }
}

fn json(text: &str) -> Result<Vec<Value>, String> {
    let values = serde_json::Deserializer::from_str(text).into_iter();
    values.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn yaml(text: &str) -> Result<Vec<Value>, String> {
    serde_saphyr::from_multiple(text).map_err(|error| error.to_string())
}

/// The document in a text of TOML; an error names its line.
pub(super) fn toml(text: &str) -> Result<Value, String> {
    // The first line of a TOML error says only where it is.
    ::toml::from_str(text).map_err(|error| {
        let what = error.message().to_owned();
        match error.span().and_then(|span| text.get(..span.start)) {
            Some(before) => format!("line {}: {what}", before.matches('\n').count() + 1),
            None => what,
        }
    })
}

/// The formats of files, for failures.
pub(crate) const FORMATS: &str =
    "JSON in .json, TOML in .toml, YAML in .yaml or .yml; any of them in others";

/// The one value in a file.
fn value(path: &Path) -> CmdResult<Value> {
    let mut values = values(path, &text(path)?).map_err(|error| {
        let line = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Failure::usage(format!("cannot parse {}: {line}", path.display())).accepted(FORMATS)
    })?;
    match values.len() {
        1 => Ok(values.remove(0)),
        count => {
            let line = format!("{} holds {count} documents", path.display());
            Err(Failure::usage(line).accepted("one document"))
        }
    }
}

fn convert<T: DeserializeOwned>(path: &Path, value: Value, what: &str) -> CmdResult<T> {
    from_value(value)
        .map_err(|error| Failure::usage(format!("{} is not {what}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_file(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_request_is_the_same_in_three_formats() {
        let json = r#"{"tenant":"acme","instances":[{"count":2,"resources":{"memory_mib":1024}}]}"#;
        let yaml = "tenant: acme\ninstances:\n  - count: 2\n    resources: {memory_mib: 1024}\n";
        let toml = "tenant = 'acme'\n[[instances]]\ncount = 2\nresources = { memory_mib = 1024 }\n";
        let of = |name: &str, text: &str| {
            let (_folder, path) = write_file(name, text);
            request(&path).unwrap()
        };
        let first = of("a.json", json);
        assert_eq!(first.instances[0].count, Some(2));
        assert_eq!(first, of("a.yaml", yaml));
        assert_eq!(first, of("a.toml", toml));
    }

    #[test]
    fn an_instance_alone_is_a_request_for_it() {
        let (_folder, path) = write_file("a.yaml", "resources: {memory_mib: 64}\n");
        assert_eq!(request(&path).unwrap().instances.len(), 1);
        let (_folder, path) = write_file("a.yaml", "resources: {cpu: 500m, memory: 1GiB}\n");
        let typed = request(&path).unwrap().instances.remove(0).resources;
        assert_eq!((typed.cpu_milli, typed.memory_mib), (500, 1024));
    }

    #[test]
    fn a_request_of_version_0_1_names_its_tenant_as_owner() {
        let yaml = "owner: acme\ninstances: [{resources: {memory: 64}}]\n";
        let (_folder, path) = write_file("a.yaml", yaml);
        assert_eq!(request(&path).unwrap().tenant.as_deref(), Some("acme"));
    }

    #[test]
    fn the_capacity_of_a_node_may_have_units() {
        let (_folder, path) = write_file("a.yaml", "id: n1\ncapacity: {cpu: 8, memory: 64GiB}\n");
        let capacity = node(&path).unwrap().capacity.unwrap();
        assert_eq!((capacity.cpu_milli, capacity.memory_mib), (8000, 65_536));
    }

    #[test]
    fn a_field_that_is_not_known_is_named() {
        let (_folder, path) = write_file("a.json", r#"{"resources":{"memory_mb":64}}"#);
        let text = request(&path).unwrap_err().text();
        assert!(text.contains("memory_mb"), "{text}");
    }
}
