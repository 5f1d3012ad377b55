// SPDX-License-Identifier: Apache-2.0

//! A DNS server with the names of the test, and its client.

use std::{
    error::Error,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType},
};

const TTL: u32 = 60;
const ATTEMPTS: u32 = 3;

/// Answers queries on a port for names, each `NAME=ADDRESS`.
pub(crate) fn serve(port: &str, names: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut known = Vec::new();
    for text in names {
        let (name, address) = text.split_once('=').ok_or("a name is NAME=ADDRESS")?;
        known.push((Name::from_ascii(name)?, address.parse::<IpAddr>()?));
    }
    let port: u16 = port.parse()?;
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let socket = UdpSocket::bind(any).or_else(|_| UdpSocket::bind(("0.0.0.0", port)))?;
    let mut packet = [0; 4096];
    loop {
        let (length, from) = socket.recv_from(&mut packet)?;
        let Ok(query) = Message::from_vec(&packet[..length]) else {
            continue;
        };
        // A lost answer is asked for again.
        let _ = socket.send_to(&answer(&query, &known).to_vec()?, from);
    }
}

fn answer(query: &Message, known: &[(Name, IpAddr)]) -> Message {
    let mut answer = Message::response(query.metadata.id, OpCode::Query);
    answer.metadata.authoritative = true;
    answer.metadata.response_code = ResponseCode::NXDomain;
    let Some(asked) = query.queries.first() else {
        return answer;
    };
    answer.add_query(asked.clone());
    for (name, address) in known.iter().filter(|(name, _)| name == asked.name()) {
        answer.metadata.response_code = ResponseCode::NoError;
        let data = match (address, asked.query_type()) {
            (IpAddr::V4(address), RecordType::A) => RData::A((*address).into()),
            (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA((*address).into()),
            _ => continue,
        };
        answer.add_answer(Record::from_rdata(name.clone(), TTL, data));
    }
    answer
}

/// Asks a server for an address of a name.
pub(crate) fn resolve(server: SocketAddr, name: &str, limit: Duration) -> io::Result<IpAddr> {
    let name = Name::from_ascii(name).map_err(io::Error::other)?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(limit))?;
    let mut query = Message::new(std::process::id() as u16, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name, RecordType::A));
    let query = query.to_vec().map_err(io::Error::other)?;
    let mut packet = [0; 4096];
    for _ in 0..ATTEMPTS {
        socket.send(&query)?;
        let length = match socket.recv(&mut packet) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let answer = Message::from_vec(&packet[..length]).map_err(io::Error::other)?;
        let mut found = answer.answers.iter().filter_map(|record| record.data.ip_addr());
        return found
            .next()
            .ok_or_else(|| io::Error::other(format!("{}", answer.metadata.response_code)));
    }
    Err(io::ErrorKind::TimedOut.into())
}
