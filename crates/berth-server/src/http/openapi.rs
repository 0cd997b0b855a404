//! The OpenAPI document, from the same code that serves.

use std::collections::BTreeMap;

use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, Discriminator};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, Object, Ref, RefOr, Response, Schema, Type};

use super::{HttpLimits, routes};
use crate::access::{Access, ROUTES};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Berth",
        description = "The placement engine for fleets of virtual machines: choice and claim are one atomic, explained, leased, replayable operation.",
        license(name = "Apache-2.0 OR MIT")
    ),
    components(schemas(berth_api::Problem))
)]
struct Base;

/// The document that describes the API.
#[must_use]
pub fn openapi() -> OpenApi {
    let (_, routes) = routes::all(HttpLimits::default()).split_for_parts();
    let mut document = Base::openapi();
    document.merge(routes);
    if let Some(components) = &mut document.components {
        components.schemas.values_mut().for_each(bound_tuples);
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", bearer);
    }
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    let mut refused = Response::new("A problem document with a stable code.");
    refused.content.insert("application/problem+json".to_owned(), RefOr::T(problem));
    // A page reports errors as a page; only callers who may not see it get a problem document.
    let mut on_a_page = refused.clone();
    let page = RefOr::T(Content::new(Some(Object::with_type(Type::String))));
    on_a_page.content.insert("text/html".to_owned(), page.clone());
    on_a_page.content.insert("text/plain".to_owned(), page);
    for (path, item) in &mut document.paths.paths {
        let operations = [
            ("GET", &mut item.get),
            ("PUT", &mut item.put),
            ("POST", &mut item.post),
            ("DELETE", &mut item.delete),
            ("PATCH", &mut item.patch),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let id = operation_id(method, path);
            // A page may show what a route of the API returns.
            let is_html = operation.tags.iter().flatten().any(|tag| tag == "pages");
            operation.operation_id = Some(if is_html { format!("{id}_page") } else { id });
            let answers = &mut operation.responses.responses;
            let is_page = !path.starts_with("/v1/") && path != "/openapi.json";
            let answer = if is_page { &on_a_page } else { &refused };
            answers.entry("default".to_owned()).or_insert(RefOr::T(answer.clone()));
            let is_open = |(m, p, access): &&(&str, &str, Access)| {
                *m == method && *p == path && *access == Access::Open
            };
            if ROUTES.iter().find(is_open).is_none() {
                operation.security =
                    Some(vec![SecurityRequirement::new::<_, _, String>("token", [])]);
            }
        }
    }
    super::openapi_limits::describe(&mut document);
    if let Some(components) = &mut document.components {
        name_alternatives(&mut components.schemas);
    }
    document
}

/// Gives every alternative of a tagged union a name: `FixShrink` is the `Fix` whose kind is `shrink`.
/// Generators of clients number alternatives without one, or drop them.
fn name_alternatives(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let mut named = Vec::new();
    for (name, schema) in schemas.iter_mut() {
        let RefOr::T(Schema::OneOf(union)) = schema else { continue };
        let tags: Option<Vec<(String, String)>> = union.items.iter().map(tag).collect();
        let Some((tags, (property, _))) =
            tags.as_ref().and_then(|tags| Some((tags, tags.first()?)))
        else {
            continue;
        };
        let mut discriminator = Discriminator::new(property);
        for (item, (_, value)) in union.items.iter_mut().zip(tags) {
            let own_name = format!("{name}{}", capitalized(value));
            let reference = Ref::from_schema_name(&own_name);
            discriminator.mapping.insert(value.clone(), reference.ref_location.clone());
            named.push((own_name, std::mem::replace(item, RefOr::Ref(reference))));
        }
        union.discriminator = Some(discriminator);
    }
    schemas.extend(named);
}

