// SPDX-License-Identifier: Apache-2.0

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::http::Http1;
use crate::{Server, Tcp};

const LONG: Duration = Duration::from_secs(30);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

struct Fixture {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    asked: Arc<Notify>,
    release: Arc<Notify>,
}

/// Answers when released.
fn start(http: Http1) -> Fixture {
    let listener = Tcp::new(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let (address, stop) = (listener.address(), CancellationToken::new());
    let (asked, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (see, gate) = (asked.clone(), release.clone());
    let service = service_fn(move |_: Request<Incoming>| {
        let (see, gate) = (see.clone(), gate.clone());
        async move {
            see.notify_one();
            gate.notified().await;
            Ok::<_, Infallible>(Response::new("done".to_owned()))
        }
    });
    let server = Server::new("test", listener).drain(LONG);
    let serving = tokio::spawn(http.serve_all(server, service, stop.clone()));
    Fixture {
        address,
        stop,
        serving,
        asked,
        release,
    }
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut text))
        .await
        .expect("the connection ends")
        .unwrap();
    text
}

#[tokio::test]
async fn the_stop_finishes_requests_and_closes_idle_connections() {
    let fixture = start(Http1::new());
    let mut idle = TcpStream::connect(fixture.address).await.unwrap();
    let mut busy = TcpStream::connect(fixture.address).await.unwrap();
    fixture.release.notify_one();
    idle.write_all(REQUEST).await.unwrap();
    fixture.asked.notified().await;
    let mut answer = [0; 512];
    assert!(idle.read(&mut answer).await.unwrap() > 0);
    busy.write_all(REQUEST).await.unwrap();
    fixture.asked.notified().await;

    fixture.stop.cancel();
    let rest = read_all(&mut idle).await;
    fixture.release.notify_one();

    assert_eq!(rest, "");
    let answer = read_all(&mut busy).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("done"),
        "{answer}"
    );
    tokio::time::timeout(LONG, fixture.serving)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn clients_that_send_no_head_are_disconnected() {
    let fixture = start(Http1::new().head_timeout(Duration::from_millis(20)));
    for sent in ["", "GET / HTTP/1.1\r\nhost:"] {
        let mut client = TcpStream::connect(fixture.address).await.unwrap();
        client.write_all(sent.as_bytes()).await.unwrap();

        let answer = read_all(&mut client).await;

        assert!(!answer.contains("200"), "{sent:?}: {answer}");
    }
}

#[tokio::test]
async fn names_of_headers_may_be_in_title_case() {
    for (http, name) in [
        (Http1::new(), "\r\ncontent-length: 4\r\n"),
        (Http1::new().title_case_headers(), "\r\nContent-Length: 4\r\n"),
    ] {
        let fixture = start(http);
        fixture.release.notify_one();
        let mut client = TcpStream::connect(fixture.address).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();

        let answer = read_all(&mut client).await;

        assert!(answer.contains(name), "{answer}");
    }
}
