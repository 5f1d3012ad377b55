// SPDX-License-Identifier: Apache-2.0

//! `clustermesh`: meshes clusters by values of their releases.

mod peer;
mod status;

use std::{error::Error, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::{
    access::{Access, text},
    chart::{self, Chart, Helm},
    detect::Flavour,
    failure,
};
use peer::Peer;

/// `clustermesh`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum MeshCommand {
    /// Install the mesh's API server in this cluster.
    Enable(EnableOptions),
    /// Remove the mesh's API server and all connections.
    Disable,
    /// Connect this cluster to others.
    Connect(ConnectOptions),
    /// Disconnect this cluster from others.
    Disconnect(DisconnectOptions),
    /// Print the connections of all nodes.
    Status(StatusOptions),
    /// Print what this cluster shares, and how others reach it.
    Inspect {
        /// Output format: summary or json.
        #[arg(short, long, default_value = "summary", value_parser = ["summary", "json"])]
        output: String,
    },
}

/// Options of `enable`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EnableOptions {
    /// Type of the Service: LoadBalancer, NodePort or ClusterIP; default: by the kind of the cluster.
    #[arg(long)]
    service_type: Option<String>,
    /// Whether nodes read remote clusters through a cache in this cluster.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_kvstoremesh: Option<bool>,
}

/// Which clusters are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConnectionMode {
    /// This cluster connects to the others.
    Unicast,
    /// This cluster and each of the others connect to each other.
    Bidirectional,
    /// All connect to all.
    Mesh,
}

/// Options of `connect`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectOptions {
    /// Contexts of the other clusters.
    #[arg(long, required = true, value_delimiter = ',')]
    destination_context: Vec<String>,
    /// How the other clusters are reached, IP:PORT; default: by their Services.
    #[arg(long, value_delimiter = ',')]
    destination_endpoint: Vec<String>,
    /// How this cluster is reached, IP:PORT; default: by its Service.
    #[arg(long, value_delimiter = ',')]
    source_endpoint: Vec<String>,
    /// Which clusters are connected.
    #[arg(long, value_enum, default_value = "bidirectional")]
    connection_mode: ConnectionMode,
    /// Accepted: releases are upgraded one after the other.
    #[arg(long, default_value_t = 1)]
    parallel: usize,
    /// Connect clusters with different authorities: each trusts both.
    #[arg(long)]
    allow_mismatching_ca: bool,
}

/// Options of `disconnect`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DisconnectOptions {
    /// Contexts of the other clusters.
    #[arg(long, required = true, value_delimiter = ',')]
    destination_context: Vec<String>,
    /// Which clusters are disconnected.
    #[arg(long, value_enum, default_value = "bidirectional")]
    connection_mode: ConnectionMode,
}

/// Options of `status`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusOptions {
    /// Wait until all clusters are connected.
    #[arg(long)]
    wait: bool,
    /// Time to wait for.
    #[arg(long, default_value = "15m", value_parser = skep_duration::parse_duration)]
    wait_duration: Duration,
    /// Output format: summary or json.
    #[arg(short, long, default_value = "summary", value_parser = ["summary", "json"])]
    output: String,
}

/// Runs `clustermesh`.
pub(crate) async fn run(access: &Access, command: &MeshCommand) -> Result<(), Box<dyn Error>> {
    match command {
        MeshCommand::Enable(options) => enable(access, options).await,
        MeshCommand::Disable => {
            println!(
                "✨ Upgrading release {}: the mesh's API server and all connections are removed",
                access.release()
            );
            upgrade(
                access,
                &[
                    ("clustermesh.useAPIServer", json!(false)),
                    ("clustermesh.config.enabled", json!(false)),
                    ("clustermesh.config.clusters", json!([])),
                ],
            )
        }
        MeshCommand::Connect(options) => connect(access, options).await,
        MeshCommand::Disconnect(options) => disconnect(access, options).await,
        MeshCommand::Status(options) => {
            status::run(
                access,
                options.wait,
                options.wait_duration,
                options.output == "json",
            )
            .await
        }
        MeshCommand::Inspect { output } => inspect(access, output == "json").await,
    }
}

/// Upgrades the release with these values over those that it has.
fn upgrade(access: &Access, values: &[(&str, Value)]) -> Result<(), Box<dyn Error>> {
    let chart = Chart::open(None)?;
    let mut words = vec![
        "upgrade".to_owned(),
        access.release().to_owned(),
        chart.path.display().to_string(),
        "--reset-then-reuse-values".to_owned(),
    ];
    for (path, value) in values {
        words.extend(chart::set(path, value));
    }
    Helm::new(access).run(&words)?;
    Ok(())
}

