// SPDX-License-Identifier: Apache-2.0

//! Certificate authorities and certificates, created for each lab.

use std::{
    fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Why certificates, keys and tokens cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("cannot create a certificate")]
    Certificate(#[from] rcgen::Error),
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
}

pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    /// A new authority of this name.
    pub(crate) fn new(name: &str) -> Result<Self, CredentialsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// A certificate of a server that is reached by these names and addresses.
    pub(crate) fn server(
        &self,
        name: &str,
        names: &[&str],
        addresses: &[IpAddr],
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Result<Signed, CredentialsError> {
        let names: Vec<String> = names.iter().copied().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names)?;
        let addresses = addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        self.sign(params, name, usages)
    }

    /// A certificate of a client with this common name.
    pub(crate) fn client(&self, name: &str) -> Result<Signed, CredentialsError> {
        self.sign(
            CertificateParams::default(),
            name,
            &[ExtendedKeyUsagePurpose::ClientAuth],
        )
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Result<Signed, CredentialsError> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = usages.to_vec();
        let key = KeyPair::generate()?;
        Ok(Signed {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl Signed {
    /// Writes both as `<name>.crt` and `<name>.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<(), CredentialsError> {
        write_secret(&folder.join(format!("{name}.crt")), &self.certificate)?;
        write_secret(&folder.join(format!("{name}.key")), &self.key)
    }
}

/// Creates a folder that only its owner can read.
pub(crate) fn make_folder(folder: &Path) -> Result<(), CredentialsError> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(failed(folder))
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), CredentialsError> {
    let mut options = fs::OpenOptions::new();
    let file = options
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(failed(path))
}

/// The error for a system call on `path`.
pub(crate) fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> CredentialsError {
    let path = path.to_owned();
    move |cause| CredentialsError::File { path, cause }
}
