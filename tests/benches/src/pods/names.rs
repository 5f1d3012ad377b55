// SPDX-License-Identifier: Apache-2.0

//! DNS of a pod: directly, and through the DNS proxy; memory of the names that it looks up.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::json;
use skep_base_net::netns;
use skep_bpf_sys::testing::Node;

use super::{
    REST,
    world::{World, namespace_of},
};
use crate::{
    agent::ServerOptions,
    objects,
    report::{Row, quantiles},
    usage,
};

/// Queries a second.
const RATE: u32 = 10_000;
/// Names that are asked for again and again.
const NAMES: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which an answer counts as lost.
const LOST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(200);
/// Allowed by a DNS rule, and selected by `toFQDNs`.
const SELECTED: &str = "selected";
/// Allowed by a DNS rule alone.
const ALLOWED: &str = "allowed";

pub(super) fn measure(seconds: u32, cached: u32, node: &Node, programs: &Path) -> anyhow::Result<Vec<Row>> {
    let server = ServerOptions {
        local_pods: 2,
        label_sets: 2,
        ..ServerOptions::default()
    };
    let mut world = World::new(node, programs, &server, 2)?;
    world.start(&[])?;
    world.add(0)?;
    let address = SocketAddr::new(world.add(1)?.address()?.into(), 53);
    let inside = |pod: u32, at: SocketAddr| -> anyhow::Result<UdpSocket> {
        let socket = netns::inside(Path::new(&namespace_of(pod)), || UdpSocket::bind(at))??;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(socket)
    };
    let server = inside(1, address)?;
    let client = inside(0, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    client.connect(address)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&server, &is_over));
        let measured = rows(&world, &client, seconds, cached);
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}

fn rows(world: &World<'_>, client: &UdpSocket, seconds: u32, cached: u32) -> anyhow::Result<Vec<Row>> {
    let total = RATE * seconds;
    let again = |number: u32| query(number, SELECTED, number % NAMES);
    wait(world, client, SELECTED)?;
    let directly = ask(client, RATE, total, again)?;
    put_policy(world.url())?;
    let deadline = Instant::now() + PATIENCE;
    // Refused: a pattern does not match the name.
    while exchange(client, &query(0, "other", 0))?.is_none_or(|answer| answer[3] & 15 == 0) {
        anyhow::ensure!(Instant::now() < deadline, "no DNS policy\n{}", world.log());
    }
    wait(world, client, SELECTED)?;
    // All names are known.
    ask(client, NAMES, NAMES, again)?;
    let pid = world.agent()?;
    let (used, begun) = (usage::processor_time_of(pid)?, Instant::now());
    let proxied = ask(client, RATE, total, again)?;
    let used = usage::processor_time_of(pid)? - used;
    let used = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    let lost = (total as usize).saturating_sub(proxied.len());
    let [directly, proxied] = [directly, proxied].map(quantiles);

    sleep(REST);
    let before = usage::own_mib(pid)?;
    let answered = ask(client, RATE / 2, cached, |number| query(number, ALLOWED, number))?;
    sleep(REST);
    let names = answered.len().max(1) as f64;
    let grown = (usage::own_mib(pid)? - before) * 1024.0 * 1024.0 / names;

    let case = format!("{RATE} DNS answers/s");
    Ok(vec![
        Row::cost(format!("{case}, directly: p50"), directly(0.5), "ms"),
        Row::cost(format!("{case}, directly: p99"), directly(0.99), "ms"),
        Row::cost(format!("{case}, through the proxy: p50"), proxied(0.5), "ms"),
        Row::cost(format!("{case}, through the proxy: p99"), proxied(0.99), "ms"),
        Row::cost(
            format!("{case}: the proxy adds to p99"),
            (proxied(0.99) - directly(0.99)).max(0.0),
            "ms",
        )
        .target(2.0),
        Row::cost(format!("{case}: lost by the proxy"), lost as f64, "").target(0.0),
        Row::cost(format!("{case}: processor of the agent"), used, "%").target(100.0),
        Row::cost(format!("a cached name of {cached}: heap and stacks"), grown, "B"),
    ])
}