async fn enable(access: &Access, options: &EnableOptions) -> Result<(), Box<dyn Error>> {
    let settings = access.settings().await?;
    if matches!(settings.text("cluster-name"), "" | "default")
        || matches!(settings.text("cluster-id"), "" | "0")
    {
        println!(
            "⚠️  Cluster not configured for clustermesh, use '--set cluster.id' and '--set cluster.name' with 'skep install'."
        );
    }
    let (kind, annotations) = match options.service_type.as_deref() {
        Some(kind @ ("LoadBalancer" | "NodePort" | "ClusterIP")) => (kind.to_owned(), json!({})),
        Some(kind) => return Err(failure(format!("service type \"{kind}\" is not valid"))),
        None => match Flavour::of(access).await?.mesh_service() {
            Some((kind, annotations)) => (kind.to_owned(), annotations),
            None => {
                return Err(failure(
                    "cannot auto-detect service type, please specify using '--service-type' option",
                ));
            }
        },
    };
    if kind == "NodePort" {
        println!("⚠️  Using service type NodePort may fail when nodes are removed from the cluster!");
    }
    println!(
        "✨ Upgrading release {}: Deployment clustermesh-apiserver with a Service of type {kind}, certificates by a CronJob",
        access.release()
    );
    let mut values = vec![
        ("clustermesh.useAPIServer", json!(true)),
        ("clustermesh.config.enabled", json!(true)),
        ("clustermesh.apiserver.service.type", json!(kind)),
        ("clustermesh.apiserver.tls.auto.enabled", json!(true)),
        ("clustermesh.apiserver.tls.auto.method", json!("cronJob")),
        ("clustermesh.apiserver.tls.auto.schedule", json!("0 0 1 */4 *")),
    ];
    if annotations.as_object().is_some_and(|all| !all.is_empty()) {
        values.push(("clustermesh.apiserver.service.annotations", annotations));
    }
    if let Some(is_on) = options.enable_kvstoremesh {
        values.push(("clustermesh.apiserver.kvstoremesh.enabled", json!(is_on)));
    }
    upgrade(access, &values)
}

/// A cluster's connection to another as a value.
fn entry(peer: &Peer) -> Value {
    json!({ "enabled": true, "ips": peer.addresses, "port": peer.port })
}

/// Connects the release of `from` to `to`.
fn configure(from: &Peer, to: &[&Peer], bundle: Option<&str>) -> Result<(), Box<dyn Error>> {
    let names: Vec<&str> = to.iter().map(|peer| peer.name.as_str()).collect();
    println!(
        "ℹ️ Configuring Skep in cluster {} to connect to cluster {}",
        from.name,
        names.join(", ")
    );
    let mut clusters = from.clusters()?;
    for peer in to {
        clusters[&peer.name] = entry(peer);
    }
    let mut values = vec![
        ("clustermesh.config.enabled", json!(true)),
        ("clustermesh.config.clusters", clusters),
    ];
    if let Some(bundle) = bundle {
        values.push(("tls.caBundle.enabled", json!(true)));
        values.push(("tls.caBundle.content", json!(bundle)));
    }
    upgrade(&from.access, &values)
}

async fn connect(access: &Access, options: &ConnectOptions) -> Result<(), Box<dyn Error>> {
    let own = Peer::read(access.clone(), &options.source_endpoint).await?;
    let mut others = Vec::new();
    for context in &options.destination_context {
        let other = access.other(context).await?;
        others.push(Peer::read(other, &options.destination_endpoint).await?);
    }
    let mut differ = false;
    let mut all: Vec<&Peer> = vec![&own];
    for other in &others {
        for known in &all {
            differ |= known.check(other, options.allow_mismatching_ca)?;
        }
        all.push(other);
    }
    let bundle = differ.then(|| {
        let mut authorities: Vec<&str> = all.iter().map(|peer| peer.authority.trim()).collect();
        authorities.dedup();
        authorities.join("\n") + "\n"
    });
    let everyone: Vec<&Peer> = others.iter().collect();
    configure(&own, &everyone, bundle.as_deref())?;
    for other in &others {
        match options.connection_mode {
            ConnectionMode::Unicast => {}
            ConnectionMode::Bidirectional => configure(other, &[&own], bundle.as_deref())?,
            ConnectionMode::Mesh => {
                let rest = all.iter().copied().filter(|peer| peer.name != other.name);
                configure(other, &rest.collect::<Vec<_>>(), bundle.as_deref())?;
            }
        }
    }
    match options.connection_mode {
        ConnectionMode::Unicast => {
            others
                .iter()
                .for_each(|other| println!("✅ Connected cluster {} => {}!", own.name, other.name));
        }
        ConnectionMode::Bidirectional => {
            others
                .iter()
                .for_each(|other| println!("✅ Connected cluster {} <=> {}!", own.name, other.name));
        }
        ConnectionMode::Mesh => {
            let names: Vec<&str> = others.iter().map(|other| other.name.as_str()).collect();
            println!("✅ Connected clusters {}, and {}!", names.join(", "), own.name);
        }
    }
    println!(
        "ℹ️  Agents read the new connections without a restart; `skep clustermesh status --wait` waits for them"
    );
    Ok(())
}

