//! The way to the API server: from inside a pod, or by a kubeconfig.
//!
//! Only connects. What is asked, and how often, is the caller's business.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::Client;
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;

/// How we name ourselves to the API server.
pub const AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

/// The API server cannot be found or talked to.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// A kubeconfig was named and cannot be used.
    #[error("kubeconfig {path} cannot be used")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// A context was named and is not there.
    #[error("context {context:?} of the kubeconfig cannot be used")]
    Context {
        /// Which.
        context: String,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// Neither in a pod nor with a kubeconfig.
    #[error(
        "no API server is known: this is no pod with a service account ({in_cluster}), and there is \
         no usable kubeconfig; name one, or set KUBECONFIG"
    )]
    Nowhere {
        /// Why it is no pod.
        in_cluster: Box<InClusterError>,
        /// Why there is no kubeconfig.
        source: Box<KubeconfigError>,
    },
    /// The settings are there and cannot be used.
    #[error("the API server at {url} cannot be talked to")]
    Client {
        /// Where it is.
        url: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// How long an answer may stay silent.
const SILENCE: Duration = Duration::from_secs(310);

/// A client of the API server: of the kubeconfig or context that is named, else of the cluster that
/// this pod is in, else of the usual kubeconfig.
///
/// # Errors
/// When no API server is known, or what is known of it cannot be used. That it does not answer is
/// found out later.
pub async fn connect(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ConnectError> {
    let mut config = configuration(kubeconfig, context).await?;
    // Whoever asks knows what may be asked twice: a binding that "timed out" may have succeeded, and
    // an eviction that a budget refuses is not to be tried again at once.
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    // A connection that dies without a word must not hold anyone up for ever. Watches are silent for
    // less than this: the API server ends them, and they are begun anew.
    config.read_timeout = Some(SILENCE);
    let url = config.cluster_url.to_string();
    Client::try_from(config)
        .map_err(|source| ConnectError::Client { url, source: Box::new(source) })
}

async fn configuration(
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
        .map_err(|source| ConnectError::Nowhere { in_cluster, source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let path = Path::new("no/such/kubeconfig");
        let error = connect(Some(path), None).await.err().expect("there is none");
        assert_eq!(error.to_string(), "kubeconfig no/such/kubeconfig cannot be used");
    }
}
