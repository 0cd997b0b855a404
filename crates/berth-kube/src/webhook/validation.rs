//! Rejects invalid options at the start, instead of failing on the first request.

use std::path::Path;
use std::time::Duration;

use super::settings::{InvalidOption, Options, TlsSource, WebhookAddress};
use crate::names::{is_label, is_label_name, is_qualified_name, is_subdomain};

const OBJECT_NAME: &str =
    "a name of lower-case letters, digits, - and ., of at most 253 characters";
const SHORT_NAME: &str = "a name of lower-case letters, digits and -, of at most 63 characters";
const LABEL_VALUE: &str = "a label value: letters, digits, -, _ and ., of at most 63 characters";
const URL: &str = "https://HOST:PORT/PATH without a user, a query or a fragment";

impl Options {
    /// Rejects invalid options.
    ///
    /// # Errors
    /// Names the option, its value and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        self.validate_times()?;
        self.validate_rules()?;
        self.validate_names()?;
        self.validate_address()?;
        self.validate_tls()
    }

    fn validate_times(&self) -> Result<(), InvalidOption> {
        let is_whole = |it: Duration| it.subsec_nanos() == 0;
        if !(1..=30).contains(&self.timeout.as_secs()) || !is_whole(self.timeout) {
            let value = format!("{:?}", self.timeout);
            return reject("timeout", value, "whole seconds from 1 to 30");
        }
        if self.reserve_for < Duration::from_secs(1) || !is_whole(self.reserve_for) {
            let value = format!("{:?}", self.reserve_for);
            return reject("reserve-for", value, "whole seconds from 1");
        }
        Ok(())
    }

    fn validate_rules(&self) -> Result<(), InvalidOption> {
        if self.prefixes.is_empty() || self.prefixes.iter().any(|it| !is_subdomain(it)) {
            let value = self.prefixes.join(",");
            return reject("prefix", value, "at least one DNS name such as cloudpilot.ai");
        }
        let label = &self.node_label;
        if !is_qualified_name(&label.key) {
            let accepted = "a label key: NAME or PREFIX/NAME such as karpenter.sh/capacity-type";
            return reject("capacity-label", label.key.clone(), accepted);
        }
        for (name, value) in [("on-demand-value", &label.on_demand), ("spot-value", &label.spot)] {
            // Nodes of neither type may have the label with an empty value.
            if !is_label_name(value) {
                return reject(name, value.clone(), LABEL_VALUE);
            }
        }
        if label.on_demand == label.spot {
            let accepted = "another value than --on-demand-value";
            return reject("spot-value", label.spot.clone(), accepted);
        }
        Ok(())
    }

    fn validate_names(&self) -> Result<(), InvalidOption> {
        if !is_label(&self.namespace) {
            return reject("namespace", self.namespace.clone(), SHORT_NAME);
        }
        for namespace in &self.exclude_namespaces {
            if !is_label(namespace) {
                return reject("exclude-namespace", namespace.clone(), SHORT_NAME);
            }
        }
        if !is_subdomain(&self.rebuild.lease) {
            return reject("lease-name", self.rebuild.lease.clone(), OBJECT_NAME);
        }
        if let Some(install) = &self.install
            && !is_subdomain(&install.name)
        {
            return reject("configuration", install.name.clone(), OBJECT_NAME);
        }
        Ok(())
    }

    fn validate_address(&self) -> Result<(), InvalidOption> {
        match &self.reach {
            WebhookAddress::Service { name, .. } if !is_label(name) => {
                reject("service", name.clone(), SHORT_NAME)
            }
            WebhookAddress::Service { port: 0, .. } => {
                reject("service-port", "0".to_owned(), "a port from 1 to 65535")
            }
            WebhookAddress::Url(url) if !is_webhook_url(url) => {
                reject("external-url", url.clone(), URL)
            }
            WebhookAddress::Service { .. } | WebhookAddress::Url(_) => Ok(()),
        }
    }

    fn validate_tls(&self) -> Result<(), InvalidOption> {
        match &self.tls {
            TlsSource::SelfSigned(own) if !is_subdomain(&own.secret) => {
                reject("tls-secret", own.secret.clone(), OBJECT_NAME)
            }
            TlsSource::SelfSigned(_) => Ok(()),
            TlsSource::Files { folder, ca_file } => {
                for name in ["tls.crt", "tls.key"] {
                    if !is_readable(&folder.join(name)) {
                        let value = folder.display().to_string();
                        return reject("tls-dir", value, "a directory with tls.crt and tls.key");
                    }
                }
                match ca_file {
                    Some(file) if !is_readable(file) => {
                        let value = file.display().to_string();
                        reject("ca-file", value, "a readable file with certificates in PEM")
                    }
                    Some(_) | None => Ok(()),
                }
            }
        }
    }
}

fn reject(name: &'static str, value: String, accepted: &'static str) -> Result<(), InvalidOption> {
    Err(InvalidOption { name, value, accepted })
}

