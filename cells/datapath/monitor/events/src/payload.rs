// SPDX-License-Identifier: Apache-2.0

//! The protocol of the monitor's socket, version 1.2: from server to client a stream of [`Payload`]s, and nothing back.

use std::io;

use crate::gob::{self, GobError, Stream, Value};

/// Id of the payload's type in streams that are written here.
const TYPE_ID: i64 = 65;

/// The definition of the payload's type: what a stream begins with.
///
/// Fields are `Data` bytes, `CPU` int, `Lost` uint, `Type` int.
pub const DEFINITION: &[u8] = &[
    0x38, 0xff, 0x81, 0x03, 0x01, 0x01, 0x07, b'P', b'a', b'y', b'l', b'o', b'a', b'd', 0x01, 0xff, 0x82,
    0x00, 0x01, 0x04, 0x01, 0x04, b'D', b'a', b't', b'a', 0x01, 0x0a, 0x00, 0x01, 0x03, b'C', b'P', b'U',
    0x01, 0x04, 0x00, 0x01, 0x04, b'L', b'o', b's', b't', 0x01, 0x06, 0x00, 0x01, 0x04, b'T', b'y', b'p',
    b'e', 0x01, 0x04, 0x00, 0x00, 0x00,
];

const SAMPLE: i64 = 9;
const LOST: i64 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    Event {
        /// CPU that it happened on; 0 for events of the agent.
        cpu: i64,
        /// Its bytes, for [`Event::decode`](crate::event::Event::decode).
        data: Vec<u8>,
    },
    Lost {
        cpu: i64,
        count: u64,
    },
    /// Something that this version does not know.
    Unknown {
        kind: i64,
        cpu: i64,
        /// How many events did not arrive.
        count: u64,
    },
}

/// The message of an event; `data` is in two parts, as rings that begin anew have it.
pub fn event_message(cpu: u32, data: [&[u8]; 2]) -> Vec<u8> {
    let length = data[0].len() + data[1].len();
    let mut body = Vec::with_capacity(length + 24);
    gob::write_int(&mut body, TYPE_ID);
    let mut field = Delta(-1);
    if length > 0 {
        field.to(&mut body, 0);
        gob::write_uint(&mut body, length as u64);
        body.extend_from_slice(data[0]);
        body.extend_from_slice(data[1]);
    }
    if cpu > 0 {
        field.to(&mut body, 1);
        gob::write_int(&mut body, cpu.into());
    }
    field.to(&mut body, 3);
    gob::write_int(&mut body, SAMPLE);
    body.push(0);
    gob::message(&body)
}

/// The message of events that did not arrive.
pub fn lost_message(cpu: u32, count: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(24);
    gob::write_int(&mut body, TYPE_ID);
    let mut field = Delta(-1);
    if cpu > 0 {
        field.to(&mut body, 1);
        gob::write_int(&mut body, cpu.into());
    }
    if count > 0 {
        field.to(&mut body, 2);
        gob::write_uint(&mut body, count);
    }
    field.to(&mut body, 3);
    gob::write_int(&mut body, LOST);
    body.push(0);
    gob::message(&body)
}

/// Numbers of fields are written as the distance to the one before.
struct Delta(i64);

impl Delta {
    fn to(&mut self, body: &mut Vec<u8>, field: i64) {
        gob::write_uint(body, (field - self.0).cast_unsigned());
        self.0 = field;
    }
}

/// Takes payloads out of what a server sends.
#[derive(Debug, Default)]
pub struct PayloadReader {
    stream: Stream,
    bytes: Vec<u8>,
    /// Bytes at the front that were read.
    read: usize,
}

