//! OpenAPI schemas of the model that a derive cannot make.
//!
//! A schema describes exactly what serde reads and writes; `tests/schemas.rs` checks that.

use serde_json::json;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ArrayItems, KnownFormat, ObjectBuilder, OneOfBuilder,
    Schema, SchemaFormat, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::{Amounts, Hint, InstanceId, PlatformVersion};

/// An amount of a class that the operator named, such as `gpu`.
pub(crate) struct Amount;

impl PartialSchema for Amount {
    fn schema() -> RefOr<Schema> {
        let amount = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
            .minimum(Some(0))
            .maximum(Some(Amounts::MAX))
            .description(Some("A whole number of things."));
        amount.into()
    }
}

impl ToSchema for Amount {}

impl PartialSchema for PlatformVersion {
    fn schema() -> RefOr<Schema> {
        let version = text("A platform version, `major.minor`. Compared as numbers.")
            .pattern(Some(r"^[0-9]{1,5}\.[0-9]{1,5}$"))
            .examples([json!("7.1")]);
        version.into()
    }
}

impl ToSchema for PlatformVersion {}

impl PartialSchema for Hint {
    fn schema() -> RefOr<Schema> {
        let one = |key: &str, about: &str, schema: RefOr<Schema>| {
            ObjectBuilder::new()
                .property(key, schema)
                .required(key)
                .additional_properties(Some(AdditionalProperties::FreeForm(false)))
                .description(Some(about))
        };
        let tag_text = plain_text().max_length(Some(super::limits::table::TAG_VALUE.most()));
        let pair = ArrayBuilder::new()
            .items(ArrayItems::RefOrSchema(Box::new(tag_text.into())))
            .min_items(Some(2))
            .max_items(Some(2));
        let id = Ref::from_schema_name(InstanceId::name()).into();
        let hint = OneOfBuilder::new()
            .description(Some("Which instances a locality hint means."))
            .item(one("instance", "The one with this id.", id))
            .item(one("tag", "All of the tenant's with this tag and value.", pair.into()));
        hint.into()
    }
}

impl ToSchema for Hint {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((InstanceId::name().into_owned(), InstanceId::schema()));
        InstanceId::schemas(schemas);
    }
}

fn plain_text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn text(about: &str) -> ObjectBuilder {
    plain_text().description(Some(about))
}
