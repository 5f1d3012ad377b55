// SPDX-License-Identifier: Apache-2.0

//! Route netlink, byte by byte: requests, their answers, attributes.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::syscall;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// `NLM_F_ROOT | NLM_F_MATCH`
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
/// Make it if it is missing.
pub(crate) const NLM_F_CREATE: u16 = 0x400;
const HEADER: usize = 16;
/// Set in the type of an attribute that holds attributes.
const NESTED: u16 = 0x8000;

/// A request: what follows the header, built piece by piece.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    /// A body that begins with the family's structure.
    pub(crate) fn new(structure: &[u8]) -> Self {
        Self(structure.to_owned())
    }

    #[must_use]
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an attribute that is a string.
    #[must_use]
    pub(crate) fn text(self, kind: u16, text: &str) -> Self {
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        self.attribute(kind, &bytes)
    }

    /// Appends an attribute that holds those of `inner`.
    #[must_use]
    pub(crate) fn nested(self, kind: u16, inner: &Self) -> Self {
        self.attribute(kind | NESTED, &inner.0)
    }
}

/// Sends a request and waits for the kernel's answer.
pub(crate) fn request(kind: u16, flags: u16, body: &Body) -> io::Result<()> {
    let socket = open()?;
    submit(&socket, kind, flags | NLM_F_ACK, body)?;
    receive(&socket, |_, _| ())
}

/// Sends a request and hands what the kernel answers, type and body of each message, to `each`.
pub(crate) fn ask(kind: u16, body: &Body, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = open()?;
    submit(&socket, kind, NLM_F_ACK, body)?;
    receive(&socket, each)
}

/// As [`ask`], for a list.
pub(crate) fn dump(kind: u16, body: &Body, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = open()?;
    submit(&socket, kind, NLM_F_DUMP, body)?;
    receive(&socket, each)
}

/// As [`dump`]; the kernel leaves out what does not match the request (Linux 4.20).
pub(crate) fn dump_filtered(kind: u16, body: &Body, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = open()?;
    syscall::filter_dumps(socket.as_fd())?;
    submit(&socket, kind, NLM_F_DUMP, body)?;
    receive(&socket, each)
}

fn open() -> io::Result<OwnedFd> {
    // NETLINK_ROUTE is protocol 0.
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn submit(socket: &OwnedFd, kind: u16, flags: u16, body: &Body) -> io::Result<()> {
    let mut message = ((body.0.len() + HEADER) as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(&body.0);
    send(socket.as_fd(), &message, SendFlags::empty())?;
    Ok(())
}

/// Reads messages up to the one that ends the answer.
fn receive(socket: &OwnedFd, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let short = || io::Error::other("short answer from the kernel");
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (length, _) = recv(socket.as_fd(), buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = buffer.get(..length).ok_or_else(short)?;
        if rest.is_empty() {
            return Err(short());
        }
        while !rest.is_empty() {
            let size = word(rest, 0).ok_or_else(short)? as usize;
            let message = rest.get(..size).filter(|_| size >= HEADER).ok_or_else(short)?;
            let kind = half(message, 4).ok_or_else(short)?;
            match kind {
                NLMSG_ERROR => {
                    let error = word(message, HEADER).ok_or_else(short)?.cast_signed();
                    return match error {
                        0 => Ok(()),
                        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
                    };
                }
                NLMSG_DONE => return Ok(()),
                kind => each(kind, &message[HEADER..]),
            }
            rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The attributes of a message or of a nested attribute, types without flags.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let size = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)? & !NESTED & !0x4000;
        let value = bytes.get(4..size)?;
        bytes = bytes.get(size.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// A string that ends with a zero.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// The `u32` at an offset.
pub(crate) fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_aligned_and_found_again() {
        let inner = Body::default().text(7, "abc").attribute(6, &5_u32.to_ne_bytes());
        let body = Body::new(&[]).text(1, "bpf").nested(2, &inner);

        let kinds: Vec<u16> = attributes(&body.0).map(|(kind, _)| kind).collect();
        let nested = find(&body.0, 2).unwrap();

        assert_eq!(kinds, [1, 2]);
        assert_eq!(body.0.len() % 4, 0);
        assert_eq!(text(find(nested, 7).unwrap()), "abc");
        assert_eq!(word(find(nested, 6).unwrap(), 0), Some(5));
        assert_eq!(find(nested, 8), None);
    }

    #[test]
    fn truncated_attributes_end_the_list() {
        assert_eq!(attributes(&[9, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[2, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[1]).count(), 0);
    }
}