fn wait(world: &World<'_>, client: &UdpSocket, kind: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while exchange(client, &query(0, kind, 0))?.is_none_or(|answer| answer[7] == 0) {
        anyhow::ensure!(Instant::now() < deadline, "no DNS answer\n{}", world.log());
    }
    Ok(())
}

/// The next answer to this query.
fn exchange(client: &UdpSocket, query: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    client.send(query)?;
    let mut buffer = [0; 512];
    let Ok(length) = client.recv(&mut buffer) else {
        return Ok(None);
    };
    Ok(buffer
        .get(..length)
        .filter(|answer| answer.len() >= 12)
        .map(<[u8]>::to_vec))
}

/// An A query, by the number of the query and of the name.
fn query(id: u32, kind: &str, name: u32) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[..2].copy_from_slice(&(id as u16).to_be_bytes());
    bytes[2..6].copy_from_slice(&[1, 0, 0, 1]);
    for label in [&format!("n{name}"), kind, "example"] {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Answers every query with an address that follows from the first digits of the name.
fn serve(socket: &UdpSocket, is_over: &AtomicBool) {
    let mut buffer = [0; 512];
    while !is_over.load(Ordering::Relaxed) {
        let Ok((length, client)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let Some(name) = buffer.get(13..length) else {
            continue;
        };
        let digits = name.iter().skip(1).take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u32, |all, digit| all.wrapping_mul(10) + u32::from(digit - b'0'));
        let mut answer = buffer[..length].to_vec();
        answer[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1]);
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4]);
        answer.extend((0xc612_0000 + number).to_be_bytes());
        let _ = socket.send_to(&answer, client);
    }
}

/// Sends so many queries a second. Returns the delays of answers.
fn ask(
    client: &UdpSocket,
    rate: u32,
    total: u32,
    query: impl Fn(u32) -> Vec<u8> + Sync,
) -> anyhow::Result<Vec<Duration>> {
    // When the query with an id was sent, in nanoseconds; 0: it was answered.
    let sent: Vec<AtomicU64> = (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect();
    let begun = Instant::now();
    let is_sent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let mut delays = Vec::with_capacity(total as usize);
            let (mut buffer, mut last) = ([0; 512], Instant::now());
            while delays.len() < total as usize && (!is_sent.load(Ordering::Relaxed) || last.elapsed() < LOST)
            {
                let Ok(2..) = client.recv(&mut buffer) else {
                    continue;
                };
                last = Instant::now();
                let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                match sent[usize::from(id)].swap(0, Ordering::Relaxed) {
                    0 => {}
                    at => delays.push(begun.elapsed().saturating_sub(Duration::from_nanos(at))),
                }
            }
            delays
        });
        for number in 0..total {
            let due = begun + Duration::from_secs(1) * number / rate;
            while Instant::now() < due {
                sleep(PAUSE);
            }
            let now = begun.elapsed().as_nanos() as u64;
            sent[usize::from(number as u16)].store(now.max(1), Ordering::Relaxed);
            client.send(&query(number))?;
        }
        is_sent.store(true, Ordering::Relaxed);
        let joined = answers.join();
        Ok(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The first pod may ask the second one for two kinds of names, and send to the addresses of one of these.
fn put_policy(url: &str) -> anyhow::Result<()> {
    let kinds = [SELECTED, ALLOWED].map(|kind| json!({"matchPattern": format!("*.{kind}.example")}));
    let ports = json!([{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": kinds}}]);
    let body = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "names", "namespace": objects::NAMESPACE},
        "spec": {"endpointSelector": {"matchLabels": {"app": "app-0"}}, "egress": [
            {"toEndpoints": [{"matchLabels": {"app": "app-1"}}], "toPorts": ports},
            {"toFQDNs": [kinds[0]]},
        ]},
    })
    .to_string();
    let authority = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(authority)?;
    write!(
        stream,
        "POST /apis/cilium.io/v2/namespaces/{}/ciliumnetworkpolicies HTTP/1.1\r\nHost: {authority}\r\n\
         Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        objects::NAMESPACE,
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.lines().next().context("no answer")?;
    anyhow::ensure!(status.contains(" 201 "), "{answer}");
    Ok(())
}
