//! The webhook's MutatingWebhookConfiguration: created if missing and permitted, corrected if changed.
//!
//! A configuration that another webhook wrote stays as it is: two replicas with different settings, as during
//! a roll-out, would otherwise rewrite it without end. Each writes its own settings once, when it starts and
//! when they change, so that the last one decides.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::pod_cache::derive_id;
use super::readiness::{Part, Readiness};
use super::settings::{InstallOptions, Options, WebhookAddress};
use crate::watch::watch_events;

/// The name of the webhook within its configuration.
const WEBHOOK: &str = "pods.berth.dev";

/// Who wrote the configuration, and a hash of what it wrote: `IDENTITY/HASH`.
const WRITTEN_BY: &str = "berth.dev/written-by";

/// The delay after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The configuration is not as it should be.
#[derive(Debug, thiserror::Error)]
enum InstallError {
    #[error("failed to write MutatingWebhookConfiguration {name}: {source}")]
    Api { name: String, source: kube::Error },
    #[error(
        "MutatingWebhookConfiguration {name} does not exist, so no pod is reviewed, and this webhook may not create \
         it: apply deploy/kubernetes/webhook/50-configuration.yaml, or run helm upgrade"
    )]
    Missing { name: String },
}

/// What was found or done.
#[derive(Debug, PartialEq, Eq)]
enum Reconciled {
    /// It is as this webhook wants it.
    Unchanged,
    /// It was written.
    Written,
    /// Another webhook wrote other settings.
    Foreign(String),
}

/// Reconciles the configuration.
pub(super) struct Installer {
    api: Api<MutatingWebhookConfiguration>,
    install: InstallOptions,
    reach: WebhookAddress,
    namespace: String,
    excluded: Vec<String>,
    timeout_s: i32,
    identity: String,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    /// The settings that this webhook wrote, or found, last.
    settled: Option<String>,
}

impl Installer {
    pub(super) fn new(
        client: Client,
        options: &Options,
        install: InstallOptions,
        metrics: Arc<Metrics>,
        readiness: Arc<Readiness>,
    ) -> Self {
        Self {
            api: Api::all(client),
            install,
            reach: options.reach.clone(),
            namespace: options.namespace.clone(),
            excluded: options.excluded_namespaces(),
            timeout_s: i32::try_from(options.timeout.as_secs()).unwrap_or(5),
            identity: options.identity.clone(),
            metrics,
            readiness,
            settled: None,
        }
    }

