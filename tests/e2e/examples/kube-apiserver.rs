// SPDX-License-Identifier: Apache-2.0

//! Stands in for `kube-apiserver` in tests of the lab: takes its flags, waits for etcd, and serves the embedded API
//! server over TLS with the certificate and the token that the flags name. Its state is in memory.
//!
//! The flags are written to the file `flags` in the folder of `--cert-dir`, one a line.

use std::{collections::HashMap, error::Error, net::SocketAddr, sync::Arc, time::Duration};

use skep_k8s_apiserver::{ApiServer, HttpOptions, HttpServer, Manner, Registry, Rows, Settings, Tracker};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tokio_util::sync::CancellationToken;

type AnyError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags = Flags(
        arguments
            .iter()
            .filter_map(|argument| argument.strip_prefix("--")?.split_once('='))
            .collect(),
    );
    std::fs::create_dir_all(flags.get("cert-dir")?)?;
    std::fs::write(format!("{}/flags", flags.get("cert-dir")?), arguments.join("\n"))?;
    eprintln!("waiting for {}", flags.get("etcd-servers")?);
    let etcd = flags.get("etcd-servers")?.trim_start_matches("http://");
    while TcpStream::connect(etcd).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let plain = serve_plain(&flags).await?;
    serve_tls(&flags, plain).await
}

struct Flags<'a>(HashMap<&'a str, &'a str>);

impl<'a> Flags<'a> {
    fn get(&self, name: &str) -> Result<&'a str, AnyError> {
        let found = self.0.get(name).copied();
        found.ok_or_else(|| format!("flag --{name} is missing").into())
    }
}

/// Serves on a free port of the loopback.
async fn serve_plain(flags: &Flags<'_>) -> Result<SocketAddr, AnyError> {
    let networks = flags.get("service-cluster-ip-range")?.split(',').map(str::parse);
    let settings = Settings {
        service_networks: networks.collect::<Result<_, _>>()?,
        ..Settings::default()
    };
    let tokens = std::fs::read_to_string(flags.get("token-auth-file")?)?;
    let options = HttpOptions {
        token: tokens.split(',').next().unwrap_or_default().to_owned(),
        ..HttpOptions::default()
    };
    let tracker = Tracker::new(Rows::new(&statedb::Db::new())?, 10_000, false);
    let api = ApiServer::new(tracker, Registry::builtin(), Manner::Real(settings));
    let server = HttpServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), api, options).await?;
    let address = server.address()?;
    tokio::spawn(server.serve(CancellationToken::new()));
    Ok(address)
}

async fn serve_tls(flags: &Flags<'_>, plain: SocketAddr) -> Result<(), AnyError> {
    let certificates =
        CertificateDer::pem_file_iter(flags.get("tls-cert-file")?)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(flags.get("tls-private-key-file")?)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let address = format!("{}:{}", flags.get("bind-address")?, flags.get("secure-port")?);
    let listener = TcpListener::bind(&address).await?;
    eprintln!("serving on {address}");
    loop {
        let (stream, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let mut outside = acceptor.accept(stream).await?;
            let mut inside = TcpStream::connect(plain).await?;
            tokio::io::copy_bidirectional(&mut outside, &mut inside).await
        });
    }
}
