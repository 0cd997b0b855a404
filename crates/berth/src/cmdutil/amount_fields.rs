//! Amounts with units in files: `cpu: 500m`, `memory: 2GiB`.

use berth_api::units::{self, Rounding, UnitError};
use serde_json::Value;

type Parse = fn(&str, Rounding) -> Result<u32, UnitError>;

/// The field in a file, the field of the API, and its parser.
const FIELDS: [(&str, &str, Parse); 4] = [
    ("cpu", "cpu_milli", units::parse_cpu),
    ("memory", "memory_mib", units::parse_size),
    ("disk", "disk_mib", units::parse_size),
    ("bandwidth", "bandwidth_mbps", units::parse_bandwidth),
];

/// Replaces amounts with units in an instance by the numbers of the API. An error names the field and
/// what would be accepted.
pub(crate) fn resolve_instance_units(instance: &mut Value) -> Result<(), String> {
    for path in ["resources", "elastic.min", "elastic.max", "elastic.compute_unit"] {
        resolve_units(instance, path, Rounding::Up)?;
    }
    Ok(())
}

/// The same for the facts of a node.
pub(crate) fn resolve_node_units(facts: &mut Value) -> Result<(), String> {
    resolve_units(facts, "capacity", Rounding::Down)?;
    resolve_units(facts, "system_reserve", Rounding::Up)
}

fn resolve_units(document: &mut Value, path: &str, rounding: Rounding) -> Result<(), String> {
    let object = path.split('.').try_fold(document, |value, key| value.get_mut(key));
    let Some(Value::Object(amounts)) = object else { return Ok(()) };
    let is_known =
        |key: &str| FIELDS.iter().any(|(field, api_field, _)| key == *field || key == *api_field);
    if let Some(key) = amounts.keys().find(|key| !is_known(key)) {
        return Err(format!(
            "{path}.{key} is unknown; accepted are cpu, memory, disk and bandwidth"
        ));
    }
    for (field, api_field, parse) in FIELDS {
        let text = match amounts.remove(field) {
            None => continue,
            Some(Value::String(text)) => text,
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => {
                return Err(format!(
                    "{path}.{field} is {other}; accepted is an amount, such as {}",
                    if field == "cpu" { "500m" } else { "2GiB" }
                ));
            }
        };
        if amounts.contains_key(api_field) {
            return Err(format!(
                "{path} has both {field} and {api_field}; accepted is one of them"
            ));
        }
        let amount = parse(&text, rounding).map_err(|error| format!("{path}.{field}: {error}"))?;
        amounts.insert(api_field.to_owned(), amount.into());
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
        resolve_instance_units(&mut value).unwrap();
        let exact = json!({"cpu_milli": 500, "memory_mib": 2048, "disk_mib": 512});
        assert_eq!(value["resources"], exact);
        let mut cores = json!({"resources": {"cpu": 2, "memory_mib": 64, "bandwidth": "1Gbit"}});
        resolve_instance_units(&mut cores).unwrap();
        let exact = json!({"cpu_milli": 2000, "memory_mib": 64, "bandwidth_mbps": 1000});
        assert_eq!(cores["resources"], exact);
    }

    #[test]
    fn bounds_and_capacities_have_units_as_well() {
        let mut instance = json!({"elastic": {
            "min": {"cpu": 0.5, "memory": "1GiB"}, "max": {"memory": "16GiB"},
            "compute_unit": {"cpu": "250m", "memory": "1GiB"},
        }});
        resolve_instance_units(&mut instance).unwrap();
        assert_eq!(instance["elastic"]["min"], json!({"cpu_milli": 500, "memory_mib": 1024}));
        assert_eq!(instance["elastic"]["max"], json!({"memory_mib": 16_384}));
        let unit = json!({"cpu_milli": 250, "memory_mib": 1024});
        assert_eq!(instance["elastic"]["compute_unit"], unit);
        // What there is rounds down, what the host needs rounds up.
        let mut node = json!({"capacity": {"memory": "4G"}, "system_reserve": {"memory": "4G"}});
        resolve_node_units(&mut node).unwrap();
        assert_eq!(node["capacity"], json!({"memory_mib": 3814}));
        assert_eq!(node["system_reserve"], json!({"memory_mib": 3815}));
    }

    #[test]
    fn what_is_wrong_names_the_field() {
        for (resources, named) in [
            (json!({"memory": "2 apples"}), "resources.memory"),
            (json!({"cpu": true}), "resources.cpu is true"),
            (json!({"memori": 1}), "resources.memori is unknown; accepted are cpu, memory"),
            (json!({"cpu": 1, "cpu_milli": 1000}), "both cpu and cpu_milli"),
        ] {
            let error = resolve_instance_units(&mut json!({ "resources": resources })).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        let error = resolve_node_units(&mut json!({"capacity": {"ram": 1}})).unwrap_err();
        assert!(error.contains("capacity.ram is unknown"), "{error}");
    }
}
