// SPDX-License-Identifier: Apache-2.0

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

use super::chain;
use crate::tls::{Tls, TlsError};
use crate::{Connection, Handshake, Server, Tcp};

struct Files {
    _folder: TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

fn files() -> Files {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Files {
        _folder: folder,
        certificate,
        key,
    }
}

fn connector(files: &Files) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&files.certificate).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Answers a byte with the same byte.
async fn echo<S>(mut connection: Connection<S, std::net::SocketAddr>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    if let Ok(byte) = connection.stream.read_u8().await {
        let _ = connection.stream.write_all(&[byte]).await;
        let _ = connection.stream.shutdown().await;
    }
}

async fn serve<H: Handshake<TcpStream>>(handshake: H) -> (std::net::SocketAddr, CancellationToken) {
    let listener = Tcp::new(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let (address, stop) = (listener.address(), CancellationToken::new());
    let server = Server::new("test", listener).handshake(handshake);
    tokio::spawn(server.serve(stop.clone(), echo));
    (address, stop)
}

#[tokio::test]
async fn streams_are_served_with_tls_or_without() {
    let files = files();
    let tls = Tls::from_files(&files.certificate, &files.key).unwrap();
    let (with, _stop) = serve(Some(tls)).await;
    let (without, _stop) = serve(None::<Tls>).await;

    // One that never speaks holds up no other.
    let _silent = TcpStream::connect(with).await.unwrap();
    let stream = TcpStream::connect(with).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut secure = connector(&files).connect(name, stream).await.unwrap();
    secure.write_all(b"\x07").await.unwrap();
    let mut plain = TcpStream::connect(without).await.unwrap();
    plain.write_all(b"\x08").await.unwrap();

    assert_eq!(secure.read_u8().await.unwrap(), 7);
    assert_eq!(plain.read_u8().await.unwrap(), 8);
}

#[tokio::test]
async fn plain_text_is_refused_where_tls_is_spoken() {
    let files = files();
    let tls = Tls::from_files(&files.certificate, &files.key).unwrap();
    let (address, _stop) = serve(tls).await;
    let mut client = TcpStream::connect(address).await.unwrap();

    client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();

    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(30), client.read_to_end(&mut answer)).await;
    assert!(ended.is_ok() && !answer.starts_with(b"GET"), "{answer:?}");
}

#[test]
fn errors_name_the_files() {
    let (one, other) = (files(), files());
    let absent = one.key.with_file_name("absent");

    let missing = Tls::from_files(&one.certificate, &absent).unwrap_err();
    let pair = Tls::from_files(&one.certificate, &other.key).unwrap_err();

    assert!(matches!(missing, TlsError::File { .. }));
    assert!(
        chain(&missing).starts_with(&format!("cannot read {}: ", absent.display())),
        "{}",
        chain(&missing)
    );
    assert_eq!(
        pair.to_string(),
        format!(
            "cannot use certificate {} with key {}",
            one.certificate.display(),
            other.key.display()
        )
    );
}
