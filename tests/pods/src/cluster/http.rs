// SPDX-License-Identifier: Apache-2.0

//! Requests over unix sockets and TCP, as they were recorded: with any header and body.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

use crate::Boxed;

#[derive(Debug, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) content_type: Option<String>,
    pub(crate) text: String,
    /// The text as JSON; `Null` if it is none.
    pub(crate) body: Value,
}

pub(crate) fn request(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> Result<Response, Boxed> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    exchange(stream, method, path, headers, body)
}

/// A request to `http://<address>/<path>`; none if nothing listens there.
pub(crate) fn request_url(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
) -> Result<Option<Response>, Boxed> {
    let rest = url.strip_prefix("http://").ok_or("not an HTTP URL")?;
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let Ok(stream) = TcpStream::connect(address) else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    exchange(stream, method, &format!("/{path}"), headers, None).map(Some)
}

fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> Result<Response, Boxed> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let body = body.unwrap_or_default();
    if !body.is_empty() || !matches!(method, "GET") {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, rest) = answer.split_once("\r\n\r\n").ok_or("an answer without a head")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    let text = match header("transfer-encoding").as_deref() {
        Some("chunked") => chunks(rest),
        _ => rest.to_owned(),
    };
    Ok(Response {
        status: status.ok_or("an answer without a status")?,
        content_type: header("content-type"),
        body: serde_json::from_str(&text).unwrap_or_default(),
        text,
    })
}

fn chunks(mut rest: &str) -> String {
    let mut text = String::new();
    while let Some((length, more)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or_default();
        let Some(chunk) = more.get(..length).filter(|chunk| !chunk.is_empty()) else {
            break;
        };
        text.push_str(chunk);
        rest = more.get(length + 2..).unwrap_or_default();
    }
    text
}
