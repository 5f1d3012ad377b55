// SPDX-License-Identifier: Apache-2.0

//! Requests, their acknowledgements, lists.

use std::{cell::Cell, fmt::Display, io};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CAPPED, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL,
    NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use crate::NetError;

/// `NLM_F_CREATE`: make it if it is missing.
pub const CREATE: u16 = NLM_F_CREATE;
/// `NLM_F_EXCL`: fail if it is there.
pub const EXCLUSIVE: u16 = NLM_F_EXCL;
/// `NLM_F_REPLACE`
pub const REPLACE: u16 = NLM_F_REPLACE;
pub(crate) const APPEND: u16 = NLM_F_APPEND;
/// Larger than any message or part of a list.
const BUFFER: usize = 64 * 1024;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// `NLMSGERR_ATTR_MSG`: the text of an extended acknowledgement.
const MESSAGE: u16 = 1;
/// Lists that changed while they were sent are requested again so often.
const ATTEMPTS: usize = 5;

/// A connection to route netlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: Cell<u32>,
}

impl Netlink {
    pub fn open() -> Result<Self, NetError> {
        let socket = Socket::new(NETLINK_ROUTE).map_err(NetError::Open)?;
        // Kernels without them say less in errors, and list more: both are handled.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        Ok(Self {
            socket,
            sequence: Cell::new(0),
        })
    }

    /// Sends a change and waits until the kernel made it; `what` completes "cannot …".
    pub fn change(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        what: impl Display,
    ) -> Result<(), NetError> {
        self.talk(message, flags | NLM_F_ACK, &what, &mut |_| ())
            .map(drop)
    }

    /// Asks about one object.
    pub fn get(
        &self,
        message: RouteNetlinkMessage,
        what: impl Display,
    ) -> Result<Option<RouteNetlinkMessage>, NetError> {
        let mut found = None;
        self.talk(message, NLM_F_ACK, &what, &mut |message| found = Some(message))?;
        Ok(found)
    }

    /// Lists objects. The kernel leaves out what does not match the request.
    pub fn list(
        &self,
        message: RouteNetlinkMessage,
        what: impl Display,
    ) -> Result<Vec<RouteNetlinkMessage>, NetError> {
        let mut found = Vec::new();
        for _ in 0..ATTEMPTS {
            found.clear();
            let is_whole = self.talk(message.clone(), NLM_F_DUMP, &what, &mut |message| {
                found.push(message)
            })?;
            if is_whole {
                break;
            }
        }
        Ok(found)
    }

    /// Sends a request and reads up to the end of the answer. Returns false if a list changed while it was sent.
    fn talk(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        what: &dyn Display,
        each: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> Result<bool, NetError> {
        let failed = |source| NetError::refused(what.to_string(), source);
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(failed)?;
        let mut is_whole = true;
        loop {
            let datagram = self.receive().map_err(failed)?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let short = || failed(io::ErrorKind::InvalidData.into());
                let message = NetlinkBuffer::new_checked(&rest).map_err(|_| short())?;
                let (length, number) = (message.length() as usize, message.sequence_number());
                let current = rest.get(..length).ok_or_else(short)?;
                let changed = message.flags() & NLM_F_DUMP_INTR != 0;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                // What is left of a request that failed midway.
                if number != sequence {
                    continue;
                }
                is_whole &= !changed;
                let message = match NetlinkMessage::<RouteNetlinkMessage>::deserialize(current) {
                    Ok(message) => message,
                    Err(error) => {
                        tracing::debug!(%error, "netlink message ignored");
                        continue;
                    }
                };
                let refused = |code: i32, attributes: &[u8]| NetError::Refused {
                    what: what.to_string(),
                    reason: reason(attributes),
                    source: io::Error::from_raw_os_error(code.saturating_neg()),
                };
                match message.payload {
                    NetlinkPayload::Error(answer) => {
                        let Some(code) = answer.code else {
                            return Ok(is_whole);
                        };
                        // The request follows the code, or only its header; attributes follow that.
                        let echoed = if message.header.flags & NLM_F_CAPPED != 0 {
                            HEADER
                        } else {
                            bytes.len()
                        };
                        let attributes = answer.header.get(echoed.next_multiple_of(4)..);
                        return Err(refused(code.get(), attributes.unwrap_or_default()));
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(refused(done.code, &done.extended_ack));
                    }
                    NetlinkPayload::Done(_) => return Ok(is_whole),
                    NetlinkPayload::InnerMessage(message) => each(message),
                    _ => {}
                }
            }
        }
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut buffer = Vec::with_capacity(BUFFER);
            match self.socket.recv(&mut buffer, libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(length) if length == buffer.len() && length > 0 => return Ok(buffer),
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The text among the attributes of an extended acknowledgement.
fn reason(attributes: &[u8]) -> Option<String> {
    let text = NlasIterator::new(attributes)
        .flatten()
        .find(|attribute| attribute.kind() == MESSAGE)?;
    let text = String::from_utf8_lossy(text.value());
    let text = text.trim_end_matches('\0').trim_end_matches('.');
    (!text.is_empty()).then(|| text.to_owned())
}
