//! Amounts in files as people type them: `cpu: 500m`, `memory: 2GiB`.

use serde_json::Value;

use crate::cli::args;

type Parse = fn(&str) -> Result<u32, String>;

/// What people type, what the API calls it, and how it is read.
const TYPED: [(&str, &str, Parse); 4] = [
    ("cpu", "cpu_milli", args::cpu),
    ("memory", "memory_mib", args::size),
    ("disk", "disk_mib", args::size),
    ("bandwidth", "bandwidth_mbps", args::bandwidth),
];

/// Puts the API's own numbers in the place of amounts that an instance's `resources` has as typed.
/// An error names the field and what would be accepted.
pub(crate) fn as_numbers(instance: &mut Value) -> Result<(), String> {
    let Some(Value::Object(resources)) = instance.get_mut("resources") else { return Ok(()) };
    let is_known = |key: &str| TYPED.iter().any(|(typed, exact, _)| key == *typed || key == *exact);
    if let Some(key) = resources.keys().find(|key| !is_known(key)) {
        return Err(format!(
            "resources.{key} is unknown; accepted are cpu, memory, disk and bandwidth"
        ));
    }
    for (typed, exact, parse) in TYPED {
        let text = match resources.remove(typed) {
            None => continue,
            Some(Value::String(text)) => text,
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => {
                return Err(format!(
                    "resources.{typed} is {other}; accepted is an amount, such as {}",
                    if typed == "cpu" { "500m" } else { "2GiB" }
                ));
            }
        };
        if resources.contains_key(exact) {
            let both = format!("resources has both {typed} and {exact}; accepted is one of them");
            return Err(both);
        }
        let amount = parse(&text).map_err(|error| format!("resources.{typed}: {error}"))?;
        resources.insert(exact.to_owned(), amount.into());
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
        as_numbers(&mut value).unwrap();
        let exact = json!({"cpu_milli": 500, "memory_mib": 2048, "disk_mib": 512});
        assert_eq!(value["resources"], exact);
        let mut cores = json!({"resources": {"cpu": 2, "memory_mib": 64, "bandwidth": "1Gbit"}});
        as_numbers(&mut cores).unwrap();
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
            let error = as_numbers(&mut json!({ "resources": resources })).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
