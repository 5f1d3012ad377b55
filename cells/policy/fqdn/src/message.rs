// SPDX-License-Identifier: Apache-2.0

//! DNS messages: queries of endpoints, and answers to them.

use std::{collections::BTreeSet, net::IpAddr};

use hickory_proto::{
    op::{Message, MessageType, OpCode, ResponseCode},
    rr::{DNSClass, Name, RData, RecordType},
};

/// Bytes of a header.
const HEADER: usize = 12;
/// Maximum size of an answer by UDP without EDNS.
const PLAIN: usize = 512;

/// Why a message is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("malformed DNS message: {0}")]
    Malformed(String),
    /// A response where a query is expected, or the other way round.
    #[error("not a DNS {0}")]
    Kind(&'static str),
    #[error("{0} questions in a DNS query")]
    Questions(usize),
    /// The answer is to another query: it may be forged.
    #[error("DNS answer to another query")]
    Mismatch,
}

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    pub id: u16,
    /// Lower case, with a final dot.
    pub name: String,
    pub kind: RecordType,
    class: DNSClass,
    question: Name,
    op_code: OpCode,
    is_recursive: bool,
    /// Size of answers by UDP that the client accepts.
    pub max_size: usize,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub code: u16,
    /// Addresses of the name.
    pub addresses: Vec<IpAddr>,
    /// Least TTL of them, and of the aliases on the way.
    pub ttl: u32,
    /// Aliases on the way.
    pub aliases: Vec<String>,
    pub types: Vec<u16>,
}

fn malformed(error: impl std::fmt::Display) -> MessageError {
    MessageError::Malformed(error.to_string())
}

fn text(name: &Name) -> String {
    let mut text = name.to_ascii().to_ascii_lowercase();
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

impl Query {
    /// # Errors
    ///
    /// [`MessageError`] for what is no query with one question.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = Message::from_vec(bytes).map_err(malformed)?;
        if message.metadata.message_type != MessageType::Query {
            return Err(MessageError::Kind("query"));
        }
        let [question] = message.queries.as_slice() else {
            return Err(MessageError::Questions(message.queries.len()));
        };
        Ok(Self {
            id: message.metadata.id,
            name: text(question.name()),
            kind: question.query_type(),
            class: question.query_class(),
            question: question.name().clone(),
            op_code: message.metadata.op_code,
            is_recursive: message.metadata.recursion_desired,
            max_size: message.max_payload().into(),
        })
    }

    /// An answer without records.
    pub fn reply(&self, code: ResponseCode) -> Vec<u8> {
        let mut message = Message::response(self.id, self.op_code);
        message.metadata.response_code = code;
        message.metadata.recursion_desired = self.is_recursive;
        message.metadata.recursion_available = true;
        let mut question = hickory_proto::op::Query::query(self.question.clone(), self.kind);
        question.set_query_class(self.class);
        message.add_query(question);
        message.to_vec().unwrap_or_default()
    }

    /// Reads an answer to this query; `id` is that of the query as it was sent.
    ///
    /// # Errors
    ///
    /// [`MessageError`] for what is no answer to it.
    pub fn read(&self, id: u16, bytes: &[u8]) -> Result<Response, MessageError> {
        // Most of what is forged has another id.
        if bytes.len() < HEADER || bytes[..2] != id.to_be_bytes() {
            return Err(MessageError::Mismatch);
        }
        let message = Message::from_vec(bytes).map_err(malformed)?;
        if message.metadata.message_type != MessageType::Response {
            return Err(MessageError::Kind("response"));
        }
        let code = message.metadata.response_code;
        match message.queries.as_slice() {
            [question]
                if text(question.name()) == self.name
                    && question.query_type() == self.kind
                    && question.query_class() == self.class => {}
            // Servers that do not understand a query may leave it out.
            [] if code != ResponseCode::NoError => {}
            _ => return Err(MessageError::Mismatch),
        }
        let mut response = Response {
            code: code.into(),
            addresses: Vec::new(),
            ttl: 0,
            aliases: Vec::new(),
            types: message
                .answers
                .iter()
                .map(|record| record.record_type().into())
                .collect(),
        };
        if code == ResponseCode::NoError {
            self.read_addresses(&message, &mut response);
        }
        Ok(response)
    }

    /// Addresses of the name and of its aliases. Records of other names do not count.
    fn read_addresses(&self, message: &Message, response: &mut Response) {
        let mut names = BTreeSet::from([self.name.clone()]);
        let mut ttl = u32::MAX;
        // Aliases may come in any order, and in circles.
        loop {
            let before = names.len();
            for record in &message.answers {
                if let RData::CNAME(alias) = &record.data
                    && names.contains(&text(&record.name))
                {
                    let alias = text(&alias.0);
                    if names.insert(alias.clone()) {
                        response.aliases.push(alias);
                        ttl = ttl.min(record.ttl);
                    }
                }
            }
            if names.len() == before {
                break;
            }
        }
        for record in &message.answers {
            let Some(address) = record.data.ip_addr() else {
                continue;
            };
            if names.contains(&text(&record.name)) && record.dns_class == DNSClass::IN {
                ttl = ttl.min(record.ttl);
                if !response.addresses.contains(&address) {
                    response.addresses.push(address);
                }
            }
        }
        if !response.addresses.is_empty() {
            response.ttl = ttl;
        }
    }
}

