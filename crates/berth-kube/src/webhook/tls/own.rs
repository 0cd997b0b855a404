//! Certificates of our own making, and when which is made.
//!
//! Pure but for the making of keys: the time is an argument. An authority is announced before it
//! signs and stays known after it has, so that no replica ever serves what the API server does not
//! trust yet, or no longer.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

use super::TlsError;
use crate::webhook::settings::OwnTls;

/// Clocks may be behind.
const BEFORE: Duration = Duration::from_secs(3600);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// When what has to be done; kept beside the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Times {
    /// Names that the serving certificate is for.
    pub(super) hosts: Vec<String>,
    /// What the authority is called; a certificate names who signed it.
    pub(super) authority: String,
    pub(super) certificate_renew: Timestamp,
    pub(super) certificate_end: Timestamp,
    pub(super) authority_renew: Timestamp,
    pub(super) authority_end: Timestamp,
    /// When the next authority may begin to sign, and when it would be renewed and end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<Next>,
    /// Until when the authority before this one stays known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) old_until: Option<Timestamp>,
}

/// The times of the next authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Next {
    pub(super) authority: String,
    pub(super) signs_from: Timestamp,
    pub(super) renew: Timestamp,
    pub(super) end: Timestamp,
}

/// Everything that replicas share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) authority: Pair,
    pub(super) serving: Pair,
    pub(super) next: Option<Pair>,
    /// The certificate of the authority before.
    pub(super) old: Option<String>,
    pub(super) times: Times,
}

impl Held {
    /// Certificates of all authorities that are to be trusted.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.certificate.as_str());
        let all = [Some(self.authority.certificate.as_str()), next, self.old.as_deref()];
        all.into_iter().flatten().collect()
    }

    /// All anew.
    pub(super) fn new(
        hosts: &[String],
        settings: &OwnTls,
        now: Timestamp,
    ) -> Result<Self, TlsError> {
        let (name, authority) = authority(settings, now)?;
        let serving = serving(&name, &authority, hosts, settings, now)?;
        let times = Times {
            hosts: hosts.to_vec(),
            authority: name,
            certificate_renew: two_thirds(now, settings.certificate_lifetime),
            certificate_end: later(now, settings.certificate_lifetime),
            authority_renew: two_thirds(now, settings.authority_lifetime),
            authority_end: later(now, settings.authority_lifetime),
            next: None,
            old_until: None,
        };
        Ok(Self { authority, serving, next: None, old: None, times })
    }

    /// The same as it should be now; none if it is so already.
    pub(super) fn renewed(
        &self,
        hosts: &[String],
        settings: &OwnTls,
        now: Timestamp,
    ) -> Result<Option<Self>, TlsError> {
        if now >= self.times.authority_end {
            return Self::new(hosts, settings, now).map(Some);
        }
        let mut held = self.clone();
        // What another replica goes by is kept: two that only knew their own would sign against each
        // other without end, as in a roll-out that changes the service's name.
        let mut all = held.times.hosts.clone();
        all.extend(hosts.iter().filter(|it| !held.times.hosts.contains(it)).cloned());
        let mut sign = now >= held.times.certificate_renew || held.times.hosts != all;
        if held.times.old_until.is_some_and(|until| now >= until) {
            (held.old, held.times.old_until) = (None, None);
        }
        match held.times.next.clone() {
            Some(next) if now >= next.signs_from => {
                if let Some(pair) = held.next.take() {
                    let before = std::mem::replace(&mut held.authority, pair);
                    held.old = Some(before.certificate);
                    held.times.old_until = Some(later(now, settings.overlap));
                    (held.times.authority_renew, held.times.authority_end) = (next.renew, next.end);
                    held.times.authority = next.authority;
                    sign = true;
                }
                held.times.next = None;
            }
            None if now >= held.times.authority_renew => {
                let (authority, pair) = authority(settings, now)?;
                held.next = Some(pair);
                held.times.next = Some(Next {
                    authority,
                    signs_from: later(now, settings.overlap),
                    renew: two_thirds(now, settings.authority_lifetime),
                    end: later(now, settings.authority_lifetime),
                });
            }
            Some(_) | None => {}
        }
        if sign {
            let (name, authority) = (&held.times.authority, &held.authority);
            held.serving = serving(name, authority, &all, settings, now)?;
            held.times.hosts = all;
            held.times.certificate_renew = two_thirds(now, settings.certificate_lifetime);
            held.times.certificate_end = later(now, settings.certificate_lifetime);
        }
        Ok((held != *self).then_some(held))
    }
}

