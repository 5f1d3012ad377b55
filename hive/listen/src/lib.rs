// SPDX-License-Identifier: Apache-2.0

//! Listeners: the one way in which programs accept connections.
//!
//! - [`Unix`] and [`Tcp`] bind: a stale socket file is replaced, mode and group are set, errors name the address and the
//!   setting that it comes from.
//! - [`Server`] accepts: it bounds the number of connections, backs off when the process has no descriptors left, runs a
//!   handler per connection, and drains them at the end.
//! - [`Handshake`] turns an accepted stream into the one that is served. With feature `tls`, `tls::Tls` is one.
//! - With feature `http`, `http::Http1` serves HTTP/1 on a connection, or on all of a server.
//!
//! [`Server`] takes any [`Listener`] of tokio-util. A listener in another network namespace is bound there; wherever
//! it is served, it stays in that namespace.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use skep_listen::{Connection, Server, Tcp};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::net::TcpStream;
//! use tokio_util::sync::CancellationToken;
//!
//! let listener = Tcp::new("127.0.0.1:0".parse().unwrap()).setting("echo-address").bind().unwrap();
//! let address = listener.address();
//! let stop = CancellationToken::new();
//! let echo = |connection: Connection<TcpStream, _>| async move {
//!     let (mut read, mut write) = connection.stream.into_split();
//!     // A client that hung up ends its connection, nothing else.
//!     let _ = tokio::io::copy(&mut read, &mut write).await;
//! };
//! let serving = tokio::spawn(Server::new("echo", listener).serve(stop.clone(), echo));
//!
//! let mut client = TcpStream::connect(address).await.unwrap();
//! client.write_all(b"hello").await.unwrap();
//! client.shutdown().await.unwrap();
//! let mut answer = String::new();
//! client.read_to_string(&mut answer).await.unwrap();
//! assert_eq!(answer, "hello");
//!
//! stop.cancel();
//! serving.await.unwrap();
//! # });
//! ```

mod accept;
mod error;
mod handshake;
#[cfg(feature = "http")]
pub mod http;
mod server;
mod tcp;
#[cfg(feature = "tls")]
pub mod tls;
mod unix;

pub use error::{BindError, Setting};
pub use handshake::{Handshake, Plain};
pub use server::{Connection, Server};
pub use tcp::{BoundTcp, Tcp};
pub use tokio_util::net::Listener;
pub use unix::{BoundUnix, Unix};

#[cfg(test)]
mod tests;
