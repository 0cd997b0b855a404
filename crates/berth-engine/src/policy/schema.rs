//! The OpenAPI schema of the list of filters that a policy switches off.

use utoipa::openapi::schema::{Array, ArrayBuilder, ArrayItems, ObjectBuilder, Type};

use super::OPTIONAL_FILTERS;

/// The filters that a policy may switch off.
pub(super) fn filters_off() -> Array {
    let name = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(OPTIONAL_FILTERS));
    ArrayBuilder::new()
        .items(ArrayItems::RefOrSchema(Box::new(name.into())))
        .description(Some("Optional filters that are switched off, by name."))
        .build()
}
