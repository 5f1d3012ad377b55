// SPDX-License-Identifier: Apache-2.0

//! One request and its answer on a connection (HTTP/1.1, RFC 9112).

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// Longest head of an answer, and longest line of a chunk.
const LONGEST_HEAD: usize = 64 * 1024;
const HEADERS: usize = 64;
/// How much is read at once.
const PIECE: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    /// What was read and not used yet.
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects; `timeout` is that of each read and write.
    pub(crate) fn open(socket: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
        })
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        let is_safe = |text: &str| !text.contains(char::is_control);
        if !is_safe(path) || path.contains(' ') || !headers.iter().all(|(_, value)| is_safe(value)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\nconnection: close\r\n"
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str("content-type: application/json\r\n");
        }
        if !body.is_empty() || method != "GET" {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request)
    }

    /// Reads the head of the answer.
    pub(crate) fn answer(mut self) -> io::Result<Answer> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS];
            let mut head = httparse::Response::new(&mut headers);
            match head.parse(&self.buffer).map_err(invalid)? {
                httparse::Status::Complete(length) => {
                    let status = head.code.unwrap_or_default();
                    let body = framing(&head)?;
                    self.buffer.drain(..length);
                    // 100 Continue and its like are followed by the answer.
                    if status >= 200 {
                        let body = if matches!(status, 204 | 304) {
                            Body::Length(0)
                        } else {
                            body
                        };
                        return Ok(Answer {
                            status,
                            connection: self,
                            body,
                        });
                    }
                }
                httparse::Status::Partial => self.more(LONGEST_HEAD)?,
            }
        }
    }

    /// Reads more, which must come; `longest`: of all that is not used yet.
    fn more(&mut self, longest: usize) -> io::Result<()> {
        if self.buffer.len() > longest {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match self.fill()? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let there = self.buffer.len();
        self.buffer.resize(there + PIECE, 0);
        let read = loop {
            match self.stream.read(&mut self.buffer[there..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer
            .truncate(there + read.as_ref().copied().unwrap_or_default());
        read
    }
}

/// How the rest of a body is delimited.
#[derive(Debug, Clone, Copy)]
enum Body {
    Length(usize),
    /// What is left of a chunk, with the line end behind it; 0: a line with a size follows.
    Chunk(usize),
    UntilClose,
    End,
}

fn framing(head: &httparse::Response<'_, '_>) -> io::Result<Body> {
    let find = |name: &str| {
        let mut headers = head.headers.iter();
        headers
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| String::from_utf8_lossy(header.value))
    };
    if let Some(encoding) = find("transfer-encoding") {
        return match encoding.eq_ignore_ascii_case("chunked") {
            true => Ok(Body::Chunk(0)),
            false => Err(io::ErrorKind::Unsupported.into()),
        };
    }
    match find("content-length") {
        Some(length) => length.parse().map(Body::Length).map_err(invalid),
        None => Ok(Body::UntilClose),
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    connection: Connection,
    body: Body,
}

impl Answer {
    /// Sets the timeout of the parts of the body.
    pub(crate) fn set_pause(&self, pause: Option<Duration>) -> io::Result<()> {
        self.connection.stream.set_read_timeout(pause)
    }

    /// The next part of the body; `None` at its end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.body {
                Body::End | Body::Length(0) => return Ok(None),
                Body::Length(left) => {
                    let piece = self.take(left)?;
                    self.body = Body::Length(left - piece.len());
                    return Ok(Some(piece));
                }
                Body::UntilClose => {
                    if self.connection.buffer.is_empty() && self.connection.fill()? == 0 {
                        self.body = Body::End;
                        return Ok(None);
                    }
                    return Ok(Some(std::mem::take(&mut self.connection.buffer)));
                }
                Body::Chunk(0) => self.begin_chunk()?,
                Body::Chunk(left) => {
                    // The last two bytes are the line end.
                    let mut piece = self.take(left)?;
                    self.body = Body::Chunk(left - piece.len());
                    piece.truncate(left.saturating_sub(2));
                    if !piece.is_empty() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// Reads the size of the next chunk.
    fn begin_chunk(&mut self) -> io::Result<()> {
        loop {
            let parsed = httparse::parse_chunk_size(&self.connection.buffer);
            match parsed.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))? {
                // Trailers are left unread: the agent sends none.
                httparse::Status::Complete((_, 0)) => {
                    self.body = Body::End;
                    return Ok(());
                }
                httparse::Status::Complete((line, size)) => {
                    let size = usize::try_from(size).ok().and_then(|size| size.checked_add(2));
                    self.body = Body::Chunk(size.ok_or(io::ErrorKind::InvalidData)?);
                    self.connection.buffer.drain(..line);
                    return Ok(());
                }
                httparse::Status::Partial => self.connection.more(LONGEST_HEAD)?,
            }
        }
    }

    /// At most `longest` bytes, at least one.
    fn take(&mut self, longest: usize) -> io::Result<Vec<u8>> {
        if self.connection.buffer.is_empty() {
            self.connection.more(0)?;
        }
        let length = longest.min(self.connection.buffer.len());
        Ok(self.connection.buffer.drain(..length).collect())
    }
}

fn invalid(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}
