//! Self-signed certificates, and when they are renewed.
//!
//! Pure except for key generation: time is an argument. A CA is announced before it signs and stays
//! trusted after it has, so that no replica ever serves a certificate that the API server does not trust
//! yet, or any more.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

use super::TlsError;
use crate::webhook::settings::SelfSignedTls;

/// Tolerance for clocks that are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PemPair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// When to renew; stored with the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RenewalSchedule {
    /// The names of the serving certificate.
    pub(super) hosts: Vec<String>,
    /// The name of the CA; a certificate names its issuer.
    pub(super) authority: String,
    pub(super) certificate_renew: Timestamp,
    pub(super) certificate_end: Timestamp,
    pub(super) authority_renew: Timestamp,
    pub(super) authority_end: Timestamp,
    /// The next CA, once it is announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<NextAuthority>,
    /// How long the previous CA stays trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) old_until: Option<Timestamp>,
}

/// The schedule of the next CA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NextAuthority {
    pub(super) authority: String,
    pub(super) signs_from: Timestamp,
    pub(super) renew: Timestamp,
    pub(super) end: Timestamp,
}

/// All certificates that replicas share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateSet {
    pub(super) authority: PemPair,
    pub(super) serving: PemPair,
    pub(super) next: Option<PemPair>,
    /// The certificate of the previous CA.
    pub(super) old: Option<String>,
    pub(super) schedule: RenewalSchedule,
}

impl CertificateSet {
    /// The certificates of all CAs to trust.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.certificate.as_str());
        let all = [Some(self.authority.certificate.as_str()), next, self.old.as_deref()];
        all.into_iter().flatten().collect()
    }

    /// Creates everything.
    pub(super) fn new(
        hosts: &[String],
        settings: &SelfSignedTls,
        now: Timestamp,
    ) -> Result<Self, TlsError> {
        let (name, authority) = authority(settings, now)?;
        let serving = serving(&name, &authority, hosts, settings, now)?;
        let schedule = RenewalSchedule {
            hosts: hosts.to_vec(),
            authority: name,
            certificate_renew: two_thirds(now, settings.certificate_lifetime),
            certificate_end: later(now, settings.certificate_lifetime),
            authority_renew: two_thirds(now, settings.authority_lifetime),
            authority_end: later(now, settings.authority_lifetime),
            next: None,
            old_until: None,
        };
        Ok(Self { authority, serving, next: None, old: None, schedule })
    }

    /// Renews what is due; `None` if nothing is.
    pub(super) fn renew_if_due(
        &self,
        hosts: &[String],
        settings: &SelfSignedTls,
        now: Timestamp,
    ) -> Result<Option<Self>, TlsError> {
        if now >= self.schedule.authority_end {
            return Self::new(hosts, settings, now).map(Some);
        }
        let mut set = self.clone();
        // Names of other replicas are kept: otherwise two with different names would renew against each
        // other forever, for example in a roll-out that changes the service's name.
        let mut all = set.schedule.hosts.clone();
        all.extend(hosts.iter().filter(|it| !set.schedule.hosts.contains(it)).cloned());
        let mut sign = now >= set.schedule.certificate_renew || set.schedule.hosts != all;
        if set.schedule.old_until.is_some_and(|until| now >= until) {
            (set.old, set.schedule.old_until) = (None, None);
        }
        match set.schedule.next.clone() {
            Some(next) if now >= next.signs_from => {
                if let Some(pair) = set.next.take() {
                    let before = std::mem::replace(&mut set.authority, pair);
                    set.old = Some(before.certificate);
                    set.schedule.old_until = Some(later(now, settings.overlap));
                    (set.schedule.authority_renew, set.schedule.authority_end) =
                        (next.renew, next.end);
                    set.schedule.authority = next.authority;
                    sign = true;
                }
                set.schedule.next = None;
            }
            None if now >= set.schedule.authority_renew => {
                let (authority, pair) = authority(settings, now)?;
                set.next = Some(pair);
                set.schedule.next = Some(NextAuthority {
                    authority,
                    signs_from: later(now, settings.overlap),
                    renew: two_thirds(now, settings.authority_lifetime),
                    end: later(now, settings.authority_lifetime),
                });
            }
            Some(_) | None => {}
        }
        if sign {
            let (name, authority) = (&set.schedule.authority, &set.authority);
            set.serving = serving(name, authority, &all, settings, now)?;
            set.schedule.hosts = all;
            set.schedule.certificate_renew = two_thirds(now, settings.certificate_lifetime);
            set.schedule.certificate_end = later(now, settings.certificate_lifetime);
        }
        Ok((set != *self).then_some(set))
    }
}

