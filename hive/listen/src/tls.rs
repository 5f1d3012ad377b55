// SPDX-License-Identifier: Apache-2.0

//! TLS on the connections of a server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::Handshake;

/// The TLS side of a server: its certificate and key.
///
/// Pass it to [`Server::handshake`](crate::Server::handshake), or an `Option` of it.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ServerConfig>);

/// Why a certificate and its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or has no certificate or key in PEM form.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: pem::Error,
    },
    /// The key is not that of the certificate, or of an unsupported kind.
    #[error("cannot use certificate {} with key {}", certificate.display(), key.display())]
    Pair {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// What is wrong.
        #[source]
        cause: rustls::Error,
    },
}

impl Tls {
    /// Reads a certificate with its chain, and its key, from PEM files. Clients are not asked for certificates.
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
        let private = PrivateKeyDer::from_pem_file(key).map_err(failed(key))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|versions| versions.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|cause| TlsError::Pair {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
                cause,
            })?;
        Ok(Self(Arc::new(config)))
    }
}

impl<S> Handshake<S> for Tls
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = TlsStream<S>;

    async fn handshake(&self, stream: S) -> io::Result<Self::Stream> {
        TlsAcceptor::from(self.0.clone()).accept(stream).await
    }
}
