// SPDX-License-Identifier: Apache-2.0

//! `make demo`: shows load balancing and a cluster mesh at work, and checks what it shows.

mod mesh;
mod pods;
mod policies;

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{ExitCode, Stdio},
    time::Duration,
};

use clap::Args;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    command,
    echo::Outcome,
    lab_options::{LabOptions, RoutingMode},
    plan::OUTSIDE,
    process,
    session::{
        CallMode, Session, at, client_pod, cluster_ips, dual_stack_service, echo_pod, finish, node_port,
    },
    state::State,
};

/// Pod that most calls come from.
const CLIENT: &str = "default/client-c1-n2";
/// Addresses of a node without clients.
const NODE_ADDRESSES: [&str; 2] = ["172.30.1.1", "fd00:30:0:1::1"];
/// How long traffic flows while something is disturbed.
const TRAFFIC: Duration = Duration::from_secs(6);
/// How long it flows before.
const UNDISTURBED: Duration = Duration::from_millis(700);
/// Lines of `skep monitor` that are shown.
const EVENTS: usize = 6;
/// How long they may take to come.
const PATIENCE: Duration = Duration::from_secs(20);

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

/// Runs the demo; the exit status is 0 if all its checks passed.
///
/// # Errors
/// When a lab cannot be brought up or talked to.
pub async fn run(name: &str, options: &Options) -> Result<ExitCode, AnyError> {
    let lab_options = LabOptions {
        assets: std::env::var_os("KUBEBUILDER_ASSETS"),
        clusters: 1,
        nodes: options.nodes,
        agent: options.agent.clone(),
        ..LabOptions::default()
    };
    let mut checks = in_lab(name, &lab_options, options.keep, show).await?;
    for (routing_mode, kind) in [(RoutingMode::Native, "native"), (RoutingMode::Tunnel, "tunnel")] {
        let lab_options = LabOptions {
            nodes: 2,
            routing_mode,
            ..lab_options.clone()
        };
        let name = format!("{name}-{kind}");
        checks.extend(in_lab(&name, &lab_options, options.keep, pods::show).await?);
    }
    let guarded = LabOptions {
        nodes: 2,
        agent_config: vec!["enable-host-firewall=true".to_owned()],
        ..lab_options.clone()
    };
    let named = format!("{name}-policies");
    checks.extend(in_lab(&named, &guarded, options.keep, policies::show).await?);
    let meshed = LabOptions {
        clusters: 3,
        nodes: 1,
        // The third joins later.
        mesh: Some(vec!["c1".to_owned(), "c2".to_owned()]),
        ..lab_options
    };
    let name = format!("{name}-mesh");
    checks.extend(in_lab(&name, &meshed, options.keep, mesh::show).await?);
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

/// Brings a lab up, shows something in it, and takes it down.
async fn in_lab(
    name: &str,
    lab_options: &LabOptions,
    keep: bool,
    show: impl AsyncFnOnce(&str) -> Result<Vec<Check>, AnyError>,
) -> Result<Vec<Check>, AnyError> {
    headline("Bringing a lab up");
    let state = command::up(name, lab_options, |what| println!("  … {what}")).await?;
    print!("{}", command::describe(&state));
    let shown = tokio::select! {
        shown = show(name) => shown,
        _ = process::interrupted() => Err("interrupted".into()),
    };
    if keep {
        println!("\nThe lab is left up; `skep-lab down --name {name}` takes it down.");
    } else {
        headline("Taking the lab down");
        command::down(name)?;
    }
    let mut checks = shown?;
    if !keep {
        let left = command::leftovers()?.contains(&name.to_owned());
        checks.push(Check {
            what: format!("nothing is left behind of lab {name}"),
            found: if left {
                "leftovers".into()
            } else {
                "nothing".into()
            },
            is_good: !left,
        });
    }
    Ok(checks)
}

fn headline(text: &str) {
    println!("\n== {text}");
}

async fn show(name: &str) -> Result<Vec<Check>, AnyError> {
    let mut checks = Vec::new();
    let lab = Session::open(name, "c1")?;

    headline("Deploying a service with three backends");
    for (number, node) in ["c1-n1", "c1-n2", "c1-n3"].into_iter().enumerate() {
        lab.create(echo_pod(&format!("web-{number}"), "shop", node))
            .await?;
    }
    for node in ["c1-n2", "c1-n3"] {
        lab.create(client_pod(&format!("client-{node}"), node)).await?;
    }
    let service = lab
        .create(dual_stack_service("shop", &json!({"type": "NodePort"})))
        .await?;
    let addresses = cluster_ips(&service);
    let first = addresses.first().ok_or("the service has no cluster IP")?;
    println!("  pods web-0, web-1, web-2, client-c1-n2, client-c1-n3");
    println!("  service shop: {}", addresses.join(" and "));
    let to = at(first, 80);
    lab.wait("three backends answer", || async {
        lab.call(CLIENT, &to, CallMode::TCP, 30)
            .await
            .is_ok_and(|outcome| outcome.servers.len() == 3)
    })
    .await?;

    headline("Calling it by ClusterIP and NodePort, TCP and UDP, IPv4 and IPv6, from other nodes' pods");
    for client in [CLIENT, "default/client-c1-n3"] {
        for (cluster_ip, node_ip) in addresses.iter().zip(NODE_ADDRESSES) {
            for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
                for (kind, to) in [
                    ("ClusterIP", at(cluster_ip, 80)),
                    ("NodePort", at(node_ip, node_port(&service, protocol))),
                ] {
                    checks.push(spread(&lab, client, kind, &to, mode, protocol).await?);
                }
            }
        }
    }
    checks.extend(from_outside(name, &lab, &service).await?);
    checks.extend(take_backend_away(&lab, &to).await?);
    checks.extend(kill_agent(&lab, &to).await?);
    for program in [["skep", "status"].as_slice(), &["skep", "bpf", "lb", "list"]] {
        let command = program.join(" ");
        headline(&command);
        let program = program.iter().map(OsString::from).collect();
        let status = command::exec(name, "c1-n2", program).await?;
        checks.push(Check {
            what: format!("`{command}` answers"),
            found: status.to_string(),
            is_good: status.success(),
        });
    }
    Ok(checks)
}