    /// The desired webhook. Without a CA, the existing bundle is kept.
    fn desired_webhook(
        &self,
        authority: Option<&str>,
        found: Option<&MutatingWebhook>,
    ) -> MutatingWebhook {
        let trusted = authority.map(|pem| ByteString(pem.as_bytes().to_vec()));
        let kept = || found.and_then(|found| found.client_config.ca_bundle.clone());
        let text = |text: &str| Some(text.to_owned());
        let (service, url) = match &self.reach {
            WebhookAddress::Service { name, port } => {
                let service = ServiceReference {
                    name: name.clone(),
                    namespace: self.namespace.clone(),
                    path: text("/mutate"),
                    port: Some(i32::from(*port)),
                };
                (Some(service), None)
            }
            WebhookAddress::Url(url) => (None, Some(url.clone())),
        };
        MutatingWebhook {
            name: WEBHOOK.to_owned(),
            admission_review_versions: vec!["v1".to_owned()],
            client_config: WebhookClientConfig { ca_bundle: trusted.or_else(kept), service, url },
            failure_policy: text(self.install.failure_policy.name()),
            match_conditions: None,
            match_policy: text("Equivalent"),
            namespace_selector: Some(LabelSelector {
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: "kubernetes.io/metadata.name".to_owned(),
                    operator: "NotIn".to_owned(),
                    values: Some(self.excluded.clone()),
                }]),
                match_labels: None,
            }),
            object_selector: Some(LabelSelector::default()),
            reinvocation_policy: text("IfNeeded"),
            rules: Some(vec![RuleWithOperations {
                api_groups: Some(vec![String::new()]),
                api_versions: Some(vec!["v1".to_owned()]),
                operations: Some(vec!["CREATE".to_owned()]),
                resources: Some(vec!["pods".to_owned()]),
                scope: text("Namespaced"),
            }]),
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(self.timeout_s),
        }
    }

    /// Corrects the configuration.
    async fn reconcile_configuration(
        &mut self,
        authority: Option<&str>,
    ) -> Result<Reconciled, InstallError> {
        let params = PostParams::default();
        let name = self.install.name.clone();
        let failed = |source| InstallError::Api { name: name.clone(), source };
        let Some(mut found) = self.api.get_opt(&name).await.map_err(failed)? else {
            let wanted = vec![self.desired_webhook(authority, None)];
            let mut metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
            self.sign(&mut metadata, &wanted);
            let configuration =
                MutatingWebhookConfiguration { metadata, webhooks: Some(wanted.clone()) };
            return match self.api.create(&params, &configuration).await {
                Ok(_) => Ok(self.settle(&wanted, Reconciled::Written)),
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    Err(InstallError::Missing { name })
                }
                Err(error) => Err(failed(error)),
            };
        };
        let there =
            found.webhooks.as_ref().and_then(|all| all.iter().find(|it| it.name == WEBHOOK));
        let wanted = vec![self.desired_webhook(authority, there)];
        if found.webhooks.as_ref() == Some(&wanted) {
            return Ok(self.settle(&wanted, Reconciled::Unchanged));
        }
        let is_news = self.settled.as_ref() != Some(&fingerprint(&wanted));
        if !is_news && let Some(writer) = self.other_writer(&found) {
            return Ok(Reconciled::Foreign(writer));
        }
        self.sign(&mut found.metadata, &wanted);
        found.webhooks = Some(wanted.clone());
        // The resource version guards against overwriting a concurrent change.
        self.api.replace(&name, &params, &found).await.map_err(failed)?;
        Ok(self.settle(&wanted, Reconciled::Written))
    }

    fn settle(&mut self, wanted: &[MutatingWebhook], reconciled: Reconciled) -> Reconciled {
        self.settled = Some(fingerprint(wanted));
        reconciled
    }

    /// Notes who writes the configuration.
    fn sign(&self, metadata: &mut ObjectMeta, wanted: &[MutatingWebhook]) {
        let signature = format!("{}/{}", self.identity, fingerprint(wanted));
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(WRITTEN_BY.to_owned(), signature);
    }

    /// The other webhook that wrote exactly this configuration, if one did.
    fn other_writer(&self, found: &MutatingWebhookConfiguration) -> Option<String> {
        let signature = found.metadata.annotations.as_ref()?.get(WRITTEN_BY)?;
        let (identity, hash) = signature.rsplit_once('/')?;
        let intact = hash == fingerprint(found.webhooks.as_deref().unwrap_or_default());
        (intact && identity != self.identity).then(|| identity.to_owned())
    }

    /// Reconciles once. Returns whether to wait for a change.
    async fn reconcile_and_report(&mut self, authority: Option<&str>) -> bool {
        let name = self.install.name.clone();
        match self.reconcile_configuration(authority).await {
            Ok(reconciled) => {
                match reconciled {
                    Reconciled::Unchanged => {}
                    Reconciled::Written => {
                        self.metrics.configuration_writes.inc();
                        tracing::info!(name, "webhook configuration written");
                    }
                    Reconciled::Foreign(writer) => {
                        tracing::warn!(
                            name,
                            writer,
                            "another webhook wrote other settings; they stay until one of the two starts again"
                        );
                    }
                }
                self.readiness.set(Part::Registration, Ok(()));
                true
            }
            Err(error) => {
                tracing::debug!(%error, name, "webhook configuration is not in place; retrying");
                self.readiness.set(Part::Registration, Err(error.to_string()));
                false
            }
        }
    }

    /// Keeps the configuration correct until stopped.
    pub(super) async fn run(
        mut self,
        mut trusted: watch::Receiver<Option<String>>,
        needs_authority: bool,
        stop: CancellationToken,
    ) {
        let only = format!("metadata.name={}", self.install.name);
        let config = watcher::Config::default().fields(&only);
        let mut events = std::pin::pin!(watch_events(self.api.clone(), config, stop));
        loop {
            let authority = trusted.borrow_and_update().clone();
            // Without a CA, a configuration would only make calls fail.
            let right = needs_authority && authority.is_none()
                || self.reconcile_and_report(authority.as_deref()).await;
            tokio::select! {
                changed = trusted.changed() => if changed.is_err() { return },
                event = events.next() => if event.is_none() { return },
                () = tokio::time::sleep(RETRY_DELAY), if !right => {}
            }
        }
    }
}

/// A hash of what the API server is told.
fn fingerprint(webhooks: &[MutatingWebhook]) -> String {
    // Types of Kubernetes are always serializable.
    let text = serde_json::to_string(webhooks).unwrap_or_default();
    derive_id("configuration", &text).0.simple().to_string()
}
