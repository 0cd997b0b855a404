//! The Secret that replicas share: created by the first one, read by all, renewed by the first that finds
//! it due. Every write is guarded by the resource version, so replicas cannot undo each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_ledger::invariant_ok;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::self_signed::{CertificateSet, PemPair};
use super::{TlsError, server_config};
use crate::watch::watch_events;
use crate::webhook::metrics::Metrics;
use crate::webhook::server::Certificate;
use crate::webhook::settings::SelfSignedTls;

/// Attempts at a write that conflicts with other replicas.
const TRIES: u32 = 10;

/// Maintains the certificates in their Secret.
pub(in crate::webhook) struct CertificateSecret {
    api: Api<Secret>,
    settings: SelfSignedTls,
    hosts: Vec<String>,
    metrics: Arc<Metrics>,
}

impl CertificateSecret {
    pub(in crate::webhook) fn new(
        client: Client,
        namespace: &str,
        settings: SelfSignedTls,
        hosts: Vec<String>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { api: Api::namespaced(client, namespace), settings, hosts, metrics }
    }

    /// The current certificates, created or renewed if necessary.
    async fn current(&self, now: Timestamp) -> Result<CertificateSet, TlsError> {
        let name = self.settings.secret.as_str();
        let failed = |source: kube::Error| TlsError::Secret {
            name: name.to_owned(),
            source: Box::new(source),
        };
        for _ in 0..TRIES {
            let stored = self.api.get_opt(name).await.map_err(failed)?;
            let set = stored.as_ref().and_then(read);
            let wanted = match &set {
                Some(set) => set.renew_if_due(&self.hosts, &self.settings, now)?,
                None => Some(CertificateSet::new(&self.hosts, &self.settings, now)?),
            };
            let Some(wanted) = wanted else {
                if let Some(set) = set {
                    return Ok(set);
                }
                continue;
            };
            let written = self.write(stored, &wanted).await;
            match written {
                Ok(()) => {
                    tracing::info!(secret = name, "certificates renewed");
                    return Ok(wanted);
                }
                // Another replica was faster: use its certificates.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(TlsError::Contended(name.to_owned()))
    }

    async fn write(&self, stored: Option<Secret>, set: &CertificateSet) -> Result<(), kube::Error> {
        let name = self.settings.secret.as_str();
        let params = PostParams::default();
        match stored {
            None => {
                let metadata = ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some(BTreeMap::from([(
                        "app.kubernetes.io/managed-by".to_owned(),
                        "berth-webhook".to_owned(),
                    )])),
                    ..ObjectMeta::default()
                };
                let type_ = Some("kubernetes.io/tls".to_owned());
                let secret = Secret { metadata, type_, data: Some(data(set)), ..Secret::default() };
                self.api.create(&params, &secret).await.map(drop)
            }
            Some(mut secret) => {
                // The resource version guards against overwriting a concurrent change.
                secret.data = Some(data(set));
                self.api.replace(name, &params, &secret).await.map(drop)
            }
        }
    }
}

const STATE: &str = "berth.json";

fn data(set: &CertificateSet) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    let mut put = |key: &str, text: &str| {
        data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
    };
    put("tls.crt", &set.serving.certificate);
    put("tls.key", &set.serving.key);
    put("ca.crt", &set.authority.certificate);
    put("ca.key", &set.authority.key);
    if let Some(next) = &set.next {
        put("next-ca.crt", &next.certificate);
        put("next-ca.key", &next.key);
    }
    if let Some(old) = &set.old {
        put("old-ca.crt", old);
    }
    let schedule = serde_json::to_string(&set.schedule);
    put(STATE, &invariant_ok!(schedule, "certificate_schedule_is_json").unwrap_or_default());
    data
}

/// The stored certificates, if they are complete and valid.
fn read(secret: &Secret) -> Option<CertificateSet> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let pair = |name: &str| {
        let (certificate, key) = (text(&format!("{name}.crt"))?, text(&format!("{name}.key"))?);
        Some(PemPair { certificate, key })
    };
    let set = CertificateSet {
        authority: pair("ca")?,
        serving: pair("tls")?,
        next: pair("next-ca"),
        old: text("old-ca.crt"),
        schedule: serde_json::from_str(&text(STATE)?).ok()?,
    };
    // An unusable certificate is replaced.
    let (certificate, key) = (set.serving.certificate.as_bytes(), set.serving.key.as_bytes());
    server_config("the Secret", certificate, key).ok()?;
    Some(set)
}

/// Serves with the certificate of the Secret, renews it when it is due, and publishes the CA bundle,
/// until stopped.
pub(in crate::webhook) async fn follow_secret(
    reconciler: CertificateSecret,
    certificate: Certificate,
    trusted: watch::Sender<Option<String>>,
    stop: CancellationToken,
) {
    let mut last: Option<CertificateSet> = None;
    // Another replica may renew it, or it may be deleted: the change must take effect at once.
    let only = format!("metadata.name={}", reconciler.settings.secret);
    let config = watcher::Config::default().fields(&only);
    let mut events = std::pin::pin!(watch_events(reconciler.api.clone(), config, stop));
    loop {
        match reconciler.current(Timestamp::now()).await {
            Ok(set) => {
                // The CA bundle is published first: what is served must be trusted.
                let bundle = set.bundle();
                trusted.send_if_modified(|now| {
                    let changed = now.as_ref() != Some(&bundle);
                    *now = Some(bundle.clone());
                    changed
                });
                if last.as_ref().is_none_or(|last| last.serving != set.serving) {
                    serve(&certificate, &set);
                }
                let ends = set.schedule.certificate_end.as_second();
                reconciler.metrics.certificate_expiry.set(ends);
                reconciler.metrics.ca_expiry.set(set.schedule.authority_end.as_second());
                last = Some(set);
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, "failed to maintain certificates; retrying");
            }
        }
        // Without a certificate, no request can be answered.
        let pause = if last.is_some() {
            reconciler.settings.check_interval
        } else {
            std::time::Duration::from_secs(1)
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            event = events.next() => if event.is_none() { return },
        }
    }
}

fn serve(certificate: &Certificate, set: &CertificateSet) {
    let (chain, key) = (set.serving.certificate.as_bytes(), set.serving.key.as_bytes());
    match server_config("the Secret", chain, key) {
        Ok(config) => certificate.set(config),
        Err(error) => tracing::error!(%error, "invalid certificate in Secret"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_certificates_are_read_back_unchanged() {
        let hosts = vec!["berth-webhook.berth.svc".to_owned()];
        let settings = SelfSignedTls::default();
        let mut set = CertificateSet::new(&hosts, &settings, Timestamp::now()).unwrap();
        set.old = Some(set.authority.certificate.clone());
        let mut secret = Secret { data: Some(data(&set)), ..Secret::default() };
        assert_eq!(read(&secret), Some(set));
        secret.data.as_mut().unwrap().insert("tls.key".to_owned(), ByteString(b"x".to_vec()));
        assert_eq!(read(&secret), None, "a key that is none");
    }
}
