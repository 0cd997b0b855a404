//! The limits of the table in the OpenAPI document: `maxLength`, `maxItems` and `maxProperties`.

use berth_api::limits::{self, Limit, table};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, SchemaType};
use utoipa::openapi::{Object, OpenApi, RefOr, Schema, Type};

/// Writes every limit into the document.
pub(super) fn describe(document: &mut OpenApi) {
    if let Some(components) = &mut document.components {
        for object in limits::objects() {
            let Some(RefOr::T(Schema::Object(schema))) =
                components.schemas.get_mut(object.schema.as_ref())
            else {
                continue;
            };
            for (field, limit) in object.fields {
                if let Some(property) = schema.properties.get_mut(*field) {
                    apply(*limit, property);
                }
            }
        }
        for (name, limit) in limits::texts() {
            if let Some(schema) = components.schemas.get_mut(name) {
                apply(limit, schema);
            }
        }
    }
    for item in document.paths.paths.values_mut() {
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        operations.into_iter().flatten().for_each(describe_parameters);
    }
}

fn describe_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let limit = match parameter.parameter_in {
            ParameterIn::Path => table::NAME,
            ParameterIn::Query => table::query_value(&parameter.name),
            ParameterIn::Header | ParameterIn::Cookie | ParameterIn::QueryString => continue,
        };
        if let Some(schema) = &mut parameter.schema {
            apply(limit, schema);
        }
    }
}

fn apply(limit: Limit, schema: &mut RefOr<Schema>) {
    if let RefOr::T(schema) = schema {
        apply_to(limit, schema);
    }
}

fn apply_to(limit: Limit, schema: &mut Schema) {
    match (limit, schema) {
        (Limit::Parts, _) => {}
        (limit, Schema::OneOf(one)) => one.items.iter_mut().for_each(|item| apply(limit, item)),
        (limit, Schema::AnyOf(any)) => any.items.iter_mut().for_each(|item| apply(limit, item)),
        (Limit::List(most, item), Schema::Array(list)) => {
            list.max_items = Some(most);
            if let ArrayItems::RefOrSchema(items) = &mut list.items {
                apply(*item, items);
            }
        }
        (Limit::Map(most, key, value), Schema::Object(object)) => {
            object.max_properties = Some(most);
            if *key != Limit::Parts {
                let text = || Box::new(Schema::Object(Object::with_type(Type::String)));
                apply_to(*key, object.property_names.get_or_insert_with(text));
            }
            if let Some(AdditionalProperties::RefOr(values)) =
                object.additional_properties.as_deref_mut()
            {
                apply(*value, values);
            }
        }
        (Limit::Text(most) | Limit::Lines(most), Schema::Object(object)) if is_text(object) => {
            object.max_length = Some(most);
        }
        // One word where a list of words is also accepted.
        (Limit::List(_, Limit::Text(most)), Schema::Object(object)) if is_text(object) => {
            object.max_length = Some(*most);
        }
        _ => {}
    }
}

/// Whether a schema is that of any text: one with a format or a choice of values has its own limit.
fn is_text(object: &Object) -> bool {
    let is_text = match &object.schema_type {
        SchemaType::Type(kind) => *kind == Type::String,
        SchemaType::Array(kinds) => kinds.contains(&Type::String),
        SchemaType::AnyValue => false,
    };
    is_text && object.format.is_none() && object.enum_values.is_none()
}
