//! The OpenAPI schema of a node selector, which is a text with its own grammar.

use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::NodeSelector;

impl PartialSchema for NodeSelector {
    fn schema() -> RefOr<Schema> {
        let about = "Nodes by their facts: comparisons of `id`, `zone`, `rack`, `label:KEY`, `trait:KEY`, \
             `capacity_type`, `virtual`, `hardware_class` and `platform_version`, joined by `and`, `or`, \
             `not` and parentheses. At most 64 terms and 16 levels.";
        let selector = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(about))
            .min_length(Some(1))
            .max_length(Some(Self::MAX_BYTES))
            .examples([json!("zone = z1 and not rack in (r1, r2)")]);
        selector.into()
    }
}

impl ToSchema for NodeSelector {}
