// SPDX-License-Identifier: Apache-2.0

//! The DNS server of the scene, and the names that a pod looks up there.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA},
    },
};
use skep_bpf_sys::testing::Pod;

use crate::Boxed;

const TTL: u32 = 3600;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Names, and the last parts of their addresses.
const ZONE: [(&str, RecordType, &[u8]); 5] = [
    ("api.example.org.", RecordType::A, &[10]),
    ("api.example.org.", RecordType::AAAA, &[0x10]),
    ("www.example.net.", RecordType::A, &[20, 21]),
    ("img.example.net.", RecordType::A, &[30]),
    ("none.example.net.", RecordType::A, &[]),
];

/// Looks all names up at the server, which answers meanwhile. An agent without a DNS proxy does not mind.
pub(super) fn look_up(server: &Pod, client: &Pod, address: SocketAddr) -> Result<(), Boxed> {
    let socket = server.run(|| UdpSocket::bind(("0.0.0.0", address.port())))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || {
            let mut buffer = [0; 1500];
            for _ in ZONE {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    return;
                };
                if let Some(answer) = answer(&buffer[..length]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        let asked = client.run(|| -> Result<(), Boxed> {
            for (number, (name, kind, _)) in ZONE.iter().enumerate() {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.set_read_timeout(Some(PATIENCE))?;
                let mut query = Message::new(1 + number as u16, MessageType::Query, OpCode::Query);
                query.metadata.recursion_desired = true;
                query.add_query(Query::query(Name::from_ascii(name)?, *kind));
                socket.send_to(&query.to_vec()?, address)?;
                let _ = socket.recv(&mut [0; 1500]);
            }
            Ok(())
        });
        let _ = answering.join();
        asked
    })
}

fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    let question = query.queries.first()?;
    let mut answer = Message::response(query.metadata.id, OpCode::Query);
    answer.add_query(question.clone());
    let name = question.name().to_ascii();
    let found = ZONE
        .iter()
        .find(|(known, kind, _)| *known == name && *kind == question.query_type());
    let addresses = found.map_or(&[][..], |(_, _, addresses)| addresses);
    if addresses.is_empty() {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    for last in addresses {
        let data = match question.query_type() {
            RecordType::AAAA => {
                let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(*last));
                RData::AAAA(AAAA(address))
            }
            _ => RData::A(A(Ipv4Addr::new(192, 0, 2, *last))),
        };
        answer.add_answer(Record::from_rdata(question.name().clone(), TTL, data));
    }
    answer.to_vec().ok()
}