/// The answer to a query that cannot be read; none to what is no query.
pub fn failure(bytes: &[u8]) -> Option<Vec<u8>> {
    let header: &[u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
    let is_response = header[2] & 0x80 != 0;
    if is_response {
        return None;
    }
    let mut reply = vec![0; HEADER];
    reply[..2].copy_from_slice(&header[..2]);
    // The response of this opcode, with the bit of recursion; code 2, SERVFAIL.
    reply[2] = 0x80 | (header[2] & 0x79);
    reply[3] = 2;
    Some(reply)
}

/// An answer with compressed names, if it is larger than the client of UDP accepts or than 512 bytes, and this helps.
pub fn compressed(bytes: Vec<u8>, max_size: usize) -> Vec<u8> {
    if bytes.len() <= PLAIN.min(max_size) {
        return bytes;
    }
    let encoded = Message::from_vec(&bytes)
        .ok()
        .and_then(|message| message.to_vec().ok());
    match encoded {
        Some(encoded) if encoded.len() < bytes.len() => encoded,
        _ => bytes,
    }
}

/// Replaces the id of a message.
pub(crate) fn set_id(bytes: &mut [u8], id: u16) {
    if let Some(place) = bytes.get_mut(..2) {
        place.copy_from_slice(&id.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::rr::{
        Record,
        rdata::{A, CNAME, TXT},
    };
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn query(text: &str) -> (Query, Vec<u8>) {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(hickory_proto::op::Query::query(name(text), RecordType::A));
        let bytes = message.to_vec().unwrap();
        (Query::parse(&bytes).unwrap(), bytes)
    }

    fn answer(id: u16, question: &str, answers: Vec<Record>) -> Vec<u8> {
        let mut message = Message::response(id, OpCode::Query);
        message.add_query(hickory_proto::op::Query::query(name(question), RecordType::A));
        message.add_answers(answers);
        message.to_vec().unwrap()
    }

    fn a(owner: &str, last: u8, ttl: u32) -> Record {
        let data = RData::A(A(Ipv4Addr::new(192, 0, 2, last)));
        Record::from_rdata(name(owner), ttl, data)
    }

    fn cname(owner: &str, to: &str, ttl: u32) -> Record {
        Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(to))))
    }

    #[test]
    fn addresses_are_those_of_the_name_and_its_aliases() {
        let (query, _) = query("WWW.example.com.");
        assert_eq!(query.name, "www.example.com.");
        let records = vec![
            a("b.example.net.", 2, 60),
            cname("a.example.net.", "B.example.net.", 20),
            cname("www.example.com.", "a.example.net.", 300),
            a("other.example.org.", 9, 1),
            a("b.example.net.", 2, 50),
        ];

        let read = query.read(9, &answer(9, "www.Example.com.", records)).unwrap();

        assert_eq!(read.addresses, [IpAddr::from([192, 0, 2, 2])]);
        assert_eq!((read.ttl, read.aliases.len()), (20, 2));
    }

    #[test]
    fn aliases_in_a_circle_end() {
        let (query, _) = query("a.example.");
        let circle = vec![
            cname("a.example.", "b.example.", 1),
            cname("b.example.", "a.example.", 1),
        ];

        let read = query.read(7, &answer(7, "a.example.", circle)).unwrap();

        assert_eq!((read.addresses.len(), read.ttl), (0, 0));
        let chain: Vec<Record> = (0..500)
            .rev()
            .map(|at| {
                let owner = if at == 0 { "a".to_owned() } else { format!("n{at}") };
                cname(&format!("{owner}.example."), &format!("n{}.example.", at + 1), 9)
            })
            .chain([a("n500.example.", 1, 9)])
            .collect();
        let read = query.read(7, &answer(7, "a.example.", chain)).unwrap();
        assert_eq!(read.addresses.len(), 1);
    }

    #[test]
    fn answers_to_other_queries_are_not_taken() {
        let (query, bytes) = query("a.example.");
        let forged = [
            answer(8, "a.example.", vec![a("a.example.", 1, 1)]),
            answer(7, "b.example.", vec![a("b.example.", 1, 1)]),
            bytes,
            vec![0, 7],
            Vec::new(),
        ];
        for forged in forged {
            assert!(query.read(7, &forged).is_err(), "{forged:?}");
        }
    }

    #[test]
    fn large_answers_are_compressed_if_that_helps() {
        let (query, _) = query("a.example.");
        let text = TXT::new(vec!["x".repeat(250)]);
        let mut records: Vec<Record> = (0..40).map(|last| a("a.example.", last, 1)).collect();
        records.push(Record::from_rdata(name("a.example."), 1, RData::TXT(text)));
        let small = answer(7, "a.example.", records);
        // As a server without compression sends it.
        let mut long = small.clone();
        let at = long.windows(2).position(|pair| pair == [0xc0, 12]).unwrap();
        long.splice(at..at + 2, *b"\x01a\x07example\x00");

        let compressed = compressed(long.clone(), query.max_size);

        assert!(compressed.len() < long.len());
        assert_eq!(
            query.read(7, &compressed).unwrap(),
            query.read(7, &small).unwrap()
        );
    }

    #[test]
    fn what_is_no_query_gets_a_failure_and_answers_get_none() {
        let (_, mut bytes) = query("a.example.");
        bytes.truncate(14);
        assert!(Query::parse(&bytes).is_err());
        let reply = failure(&bytes).unwrap();
        assert_eq!(reply[..4], [0, 7, 0x80, 2]);

        bytes[2] |= 0x80;
        assert_eq!((failure(&bytes), failure(&[0; 5])), (None, None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (query, valid) = query("a.example.");
            let _ = Query::parse(&bytes);
            let _ = query.read(7, &bytes);
            let mut bytes = bytes;
            let length = bytes.len().min(valid.len());
            bytes[..length].copy_from_slice(&valid[..length]);
            let _ = Query::parse(&bytes).map(|query| query.reply(ResponseCode::Refused));
            set_id(&mut bytes, 7);
            let _ = query.read(7, &bytes);
            let _ = failure(&bytes);
            let _ = compressed(bytes, 512);
        }

        #[test]
        fn changed_answers_do_not_panic(at in 0_usize..200, byte in any::<u8>()) {
            let (query, _) = query("a.example.");
            let records = vec![cname("a.example.", "b.example.", 1), a("b.example.", 1, 1)];
            let mut bytes = answer(7, "a.example.", records);
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(read) = query.read(7, &bytes) {
                prop_assert!(read.addresses.len() <= 1);
            }
        }
    }
}
