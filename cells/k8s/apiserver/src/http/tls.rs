// SPDX-License-Identifier: Apache-2.0

//! HTTPS: kubectl sends tokens over HTTPS only.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Certificate and key of the server.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ServerConfig>);

/// Why there is no HTTPS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is not there, or not in PEM.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: pem::Error,
    },
    /// Certificate and key do not belong together.
    #[error("certificate of the API server")]
    Pair(#[from] rustls::Error),
}

impl Tls {
    /// Reads a certificate with its chain, and its key, from PEM files.
    ///
    /// # Errors
    /// When a file cannot be read, or the key is not that of the certificate.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| TlsError::File { path, cause }
        };
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(failed(certificate))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(failed(key))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Self(Arc::new(config)))
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.clone())
    }
}
