// SPDX-License-Identifier: Apache-2.0

//! Load for the DNS proxy: a server that answers every query, a client with a rate, and what cached names need.
//!
//! ```text
//! dns_load serve 10.0.1.7:53
//! dns_load ask 10.0.1.7:53 10000 10     queries a second, seconds: latencies in microseconds, as JSON
//! dns_load memory 100000                bytes a name in the cache of an endpoint
//! ```

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{Name, RData, Record, RecordType, rdata::A},
};
use jiff::Timestamp;
use skep_policy_fqdn::NameCache;
use tokio::net::UdpSocket;

/// Names that are asked for.
const NAMES: u32 = 1000;
/// Time after which an answer counts as lost.
const LOST: Duration = Duration::from_secs(2);

type Done = Result<(), Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["serve", address] => serve(address.parse()?).await,
        ["ask", server, rate, seconds] => ask(server.parse()?, rate.parse()?, seconds.parse()?).await,
        ["memory", names] => memory(names.parse()?),
        _ => Err("serve ADDRESS | ask SERVER RATE SECONDS | memory NAMES".into()),
    }
}

async fn serve(address: SocketAddr) -> Done {
    let socket = UdpSocket::bind(address).await?;
    let mut buffer = [0; 4096];
    loop {
        let (length, client) = socket.recv_from(&mut buffer).await?;
        let Ok(query) = Message::from_vec(&buffer[..length]) else {
            continue;
        };
        let Some(question) = query.queries.first().cloned() else {
            continue;
        };
        let address = RData::A(A(Ipv4Addr::new(192, 0, 2, 1)));
        let mut answer = Message::response(query.metadata.id, OpCode::Query);
        answer.add_answer(Record::from_rdata(question.name().clone(), 60, address));
        answer.add_query(question);
        socket.send_to(&answer.to_vec()?, client).await?;
    }
}

async fn ask(server: SocketAddr, rate: u32, seconds: u32) -> Done {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(server).await?;
    let queries: Vec<Vec<u8>> = (0..NAMES).map(query).collect::<Result<_, _>>()?;
    let start = Instant::now();
    let total = rate * seconds;
    let (mut sent, mut answered) = (0_u32, Vec::with_capacity(total as usize));
    // When the query with an id was sent.
    let mut pending = vec![None; 1 << 16];
    let mut buffer = [0; 4096];
    while sent < total
        || (answered.len() < total as usize && start.elapsed() < Duration::from_secs(seconds.into()) + LOST)
    {
        let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        while sent < due.min(total) {
            let id = sent as u16;
            let mut query = queries[(sent % NAMES) as usize].clone();
            query[..2].copy_from_slice(&id.to_be_bytes());
            socket.send(&query).await?;
            pending[usize::from(id)] = Some(Instant::now());
            sent += 1;
        }
        let wait = tokio::time::timeout(Duration::from_millis(1), socket.recv(&mut buffer));
        if let Ok(length) = wait.await
            && length? >= 2
        {
            let id = u16::from_be_bytes([buffer[0], buffer[1]]);
            if let Some(sent) = pending[usize::from(id)].take() {
                answered.push(sent.elapsed());
            }
        }
    }
    answered.sort_unstable();
    let at = |part: usize| {
        let found = answered.get(answered.len() * part / 1000);
        found.map_or(0, Duration::as_micros)
    };
    let lost = total as usize - answered.len();
    let (p50, p99, p999) = (at(500), at(990), at(999));
    println!(
        r#"{{"rate":{rate},"sent":{sent},"lost":{lost},"p50_us":{p50},"p99_us":{p99},"p999_us":{p999}}}"#
    );
    Ok(())
}

fn query(number: u32) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut message = Message::new(0, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii(format!("n{number}.example.com."))?;
    message.add_query(Query::query(name, RecordType::A));
    Ok(message.to_vec()?)
}

fn memory(names: u32) -> Done {
    let before = resident()?;
    let mut cache = NameCache::new(0);
    for number in 0..names {
        let name = Arc::from(format!("service-{number}.namespace.example.com."));
        let address = IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 + number));
        cache.update(&name, [address], 300, Timestamp::UNIX_EPOCH);
    }
    let bytes = resident()?.saturating_sub(before) / u64::from(names.max(1));
    println!(r#"{{"names":{},"bytes_per_name":{bytes}}}"#, cache.len());
    Ok(())
}

/// Bytes of this process in memory.
fn resident() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmRSS")?
        .parse()?;
    Ok(kilobytes * 1024)
}
