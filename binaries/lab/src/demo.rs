// SPDX-License-Identifier: Apache-2.0

//! `make demo`: shows load balancing at work, and checks what it shows.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::PathBuf,
    process::{ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};
use skep_k8s::{Client, DeleteOptions, Kind, Resource, WriteOptions, slim};

use crate::{
    command::{self, Shape},
    echo::Outcome,
    process::own_program,
    state::State,
};

type AnyError = Box<dyn std::error::Error>;

/// How the demo runs.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// How many nodes; three at least, so that clients, backends and NodePorts are on different ones.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=16))]
    pub nodes: u8,
    /// The agent's program; by default `skep-agent` beside this program.
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Leave the lab up at the end, to look around.
    #[arg(long)]
    pub keep: bool,
}

/// Something that was checked.
struct Check {
    what: String,
    found: String,
    is_good: bool,
}

/// Runs the demo; the exit status says whether everything it checked was good.
///
/// # Errors
/// When the lab cannot be brought up or talked to.
pub async fn run(name: &str, options: &Options) -> Result<ExitCode, AnyError> {
    let shape = Shape {
        clusters: 1,
        nodes: options.nodes,
        agent: options.agent.clone(),
        agent_config: Vec::new(),
    };
    headline("Bringing a lab up");
    let state = command::up(name, &shape, |what| println!("  … {what}")).await?;
    print!("{}", command::describe(&state));
    let shown = tokio::select! {
        shown = show(name, &state) => shown,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    if options.keep {
        println!("\nThe lab is left up; `skep-lab down --name {name}` takes it down.");
    } else {
        headline("Taking the lab down");
        command::down(name)?;
    }
    let mut checks = shown?;
    let left = command::leftovers()?.contains(&name.to_owned());
    if !options.keep {
        checks.push(Check {
            what: "nothing is left behind".into(),
            found: if left {
                "leftovers".into()
            } else {
                "nothing".into()
            },
            is_good: !left,
        });
    }
    headline("What was checked");
    let width = checks
        .iter()
        .map(|check| check.what.len())
        .max()
        .unwrap_or_default();
    for check in &checks {
        println!(
            "  {} {:<width$}  {}",
            if check.is_good { "ok  " } else { "FAIL" },
            check.what,
            check.found
        );
    }
    let bad = checks.iter().filter(|check| !check.is_good).count();
    println!("\n{} checked, {bad} failed", checks.len());
    Ok(if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn headline(text: &str) {
    println!("\n== {text}");
}

async fn show(name: &str, state: &State) -> Result<Vec<Check>, AnyError> {
    let mut checks = Vec::new();
    let demo = Demo {
        name: name.to_owned(),
        client: crate::control_plane::client(&state.servers["c1"])?,
    };

    headline("Deploying a service with three backends");
    for (number, node) in ["c1-n1", "c1-n2", "c1-n3"].into_iter().enumerate() {
        demo.create(&pod(&format!("web-{number}"), node, "skep-lab/echo"))
            .await?;
    }
    for node in ["c1-n2", "c1-n3"] {
        demo.create(&pod(&format!("client-{node}"), node, "skep-lab/client"))
            .await?;
    }
    let service = demo.create(&service()).await?;
    let addresses: Vec<String> = service["spec"]["clusterIPs"]
        .as_array()
        .map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    let node_ports: BTreeMap<String, u64> = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|port| {
            Some((
                port["protocol"].as_str()?.to_lowercase(),
                port["nodePort"].as_u64()?,
            ))
        })
        .collect();
    println!(
        "  service shop: {}, node ports {node_ports:?}",
        addresses.join(" and ")
    );
    demo.wait("three backends are programmed", || async {
        demo.spread("default/client-c1-n2", &at(&addresses[0], 80), "tcp", 30)
            .await
            .is_ok_and(|out| out.servers.len() == 3)
    })
    .await?;

    headline("Calling it by ClusterIP and NodePort, TCP and UDP, IPv4 and IPv6, from other nodes' pods");
    let node_addresses = ["172.30.1.1", "fd00:30:0:1::1"];
    for client in ["client-c1-n2", "client-c1-n3"] {
        for (cluster_ip, node_ip) in addresses.iter().zip(node_addresses) {
            for transport in ["tcp", "udp"] {
                let port = node_ports.get(transport).copied().unwrap_or_default();
                for (kind, to) in [("ClusterIP", at(cluster_ip, 80)), ("NodePort", at(node_ip, port))] {
                    let outcome = demo
                        .spread(&format!("default/{client}"), &to, transport, 60)
                        .await?;
                    let spread: Vec<String> = outcome
                        .servers
                        .iter()
                        .map(|(server, count)| format!("{server} {count}"))
                        .collect();
                    println!(
                        "  {client} → {kind:<9} {to:<28} {transport}: {}",
                        spread.join(", ")
                    );
                    checks.push(Check {
                        what: format!("{client} → {kind} {to} {transport}"),
                        found: format!(
                            "{} answered by {} backends, {} failed",
                            outcome.answered,
                            outcome.servers.len(),
                            outcome.failed
                        ),
                        is_good: outcome.failed == 0 && outcome.servers.len() == 3,
                    });
                }
            }
        }
    }

    headline("Taking a backend away during traffic");
    let to = at(&addresses[0], 80);
    let traffic = demo.traffic("default/client-c1-n2", &to, "tcp", 6.0)?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let options = DeleteOptions::default();
    demo.client
        .delete(&slim::Pod::kind(), "default", "web-0", &options)
        .await?;
    let outcome = finish(traffic).await?;
    println!("  {outcome}");
    checks.push(Check {
        what: "a backend is taken away during traffic".into(),
        found: format!(
            "{} calls, {} failed",
            outcome.answered + outcome.failed,
            outcome.failed
        ),
        is_good: outcome.failed == 0 && outcome.answered > 100,
    });
    let after = demo.spread("default/client-c1-n2", &to, "tcp", 60).await?;
    checks.push(Check {
        what: "the backend gets no more calls".into(),
        found: format!(
            "answered by {}",
            after.servers.keys().cloned().collect::<Vec<_>>().join(", ")
        ),
        is_good: after.failed == 0 && !after.servers.contains_key("web-0") && after.servers.len() == 2,
    });

    headline("Killing the agent during traffic");
    let before = State::read(name)?
        .agents
        .get("c1-n2")
        .copied()
        .unwrap_or_default();
    let traffic = demo.traffic("default/client-c1-n2", &to, "tcp", 6.0)?;
    let kept = demo.traffic_kept("default/client-c1-n2", &to, "tcp", 6.0)?;
    let datagrams = demo.traffic_kept("default/client-c1-n2", &to, "udp", 6.0)?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(before)?),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    println!("  agent process {before} killed");
    let restarted = demo
        .wait("the agent is back", || async {
            let Ok(state) = State::read(name) else {
                return false;
            };
            let pid = state.agents.get("c1-n2").copied().unwrap_or_default();
            pid != before && crate::agents::is_well(state.nodes["c1-n2"]).await
        })
        .await;
    let pid = State::read(name)?
        .agents
        .get("c1-n2")
        .copied()
        .unwrap_or_default();
    println!("  agent process {pid} took its place");
    checks.push(Check {
        what: "the agent is restarted".into(),
        found: format!("process {before} → {pid}"),
        is_good: restarted.is_ok(),
    });
    for (what, traffic) in [
        ("new connections", traffic),
        ("an established connection", kept),
        ("a UDP flow", datagrams),
    ] {
        let outcome = finish(traffic).await?;
        println!("  {what}: {outcome}");
        checks.push(Check {
            what: format!("{what} while the agent is killed and restarted"),
            found: format!(
                "{} calls, {} failed",
                outcome.answered + outcome.failed,
                outcome.failed
            ),
            is_good: outcome.failed == 0 && outcome.answered > 100,
        });
    }

    for (title, program) in [
        ("skep status", ["skep", "status"].as_slice()),
        ("skep bpf lb list", &["skep", "bpf", "lb", "list"]),
    ] {
        headline(title);
        let program: Vec<OsString> = program.iter().map(OsString::from).collect();
        let status = command::exec(name, "c1-n2", program).await?;
        checks.push(Check {
            what: format!("`{title}` answers"),
            found: status.to_string(),
            is_good: status.success(),
        });
    }
    Ok(checks)
}

struct Demo {
    name: String,
    client: Arc<dyn Client>,
}

impl Demo {
    async fn create(&self, object: &Value) -> Result<Arc<Value>, AnyError> {
        let kind: Kind = if object["kind"] == "Pod" {
            slim::Pod::kind()
        } else {
            slim::Service::kind()
        };
        let created = self
            .client
            .create(&kind, "default", object.clone(), &WriteOptions::default())
            .await?;
        println!(
            "  {} {}",
            object["kind"].as_str().unwrap_or_default(),
            object["metadata"]["name"].as_str().unwrap_or_default()
        );
        Ok(created.to_value()?)
    }

    async fn wait<F: Future<Output = bool>>(&self, what: &str, done: impl Fn() -> F) -> Result<(), AnyError> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !done().await {
            if Instant::now() > deadline {
                return Err(format!("{what}: not within 30 s").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn call(
        &self,
        from: &str,
        to: &str,
        transport: &str,
        more: &[&str],
    ) -> Result<tokio::process::Command, AnyError> {
        let mut program: Vec<OsString> = vec![own_program()];
        program.extend(["call", to, "--transport", transport, "--json"].map(OsString::from));
        program.extend(more.iter().map(OsString::from));
        let mut command = command::in_place(&self.name, from, program)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Ok(command)
    }

    async fn spread(&self, from: &str, to: &str, transport: &str, count: u32) -> Result<Outcome, AnyError> {
        let output = self
            .call(from, to, transport, &["--count", &count.to_string()])?
            .output()
            .await?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn traffic(
        &self,
        from: &str,
        to: &str,
        transport: &str,
        seconds: f64,
    ) -> Result<tokio::process::Child, AnyError> {
        Ok(self
            .call(
                from,
                to,
                transport,
                &["--seconds", &seconds.to_string(), "--pause", "2"],
            )?
            .spawn()?)
    }

    fn traffic_kept(
        &self,
        from: &str,
        to: &str,
        transport: &str,
        seconds: f64,
    ) -> Result<tokio::process::Child, AnyError> {
        Ok(self
            .call(
                from,
                to,
                transport,
                &["--seconds", &seconds.to_string(), "--pause", "2", "--keep"],
            )?
            .spawn()?)
    }
}

async fn finish(traffic: tokio::process::Child) -> Result<Outcome, AnyError> {
    Ok(serde_json::from_slice(&traffic.wait_with_output().await?.stdout)?)
}

fn at(address: &str, port: u64) -> String {
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

fn pod(name: &str, node: &str, image: &str) -> Value {
    let ports =
        json!([{"containerPort": 8080, "protocol": "TCP"}, {"containerPort": 8080, "protocol": "UDP"}]);
    let labels = if image == "skep-lab/echo" {
        json!({"app": "shop"})
    } else {
        json!({"role": "client"})
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": image, "ports": ports}]},
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {
            "type": "NodePort", "selector": {"app": "shop"},
            "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
            "ports": [
                {"name": "web", "protocol": "TCP", "port": 80, "targetPort": 8080},
                {"name": "dns", "protocol": "UDP", "port": 80, "targetPort": 8080},
            ],
        },
    })
}
