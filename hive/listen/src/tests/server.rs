// SPDX-License-Identifier: Apache-2.0

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::net::Listener;
use tokio_util::sync::CancellationToken;

use crate::{BoundTcp, Connection, Server, Tcp};

const LONG: Duration = Duration::from_secs(30);

fn listener() -> (BoundTcp, SocketAddr) {
    let bound = Tcp::new(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let address = bound.address();
    (bound, address)
}

/// Sends the number of the connection, then waits until the client closes.
async fn greet(mut connection: Connection<TcpStream, SocketAddr>) {
    let number = u8::try_from(connection.number).unwrap();
    let _ = connection.stream.write_all(&[number]).await;
    let _ = connection.stream.read(&mut [0]).await;
}

async fn read_number(stream: &mut TcpStream) -> u8 {
    tokio::time::timeout(LONG, stream.read_u8())
        .await
        .unwrap()
        .unwrap()
}

async fn ends(task: JoinHandle<()>) {
    tokio::time::timeout(LONG, task)
        .await
        .expect("the server ends")
        .unwrap();
}

#[tokio::test]
async fn connections_above_the_limit_wait_until_one_ends() {
    let (bound, address) = listener();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(
        Server::new("test", bound)
            .connections(2)
            .serve(stop.clone(), greet),
    );
    let mut first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    let mut third = TcpStream::connect(address).await.unwrap();
    assert_eq!(
        (read_number(&mut first).await, read_number(&mut second).await),
        (1, 2)
    );

    let waits = tokio::time::timeout(Duration::from_millis(50), third.read_u8()).await;
    drop(first);

    assert!(waits.is_err(), "{waits:?}");
    assert_eq!(read_number(&mut third).await, 3);
    drop((second, third));
    stop.cancel();
    ends(serving).await;
}

#[tokio::test]
async fn the_stop_closes_the_listener_and_lets_handlers_end() {
    let (bound, address) = listener();
    let (stop, release) = (CancellationToken::new(), Arc::new(Notify::new()));
    let (is_stopping, gate) = (Arc::new(Notify::new()), release.clone());
    let seen = is_stopping.clone();
    let handler = move |mut connection: Connection<TcpStream, SocketAddr>| {
        let (gate, seen) = (gate.clone(), seen.clone());
        async move {
            connection.stream.write_all(b"\x01").await.unwrap();
            connection.stop.cancelled().await;
            seen.notify_one();
            gate.notified().await;
            connection.stream.write_all(b"\x02").await.unwrap();
        }
    };
    let serving = tokio::spawn(
        Server::new("test", bound)
            .drain(LONG)
            .serve(stop.clone(), handler),
    );
    let mut client = TcpStream::connect(address).await.unwrap();
    assert_eq!(read_number(&mut client).await, 1);

    stop.cancel();
    is_stopping.notified().await;
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert!(!serving.is_finished());
    release.notify_one();

    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(read_number(&mut client).await, 2);
    ends(serving).await;
}

#[tokio::test]
async fn handlers_that_do_not_end_are_aborted_after_the_drain() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (bound, address) = listener();
    let (stop, is_dropped) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let flag = is_dropped.clone();
    let handler = move |mut connection: Connection<TcpStream, SocketAddr>| {
        let guard = Dropped(flag.clone());
        async move {
            let _guard = guard;
            connection.stream.write_all(b"\x01").await.unwrap();
            std::future::pending().await
        }
    };
    let server = Server::new("test", bound).drain(Duration::from_millis(20));
    let serving = tokio::spawn(server.serve(stop.clone(), handler));
    let mut client = TcpStream::connect(address).await.unwrap();
    assert_eq!(read_number(&mut client).await, 1);

    stop.cancel();
    ends(serving).await;

    assert!(
        is_dropped.load(Ordering::SeqCst),
        "the handler is gone when the server has ended"
    );
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_panic_ends_its_connection_alone() {
    let (bound, address) = listener();
    let stop = CancellationToken::new();
    let handler = |connection: Connection<TcpStream, SocketAddr>| async move {
        assert_ne!(connection.number, 1, "on purpose");
        greet(connection).await;
    };
    let serving = tokio::spawn(Server::new("test", bound).serve(stop.clone(), handler));

    let mut first = TcpStream::connect(address).await.unwrap();
    assert_eq!(first.read(&mut [0]).await.unwrap_or(0), 0);
    let mut second = TcpStream::connect(address).await.unwrap();

    assert_eq!(read_number(&mut second).await, 2);
    drop(second);
    stop.cancel();
    ends(serving).await;
}

/// Returns what it was made with, then nothing more.
struct Scripted(VecDeque<io::Result<DuplexStream>>);

impl Listener for Scripted {
    type Io = DuplexStream;
    type Addr = u32;

    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<io::Result<(DuplexStream, u32)>> {
        match self.0.pop_front() {
            Some(next) => Poll::Ready(next.map(|stream| (stream, 7))),
            None => Poll::Pending,
        }
    }

    fn local_addr(&self) -> io::Result<u32> {
        Ok(1)
    }
}

#[tokio::test(start_paused = true)]
async fn running_out_of_descriptors_is_logged_once_and_ends_nothing() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = log.clone();
    let writer = move || Log(sink.clone());
    let subscriber = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(false)
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let (mut client, stream) = duplex(16);
    let error = |errno: Errno| Err(io::Error::from(errno));
    let script = [
        error(Errno::MFILE),
        error(Errno::MFILE),
        error(Errno::CONNABORTED),
        error(Errno::NFILE),
        Ok(stream),
    ];
    let stop = CancellationToken::new();
    let handler = |mut connection: Connection<DuplexStream, u32>| async move {
        assert_eq!((connection.peer, connection.number), (7, 1));
        connection.stream.write_all(b"\x01").await.unwrap();
    };
    let server = Server::new("test", Scripted(script.into()));
    let serving = tokio::spawn(server.serve(stop.clone(), handler));

    assert_eq!(client.read_u8().await.unwrap(), 1);

    stop.cancel();
    ends(serving).await;
    let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    let lines = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines("Cannot accept connections, retrying"), 1, "{text}");
    assert_eq!(lines("Accepting connections again"), 1, "{text}");
}

/// Where the test's log goes.
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
