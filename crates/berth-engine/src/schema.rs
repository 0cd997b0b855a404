//! Schemas that a derive cannot make: texts with a grammar of their own, and names that come from
//! the tables of filters and scorers.
//!
//! A schema must say what serde reads and writes, and nothing else; `tests/schemas.rs` holds them
//! to it.

use serde_json::json;
use utoipa::openapi::schema::{
    AdditionalProperties, Array, ArrayBuilder, ArrayItems, KnownFormat, Object, ObjectBuilder,
    OneOfBuilder, Schema, SchemaFormat, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::affinity::{MAX_EXPRESSION_BYTES, Rule};
use crate::filter::FILTERS;
use crate::model::{Amounts, Hint, InstanceId, PlatformVersion};
use crate::policy::Policy;
use crate::score::SCORERS;

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

impl PartialSchema for Rule {
    fn schema() -> RefOr<Schema> {
        let rule = text(
            "An affinity rule: key, `==` or `!=`, `~` if it is a wish, a value, a glob or a \
             /regex/, and `@node`, `@rack` or `@zone`.",
        )
        .min_length(Some(1))
        .max_length(Some(MAX_EXPRESSION_BYTES))
        .examples([json!("role!=~db@rack")]);
        rule.into()
    }
}

impl ToSchema for Rule {}

impl PartialSchema for Hint {
    fn schema() -> RefOr<Schema> {
        let one = |key: &str, about: &str, schema: RefOr<Schema>| {
            ObjectBuilder::new()
                .property(key, schema)
                .required(key)
                .additional_properties(Some(AdditionalProperties::FreeForm(false)))
                .description(Some(about))
        };
        let pair = ArrayBuilder::new()
            .items(ArrayItems::RefOrSchema(Box::new(plain_text().into())))
            .min_items(Some(2))
            .max_items(Some(2));
        let id = Ref::from_schema_name(InstanceId::name()).into();
        let hint = OneOfBuilder::new()
            .description(Some("Which instances a locality hint means."))
            .item(one("instance", "The one with this id.", id))
            .item(one("tag", "All of the owner's with this tag and value.", pair.into()));
        hint.into()
    }
}

impl ToSchema for Hint {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((InstanceId::name().into_owned(), InstanceId::schema()));
        InstanceId::schemas(schemas);
    }
}

/// The weights of a policy: every scorer by name, and no other key.
pub(crate) fn weights() -> Object {
    let weight = || {
        ObjectBuilder::new()
            .schema_type(Type::Number)
            .minimum(Some(0))
            .maximum(Some(Policy::MAX_WEIGHT))
    };
    let about = format!(
        "Weights by scorer, with at most three decimals, at most {} in sum. A scorer that is not \
         named has weight 0.",
        Policy::MAX_WEIGHT_SUM
    );
    let with_scorer = |object: ObjectBuilder, name: &'static str, formula: &'static str| {
        object.property(name, weight().description(Some(formula)))
    };
    let all = SCORERS.iter().fold(ObjectBuilder::new(), |object, scorer| {
        with_scorer(object, scorer.name, scorer.formula)
    });
    all.additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .description(Some(about))
        .build()
}

/// The filters that a policy may switch off.
pub(crate) fn filters_off() -> Array {
    let names = FILTERS.iter().filter(|filter| filter.optional).map(|filter| filter.name);
    let name = plain_text().enum_values(Some(names));
    ArrayBuilder::new()
        .items(ArrayItems::RefOrSchema(Box::new(name.into())))
        .description(Some("Optional filters that are switched off, by name."))
        .build()
}

fn plain_text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn text(about: &str) -> ObjectBuilder {
    plain_text().description(Some(about))
}