async fn disconnect(access: &Access, options: &DisconnectOptions) -> Result<(), Box<dyn Error>> {
    let own = Peer::named(access.clone()).await?;
    let mut others = Vec::new();
    for context in &options.destination_context {
        others.push(Peer::named(access.other(context).await?).await?);
    }
    let remove = |from: &Peer, names: &[&str]| -> Result<(), Box<dyn Error>> {
        println!(
            "ℹ️ Configuring Skep in cluster {} to disconnect from cluster {}",
            from.name,
            names.join(", ")
        );
        let mut clusters = from.clusters()?;
        for name in names {
            clusters[*name] = json!({ "enabled": false });
        }
        upgrade(&from.access, &[("clustermesh.config.clusters", clusters)])
    };
    let names: Vec<&str> = others.iter().map(|other| other.name.as_str()).collect();
    remove(&own, &names)?;
    if options.connection_mode != ConnectionMode::Unicast {
        for other in &others {
            let mut gone = vec![own.name.as_str()];
            if options.connection_mode == ConnectionMode::Mesh {
                gone.extend(names.iter().filter(|name| **name != other.name));
            }
            remove(other, &gone)?;
        }
    }
    println!("✅ Disconnected clusters {} <x> {}!", own.name, names.join(", "));
    Ok(())
}

async fn inspect(access: &Access, is_json: bool) -> Result<(), Box<dyn Error>> {
    let settings = access.settings().await?;
    let peer = Peer::read(access.clone(), &[]).await?;
    let services = access.list("/api/v1/services").await?;
    let annotated = |service: &Value, key: &str| {
        let annotations = &service["metadata"]["annotations"];
        ["service.cilium.io/", "io.cilium/"]
            .iter()
            .any(|prefix| annotations[format!("{prefix}{key}")] == "true")
    };
    let global: Vec<Value> = services
        .iter()
        .filter(|service| annotated(service, "global") || annotated(service, "global-service"))
        .map(|service| {
            json!({
                "namespace": text(service, "/metadata/namespace"),
                "name": text(service, "/metadata/name"),
                "shared": service["metadata"]["annotations"]["service.cilium.io/shared"] != "false",
            })
        })
        .collect();
    let found = json!({
        "cluster": peer.name,
        "id": peer.id,
        "maxConnectedClusters": peer.max,
        "endpoints": peer.addresses.iter().map(|address| format!("{address}:{}", peer.port)).collect::<Vec<_>>(),
        "authority": peer.key_id,
        "policyDefaultLocalCluster": settings.is_true("policy-default-local-cluster"),
        "clusters": peer.clusters()?,
        "globalServices": global,
    });
    if is_json {
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    println!(
        "Cluster:                {} (id {}, at most {} clusters)",
        peer.name, peer.id, peer.max
    );
    println!(
        "Reached by:             {}:{}",
        peer.addresses.join(", "),
        peer.port
    );
    println!("Authority:              {}", peer.key_id);
    println!(
        "Policies without a cluster select: {}",
        match settings.is_true("policy-default-local-cluster") {
            true => "pods of the local cluster",
            false => "pods of all clusters",
        }
    );
    println!("Connections:            {}", found["clusters"]);
    println!("Global services:        {}", global.len());
    for service in &global {
        let shared = if service["shared"] == true {
            "shared"
        } else {
            "not shared"
        };
        println!(
            "  {}/{} ({shared})",
            text(service, "/namespace"),
            text(service, "/name")
        );
    }
    Ok(())
}
