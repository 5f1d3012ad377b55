// SPDX-License-Identifier: Apache-2.0

//! Servers to be reached, and clients that keep calling.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How long one answer may take. What is lost never comes; what comes may be late on a busy machine.
const ANSWER: Duration = Duration::from_secs(10);
/// How many ports are tried to find one that is free for both protocols.
const PORTS: usize = 16;

/// A server that gives back what it gets, by TCP and UDP on one port. Ends with the test's process.
#[derive(Debug)]
pub struct Echo {
    pub port: u16,
}

impl Echo {
    /// Listens on `ip`.
    pub fn start(ip: &str) -> io::Result<Self> {
        let (listener, socket) = Self::bind(ip)?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || echo_stream(stream));
            }
        });
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok((length, peer)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&bytes[..length], peer);
            }
        });
        Ok(Self { port })
    }

    /// A port for both: which one is free by TCP may be that of a UDP client already.
    fn bind(ip: &str) -> io::Result<(TcpListener, UdpSocket)> {
        let mut taken = Vec::new();
        loop {
            let listener = TcpListener::bind((ip, 0))?;
            match UdpSocket::bind((ip, listener.local_addr()?.port())) {
                Ok(socket) => return Ok((listener, socket)),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse || taken.len() == PORTS => {
                    return Err(error);
                }
                // Kept until the end, so that the next port is another one.
                Err(_) => taken.push(listener),
            }
        }
    }
}

fn echo_stream(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// Whether a new connection to `to` is answered.
#[must_use]
pub fn calls(to: SocketAddr) -> bool {
    connect(to).and_then(|mut stream| ask(&mut stream)).is_ok()
}

/// Whether a datagram to `to` is answered.
#[must_use]
pub fn calls_udp(to: SocketAddr) -> bool {
    open(to).and_then(|socket| ask_udp(&socket)).is_ok()
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

fn open(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.connect(to)?;
    Ok(socket)
}

fn ask_udp(socket: &UdpSocket) -> io::Result<()> {
    socket.send(b"x")?;
    socket.recv(&mut [0]).map(drop)
}

/// Calls that go on while something happens: over one connection, over one UDP socket, and over a new connection
/// each time.
#[derive(Debug)]
pub struct Flow {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU32>,
    threads: Vec<JoinHandle<Option<String>>>,
}

impl Flow {
    pub fn start(to: SocketAddr) -> io::Result<Self> {
        let (stop, done): (Arc<AtomicBool>, Arc<AtomicU32>) = Default::default();
        let keep = |mut call: Box<dyn FnMut() -> Result<(), String> + Send>| {
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = call() {
                        return Some(error);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
                None
            })
        };
        let (mut stream, socket) = (connect(to)?, open(to)?);
        ask_udp(&socket)?;
        let named = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let threads = vec![
            keep(Box::new(move || {
                ask(&mut stream).map_err(named("kept connection"))
            })),
            keep(Box::new(move || {
                ask_udp(&socket).map_err(named("kept UDP socket"))
            })),
            keep(Box::new(move || {
                connect(to)
                    .and_then(|mut stream| ask(&mut stream))
                    .map_err(named("new connection"))
            })),
        ];
        Ok(Self { stop, done, threads })
    }

    /// Ends it; how many calls were answered.
    pub fn finish(mut self) -> Result<u32, String> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(None) => {}
                Ok(Some(error)) => return Err(error),
                Err(_) => return Err("a caller panicked".to_owned()),
            }
        }
        Ok(self.done.load(Ordering::Relaxed))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
