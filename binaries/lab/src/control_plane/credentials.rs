// SPDX-License-Identifier: Apache-2.0

//! Certificates, keys and the token of an API server, created for each lab.

use std::{
    fs,
    io::{Read, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// User that the token stands for.
const USER: &str = "skep-lab";
/// Group of cluster administrators.
const ADMINISTRATORS: &str = "system:masters";

/// Why the credentials cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A certificate cannot be created.
    #[error("cannot create the certificates of the API server")]
    Certificate(#[from] rcgen::Error),
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
}

/// The files that a real API server is started with, and what its clients need.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    folder: PathBuf,
    /// Certificate of the authority that signed the server's, PEM.
    pub(super) authority: String,
    /// Bearer token of an administrator.
    pub(super) token: String,
}

impl Credentials {
    /// Creates them in `folder` for a server that is reached at `addresses`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn make(folder: &Path, addresses: &[IpAddr]) -> Result<Self, CredentialsError> {
        let authority_key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "skep-lab");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = params.self_signed(&authority_key)?;
        let issuer = Issuer::new(params, authority_key);

        let key = KeyPair::generate()?;
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ];
        let mut params = CertificateParams::new(names.map(str::to_owned))?;
        params
            .subject_alt_names
            .extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &issuer)?;

        let accounts = KeyPair::generate()?;
        let token = random_token()?;
        let credentials = Self {
            folder: folder.to_owned(),
            authority: authority.pem(),
            token,
        };
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(folder);
        made.map_err(failed(folder))?;
        let tokens = format!("{},{USER},{USER},\"{ADMINISTRATORS}\"\n", credentials.token);
        for (name, text) in [
            ("authority.crt", credentials.authority.as_str()),
            ("server.crt", &certificate.pem()),
            ("server.key", &key.serialize_pem()),
            ("accounts.key", &accounts.serialize_pem()),
            ("accounts.pub", &accounts.public_key_pem()),
            ("tokens.csv", &tokens),
        ] {
            write_secret(&folder.join(name), text)?;
        }
        Ok(credentials)
    }

    /// A file of the folder, for the server's command line.
    #[must_use]
    pub(super) fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

/// Writes a file that only its owner can read.
///
/// # Errors
/// If a system call fails.
pub(super) fn write_secret(path: &Path, text: &str) -> Result<(), CredentialsError> {
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

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> CredentialsError {
    let path = path.to_owned();
    move |cause| CredentialsError::File { path, cause }
}

fn random_token() -> Result<String, CredentialsError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0u8; 32];
    fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(failed(source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_server_gets_its_own_and_only_the_owner_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| Credentials::make(&folder.path().join(name), &[]).unwrap();
        let (first, second) = (make("a"), make("b"));

        assert_ne!(first.token, second.token);
        assert_ne!(first.authority, second.authority);
        assert_eq!(first.token.len(), 64);
        let tokens = fs::read_to_string(first.file("tokens.csv")).unwrap();
        assert_eq!(
            tokens,
            format!("{},skep-lab,skep-lab,\"system:masters\"\n", first.token)
        );
        // The server verifies with a public key: it does not take it from a private one in PKCS#8.
        let public = fs::read_to_string(first.file("accounts.pub")).unwrap();
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----\n"), "{public}");
        let private = KeyPair::from_pem(&fs::read_to_string(first.file("accounts.key")).unwrap()).unwrap();
        assert_eq!(public, private.public_key_pem());
        for name in ["server.key", "accounts.key", "tokens.csv"] {
            let mode = fs::metadata(first.file(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
}
