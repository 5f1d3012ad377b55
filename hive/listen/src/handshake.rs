// SPDX-License-Identifier: Apache-2.0

//! What happens on an accepted stream before it is served.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::either::Either;

/// Turns an accepted stream into the one that is served. It runs in the task of the connection, with a deadline.
///
/// `Option<H>` is a handshake, too: without one the stream is served as it is.
pub trait Handshake<S>: Send + Sync + 'static {
    /// What is served.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Runs the handshake. Must be cancel safe: dropping the future closes the stream.
    fn handshake(&self, stream: S) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// No handshake: the stream is served as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl<S> Handshake<S> for Plain
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = S;

    async fn handshake(&self, stream: S) -> io::Result<S> {
        Ok(stream)
    }
}

impl<S, H> Handshake<S> for Option<H>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    H: Handshake<S>,
{
    type Stream = Either<H::Stream, S>;

    async fn handshake(&self, stream: S) -> io::Result<Self::Stream> {
        match self {
            Some(handshake) => Ok(Either::Left(handshake.handshake(stream).await?)),
            None => Ok(Either::Right(stream)),
        }
    }
}
