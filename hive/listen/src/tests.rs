// SPDX-License-Identifier: Apache-2.0

//! Real sockets, and a listener that fails on purpose.

#[cfg(feature = "http")]
mod http;
mod server;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
mod unix;

/// Error and causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
