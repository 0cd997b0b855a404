//! A typed client of Berth's API: it sends requests, decodes responses, and turns problem documents into
//! errors.
//!
//! It never retries: only the caller knows whether its request id may be used again.

mod connection_error;
mod error;
mod methods;
mod stream;

use std::time::Duration;

use reqwest::header::{ETAG, HeaderMap, HeaderValue, IF_MATCH};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use connection_error::Timeouts;

pub use connection_error::ConnectionError;
pub use error::ClientError;
pub use methods::{PlaceOutcome, escape};
pub use stream::{ServerEvent, ServerEvents};

/// The server, and how to connect to it.
#[derive(Clone, Debug, Default)]
pub struct Connect {
    /// The server: `http://127.0.0.1:7070`. A slash or `/v1` at the end is ignored.
    pub url: String,
    /// What configured the URL, for messages: `set by --url`.
    pub configured_by: Option<String>,
    /// The token to authenticate with.
    pub token: Option<String>,
    /// CA certificates in PEM to trust in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// A client certificate and its key, in PEM, one after the other.
    pub identity_pem: Option<Vec<u8>>,
    /// The timeout of one request; 60 s by default.
    pub timeout: Option<Duration>,
}

/// A client of one server. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    configured_by: Option<String>,
    token: Option<HeaderValue>,
    timeout: Duration,
}

/// How long a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A response with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedResponse<T> {
    /// The response.
    pub value: T,
    /// Its version, to send back as `If-Match`.
    pub etag: Option<String>,
}

impl Client {
    /// Creates a client, which connects when first used.
    ///
    /// # Errors
    /// When the URL, the token or a certificate cannot be used.
    pub fn new(connect: Connect) -> Result<Self, ClientError> {
        // Only the first call sets the provider for the process; all of Berth uses the same one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let base = base_url(&connect.url).ok_or_else(|| ClientError::Url {
            url: connect.url.clone(),
            configured_by: connect.configured_by.clone(),
        })?;
        let token = match connect.token {
            Some(token) => Some(bearer(&token)?),
            None => None,
        };
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = &connect.ca_pem {
            let certificates = reqwest::Certificate::from_pem_bundle(pem)
                .map_err(|error| ClientError::Certificate(error.to_string()))?;
            builder = builder.tls_certs_merge(certificates);
        }
        if let Some(pem) = &connect.identity_pem {
            let identity = reqwest::Identity::from_pem(pem)
                .map_err(|error| ClientError::Certificate(error.to_string()))?;
            builder = builder.identity(identity);
        }
        let http = builder.build().map_err(ClientError::Setup)?;
        let timeout = connect.timeout.unwrap_or(Duration::from_secs(60));
        Ok(Self { http, base, configured_by: connect.configured_by, token, timeout })
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Gets a resource: `get("/v1/nodes", &[("limit", "10")])`.
    ///
    /// # Errors
    /// When the server cannot be reached, returns an error, or its response cannot be decoded.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        Ok(self.get_with_etag(path, query).await?.value)
    }

    /// Gets a resource with its version.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_with_etag<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<TaggedResponse<T>, ClientError> {
        let request = self.request(Method::GET, path).query(query);
        decode_tagged(self.send(request).await?).await
    }

    /// Gets a text.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let response = self.send(self.request(Method::GET, path)).await?;
        response.text().await.map_err(ClientError::Transport)
    }

    /// Gets a long response, to read it in chunks.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_response(&self, path: &str) -> Result<Response, ClientError> {
        let request = self.request(Method::GET, path).timeout(Duration::from_secs(86_400));
        self.send(request).await
    }

    /// Sends a JSON body, and decodes the response.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send_json<B: Serialize + ?Sized + Sync, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
        if_match: Option<&str>,
    ) -> Result<TaggedResponse<T>, ClientError> {
        let mut request = self.request(method, path).json(body);
        if let Some(etag) = if_match {
            request = request.header(IF_MATCH, etag);
        }
        decode_tagged(self.send(request).await?).await
    }

    /// Posts a JSON body, and decodes the response.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post<B: Serialize + ?Sized + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        Ok(self.send_json(Method::POST, path, body, None).await?.value)
    }

    /// Posts a body of another type than JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post_text<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &'static str,
        body: String,
    ) -> Result<T, ClientError> {
        let request = self
            .request(Method::POST, path)
            .header(reqwest::header::CONTENT_TYPE, content_type)
            .body(body);
        Ok(decode_tagged(self.send(request).await?).await?.value)
    }

    /// Puts a JSON body, and decodes the response.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn put<B: Serialize + ?Sized + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        Ok(self.send_json(Method::PUT, path, body, None).await?.value)
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// Deletes a resource, and decodes the response: `Option<T>` where it may be empty.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete_as<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        Ok(decode_tagged(self.send(self.request(Method::DELETE, path)).await?).await?.value)
    }

    /// Opens a stream of events, after `last_event_id` if given.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn events(
        &self,
        path: &str,
        query: &[(&str, &str)],
        last_event_id: Option<&str>,
    ) -> Result<ServerEvents, ClientError> {
        let mut request = self
            .request(Method::GET, path)
            .query(query)
            .header(reqwest::header::ACCEPT, "text/event-stream")
            .timeout(Duration::from_secs(365 * 86_400));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        Ok(ServerEvents::new(self.send(request).await?))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request =
            self.http.request(method, format!("{}{path}", self.base)).timeout(self.timeout);
        if let Some(token) = &self.token {
            let mut headers = HeaderMap::new();
            headers.insert(reqwest::header::AUTHORIZATION, token.clone());
            request = request.headers(headers);
        }
        request
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = response.headers().get(reqwest::header::RETRY_AFTER);
        let retry_after =
            retry_after.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
        let text = response.text().await.map_err(ClientError::Transport)?;
        match serde_json::from_str(&text) {
            Ok(problem) => Err(ClientError::Problem { problem: Box::new(problem), retry_after }),
            Err(_) => {
                let url = self.base.clone();
                Err(ClientError::Status { url, status: status.as_u16(), text })
            }
        }
    }
}

