//! Protection against requests that another site causes a browser to send: DNS rebinding, by which
//! a foreign name resolves to this machine, and forms and scripts of other origins.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode, Uri, header};

use super::auth::OverTls;
use crate::problem::ApiError;

/// The address of this server that a connection was made to; connections attach it to requests.
#[derive(Clone, Copy, Debug)]
pub struct ServedAt(pub SocketAddr);

/// Checks a request that is trusted because it comes from this machine: browsers run here too, and
/// send what any page tells them to.
///
/// # Errors
/// When the request names another host, or another origin caused it to change something.
pub(crate) fn check_local(request: &Request) -> Result<(), ApiError> {
    let is_tls = request.extensions().get::<OverTls>().is_some();
    let port = request.extensions().get::<ServedAt>().map(|ServedAt(address)| address.port());
    let host = requested_host(request.uri(), request.headers());
    let host = host.ok_or_else(|| foreign_host("the request names no valid Host"))?;
    let requested_port = host.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    if !is_loopback(host.host()) || port.is_some_and(|port| port != requested_port) {
        return Err(foreign_host(&format!("the request is for Host {host}")));
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    if let Some(site) = other_site(request.headers()) {
        return Err(cross_site(&format!("Sec-Fetch-Site is {site}")));
    }
    let Some(origin) = request.headers().get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("");
    let scheme = if is_tls { "https" } else { "http" };
    if origin_authority(origin).is_some_and(|(found, authority)| {
        found == scheme && is_same_authority(&authority, &host, scheme)
    }) {
        return Ok(());
    }
    Err(cross_site(&format!("Origin is {origin}, and the request is for {scheme}://{host}")))
}

/// Checks a form that a browser sends to sign in or out. `Sec-Fetch-Site` decides, which only the
/// browser sets; one that does not send it names its `Origin`, which must be the requested host.
/// A proxy may have changed that, and names the original in `X-Forwarded-Host`.
///
/// # Errors
/// When another origin sent the form.
pub(crate) fn check_form(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(site) = other_site(headers) {
        return Err(cross_site(&format!("Sec-Fetch-Site is {site}")));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    if headers.contains_key("sec-fetch-site") {
        return Ok(());
    }
    let origin = origin.to_str().unwrap_or("");
    let forwarded =
        headers.get("x-forwarded-host").and_then(|host| host.to_str().ok()?.parse().ok());
    let hosts: [Option<Authority>; 2] = [requested_host(uri, headers), forwarded];
    let is_same = origin_authority(origin).is_some_and(|(scheme, authority)| {
        hosts.iter().flatten().any(|host| is_same_authority(&authority, host, &scheme))
    });
    if is_same {
        return Ok(());
    }
    let host = hosts[0].as_ref().map_or("", Authority::as_str);
    Err(cross_site(&format!("Origin is {origin}, and the request is for {host}")))
}

/// The header that the console sends with what changes something. No form can send it, and a script of
/// another origin only after a preflight request, which this server does not answer.
const CONSOLE_HEADER: &str = "berth-console";

/// Whether a page of this server made a request: it has the console's header, and the browser says that
/// its origin is this server. A request that names no origin is none of a browser that is new enough.
pub(crate) fn is_from_console(uri: &Uri, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(http::HeaderValue::as_bytes);
    let names_origin = match site {
        Some(site) => site == b"same-origin",
        None => headers.contains_key(header::ORIGIN),
    };
    headers.contains_key(CONSOLE_HEADER) && names_origin && check_form(uri, headers).is_ok()
}

/// The value of `Sec-Fetch-Site` if it says that another origin caused the request.
fn other_site(headers: &HeaderMap) -> Option<&str> {
    let site = headers.get("sec-fetch-site")?.to_str().unwrap_or("");
    (site != "same-origin" && site != "none").then_some(site)
}

/// The host that the client asked for: of the URI if it has one, as in HTTP/2, else of `Host`.
fn requested_host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?.parse().ok()?;
    hosts.next().is_none().then_some(host)
}

fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The scheme and the authority of an origin; absent for `null` and for what is no origin.
fn origin_authority(origin: &str) -> Option<(String, Authority)> {
    let (scheme, authority) = origin.split_once("://")?;
    Some((scheme.to_ascii_lowercase(), authority.parse().ok()?))
}

fn is_same_authority(one: &Authority, other: &Authority, scheme: &str) -> bool {
    let usual = if scheme == "https" { 443 } else { 80 };
    let port = |of: &Authority| of.port_u16().unwrap_or(usual);
    one.host().eq_ignore_ascii_case(other.host()) && port(one) == port(other)
}

fn foreign_host(found: &str) -> ApiError {
    let detail = format!("{found}; without sign-in, this server answers only to its own address");
    let title = "the request is for another host";
    ApiError::new(StatusCode::FORBIDDEN, "foreign_host", title, detail)
        .remedy("use localhost or a loopback address with the server's port, or send a token")
}

fn cross_site(found: &str) -> ApiError {
    let detail = format!("{found}: a page of another origin caused this request");
    let title = "the request comes from another site";
    ApiError::new(StatusCode::FORBIDDEN, "cross_site", title, detail)
        .remedy("send it from this server's own pages or from a program that is no browser")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const PORT: u16 = 7070;

    fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(ServedAt(([127, 0, 0, 1], PORT).into()));
        request
    }

    fn code(result: Result<(), ApiError>) -> String {
        result.err().map_or_else(String::new, |error| error.problem().code.clone())
    }

    #[test]
    fn only_a_loopback_host_with_the_port_of_the_server_is_local() {
        for (host, expected) in [
            ("localhost:7070", ""),
            ("LOCALHOST:7070", ""),
            ("127.0.0.1:7070", ""),
            ("127.9.9.9:7070", ""),
            ("[::1]:7070", ""),
            ("[::ffff:127.0.0.1]:7070", ""),
            ("localhost", "foreign_host"),
            ("localhost:7071", "foreign_host"),
            ("evil.example:7070", "foreign_host"),
            ("localhost.evil.example:7070", "foreign_host"),
            ("127.0.0.1.evil.example:7070", "foreign_host"),
            ("192.0.2.1:7070", "foreign_host"),
            ("[2001:db8::1]:7070", "foreign_host"),
            ("", "foreign_host"),
        ] {
            for method in ["GET", "HEAD", "POST"] {
                let found = code(check_local(&request(method, "/v1/nodes", &[("host", host)])));
                assert_eq!(found, expected, "{method} {host}");
            }
        }
        let twice = [("host", "localhost:7070"), ("host", "evil.example:7070")];
        assert_eq!(code(check_local(&request("GET", "/", &twice))), "foreign_host");
        assert_eq!(code(check_local(&request("GET", "/", &[]))), "foreign_host");
        let absolute = request("GET", "http://evil.example:7070/", &[("host", "localhost:7070")]);
        assert_eq!(code(check_local(&absolute)), "foreign_host");
    }

    #[test]
    fn a_change_that_another_origin_caused_is_not_local() {
        for (header, value, expected) in [
            ("origin", "http://localhost:7070", ""),
            ("origin", "http://LocalHost:7070", ""),
            ("origin", "https://localhost:7070", "cross_site"),
            ("origin", "http://localhost:3000", "cross_site"),
            ("origin", "http://127.0.0.1:7070", "cross_site"),
            ("origin", "http://evil.example", "cross_site"),
            ("origin", "null", "cross_site"),
            ("origin", "", "cross_site"),
            ("sec-fetch-site", "same-origin", ""),
            ("sec-fetch-site", "none", ""),
            ("sec-fetch-site", "same-site", "cross_site"),
            ("sec-fetch-site", "cross-site", "cross_site"),
        ] {
            let headers = [("host", "localhost:7070"), (header, value)];
            for method in ["POST", "PUT", "DELETE"] {
                let found = code(check_local(&request(method, "/v1/pools/a", &headers)));
                assert_eq!(found, expected, "{method} {header}: {value}");
            }
            // A link on another site may lead here; its page cannot read the answer.
            assert_eq!(code(check_local(&request("GET", "/", &headers))), "", "{header}: {value}");
        }
    }

    #[test]
    fn a_form_comes_from_the_host_that_it_was_sent_to() {
        let host = ("host", "berth.example");
        for (headers, expected) in [
            (vec![], ""),
            (vec![("origin", "https://berth.example")], ""),
            (vec![("origin", "https://berth.example:443")], ""),
            (vec![("origin", "https://berth.example:8443")], "cross_site"),
            (vec![("origin", "https://evil.example")], "cross_site"),
            (vec![("origin", "null")], "cross_site"),
            (vec![("origin", "https://other"), ("x-forwarded-host", "other")], ""),
            (vec![("origin", "https://other"), ("sec-fetch-site", "same-origin")], ""),
            (vec![("origin", "https://other"), ("sec-fetch-site", "cross-site")], "cross_site"),
            (vec![("sec-fetch-site", "same-site")], "cross_site"),
        ] {
            let headers: Vec<_> = std::iter::once(host).chain(headers).collect();
            let request = request("POST", "/sign-in", &headers);
            let found = code(check_form(request.uri(), request.headers()));
            assert_eq!(found, expected, "{headers:?}");
        }
    }
}
