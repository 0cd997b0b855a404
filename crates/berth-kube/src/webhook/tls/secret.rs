//! The Secret that replicas share: made by whoever comes first, read by all, renewed by whoever
//! looks when it is due. Every write names the version it replaces, so two cannot undo each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::own::{Held, Pair};
use super::{TlsError, server_config};
use crate::webhook::metrics::Metrics;
use crate::webhook::server::Certificate;
use crate::webhook::settings::OwnTls;

/// How often a write is tried when others are faster.
const TRIES: u32 = 10;

/// Keeps the certificates in their Secret.
pub(in crate::webhook) struct SecretKeeper {
    api: Api<Secret>,
    settings: OwnTls,
    hosts: Vec<String>,
    metrics: Arc<Metrics>,
}

impl SecretKeeper {
    pub(in crate::webhook) fn new(
        client: Client,
        namespace: &str,
        settings: OwnTls,
        hosts: Vec<String>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { api: Api::namespaced(client, namespace), settings, hosts, metrics }
    }

    /// The certificates as they should be now, made or renewed if need be.
    async fn current(&self, now: Timestamp) -> Result<Held, TlsError> {
        let name = self.settings.secret.as_str();
        let failed = |source: kube::Error| TlsError::Secret {
            name: name.to_owned(),
            source: Box::new(source),
        };
        for _ in 0..TRIES {
            let stored = self.api.get_opt(name).await.map_err(failed)?;
            let held = stored.as_ref().and_then(read);
            let wanted = match &held {
                Some(held) => held.renewed(&self.hosts, &self.settings, now)?,
                None => Some(Held::new(&self.hosts, &self.settings, now)?),
            };
            let Some(wanted) = wanted else {
                if let Some(held) = held {
                    return Ok(held);
                }
                continue;
            };
            let written = self.write(stored, &wanted).await;
            match written {
                Ok(()) => {
                    tracing::info!(secret = name, "the certificates are renewed");
                    return Ok(wanted);
                }
                // Another replica was faster: take what it made.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(TlsError::Contended(name.to_owned()))
    }

    async fn write(&self, stored: Option<Secret>, held: &Held) -> Result<(), kube::Error> {
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
                let secret =
                    Secret { metadata, type_, data: Some(data(held)), ..Secret::default() };
                self.api.create(&params, &secret).await.map(drop)
            }
            Some(mut secret) => {
                // The version stays in: if another wrote meanwhile, this is refused.
                secret.data = Some(data(held));
                self.api.replace(name, &params, &secret).await.map(drop)
            }
        }
    }
}

const STATE: &str = "berth.json";

fn data(held: &Held) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    let mut put = |key: &str, text: &str| {
        data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
    };
    put("tls.crt", &held.serving.certificate);
    put("tls.key", &held.serving.key);
    put("ca.crt", &held.authority.certificate);
    put("ca.key", &held.authority.key);
    if let Some(next) = &held.next {
        put("next-ca.crt", &next.certificate);
        put("next-ca.key", &next.key);
    }
    if let Some(old) = &held.old {
        put("old-ca.crt", old);
    }
    put(STATE, &serde_json::to_string(&held.times).unwrap_or_default());
    data
}

/// What is stored, if it is ours and can be read.
fn read(secret: &Secret) -> Option<Held> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let pair = |name: &str| {
        let (certificate, key) = (text(&format!("{name}.crt"))?, text(&format!("{name}.key"))?);
        Some(Pair { certificate, key })
    };
    let held = Held {
        authority: pair("ca")?,
        serving: pair("tls")?,
        next: pair("next-ca"),
        old: text("old-ca.crt"),
        times: serde_json::from_str(&text(STATE)?).ok()?,
    };
    // What cannot be served with is made anew.
    let (certificate, key) = (held.serving.certificate.as_bytes(), held.serving.key.as_bytes());
    server_config("the Secret", certificate, key).ok()?;
    Some(held)
}

/// Serves with what the Secret says, renews it when it is due, and tells whom to trust, until it is
/// told to stop.
pub(in crate::webhook) async fn follow_secret(
    keeper: SecretKeeper,
    certificate: Certificate,
    trusted: watch::Sender<Option<String>>,
    stop: CancellationToken,
) {
    let mut last: Option<Held> = None;
    // Another replica may renew it, or somebody delete it: then all must take up the new one at once.
    let only = format!("metadata.name={}", keeper.settings.secret);
    let events = watcher(keeper.api.clone(), watcher::Config::default().fields(&only));
    let mut events = std::pin::pin!(events.default_backoff());
    loop {
        match keeper.current(Timestamp::now()).await {
            Ok(held) => {
                // Whom to trust goes out first: what is served must be trusted.
                let bundle = held.bundle();
                trusted.send_if_modified(|now| {
                    let changed = now.as_ref() != Some(&bundle);
                    *now = Some(bundle.clone());
                    changed
                });
                if last.as_ref().is_none_or(|last| last.serving != held.serving) {
                    serve(&certificate, &held);
                }
                let ends = held.times.certificate_end.as_second();
                keeper.metrics.certificate_ends.set(ends);
                keeper.metrics.authority_ends.set(held.times.authority_end.as_second());
                last = Some(held);
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, "the certificates cannot be kept now");
            }
        }
        // Until there is one, nobody can be answered.
        let pause = if last.is_some() {
            keeper.settings.look_every
        } else {
            std::time::Duration::from_secs(1)
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            event = events.next() => if event.is_none() { return },
        }
    }
}

fn serve(certificate: &Certificate, held: &Held) {
    let (chain, key) = (held.serving.certificate.as_bytes(), held.serving.key.as_bytes());
    match server_config("the Secret", chain, key) {
        Ok(config) => certificate.set(config),
        Err(error) => tracing::error!(%error, "the certificate cannot be served with"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_reads_back_as_it_was() {
        let hosts = vec!["berth-webhook.berth.svc".to_owned()];
        let settings = OwnTls::default();
        let mut held = Held::new(&hosts, &settings, Timestamp::now()).unwrap();
        held.old = Some(held.authority.certificate.clone());
        let mut secret = Secret { data: Some(data(&held)), ..Secret::default() };
        assert_eq!(read(&secret), Some(held));
        secret.data.as_mut().unwrap().insert("tls.key".to_owned(), ByteString(b"x".to_vec()));
        assert_eq!(read(&secret), None, "a key that is none");
    }
}