impl Client {
    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        let timeouts = Timeouts { connect: CONNECT_TIMEOUT, response: self.timeout };
        let url = reqwest::Url::parse(&self.base).ok();
        let host = url.as_ref().and_then(|url| url.host_str()).unwrap_or_default();
        ClientError::Unreachable {
            cause: ConnectionError::of(error, host, timeouts),
            url: self.base.clone(),
            configured_by: self.configured_by.clone(),
        }
    }
}

/// The URL that paths of the API are appended to; none if it is not one of a server.
#[must_use]
pub fn base_url(text: &str) -> Option<String> {
    let base = text.trim().trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base).trim_end_matches('/');
    let url = reqwest::Url::parse(base).ok()?;
    let is_http = matches!(url.scheme(), "http" | "https");
    let is_plain = url.query().is_none() && url.fragment().is_none();
    (is_http && is_plain && url.has_host()).then(|| base.to_owned())
}

async fn decode_tagged<T: DeserializeOwned>(
    response: Response,
) -> Result<TaggedResponse<T>, ClientError> {
    let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
    let no_content = response.status() == StatusCode::NO_CONTENT;
    let bytes = response.bytes().await.map_err(ClientError::Transport)?;
    // An empty body decodes like null, for callers that expect no value.
    let bytes: &[u8] = if no_content || bytes.is_empty() { b"null" } else { &bytes };
    let value = serde_json::from_slice(bytes).map_err(ClientError::Unreadable)?;
    Ok(TaggedResponse { value, etag })
}

fn bearer(token: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| ClientError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::base_url;

    #[test]
    fn a_slash_or_the_version_at_the_end_of_a_url_is_ignored() {
        for text in ["http://a:7070", "http://a:7070/", "http://a:7070//", "http://a:7070/v1/"] {
            assert_eq!(base_url(text).as_deref(), Some("http://a:7070"), "{text}");
        }
        let behind_proxy = base_url("https://a/berth/v1");
        assert_eq!(behind_proxy.as_deref(), Some("https://a/berth"));
        for text in ["", "a:7070", "ftp://a", "http://", "http://a?x=1", "http://a#x"] {
            assert_eq!(base_url(text), None, "{text}");
        }
    }
}
