//! Reads documents that people wrote: what is wrong with one is described as the server describes it.
//!
//! Never returns the words of the library that reads documents.

use berth_api::data_error::DataError;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a document; an error names the field, what it is, and what is accepted.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, message) = (error.path().to_string(), error.inner().to_string());
        DataError::new("the document", &path, &message).to_string()
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Outer {
        name: String,
        #[serde(default)]
        inner: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        #[serde(default)]
        memory_mib: u32,
        #[serde(default)]
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Small,
        Large,
    }

    #[test]
    fn every_form_of_message_names_field_value_and_what_is_accepted() {
        let cases = [
            (json!({"name": {"a": 1}}), "name is a map; accepted is a text"),
            (json!({"nam": "x"}), "nam is unknown; did you mean name? accepted are name, inner"),
            (json!({"inner": []}), "name is missing"),
            (
                json!({"name": "x", "inner": [{}, {"memory_mib": "64"}]}),
                "inner[1].memory_mib is \"64\"; accepted is a whole number from 0 to 4294967295",
            ),
            (
                json!({"name": "x", "inner": [{"memory_mib": -1}]}),
                "inner[0].memory_mib is -1; accepted is a whole number from 0 to 4294967295",
            ),
            (
                json!({"name": "x", "inner": [{"memory_mb": 1}]}),
                "inner[0].memory_mb is unknown; did you mean memory_mib? accepted are memory_mib, \
                 kind",
            ),
            (
                json!({"name": "x", "inner": [{"kind": "smal"}]}),
                "inner[0].kind is \"smal\"; did you mean small? accepted are small, large",
            ),
            (json!({"name": "x", "inner": 5}), "inner is 5; accepted is a list"),
            (json!("text"), "the document is \"text\"; accepted is a map of fields"),
        ];
        for (value, expected) in cases {
            assert_eq!(from_value::<Outer>(value).unwrap_err(), expected);
        }
    }
}
