//! The connection to the API server: from inside a pod, or by a kubeconfig.
//!
//! Connects, and builds the requests that both services send. When they are sent, and how often, is up to
//! the caller.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::api::{ObjectMeta, PostParams};
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client};
use thiserror::Error;

/// The user agent of all requests.
pub const USER_AGENT_NAME: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

/// There is no usable connection to the API server.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The given kubeconfig cannot be used.
    #[error("kubeconfig {path} cannot be used")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// The given context does not exist or cannot be used.
    #[error("context {context:?} of the kubeconfig cannot be used")]
    Context {
        /// The context.
        context: String,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// Neither a pod nor a kubeconfig.
    #[error(
        "no API server configured: not running in a pod with a service account ({in_cluster}), and no \
         usable kubeconfig found; pass --kubeconfig or set KUBECONFIG"
    )]
    NotConfigured {
        /// Why the in-cluster configuration cannot be used.
        in_cluster: Box<InClusterError>,
        /// Why the kubeconfig cannot be used.
        source: Box<KubeconfigError>,
    },
    /// The configuration was read and no client can be made of it.
    #[error("failed to create a client for the API server at {url}")]
    Client {
        /// The address of the API server.
        url: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// How long a connection may be silent.
const READ_TIMEOUT: Duration = Duration::from_secs(310);

/// A client for the API server of the given kubeconfig or context, else of the cluster that this pod
/// runs in, else of the default kubeconfig.
///
/// # Errors
/// When no API server is configured, or the configuration cannot be used. Whether the server answers
/// shows with the first request.
pub async fn connect(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ConnectError> {
    let mut config = load_config(kubeconfig, context).await?;
    // Only the caller knows which requests may be repeated: a binding that timed out may have taken
    // effect, and an eviction that a budget blocks should not be repeated at once.
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(USER_AGENT_NAME)));
    // Detects connections that died silently. Watches are never silent for so long: the API server
    // closes them earlier, and they are resumed.
    config.read_timeout = Some(READ_TIMEOUT);
    let url = config.cluster_url.to_string();
    Client::try_from(config)
        .map_err(|source| ConnectError::Client { url, source: Box::new(source) })
}

/// The delay after this many failed requests in a row: doubling from 100 ms up to 5 s.
pub(crate) fn backoff_delay(failures: u32) -> Duration {
    let doubled = Duration::from_millis(50).saturating_mul(1 << failures.min(8));
    doubled.min(Duration::from_secs(5))
}

/// A reference to an object of the core API group; without a namespace it is cluster-scoped.
pub(crate) fn object_reference(
    kind: &str,
    namespace: Option<&str>,
    name: &str,
    uid: Option<&str>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}

/// Evicts a pod, and not one that was recreated under the same name. `Api::evict` would not do: it
/// writes `delete_options`, which the API server does not know, so that the uid would not be checked.
pub(crate) async fn evict_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (params, body) = (PostParams::default(), eviction(namespace, name, uid));
    api.create_subresource::<_, serde_json::Value>("eviction", name, &params, &body).await.map(drop)
}

fn eviction(namespace: &str, name: &str, uid: &str) -> Eviction {
    let preconditions =
        Some(Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() });
    Eviction {
        delete_options: Some(DeleteOptions { preconditions, ..DeleteOptions::default() }),
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
    }
}

async fn load_config(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    if let Some(path) = kubeconfig {
        let wrong = |source: KubeconfigError| ConnectError::File {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let file = Kubeconfig::read_from(path).map_err(wrong)?;
        return Config::from_custom_kubeconfig(file, &options).await.map_err(wrong);
    }
    if let Some(context) = context {
        let wrong = |source: KubeconfigError| ConnectError::Context {
            context: context.to_owned(),
            source: Box::new(source),
        };
        return Config::from_kubeconfig(&options).await.map_err(wrong);
    }
    let in_cluster = match Config::incluster() {
        Ok(config) => return Ok(config),
        Err(error) => Box::new(error),
    };
    Config::from_kubeconfig(&options)
        .await
        .map_err(|source| ConnectError::NotConfigured { in_cluster, source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_names_the_pod_and_its_uid_as_the_api_server_reads_them() {
        let body = serde_json::to_value(eviction("shop", "web-1", "u1")).unwrap();
        let expected = serde_json::json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": "web-1", "namespace": "shop" },
            "deleteOptions": { "preconditions": { "uid": "u1" } },
        });
        assert_eq!(body, expected);
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named() {
        let path = Path::new("no/such/kubeconfig");
        let error = connect(Some(path), None).await.err().expect("it does not exist");
        assert_eq!(error.to_string(), "kubeconfig no/such/kubeconfig cannot be used");
    }
}
