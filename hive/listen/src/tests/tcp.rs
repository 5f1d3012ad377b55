// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio_util::net::Listener;

use super::chain;
use crate::{BindError, Tcp};

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

#[tokio::test]
async fn addresses_of_other_machines_are_passed_over() {
    let elsewhere: SocketAddr = "192.0.2.1:0".parse().unwrap();

    let bound = Tcp::first_of([elsewhere, loopback()]).bind().unwrap();
    let error = Tcp::new(elsewhere).setting("serve-addr").bind().unwrap_err();

    assert!(bound.address().ip().is_loopback() && bound.address().port() != 0);
    let text = chain(&error);
    assert!(
        text.starts_with("cannot listen on 192.0.2.1:0 (setting `serve-addr`): "),
        "{text}"
    );
}

#[tokio::test]
async fn a_port_in_use_is_no_reason_for_another_address() {
    let first = Tcp::new(loopback()).bind().unwrap();

    let error = Tcp::first_of([first.address(), loopback()]).bind().unwrap_err();

    let BindError::Listen { address, cause, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(address, first.address().to_string());
    assert_eq!(cause.kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn all_addresses_are_those_of_both_families() {
    let any = |text: &str| Tcp::new(text.parse().unwrap());
    for all in [Tcp::all(0), any("0.0.0.0:0"), any("[::]:0")] {
        let mut bound = all.bind().unwrap();
        let port = bound.address().port();
        let families = [("127.0.0.1", true), ("::1", false)];
        for (address, is_ipv4) in families
            .into_iter()
            .take(if bound.address().is_ipv6() { 2 } else { 1 })
        {
            let _client = TcpStream::connect((address, port)).await.unwrap();

            let (stream, peer) = bound.accept().await.unwrap();
            assert_eq!(peer.ip().to_canonical().is_ipv4(), is_ipv4);
            assert!(stream.nodelay().unwrap());
        }
        let taken = any(&format!("0.0.0.0:{port}")).bind().unwrap_err();
        assert!(chain(&taken).contains("in use"), "{}", chain(&taken));
    }
}

#[tokio::test]
async fn a_shared_port_can_be_listened_on_twice() {
    let first = Tcp::new(loopback()).share().bind().unwrap();

    let second = Tcp::new(first.address()).share().bind();
    let alone = Tcp::new(first.address()).bind();

    assert!(second.is_ok() && alone.is_err());
}

#[tokio::test]
async fn without_addresses_there_is_an_error() {
    let error = Tcp::first_of([]).setting("serve-addr").bind().unwrap_err();

    assert_eq!(
        error.to_string(),
        "cannot listen on no address (setting `serve-addr`)"
    );
}