async fn spread(
    lab: &Session,
    client: &str,
    kind: &str,
    to: &str,
    mode: CallMode,
    protocol: &str,
) -> Result<Check, AnyError> {
    let outcome = lab.call(client, to, mode, 60).await?;
    println!(
        "  {client} → {kind:<9} {to:<28} {protocol}: {}",
        by_server(&outcome)
    );
    Ok(Check {
        what: format!("{client} → {kind} {to} {protocol}"),
        found: format!(
            "{} answered by {} backends, {} failed",
            outcome.answered,
            outcome.servers.len(),
            outcome.failed
        ),
        is_good: outcome.failed == 0 && outcome.servers.len() == 3,
    })
}

/// Calls by the server that answered.
fn by_server(outcome: &Outcome) -> String {
    let servers = outcome.servers.iter();
    let counts: Vec<String> = servers
        .map(|(server, count)| format!("{server} {count}"))
        .collect();
    counts.join(", ")
}

/// Calls node ports from the network outside of the nodes, and shows what the programs at the interfaces report.
async fn from_outside(name: &str, lab: &Session, service: &Value) -> Result<Vec<Check>, AnyError> {
    headline("Calling the NodePort from outside: packets pass the programs at the nodes' interfaces");
    let mut checks = Vec::new();
    for address in NODE_ADDRESSES {
        for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
            let to = at(address, node_port(service, protocol));
            checks.push(spread(lab, OUTSIDE, "NodePort", &to, mode, protocol).await?);
        }
    }
    headline("skep monitor, on the node that is called");
    let program = ["skep", "monitor", "--type", "trace"]
        .map(OsString::from)
        .to_vec();
    let mut command = command::in_place(name, "c1-n1", program)?;
    let mut monitor = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(monitor.stdout.take().ok_or("the monitor has no output")?).lines();
    let to = at(NODE_ADDRESSES[0], node_port(service, "TCP"));
    let mut shown = 0;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while shown < EVENTS && tokio::time::Instant::now() < deadline {
        // The events of calls before the monitor listens are lost.
        lab.call(OUTSIDE, &to, CallMode::TCP, 3).await?;
        while shown < EVENTS
            && let Ok(line) = tokio::time::timeout(Duration::from_millis(100), lines.next_line()).await
            && let Some(line) = line?
        {
            // Events of these calls, not of other traffic.
            if line.contains(" tcp ") && (line.contains(":8080") || line.contains(&to)) {
                println!("  {line}");
                shown += 1;
            }
        }
    }
    monitor.kill().await?;
    checks.push(Check {
        what: "`skep monitor` shows packets of calls from outside".into(),
        found: format!("{shown} lines"),
        is_good: shown == EVENTS,
    });
    Ok(checks)
}

