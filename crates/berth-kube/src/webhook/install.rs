//! The webhook's MutatingWebhookConfiguration: created if missing, corrected if changed.

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
use super::settings::{InstallOptions, Options, WebhookAddress};
use crate::watch::watch_events;

/// The name of the webhook within its configuration.
const WEBHOOK: &str = "pods.berth.dev";

/// The delay after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Reconciles the configuration.
pub(super) struct Installer {
    pub(super) api: Api<MutatingWebhookConfiguration>,
    pub(super) install: InstallOptions,
    pub(super) reach: WebhookAddress,
    pub(super) namespace: String,
    pub(super) excluded: Vec<String>,
    pub(super) timeout_s: i32,
    pub(super) metrics: Arc<Metrics>,
    /// Set once the configuration is correct.
    pub(super) done: watch::Sender<bool>,
}

impl Installer {
    pub(super) fn new(
        client: Client,
        options: &Options,
        install: InstallOptions,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            api: Api::all(client),
            install,
            reach: options.reach.clone(),
            namespace: options.namespace.clone(),
            excluded: options.excluded_namespaces(),
            timeout_s: i32::try_from(options.timeout.as_secs()).unwrap_or(5),
            metrics,
            done: watch::Sender::new(false),
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

    /// Corrects the configuration. Returns whether it was written.
    async fn reconcile_configuration(&self, authority: Option<&str>) -> Result<bool, kube::Error> {
        let params = PostParams::default();
        let name = self.install.name.as_str();
        let Some(mut found) = self.api.get_opt(name).await? else {
            let configuration = MutatingWebhookConfiguration {
                metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
                webhooks: Some(vec![self.desired_webhook(authority, None)]),
            };
            self.api.create(&params, &configuration).await?;
            return Ok(true);
        };
        let there =
            found.webhooks.as_ref().and_then(|all| all.iter().find(|it| it.name == WEBHOOK));
        let wanted = vec![self.desired_webhook(authority, there)];
        if found.webhooks.as_ref() == Some(&wanted) {
            return Ok(false);
        }
        found.webhooks = Some(wanted);
        // The resource version guards against overwriting a concurrent change.
        self.api.replace(name, &params, &found).await?;
        Ok(true)
    }

    /// Keeps the configuration correct until stopped.
    pub(super) async fn run(
        self,
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
            let right = if needs_authority && authority.is_none() {
                true
            } else {
                match self.reconcile_configuration(authority.as_deref()).await {
                    Ok(wrote) => {
                        if wrote {
                            self.metrics.configuration_writes.inc();
                            tracing::info!(
                                name = self.install.name,
                                "webhook configuration written"
                            );
                        }
                        self.done.send_replace(true);
                        true
                    }
                    Err(error) => {
                        tracing::warn!(%error, name = self.install.name, "failed to write webhook configuration; retrying");
                        false
                    }
                }
            };
            tokio::select! {
                changed = trusted.changed() => if changed.is_err() { return },
                event = events.next() => if event.is_none() { return },
                () = tokio::time::sleep(RETRY_DELAY), if !right => {}
            }
        }
    }
}