/// `add_node` as `AddNode`.
fn capitalized(words: &str) -> String {
    let mut is_first = true;
    let letters = words.chars().filter_map(|letter| {
        let was_first = std::mem::replace(&mut is_first, letter == '_');
        let letter = if was_first { letter.to_ascii_uppercase() } else { letter };
        (letter != '_').then_some(letter)
    });
    letters.collect()
}

/// The property whose one value tells an alternative from the others, and that value.
fn tag(alternative: &RefOr<Schema>) -> Option<(String, String)> {
    let RefOr::T(Schema::Object(object)) = alternative else { return None };
    object.properties.iter().find_map(|(name, property)| {
        let RefOr::T(Schema::Object(property)) = property else { return None };
        match property.enum_values.as_deref()? {
            [value] => Some((name.clone(), value.as_str()?.to_owned())),
            _ => None,
        }
    })
}

/// States the length of tuples as the length of an array: `items: false` is valid, but generators of
/// clients reject the whole document because of it.
fn bound_tuples(schema: &mut RefOr<Schema>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Array(array) => {
            if matches!(array.items, ArrayItems::False) {
                array.min_items = Some(array.prefix_items.len());
                array.max_items = array.min_items;
                array.items = ArrayItems::RefOrSchema(Box::new(RefOr::T(Schema::default())));
            }
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                bound_tuples(items);
            }
        }
        Schema::Object(object) => {
            object.properties.values_mut().for_each(bound_tuples);
            if let Some(AdditionalProperties::RefOr(values)) =
                object.additional_properties.as_deref_mut()
            {
                bound_tuples(values);
            }
        }
        Schema::OneOf(any) => any.items.iter_mut().for_each(bound_tuples),
        Schema::AllOf(all) => all.items.iter_mut().for_each(bound_tuples),
        Schema::AnyOf(any) => any.items.iter_mut().for_each(bound_tuples),
        _ => {}
    }
}

/// The name of an operation in generated clients: a verb and what it acts on, from method and path.
///
/// Handlers of different resources share names such as `list`; paths are unique, so these are too.
fn operation_id(method: &str, path: &str) -> String {
    let segments: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != "v1").collect();
    // Views and files of the console differ by how deep they are.
    if let Some(&("ui" | "console")) = segments.first() {
        let names: Vec<&str> = segments.iter().map(|part| part.trim_matches(['{', '}'])).collect();
        return format!("get_{}", names.join("_"));
    }
    let is_item = segments.last().is_some_and(|last| last.starts_with('{'));
    let nouns = segments.iter().filter(|part| !part.starts_with('{'));
    let mut nouns: Vec<String> = nouns.map(|part| part.replace(['-', '.'], "_")).collect();
    let Some(last) = nouns.pop() else { return "get_fleet".to_owned() };
    let owners: Vec<&str> = nouns.iter().map(|noun| singular(noun)).collect();
    let joined = |verb: &str, last: &str| {
        let words = [verb].into_iter().chain(owners.iter().copied()).chain([last]);
        words.collect::<Vec<_>>().join("_")
    };
    match (method, last.as_str()) {
        ("POST", "placements") => "place_instances".to_owned(),
        // Reports of an agent about its node.
        ("POST", "migrations" | "volume_moves") => joined("report", &last),
        ("POST", plural) if plural.ends_with('s') => joined("create", singular(plural)),
        // `/nodes/{node}/cordon` is `cordon_node`, `/nodes/{node}/drain/cancel` `cancel_node_drain`.
        ("POST", action) if owners.is_empty() => action.to_owned(),
        ("POST", action) => [action].into_iter().chain(owners).collect::<Vec<_>>().join("_"),
        ("PUT", noun) => joined("put", singular(noun)),
        ("PATCH", noun) => joined("update", singular(noun)),
        ("DELETE", noun) => joined("delete", singular(noun)),
        (_, noun) if is_item => joined("get", singular(noun)),
        (_, noun) if singular(noun) != noun || noun == "queue" => joined("list", noun),
        (_, noun) => joined("get", noun),
    }
}