async fn take_backend_away(lab: &Session, to: &str) -> Result<Vec<Check>, AnyError> {
    headline("Taking a backend away during traffic");
    let traffic = lab.keep_calling(CLIENT, to, CallMode::TCP, TRAFFIC)?;
    tokio::time::sleep(UNDISTURBED).await;
    lab.delete(&echo_pod("web-0", "shop", "c1-n1")).await?;
    let outcome = finish(traffic).await?;
    println!("  {outcome}");
    let during = uninterrupted("a backend is taken away during traffic", &outcome);
    let after = lab.call(CLIENT, to, CallMode::TCP, 60).await?;
    let servers: Vec<&str> = after.servers.keys().map(String::as_str).collect();
    Ok(vec![
        during,
        Check {
            what: "the backend gets no more calls".into(),
            found: format!("answered by {}", servers.join(", ")),
            is_good: after.failed == 0 && servers == ["web-1", "web-2"],
        },
    ])
}

async fn kill_agent(lab: &Session, to: &str) -> Result<Vec<Check>, AnyError> {
    headline("Killing the agent during traffic");
    let agent = |state: &State| state.agents.get("c1-n2").copied().unwrap_or_default();
    let before = agent(&lab.state()?);
    let traffic = [
        ("new connections", CallMode::TCP),
        ("an established connection", CallMode::TCP.kept()),
        ("a UDP flow", CallMode::UDP.kept()),
    ]
    .map(|(what, mode)| (what, lab.keep_calling(CLIENT, to, mode, TRAFFIC)));
    tokio::time::sleep(UNDISTURBED).await;
    let process = nix::unistd::Pid::from_raw(i32::try_from(before)?);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL)?;
    println!("  agent process {before} killed");
    let back = lab
        .wait("the agent is back", || async {
            let Ok(state) = lab.state() else { return false };
            let node = state.nodes.get("c1-n2").copied().unwrap_or_default();
            agent(&state) != before && crate::agents::is_well(node).await
        })
        .await;
    let after = agent(&lab.state()?);
    println!("  agent process {after} took its place");
    let mut checks = vec![Check {
        what: "the agent is restarted".into(),
        found: format!("process {before} → {after}"),
        is_good: back.is_ok(),
    }];
    for (what, calls) in traffic {
        let outcome = finish(calls?).await?;
        println!("  {what}: {outcome}");
        checks.push(uninterrupted(
            &format!("{what} while the agent is killed and restarted"),
            &outcome,
        ));
    }
    Ok(checks)
}

fn uninterrupted(what: &str, outcome: &Outcome) -> Check {
    Check {
        what: what.to_owned(),
        found: format!(
            "{} calls, {} failed",
            outcome.answered + outcome.failed,
            outcome.failed
        ),
        is_good: outcome.failed == 0 && outcome.answered > 100,
    }
}
