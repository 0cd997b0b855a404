//! The OpenAPI document, from the same code that serves.

use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, Object, Ref, RefOr, Response, Type};

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
    document
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_operation_has_its_roles_and_every_link_its_schema() {
        crate::pages::assert_complete(&super::openapi());
    }
}