fn singular(noun: &str) -> &str {
    match noun {
        "policies" => "policy",
        "queue" => "ticket",
        "docs" | "metrics" | "state" => noun,
        "style_css" => noun,
        plural => plural.strip_suffix('s').filter(|rest| !rest.ends_with('s')).unwrap_or(plural),
    }
}

#[cfg(test)]
mod tests {
    use super::operation_id;

    #[test]
    fn operations_are_named_by_a_verb_and_what_it_acts_on() {
        let expected = [
            ("GET", "/v1/nodes", "list_nodes"),
            ("GET", "/v1/nodes/{node}", "get_node"),
            ("PUT", "/v1/policies/{policy}", "put_policy"),
            ("PATCH", "/v1/nodes/{node}", "update_node"),
            ("DELETE", "/v1/workloads/{tenant}/{name}", "delete_workload"),
            ("POST", "/v1/placements", "place_instances"),
            ("POST", "/v1/tokens", "create_token"),
            ("POST", "/v1/nodes/{node}/cordon", "cordon_node"),
            ("POST", "/v1/nodes/{node}/drain/cancel", "cancel_node_drain"),
            ("GET", "/v1/nodes/{node}/drain", "get_node_drain"),
            ("GET", "/v1/nodes/{node}/assignments", "list_node_assignments"),
            ("GET", "/v1/queue", "list_queue"),
            ("DELETE", "/v1/queue/{id}", "delete_ticket"),
            ("GET", "/ui/{view}/{id}", "get_ui_view_id"),
            ("GET", "/console/{path}", "get_console_path"),
        ];
        for (method, path, id) in expected {
            assert_eq!(operation_id(method, path), id, "{method} {path}");
        }
    }

    #[test]
    fn no_two_operations_share_an_id() {
        let document = serde_json::to_value(super::openapi()).unwrap();
        let mut ids = std::collections::BTreeMap::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let Some(id) = operation["operationId"].as_str() else {
                    assert_eq!(method, "parameters", "{path} {method} has no operation id");
                    continue;
                };
                let earlier = ids.insert(id.to_owned(), format!("{method} {path}"));
                assert_eq!(earlier, None, "{id} is also {method} {path}");
            }
        }
        assert!(ids.len() > 80, "{ids:#?}");
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = serde_json::to_value(super::openapi()).unwrap();
        let text = document.to_string();
        let links = text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next());
        let missing: Vec<&str> =
            links.filter(|pointer| document.pointer(pointer).is_none()).collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn no_schema_uses_what_generators_of_clients_reject() {
        let text = serde_json::to_string(&super::openapi()).unwrap();
        assert!(text.contains(r#""prefixItems""#) && !text.contains(r#""items":false"#));
    }

    #[test]
    fn every_alternative_of_a_tagged_union_has_its_own_schema() {
        let document = serde_json::to_value(super::openapi()).unwrap();
        let mut tagged = 0;
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for alternative in schema["oneOf"].as_array().into_iter().flatten() {
                let has_tag = alternative.pointer("/properties/kind").is_some();
                assert!(!has_tag, "{name} has an alternative without a name");
            }
            let kinds = schema["discriminator"]["mapping"].as_object();
            for (kind, location) in kinds.into_iter().flatten() {
                let location = location.as_str().unwrap().trim_start_matches('#');
                let alternative = document.pointer(location).unwrap();
                assert_eq!(alternative["properties"]["kind"]["enum"][0], kind.as_str(), "{name}");
                tagged += 1;
            }
        }
        assert!(tagged > 15, "{tagged} alternatives");
        let changes = &document["components"]["schemas"]["FixCombined"]["properties"]["changes"];
        assert_eq!(changes["items"]["$ref"], "#/components/schemas/Fix");
    }

    #[test]
    fn every_operation_has_its_roles_and_every_link_its_schema() {
        crate::pages::assert_complete(&super::openapi());
    }
}
