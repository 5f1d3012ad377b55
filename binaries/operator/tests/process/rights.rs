// SPDX-License-Identifier: Apache-2.0

//! An operator that has no right to read one kind of objects.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use skep_k8s_types::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::world::{World, until};

static IDENTITIES: Kind = Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);
static POOLS: Kind = Kind::new(
    "cilium.io",
    "v2",
    "CiliumLoadBalancerIPPool",
    "ciliumloadbalancerippools",
    false,
);

/// In front of an API server: refuses requests for one kind, as a server does whose role does not have it.
struct Role {
    address: SocketAddr,
    forbids: Arc<AtomicBool>,
    _task: JoinSet<()>,
}

impl Role {
    async fn before(target: SocketAddr, plural: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("it works");
        let address = listener.local_addr().expect("it has an address");
        let forbids = Arc::new(AtomicBool::new(true));
        let mut task = JoinSet::new();
        let state = forbids.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, target, plural, state.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            forbids,
            _task: task,
        }
    }
}

/// One request; the answer ends the connection.
async fn serve(
    mut client: TcpStream,
    target: SocketAddr,
    plural: &'static str,
    forbids: Arc<AtomicBool>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut piece = [0; 4096];
        let length = client.read(&mut piece).await.ok().filter(|length| *length > 0)?;
        head.extend_from_slice(&piece[..length]);
    }
    let (line, rest) = head.split_at(head.windows(2).position(|window| window == b"\r\n")?);
    let is_forbidden = {
        let line = String::from_utf8_lossy(line);
        line.contains("/apis/cilium.io/") && line.contains(&format!("/{plural}"))
    };
    if is_forbidden && forbids.load(Ordering::Relaxed) {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": format!("{plural}.cilium.io is forbidden: User \"operator\" cannot list resource"),
        })
        .to_string();
        let head = format!(
            "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        return client.write_all((head + &body).as_bytes()).await.ok();
    }
    let mut server = TcpStream::connect(target).await.ok()?;
    server.write_all(line).await.ok()?;
    server.write_all(b"\r\nconnection: close").await.ok()?;
    server.write_all(rest).await.ok()?;
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    Some(())
}

fn service() -> Value {
    json!({
        "metadata": { "name": "shop", "namespace": "kube-system" },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
    })
}

/// Cells that require the kind wait and report it in health; all others work, and so does the election.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_forbidden_stops_only_what_needs_it() {
    let mut world = World::start().await;
    let role = Role::before(world.address, "ciliumloadbalancerippools").await;
    world.address = role.address;
    let mut operator = world.operator(
        "operator",
        &[
            "--identity-allocation-mode=crd",
            "--identity-management-mode=operator",
        ],
    );
    world.next_leader("").await;
    let pod = json!({
        "metadata": { "name": "web", "namespace": "kube-system", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    world.cluster.create(&Kind::POD, pod).await;
    world.cluster.create(&Kind::SERVICE, service()).await;

    until("the pod has an identity", async || {
        let page = world
            .cluster
            .client()
            .list(&IDENTITIES, "", &Default::default())
            .await;
        page.is_ok_and(|page| page.items.len() == 1)
    })
    .await;
    operator.wait_healthz("200 ok").await;
    // The tree of `health` has messages without errors, as Cilium's.
    operator
        .wait_shell(
            "db/show health",
            "ciliumloadbalancerippools.cilium.io is forbidden: User \"operator\" cannot list resource",
        )
        .await;
    let ingress = async || {
        let service = world.cluster.get(&Kind::SERVICE, "kube-system", "shop").await;
        service["status"]["loadBalancer"]["ingress"][0]["ip"].clone()
    };
    assert_eq!(ingress().await, Value::Null);

    role.forbids.store(false, Ordering::Relaxed);

    let pool = json!({ "metadata": { "name": "lab" }, "spec": { "blocks": [{ "cidr": "192.0.2.0/24" }] } });
    until("pools are defined", async || {
        let listed = world.cluster.client().list(&POOLS, "", &Default::default()).await;
        listed.is_ok()
    })
    .await;
    world.cluster.create(&POOLS, pool).await;
    until("the service has an address", async || {
        ingress().await != Value::Null
    })
    .await;
    operator
        .wait_shell_until("db/show health", "nothing is forbidden", |text| {
            text.contains("lbipam") && !text.contains("forbidden")
        })
        .await;
    operator.terminate();
    assert_eq!(operator.wait_exit().await, Some(0), "{}", operator.log());
    world.stop().await;
}