impl PayloadReader {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next payload that has arrived whole.
    ///
    /// # Errors
    ///
    /// [`GobError`] if the stream is not what a monitor sends; nothing after it can be trusted.
    pub fn next_payload(&mut self) -> Result<Option<Payload>, GobError> {
        while let Some(found) = gob::frame(&self.bytes[self.read..])? {
            let start = self.read;
            self.read = start + found.end;
            let body = &self.bytes[start + found.start..start + found.end];
            if let Some(value) = self.stream.read(body)? {
                return payload(value).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads until a payload has arrived; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// What reading returns; `InvalidData` for bytes that no monitor sends, `UnexpectedEof` for a payload that is cut.
    pub fn read_from(&mut self, source: &mut impl io::Read) -> io::Result<Option<Payload>> {
        let mut buffer = [0; 16 << 10];
        loop {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            if let Some(payload) = self.next_payload().map_err(invalid)? {
                return Ok(Some(payload));
            }
            match source.read(&mut buffer) {
                Ok(0) if self.read == self.bytes.len() => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.push(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn payload(mut value: Value) -> Result<Payload, GobError> {
    let (cpu, count) = (value.int("CPU"), value.uint("Lost"));
    match value.int("Type") {
        SAMPLE => {
            let Value::Struct(fields) = &mut value else {
                return Err(GobError::Unexpected("a payload"));
            };
            let found = fields.iter_mut().find(|(name, _)| name == "Data");
            let data = match found.map(|(_, value)| value) {
                Some(Value::Bytes(data)) => std::mem::take(data),
                None => Vec::new(),
                Some(_) => return Err(GobError::Unexpected("bytes in a payload")),
            };
            Ok(Payload::Event { cpu, data })
        }
        LOST => Ok(Payload::Lost { cpu, count }),
        kind => Ok(Payload::Unknown { kind, cpu, count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Payload> {
        let mut reader = PayloadReader::default();
        let mut source = bytes;
        std::iter::from_fn(|| reader.read_from(&mut source).unwrap()).collect()
    }

    #[test]
    fn messages_have_the_bytes_of_cilium() {
        assert_eq!(
            hex::encode(DEFINITION),
            "38ff81030101075061796c6f616401ff82000104010444617461010a00010343505501040001044c6f7374010600010454797065010400\
             0000"
        );
        assert_eq!(hex::encode(lost_message(3, 17)), "09ff8202060111010400");
        let data = [7_u8; 20];
        let expected = format!("1bff820114{}031200", hex::encode(data));
        assert_eq!(hex::encode(event_message(0, [&data[..8], &data[8..]])), expected);
    }

    #[test]
    fn what_is_written_is_read_however_it_arrives() {
        let long: Vec<u8> = (0..300).map(|byte| byte as u8).collect();
        let mut bytes = DEFINITION.to_vec();
        bytes.extend(event_message(200, [&long, &[]]));
        bytes.extend(lost_message(0, 1 << 40));
        bytes.extend(event_message(0, [&[], &[]]));
        let expected = [
            Payload::Event { cpu: 200, data: long },
            Payload::Lost {
                cpu: 0,
                count: 1 << 40,
            },
            Payload::Event {
                cpu: 0,
                data: Vec::new(),
            },
        ];

        assert_eq!(read(&bytes), expected);
        let mut reader = PayloadReader::default();
        let mut found = Vec::new();
        for byte in bytes {
            reader.push(&[byte]);
            found.extend(reader.next_payload().unwrap());
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn streams_of_other_programs_are_read_by_the_names_of_their_fields() {
        // Another id (70), another order, a field more, and the name of the type is another one.
        let mut body = Vec::new();
        gob::write_int(&mut body, -70);
        body.extend([3, 1, 1, 1, b'P', 1]);
        gob::write_int(&mut body, 70);
        body.extend([0, 1, 3]);
        for (name, of) in [("Type", 2), ("More", 6), ("Data", 5)] {
            body.push(1);
            gob::write_bytes(&mut body, name.as_bytes());
            body.push(1);
            gob::write_int(&mut body, of);
            body.push(0);
        }
        body.extend([0, 0]);
        let mut bytes = gob::message(&body);
        let mut body = Vec::new();
        gob::write_int(&mut body, 70);
        body.extend([1, 18, 1, 1, b'x', 1, 2, 4, 5, 0]);
        bytes.extend(gob::message(&body));

        let expected = Payload::Event {
            cpu: 0,
            data: vec![4, 5],
        };
        assert_eq!(read(&bytes), [expected]);
    }

    #[test]
    fn ends_and_garbage_are_errors() {
        let mut reader = PayloadReader::default();
        let cut = &DEFINITION[..20];
        let error = reader.read_from(&mut &cut[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

        let mut reader = PayloadReader::default();
        let error = reader
            .read_from(&mut &[0xfc, 0xff, 0xff, 0xff, 0xff][..])
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "gob: message of 4294967295 bytes is too long");
    }
}