fn is_readable(path: &Path) -> bool {
    std::fs::File::open(path).and_then(|file| file.metadata()).is_ok_and(|it| it.is_file())
}

/// What the API server accepts as the URL of a webhook.
fn is_webhook_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    let has_user = uri.authority().is_some_and(|it| it.as_str().contains('@'));
    uri.scheme_str() == Some("https")
        && has_host
        && !has_user
        && uri.query().is_none()
        && !text.contains('#')
}

#[cfg(test)]
mod tests {
    use berth_ledger::Backend;

    use super::*;
    use crate::webhook::SelfSignedTls;

    fn options() -> Options {
        Options::new("berth-system", "me", Backend::Sqlite("x.db".into()))
    }

    fn rejected(change: impl FnOnce(&mut Options)) -> String {
        let mut options = options();
        change(&mut options);
        options.validate().expect_err("it was accepted").to_string()
    }

    #[test]
    fn the_defaults_and_usual_values_are_accepted() {
        options().validate().unwrap();
        let mut other = options();
        other.node_label.key = "cloud.google.com/gke-provisioning".to_owned();
        (other.node_label.on_demand, other.node_label.spot) = ("ON_DEMAND".into(), "SPOT".into());
        other.exclude_namespaces = vec!["a-1".to_owned()];
        other.reach = WebhookAddress::Url("https://10.0.0.7:8443/mutate".to_owned());
        other.validate().unwrap();
        other.reach = WebhookAddress::Url("https://[fd00::1]:8443/mutate".to_owned());
        other.validate().unwrap();
    }

    #[test]
    fn a_rejection_names_option_value_and_what_is_accepted() {
        let line = rejected(|it| it.exclude_namespaces = vec!["Shop".to_owned()]);
        assert_eq!(line, format!("exclude-namespace is \"Shop\"; accepted is {SHORT_NAME}"));
    }

    #[test]
    fn every_option_is_checked() {
        type Change = fn(&mut Options);
        let cases: [(&str, Change); 22] = [
            ("timeout", |it| it.timeout = Duration::from_millis(1500)),
            ("timeout", |it| it.timeout = Duration::from_secs(31)),
            ("reserve-for", |it| it.reserve_for = Duration::from_millis(900)),
            ("reserve-for", |it| it.reserve_for = Duration::from_millis(1500)),
            ("prefix", |it| it.prefixes = vec!["-a".to_owned()]),
            ("prefix", |it| it.prefixes = vec!["a..b".to_owned()]),
            ("capacity-label", |it| it.node_label.key = "a b".to_owned()),
            ("capacity-label", |it| it.node_label.key = "/capacity".to_owned()),
            ("capacity-label", |it| it.node_label.key = "a/b/c".to_owned()),
            ("on-demand-value", |it| it.node_label.on_demand = "on demand".to_owned()),
            ("spot-value", |it| it.node_label.spot = "s".repeat(64)),
            ("spot-value", |it| it.node_label.spot = "on-demand".to_owned()),
            ("namespace", |it| it.namespace = String::new()),
            ("exclude-namespace", |it| it.exclude_namespaces = vec!["a.b".to_owned()]),
            ("lease-name", |it| it.rebuild.lease = "Lease".to_owned()),
            ("service", |it| {
                it.reach = WebhookAddress::Service { name: "a.b".to_owned(), port: 443 };
            }),
            ("service-port", |it| {
                it.reach = WebhookAddress::Service { name: "a".to_owned(), port: 0 };
            }),
            ("external-url", |it| it.reach = WebhookAddress::Url("https://".to_owned())),
            ("external-url", |it| it.reach = WebhookAddress::Url("http://a/mutate".to_owned())),
            ("external-url", |it| it.reach = WebhookAddress::Url("https://a/b?c".to_owned())),
            ("tls-secret", |it| {
                let secret = "a_b".to_owned();
                it.tls =
                    TlsSource::SelfSigned(SelfSignedTls { secret, ..SelfSignedTls::default() });
            }),
            ("configuration", |it| {
                it.install.get_or_insert_default().name = "Berth".to_owned();
            }),
        ];
        for (name, change) in cases {
            let line = rejected(change);
            assert!(line.starts_with(&format!("{name} is ")), "{name}: {line}");
        }
    }

    #[test]
    fn files_of_a_certificate_must_be_there_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let files = |ca_file| TlsSource::Files { folder: folder.path().to_owned(), ca_file };
        let write = |name: &str| std::fs::write(folder.path().join(name), "x").unwrap();
        write("tls.crt");
        let line = rejected(|it| it.tls = files(None));
        assert!(line.ends_with("accepted is a directory with tls.crt and tls.key"), "{line}");
        write("tls.key");
        let line = rejected(|it| it.tls = files(Some(folder.path().join("ca.crt"))));
        assert!(line.starts_with("ca-file is "), "{line}");
        let mut right = options();
        right.tls = files(None);
        right.validate().unwrap();
    }
}
