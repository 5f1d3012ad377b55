// SPDX-License-Identifier: Apache-2.0

//! `etcdinit` with a real etcd: who may read and write what afterwards.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_apiserver::etcdinit::{EtcdInitError, Options, run};
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_client::{Backend, BackendError, KeyRange, LeaseId, Op, RangeRequest, Txn};
use skep_kvstore_etcd::testing::{Authority, EtcdServer, SERVER_NAME, ServerTls};
use skep_kvstore_etcd::{ConfigSource, Etcd, EtcdConfig, TransportOptions};
use tempfile::TempDir;

fn options(data: &Path) -> Options {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    Options {
        etcd_cluster_name: "clustermesh-apiserver".to_owned(),
        etcd_initial_cluster_token: "life-1".to_owned(),
        etcd_data_dir: data.to_owned(),
        cluster_name: "alder".to_owned(),
        timeout: Duration::from_secs(60),
        debug: false,
        etcd_binary: "etcd".into(),
        etcd_port: free.local_addr().expect("it has a port").port(),
    }
}

/// An etcd on an initialized directory.
struct World {
    folder: TempDir,
    authority: Authority,
    server: EtcdServer,
}

impl World {
    async fn start(data: &Path) -> Self {
        let folder = tempfile::tempdir().expect("there is a folder");
        let authority = Authority::new("mesh");
        let client_ca = authority.write(folder.path());
        let (cert, key) = authority.sign(folder.path(), "server");
        let server = EtcdServer::start_on(data, Some(ServerTls { cert, key, client_ca })).await;
        Self {
            folder,
            authority,
            server,
        }
    }

    /// The store, for the owner of a certificate with this common name.
    fn store(&self, name: &str) -> Arc<Etcd> {
        let (cert, key) = self.authority.sign(self.folder.path(), name);
        let text = format!(
            "endpoints: [\"https://{SERVER_NAME}:{}\"]\ntrusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n\
             cilium-host-aliases: [{{hostname: {SERVER_NAME}, ips: [127.0.0.1]}}]\n",
            self.server.port(),
            self.folder.path().join("ca.crt").display(),
            cert.display(),
            key.display()
        );
        let config = EtcdConfig::parse(Path::new("test"), &text).expect("it is valid");
        Arc::new(Etcd::new(
            ConfigSource::Config(config),
            TransportOptions::default(),
        ))
    }
}

/// The answer to a read: how many keys, or that it is denied.
async fn read(store: &Etcd, range: KeyRange) -> Result<usize, String> {
    match store.range(RangeRequest::new(range)).await {
        Ok(response) => Ok(response.items.len()),
        Err(BackendError::Denied { reason }) => Err(reason),
        Err(error) => panic!("{error}"),
    }
}

async fn write(store: &Etcd, key: &str) -> Result<(), BackendError> {
    let put = Op::Put {
        key: key.into(),
        value: "1".into(),
        lease: LeaseId::NONE,
    };
    store.txn(Txn::one(put)).await.map(drop)
}

const WRITTEN: [&str; 6] = [
    "cilium/.heartbeat",
    "cilium/state/nodes/v1/alder/n1",
    "cilium/cache/nodes/v1/birch/n1",
    "cilium/cluster-config/alder",
    "cilium/cluster-config/birch",
    "cilium/synced/alder/cilium/state/nodes/v1",
];

#[tokio::test(flavor = "multi_thread")]
async fn certificates_have_the_rights_of_their_role() {
    let data = tempfile::tempdir().expect("there is a folder");
    let wanted = options(data.path());
    tokio::task::spawn_blocking(move || run(&wanted))
        .await
        .expect("it runs")
        .expect("it is initialized");
    let world = World::start(data.path()).await;

    let admin = world.store("admin-alder");
    for key in WRITTEN {
        write(&admin, key).await.expect("admins write");
    }
    // A client with leases and locks, as the programs have it.
    let client = RunningClient::full(admin.clone());
    client
        .put("cilium/state/x", "1", skep_kvstore_client::Lifetime::Leased)
        .await
        .expect("admins have leases");

    let (remote, local) = (world.store("remote"), world.store("local-alder"));
    let prefix = KeyRange::prefix;
    assert_eq!(read(&remote, prefix("cilium/state/")).await, Ok(2));
    assert_eq!(read(&remote, prefix("cilium/.heartbeat")).await, Ok(1));
    assert_eq!(read(&remote, prefix("cilium/synced/alder/")).await, Ok(1));
    assert_eq!(
        read(&remote, KeyRange::key("cilium/cluster-config/alder")).await,
        Ok(1)
    );
    for denied in [
        prefix("cilium/state"),
        prefix("cilium/cache/"),
        prefix("cilium/cluster-config/"),
        KeyRange::key("cilium/cluster-config/birch"),
        prefix("cilium/synced/"),
    ] {
        let answer = read(&remote, denied.clone()).await;
        assert!(answer.is_err(), "{denied:?}: {answer:?}");
    }
    for granted in [
        prefix("cilium/cache/"),
        prefix("cilium/cluster-config/"),
        prefix("cilium/synced/"),
        prefix("cilium/.heartbeat"),
    ] {
        let answer = read(&local, granted.clone()).await;
        assert!(answer.is_ok(), "{granted:?}: {answer:?}");
    }
    assert!(read(&local, prefix("cilium/state/")).await.is_err());
    for store in [&remote, &local] {
        let written = write(store, "cilium/.heartbeat").await;
        assert!(matches!(written, Err(BackendError::Denied { .. })), "{written:?}");
    }
    let unknown = world.store("remote-birch");
    let answer = unknown.range(RangeRequest::new(prefix("cilium/state/"))).await;
    assert!(answer.is_err(), "a user that was not created: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_starts_over_and_other_data_are_kept() {
    let data = tempfile::tempdir().expect("there is a folder");
    for _ in 0..2 {
        let wanted = options(data.path());
        let initialized = tokio::task::spawn_blocking(move || run(&wanted)).await;
        initialized.expect("it runs").expect("it is initialized");
    }
    let (world, wanted) = (World::start(data.path()).await, options(data.path()));
    write(&world.store("root"), "a").await.expect("root writes");
    drop(world);

    std::fs::write(data.path().join("notes"), "mine").expect("it is written");
    let refused = tokio::task::spawn_blocking(move || run(&wanted)).await;

    let error = refused.expect("it runs").expect_err("it is refused");
    assert!(
        matches!(&error, EtcdInitError::ForeignData { path } if path.ends_with("notes")),
        "{error:?}"
    );
    assert!(data.path().join("member").exists());
}

#[test]
fn errors_name_what_is_wrong() {
    let data = tempfile::tempdir().expect("there is a folder");
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = options(data.path());
        change(&mut options);
        hive::error_chain(&run(&options).expect_err("it fails")).to_string()
    };

    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let port = taken.local_addr().expect("it has a port").port();
    assert!(
        with(&|options| options.etcd_port = port)
            .contains(&format!("port {port} on 127.0.0.1 is not free (--etcd-port)"))
    );
    assert!(
        with(&|options| options.cluster_name = "Alder/x".to_owned())
            .contains("cluster name `Alder/x` is invalid")
    );
    assert!(
        with(&|options| options.etcd_binary = "/nonexistent/etcd".into())
            .contains("cannot start etcd `/nonexistent/etcd` (--etcd-binary): ")
    );
    let ended = with(&|options| options.etcd_binary = "/bin/false".into());
    assert!(ended.contains("etcd ended early"), "{ended}");
}
