//! Amounts with units in files: `cpu: 500m`, `memory: 2GiB`.

use serde_json::Value;

use crate::cmdutil::args;

type Parse = fn(&str) -> Result<u32, String>;

/// The field in a file, the field of the API, and its parser.
const FIELDS: [(&str, &str, Parse); 4] = [
    ("cpu", "cpu_milli", args::cpu),
    ("memory", "memory_mib", args::size),
    ("disk", "disk_mib", args::size),
    ("bandwidth", "bandwidth_mbps", args::bandwidth),
];

/// Replaces amounts with units in the `resources` of an instance by the numbers of the API. An error
/// names the field and what would be accepted.
pub(crate) fn resolve_units(instance: &mut Value) -> Result<(), String> {
    let Some(Value::Object(resources)) = instance.get_mut("resources") else { return Ok(()) };
    let is_known =
        |key: &str| FIELDS.iter().any(|(field, api_field, _)| key == *field || key == *api_field);
    if let Some(key) = resources.keys().find(|key| !is_known(key)) {
        return Err(format!(
            "resources.{key} is unknown; accepted are cpu, memory, disk and bandwidth"
        ));
    }
    for (field, api_field, parse) in FIELDS {
        let text = match resources.remove(field) {
            None => continue,
            Some(Value::String(text)) => text,
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => {
                return Err(format!(
                    "resources.{field} is {other}; accepted is an amount, such as {}",
                    if field == "cpu" { "500m" } else { "2GiB" }
                ));
            }
        };
        if resources.contains_key(api_field) {
            let both =
                format!("resources has both {field} and {api_field}; accepted is one of them");
            return Err(both);
        }
        let amount = parse(&text).map_err(|error| format!("resources.{field}: {error}"))?;
        resources.insert(api_field.to_owned(), amount.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_read_as_flags_are() {
        let mut value = json!({"resources": {"cpu": "500m", "memory": "2GiB", "disk": 512}});
        resolve_units(&mut value).unwrap();
        let exact = json!({"cpu_milli": 500, "memory_mib": 2048, "disk_mib": 512});
        assert_eq!(value["resources"], exact);
        let mut cores = json!({"resources": {"cpu": 2, "memory_mib": 64, "bandwidth": "1Gbit"}});
        resolve_units(&mut cores).unwrap();
        let exact = json!({"cpu_milli": 2000, "memory_mib": 64, "bandwidth_mbps": 1000});
        assert_eq!(cores["resources"], exact);
    }

    #[test]
    fn what_is_wrong_names_the_field() {
        for (resources, named) in [
            (json!({"memory": "2 apples"}), "resources.memory"),
            (json!({"cpu": true}), "resources.cpu is true"),
            (json!({"memori": 1}), "resources.memori is unknown; accepted are cpu, memory"),
            (json!({"cpu": 1, "cpu_milli": 1000}), "both cpu and cpu_milli"),
        ] {
            let error = resolve_units(&mut json!({ "resources": resources })).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
