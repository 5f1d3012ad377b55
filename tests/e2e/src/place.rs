// SPDX-License-Identifier: Apache-2.0

//! Sockets of the test's own process in the networks of a lab.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use skep_lab::link::{self, LinkError};
use tokio::net::TcpSocket;

/// How long one answer may take. What is lost never comes; what comes may be late on a busy machine.
const ANSWER: Duration = Duration::from_secs(15);
/// How long a datagram may take that may have been too large for the path.
const DATAGRAM: Duration = Duration::from_secs(1);
/// How often such a datagram is sent.
const DATAGRAMS: usize = 10;

/// A network of a lab. Programs at its links see the packets of these sockets; those at the control group of a node do not
/// see the calls, so that services are translated packet by packet.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    process: u32,
}

/// An answer of an echo server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub server: String,
    /// The client, as the server saw it.
    pub client: SocketAddr,
    pub text: String,
}

impl Place {
    #[must_use]
    pub fn of(process: u32) -> Self {
        Self { process }
    }

    /// A process in it: of a pod the pod's own.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Runs `work` on a thread in this network.
    pub fn inside<T: Send>(&self, work: impl AsyncFnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let done = link::inside(self.process, move |_| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            Ok::<_, LinkError>(runtime.and_then(|runtime| runtime.block_on(work())))
        });
        done.map_err(io::Error::other)?
    }

    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.connect_from(to, 0)
    }

    /// Connects to an echo server from this port, which may be that of a connection that has ended.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_from(&self, to: SocketAddr, port: u16) -> io::Result<TcpStream> {
        self.inside(async move || open(to, port).await)
    }

    /// Connects to an echo server many times.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), of the first that fails.
    pub fn connect_all(&self, to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
        self.inside(async move || {
            let mut all = Vec::with_capacity(count);
            for _ in 0..count {
                all.push(open(to, 0).await?);
            }
            Ok(all)
        })
    }

    /// A UDP socket whose only peer is `to`.
    pub fn datagrams(&self, to: SocketAddr) -> io::Result<UdpSocket> {
        self.inside(async move || {
            let socket = UdpSocket::bind((unspecified(to), 0))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(DATAGRAM))?;
            Ok(socket)
        })
    }

    pub fn call(&self, to: SocketAddr) -> io::Result<Answer> {
        ask(&self.connect(to)?, "hello")
    }

    /// One call by UDP with `size` bytes. What is too large for a part of the path is lost, once: the datagram is sent again,
    /// ten times at most.
    pub fn call_udp(&self, to: SocketAddr, size: usize) -> io::Result<Answer> {
        let socket = self.datagrams(to)?;
        let text = random_text(size);
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..DATAGRAMS {
            match ask_udp(&socket, &text) {
                Ok(answer) => return Ok(answer),
                // Larger than the path MTU, which the kernel knows now: it is sent in fragments next.
                Err(err) => last = err,
            }
        }
        Err(last)
    }

    /// Sends `size` bytes in one line over one connection while it receives the answer, and compares them.
    pub fn transfer(&self, to: SocketAddr, size: usize) -> io::Result<Answer> {
        let stream = self.connect(to)?;
        transfer(&stream, size)
    }
}

/// Sends `size` bytes in one line while it receives the answer, and compares them.
pub fn transfer(stream: &TcpStream, size: usize) -> io::Result<Answer> {
    let text = random_text(size);
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| send_line(stream, &text));
        let answer = read_answer(stream, &text);
        // A failed send is the cause of a missing answer.
        sent.join()
            .unwrap_or_else(|_| Err(io::Error::other("the sender panicked")))?;
        answer
    })
}

/// Sends a line to an echo server; returns the answer.
pub fn ask(stream: &TcpStream, text: &str) -> io::Result<Answer> {
    send_line(stream, text)?;
    read_answer(stream, text)
}

/// Sends a datagram to an echo server; returns the answer.
pub fn ask_udp(socket: &UdpSocket, text: &str) -> io::Result<Answer> {
    socket.send(text.as_bytes())?;
    let mut buffer = vec![0; 65_536];
    loop {
        let length = socket.recv(&mut buffer)?;
        // One to a datagram before may be late.
        if let Ok(answer) = parse(&String::from_utf8_lossy(&buffer[..length]), text) {
            return Ok(answer);
        }
    }
}

async fn open(to: SocketAddr, port: u16) -> io::Result<TcpStream> {
    let socket = match to {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if port != 0 {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(unspecified(to), port))?;
    }
    let connected = tokio::time::timeout(ANSWER, socket.connect(to)).await;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {to} in time"));
    let stream = connected.map_err(late)??.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// The unspecified address of the family of `to`.
fn unspecified(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn random_text(size: usize) -> String {
    std::iter::repeat_with(fastrand::alphanumeric)
        .take(size)
        .collect()
}

fn send_line(mut stream: &TcpStream, text: &str) -> io::Result<()> {
    stream.write_all(format!("{text}\n").as_bytes())
}

fn read_answer(stream: &TcpStream, text: &str) -> io::Result<Answer> {
    let mut line = String::new();
    if BufReader::new(stream).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    parse(&line, text)
}

/// Reads `<server> <client> <text>`.
fn parse(line: &str, sent: &str) -> io::Result<Answer> {
    let mut words = line.trim_end().splitn(3, ' ');
    let (server, client, text) = (words.next(), words.next(), words.next());
    let client: Option<SocketAddr> = client.and_then(|client| client.parse().ok());
    match (server, client, text) {
        (Some(server), Some(client), Some(text)) if text == sent => Ok(Answer {
            server: server.to_owned(),
            // Servers listen on IPv6 sockets, which show IPv4 clients as mapped addresses.
            client: SocketAddr::new(client.ip().to_canonical(), client.port()),
            text: text.to_owned(),
        }),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the answer of {} bytes differs from the {} that were sent",
                line.len(),
                sent.len()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_server_and_client_and_repeats_what_was_sent() {
        let answer = parse("web-0 [::ffff:10.1.1.2]:4000 two words\n", "two words").expect("an answer");

        assert_eq!(answer.server, "web-0");
        assert_eq!(answer.client, "10.1.1.2:4000".parse().expect("an address"));
        assert!(parse("web-0 [::1]:1 two word\n", "two words").is_err());
        assert!(parse("web-0\n", "").is_err());
    }
}
