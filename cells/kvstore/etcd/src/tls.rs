// SPDX-License-Identifier: Apache-2.0

//! TLS of connections to etcd: certificates are read from their files at each handshake.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::file::{CA_FILE, CERT_FILE, ConfigError, KEY_FILE, TlsFiles};

/// Settings for one handshake.
///
/// # Errors
///
/// [`ConfigError`] that names the file.
pub(crate) fn client_config(files: &TlsFiles) -> Result<ClientConfig, ConfigError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions");
    let builder = if files.skip_verify {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
    } else {
        builder.with_root_certificates(roots(files)?)
    };
    let mut config = match &files.client {
        Some((cert, key)) => builder
            .with_client_auth_cert(certificates(CERT_FILE, cert)?, private_key(key)?)
            .map_err(|cause| ConfigError::Tls {
                path: cert.clone(),
                cause,
            })?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn roots(files: &TlsFiles) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            for certificate in certificates(CA_FILE, path)? {
                roots.add(certificate).map_err(|error| ConfigError::Pem {
                    setting: CA_FILE,
                    path: path.clone(),
                    reason: error.to_string(),
                })?;
            }
        }
        None => {
            // Those that cannot be read are not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

/// The certificates in the file that a setting names.
pub(crate) fn certificates(
    setting: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| pem_error(setting, path, error))?;
    if certificates.is_empty() {
        return Err(ConfigError::Pem {
            setting,
            path: path.to_owned(),
            reason: "no certificate in it".to_owned(),
        });
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| pem_error(KEY_FILE, path, error))
}

fn pem_error(setting: &'static str, path: &Path, error: pem::Error) -> ConfigError {
    match error {
        pem::Error::Io(cause) => ConfigError::ReadNamed {
            setting,
            path: path.to_owned(),
            cause,
        },
        error => ConfigError::Pem {
            setting,
            path: path.to_owned(),
            reason: error.to_string(),
        },
    }
}

/// Trusts any certificate: `insecure-skip-tls-verify`.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, tokio_rustls::rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
