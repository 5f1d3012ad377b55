// SPDX-License-Identifier: Apache-2.0

//! Certificates, keys and the token of an API server.

use std::{
    fs,
    io::Read,
    net::IpAddr,
    path::{Path, PathBuf},
};

use rcgen::{ExtendedKeyUsagePurpose, KeyPair};

use crate::certificates::{Authority, CredentialsError, failed, make_folder, write_secret};

/// User that the token stands for.
const USER: &str = "skep-lab";
const ADMINISTRATORS: &str = "system:masters";

/// The files that a real API server is started with, and what its clients need.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    folder: PathBuf,
    /// Certificate of the authority that signed the server's, PEM.
    pub(super) authority: String,
    pub(super) token: String,
}

impl Credentials {
    /// Creates them in `folder` for a server that is reached at `addresses`.
    pub(super) fn make(folder: &Path, addresses: &[IpAddr]) -> Result<Self, CredentialsError> {
        let authority = Authority::new("skep-lab")?;
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ];
        let server = authority.server(
            "kube-apiserver",
            &names,
            addresses,
            &[ExtendedKeyUsagePurpose::ServerAuth],
        )?;
        let accounts = KeyPair::generate()?;
        let credentials = Self {
            folder: folder.to_owned(),
            authority: authority.certificate,
            token: random_token()?,
        };
        make_folder(folder)?;
        server.write(folder, "server")?;
        let tokens = format!("{},{USER},{USER},\"{ADMINISTRATORS}\"\n", credentials.token);
        for (name, text) in [
            ("authority.crt", credentials.authority.as_str()),
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
