// SPDX-License-Identifier: Apache-2.0

//! For tests: certificates.

use std::fmt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};

/// The host name in all certificates. It has no address: clients need an alias.
pub const SERVER_NAME: &str = "alder.mesh.cilium.io";

/// An authority that signs certificates of servers and clients.
pub struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    ///
    /// Never: keys and certificates are made in memory.
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            certificate: params.self_signed(&key).expect("a certificate"),
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes the certificate of the authority, `ca.crt`; returns its path.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> PathBuf {
        write(folder, "ca.crt", &self.certificate.pem())
    }

    /// Writes a certificate with this common name, for the server name [`SERVER_NAME`], and its key; returns their paths.
    ///
    /// # Panics
    ///
    /// If a file cannot be written.
    pub fn sign(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        self.sign_params(folder, name, CertificateParams::default())
    }

    /// As [`sign`](Self::sign), but the certificate expired years ago.
    ///
    /// # Panics
    ///
    /// If a file cannot be written.
    pub fn sign_expired(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign_params(folder, name, params)
    }

    fn sign_params(&self, folder: &Path, name: &str, mut params: CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("a key");
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .subject_alt_names
            .push(SanType::DnsName(SERVER_NAME.try_into().expect("it is a name")));
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (
            write(folder, &format!("{name}.crt"), &certificate.pem()),
            write(folder, &format!("{name}.key"), &key.serialize_pem()),
        )
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("it is written");
    path
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}
