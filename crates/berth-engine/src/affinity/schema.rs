//! The OpenAPI schema of an affinity rule, which is a text with its own grammar.

use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::{MAX_EXPRESSION_BYTES, Rule};

impl PartialSchema for Rule {
    fn schema() -> RefOr<Schema> {
        let about = "An affinity rule: key, `==` or `!=`, `~` if it is a preference, a value, a glob or a \
             /regex/, and `@node`, `@rack` or `@zone`.";
        let rule = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(about))
            .min_length(Some(1))
            .max_length(Some(MAX_EXPRESSION_BYTES))
            .examples([json!("role!=~db@rack")]);
        rule.into()
    }
}

impl ToSchema for Rule {}
