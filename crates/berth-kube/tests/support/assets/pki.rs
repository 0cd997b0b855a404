//! Certificates of a control plane, and the keys of its service accounts, as files of its folder.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

/// The authority that signs all certificates.
pub(crate) struct Pki {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

fn name_of(common: &str, groups: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    for group in groups {
        name.push(DnType::OrganizationName, *group);
    }
    name
}

impl Pki {
    /// Writes the authority, the certificate of the API server and the keys of service accounts.
    pub(crate) fn create(folder: &Path) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = name_of("authority of tests", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.join("authority.pem"), certificate.pem()).unwrap();
        let pki = Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) };
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let mut server = CertificateParams::new(names).unwrap();
        server.distinguished_name = name_of("kube-apiserver", &[]);
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        pki.sign("api-server", server);
        let accounts = KeyPair::generate().unwrap();
        std::fs::write(folder.join("accounts.key"), accounts.serialize_pem()).unwrap();
        std::fs::write(folder.join("accounts.pub"), accounts.public_key_pem()).unwrap();
        pki
    }

    /// The file with the certificate of the authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("authority.pem")
    }

    /// Writes the certificate and the key of a user.
    pub(crate) fn write_client(
        &self,
        file: &str,
        user: &str,
        groups: &[&str],
    ) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::default();
        params.distinguished_name = name_of(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    fn sign(&self, file: &str, mut params: CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files =
            (self.folder.join(format!("{file}.pem")), self.folder.join(format!("{file}.key")));
        std::fs::write(&files.0, certificate.pem()).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }
}