/// A new authority and its name, which says when it was made, so that two can be told apart.
fn authority(settings: &OwnTls, now: Timestamp) -> Result<(String, Pair), TlsError> {
    let name = format!("Berth webhook authority {}", now.as_millisecond());
    let mut params = authority_params(&name);
    good_for(&mut params, settings.authority_lifetime, now);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((name, Pair { certificate: certificate.pem(), key: key.serialize_pem() }))
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn serving(
    name: &str,
    authority: &Pair,
    hosts: &[String],
    settings: &OwnTls,
    now: Timestamp,
) -> Result<Pair, TlsError> {
    let issuer = Issuer::new(authority_params(name), KeyPair::from_pem(&authority.key)?);
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = named(hosts.first().map_or("berth-webhook", String::as_str));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    good_for(&mut params, settings.certificate_lifetime, now);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    // Common names have at most 64 characters.
    named.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    named
}

fn good_for(params: &mut CertificateParams, lifetime: Duration, now: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
    params.not_before = epoch + since.saturating_sub(BEFORE);
    params.not_after = epoch + since.saturating_add(lifetime);
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    now.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn two_thirds(now: Timestamp, of: Duration) -> Timestamp {
    later(now, of / 3 * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * DAY).unwrap()
    }

    fn settings() -> OwnTls {
        OwnTls {
            certificate_lifetime: Duration::from_secs(90 * 86_400),
            authority_lifetime: Duration::from_secs(300 * 86_400),
            overlap: Duration::from_secs(86_400),
            ..OwnTls::default()
        }
    }

    fn hosts() -> Vec<String> {
        vec!["berth-webhook.berth.svc".to_owned()]
    }

    #[test]
    fn a_serving_certificate_is_renewed_when_two_thirds_are_over_by_the_same_authority() {
        let held = Held::new(&hosts(), &settings(), at(0)).unwrap();
        assert_eq!(held.renewed(&hosts(), &settings(), at(59)).unwrap(), None);
        let renewed = held.renewed(&hosts(), &settings(), at(60)).unwrap().expect("is due");
        assert_eq!(renewed.authority, held.authority);
        assert_ne!(renewed.serving, held.serving);
        assert_eq!(renewed.bundle(), held.bundle());
        assert_eq!(renewed.renewed(&hosts(), &settings(), at(61)).unwrap(), None);
    }

    #[test]
    fn other_names_need_another_certificate_at_once() {
        let held = Held::new(&hosts(), &settings(), at(0)).unwrap();
        let more = vec!["berth-webhook.berth.svc".to_owned(), "127.0.0.1".to_owned()];
        let renewed = held.renewed(&more, &settings(), at(1)).unwrap().expect("is due");
        assert_eq!((renewed.times.hosts, renewed.authority), (more, held.authority));
    }

    #[test]
    fn an_authority_is_known_before_it_signs_and_after_it_has() {
        let settings = settings();
        let step = |held: &Held, day| {
            let renewed = held.renewed(&hosts(), &settings, at(day)).unwrap();
            renewed.unwrap_or_else(|| held.clone())
        };
        let first = Held::new(&hosts(), &settings, at(0)).unwrap();
        let announced = step(&first, 200);
        let next = announced.next.clone().expect("a next authority").certificate;
        assert_eq!(announced.authority, first.authority, "it does not sign yet");
        assert!(announced.bundle().contains(&next));
        assert!(announced.bundle().contains(&first.authority.certificate));

        let signing = step(&announced, 201);
        assert_eq!(signing.authority.certificate, next);
        assert_ne!(signing.serving, announced.serving);
        assert!(signing.bundle().contains(&first.authority.certificate), "still known");
        assert_eq!(signing.next, None);

        let settled = step(&signing, 202);
        assert!(!settled.bundle().contains(&first.authority.certificate));
        assert_eq!(settled.serving, signing.serving);
        assert!(settled.times.authority_end > first.times.authority_end);
    }

    #[test]
    fn after_a_long_sleep_all_is_made_anew() {
        let held = Held::new(&hosts(), &settings(), at(0)).unwrap();
        let renewed = held.renewed(&hosts(), &settings(), at(400)).unwrap().expect("is due");
        assert_ne!(renewed.authority, held.authority);
        assert!(!renewed.bundle().contains(&held.authority.certificate));
    }
}