/// A new CA and its name, which contains the creation time, so that CAs can be told apart.
fn authority(settings: &SelfSignedTls, now: Timestamp) -> Result<(String, PemPair), TlsError> {
    let name = format!("Berth webhook authority {}", now.as_millisecond());
    let mut params = authority_params(&name);
    set_validity(&mut params, settings.authority_lifetime, now);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((name, PemPair { certificate: certificate.pem(), key: key.serialize_pem() }))
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
    authority: &PemPair,
    hosts: &[String],
    settings: &SelfSignedTls,
    now: Timestamp,
) -> Result<PemPair, TlsError> {
    let issuer = Issuer::new(authority_params(name), KeyPair::from_pem(&authority.key)?);
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = named(hosts.first().map_or("berth-webhook", String::as_str));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, settings.certificate_lifetime, now);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(PemPair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    // Common names have at most 64 characters.
    named.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    named
}

fn set_validity(params: &mut CertificateParams, lifetime: Duration, now: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
    params.not_before = epoch + since.saturating_sub(CLOCK_SKEW);
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

    fn settings() -> SelfSignedTls {
        SelfSignedTls {
            certificate_lifetime: Duration::from_secs(90 * 86_400),
            authority_lifetime: Duration::from_secs(300 * 86_400),
            overlap: Duration::from_secs(86_400),
            ..SelfSignedTls::default()
        }
    }

    fn hosts() -> Vec<String> {
        vec!["berth-webhook.berth.svc".to_owned()]
    }

    #[test]
    fn a_serving_certificate_is_renewed_when_two_thirds_are_over_by_the_same_authority() {
        let set = CertificateSet::new(&hosts(), &settings(), at(0)).unwrap();
        assert_eq!(set.renew_if_due(&hosts(), &settings(), at(59)).unwrap(), None);
        let renewed = set.renew_if_due(&hosts(), &settings(), at(60)).unwrap().expect("is due");
        assert_eq!(renewed.authority, set.authority);
        assert_ne!(renewed.serving, set.serving);
        assert_eq!(renewed.bundle(), set.bundle());
        assert_eq!(renewed.renew_if_due(&hosts(), &settings(), at(61)).unwrap(), None);
    }

    #[test]
    fn other_names_need_another_certificate_at_once() {
        let set = CertificateSet::new(&hosts(), &settings(), at(0)).unwrap();
        let more = vec!["berth-webhook.berth.svc".to_owned(), "127.0.0.1".to_owned()];
        let renewed = set.renew_if_due(&more, &settings(), at(1)).unwrap().expect("is due");
        assert_eq!((renewed.schedule.hosts, renewed.authority), (more, set.authority));
    }

    #[test]
    fn an_authority_is_trusted_before_and_after_it_signs() {
        let settings = settings();
        let step = |set: &CertificateSet, day| {
            let renewed = set.renew_if_due(&hosts(), &settings, at(day)).unwrap();
            renewed.unwrap_or_else(|| set.clone())
        };
        let first = CertificateSet::new(&hosts(), &settings, at(0)).unwrap();
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
        assert!(settled.schedule.authority_end > first.schedule.authority_end);
    }

    #[test]
    fn an_expired_authority_replaces_everything() {
        let set = CertificateSet::new(&hosts(), &settings(), at(0)).unwrap();
        let renewed = set.renew_if_due(&hosts(), &settings(), at(400)).unwrap().expect("is due");
        assert_ne!(renewed.authority, set.authority);
        assert!(!renewed.bundle().contains(&set.authority.certificate));
    }
}
