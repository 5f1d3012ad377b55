// SPDX-License-Identifier: Apache-2.0

//! Connections to the kernel's netlink, and the one error type of changes to links, addresses and routes.

use std::io;

use futures::TryStreamExt as _;
use netlink_packet_route::link::LinkMessage;
use rtnetlink::Handle;

/// Why links, addresses or routes could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot ask the kernel about interfaces")]
    Open(#[source] io::Error),
    #[error("cannot {what}")]
    Netlink {
        what: String,
        #[source]
        source: rtnetlink::Error,
    },
    /// The connection to the kernel ended.
    #[error("the kernel closed the connection")]
    Closed,
    /// An interface is missing right after it was created: another program removes it.
    #[error("interface {0} was removed by another program")]
    Removed(&'static str),
}

/// Makes a [`NetError`] of an answer of the kernel; `what` completes "cannot …".
pub fn failed(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> NetError {
    let what = what.into();
    move |source| NetError::Netlink { what, source }
}

/// Runs `work` with a connection to the kernel, in the network namespace of the calling thread.
pub async fn connected<T>(work: impl AsyncFnOnce(&Handle) -> Result<T, NetError>) -> Result<T, NetError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NetError::Open)?;
    tokio::select! {
        done = work(&handle) => done,
        () = connection => Err(NetError::Closed),
    }
}

/// Returns the interface with this name.
pub async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, NetError> {
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    match found.try_next().await {
        Err(rtnetlink::Error::NetlinkError(answer)) if answer.raw_code() == -libc::ENODEV => Ok(None),
        found => found.map_err(failed(format!("look for {name}"))),
    }
}
