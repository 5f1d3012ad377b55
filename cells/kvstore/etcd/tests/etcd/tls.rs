// SPDX-License-Identifier: Apache-2.0

//! TLS with a real etcd: whom clients trust, who they are, and that renewed certificates are used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use skep_kvstore_client::testing::{PATIENCE, RunningClient};
use skep_kvstore_client::{BackendError, Lifetime};
use skep_kvstore_etcd::testing::{Authority, EtcdServer, ServerTls};
use skep_kvstore_etcd::{ConfigSource, Etcd, EtcdConfig, TransportOptions};
use tempfile::TempDir;

/// An etcd with TLS, and what its clients need.
struct World {
    folder: TempDir,
    authority: Authority,
    ca: PathBuf,
    server: EtcdServer,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is a folder");
        let authority = Authority::new("mesh");
        let ca = authority.write(folder.path());
        let (cert, key) = authority.sign(folder.path(), "server");
        let server = EtcdServer::start_with(Some(ServerTls {
            cert,
            key,
            client_ca: ca.clone(),
        }))
        .await;
        Self {
            folder,
            authority,
            ca,
            server,
        }
    }

    /// A client by its files. The name of the server has no address but by the alias.
    fn client(&self, ca: &str, client: Option<(&Path, &Path)>, more: &str) -> RunningClient {
        let mut text = format!(
            "endpoints: [\"https://alder.mesh.cilium.io:{}\"]\n{ca}{more}\
             cilium-host-aliases: [{{hostname: alder.mesh.cilium.io, ips: [127.0.0.1]}}]\n",
            self.server.port(),
        );
        if let Some((cert, key)) = client {
            text += &format!("cert-file: {}\nkey-file: {}\n", cert.display(), key.display());
        }
        let config = EtcdConfig::parse(Path::new("test"), &text).expect("it is valid");
        let transport = TransportOptions::default();
        RunningClient::full(Arc::new(Etcd::new(ConfigSource::Config(config), transport)))
    }

    fn trusted(&self) -> String {
        format!("trusted-ca-file: {}\n", self.ca.display())
    }
}

async fn connected(client: &RunningClient) {
    tokio::time::timeout(PATIENCE, client.wait_connected())
        .await
        .expect("it connects");
}

async fn failure(client: &RunningClient) -> String {
    let error = client
        .put("a", "1", Lifetime::Permanent)
        .await
        .expect_err("the connection fails");
    assert!(
        matches!(error.backend(), Some(BackendError::Unavailable { .. })),
        "{error:?}"
    );
    hive::error_chain(&error)
}

#[tokio::test]
async fn clients_with_a_certificate_connect_by_host_alias() {
    let world = World::new().await;
    let (cert, key) = world.authority.sign(world.folder.path(), "client");
    let client = world.client(&world.trusted(), Some((&cert, &key)), "");

    client
        .put("a", "1", Lifetime::Leased)
        .await
        .expect("it is written");

    connected(&client).await;
}

#[tokio::test]
async fn servers_of_another_authority_are_not_trusted_unless_told_so() {
    let world = World::new().await;
    let (cert, key) = world.authority.sign(world.folder.path(), "client");
    let folder = tempfile::tempdir().expect("there is a folder");
    let other = Authority::new("other").write(folder.path());
    let ca = format!("trusted-ca-file: {}\n", other.display());

    let text = failure(&world.client(&ca, Some((&cert, &key)), "")).await;
    assert!(text.contains("TLS with 127.0.0.1:"), "{text}");
    assert!(text.contains("invalid peer certificate"), "{text}");

    let client = world.client("", Some((&cert, &key)), "insecure-skip-tls-verify: true\n");
    client
        .put("a", "1", Lifetime::Permanent)
        .await
        .expect("it is written");
}

#[tokio::test]
async fn renewed_certificates_are_used_without_a_restart() {
    let world = World::new().await;
    let stranger = Authority::new("stranger");
    let (cert, key) = stranger.sign(world.folder.path(), "client");
    let client = world.client(&world.trusted(), Some((&cert, &key)), "");
    failure(&client).await;

    world.authority.sign(world.folder.path(), "client");

    connected(&client).await;
    client
        .put("a", "1", Lifetime::Permanent)
        .await
        .expect("it is written");
}

#[tokio::test]
async fn expired_certificates_are_refused_and_renewed_ones_used() {
    let world = World::new().await;
    let folder = world.folder.path();
    let (cert, key) = world.authority.sign_expired(folder, "client");
    let client = world.client(&world.trusted(), Some((&cert, &key)), "");

    // With TLS 1.3 the server refuses it after the handshake: the client sees a connection that is closed.
    failure(&client).await;
    world.authority.sign(folder, "client");
    connected(&client).await;

    // The server reads its files at each connection.
    world.authority.sign_expired(folder, "server");
    let text = failure(&world.client(&world.trusted(), Some((&cert, &key)), "")).await;
    assert!(text.contains("certificate expired"), "{text}");
    client
        .put("a", "1", Lifetime::Permanent)
        .await
        .expect("connections that exist go on");
    let late = world.client(&world.trusted(), Some((&cert, &key)), "");
    failure(&late).await;
    world.authority.sign(folder, "server");
    connected(&late).await;
}

#[tokio::test]
async fn bad_files_are_named() {
    let world = World::new().await;
    let (cert, key) = world.authority.sign(world.folder.path(), "client");
    let garbage = world.folder.path().join("garbage.pem");
    std::fs::write(&garbage, "garbage").expect("it is written");

    let text = failure(&world.client(&world.trusted(), Some((&garbage, &key)), "")).await;
    assert!(
        text.contains(&format!(
            "cert-file `{}`: no certificate in it",
            garbage.display()
        )),
        "{text}"
    );
    let text = failure(&world.client(&world.trusted(), Some((&cert, &garbage)), "")).await;
    assert!(
        text.contains(&format!("key-file `{}`: ", garbage.display())),
        "{text}"
    );
    let missing = world.folder.path().join("missing.crt");
    let ca = format!("trusted-ca-file: {}\n", missing.display());
    let text = failure(&world.client(&ca, Some((&cert, &key)), "")).await;
    assert!(
        text.contains(&format!("cannot read trusted-ca-file `{}`", missing.display())),
        "{text}"
    );
}
