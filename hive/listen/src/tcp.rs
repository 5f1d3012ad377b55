// SPDX-License-Identifier: Apache-2.0

//! TCP ports.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::net::Listener;

use crate::error::{BindError, Setting};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A TCP port to listen on.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use skep_listen::Tcp;
///
/// let first = Tcp::new("127.0.0.1:0".parse().unwrap()).bind().unwrap();
///
/// let error = Tcp::new(first.address()).setting("healthz-port").bind().unwrap_err();
/// assert_eq!(error.to_string(), format!("cannot listen on {} (setting `healthz-port`)", first.address()));
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Tcp {
    addresses: Vec<SocketAddr>,
    share: bool,
    setting: Setting,
}

impl Tcp {
    /// Listens on one address; port 0 takes a free port. `0.0.0.0` and `[::]` are all addresses of both families, whatever
    /// `net.ipv6.bindv6only` is, as in programs in Go: without IPv6 in the kernel those of IPv4.
    pub fn new(address: SocketAddr) -> Self {
        Self::first_of([address])
    }

    /// Listens on all addresses of this machine, of both families.
    pub fn all(port: u16) -> Self {
        Self::new((Ipv6Addr::UNSPECIFIED, port).into())
    }

    /// Listens on the first address that this machine has. A port in use is an error, not a reason to try the next address.
    pub fn first_of(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            addresses: addresses.into_iter().collect(),
            share: false,
            setting: Setting::default(),
        }
    }

    /// Lets other processes of this user listen on the port, too (`SO_REUSEPORT`): a new process takes over before the old
    /// one stops.
    #[must_use]
    pub fn share(mut self) -> Self {
        self.share = true;
        self
    }

    /// The setting that errors name.
    #[must_use]
    pub fn setting(mut self, key: &'static str) -> Self {
        self.setting = Setting(Some(key));
        self
    }

    /// Listens. Must be called within a runtime.
    ///
    /// # Errors
    /// If the port is in use or needs privileges, or if no address is one of this machine.
    pub fn bind(&self) -> Result<BoundTcp, BindError> {
        let mut failed = None;
        for &address in &self.addresses {
            match self.listen(address) {
                Ok(bound) => return Ok(bound),
                Err(cause) => {
                    let is_used = cause.kind() == io::ErrorKind::AddrInUse;
                    failed = Some(self.error(address.to_string(), cause));
                    if is_used {
                        break;
                    }
                }
            }
        }
        let none = || {
            self.error(
                "no address".to_owned(),
                io::Error::from(io::ErrorKind::InvalidInput),
            )
        };
        Err(failed.unwrap_or_else(none))
    }

    fn error(&self, address: String, cause: io::Error) -> BindError {
        BindError::Listen {
            address,
            setting: self.setting,
            cause,
        }
    }

    fn listen(&self, address: SocketAddr) -> io::Result<BoundTcp> {
        if !address.ip().is_unspecified() {
            return self.listen_on(address);
        }
        let port = address.port();
        match self.listen_on((Ipv6Addr::UNSPECIFIED, port).into()) {
            // IPv6 is not in the kernel, or switched off.
            Err(error) if is_without_family(&error) => self.listen_on((Ipv4Addr::UNSPECIFIED, port).into()),
            result => result,
        }
    }

    fn listen_on(&self, address: SocketAddr) -> io::Result<BoundTcp> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if address.is_ipv6() && address.ip().is_unspecified() {
            rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
        }
        // A port with connections of an earlier process in TIME_WAIT can be bound again.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(self.share)?;
        socket.bind(address)?;
        BoundTcp::new(socket.listen(BACKLOG)?)
    }
}

fn is_without_family(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// A TCP port that is listened on. Connections have `TCP_NODELAY`: requests and answers are short.
#[derive(Debug)]
pub struct BoundTcp {
    listener: TcpListener,
    address: SocketAddr,
}

impl BoundTcp {
    /// Takes a listener that exists, such as one in another network namespace.
    ///
    /// # Errors
    /// If the kernel does not return its address.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// The address with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Listener for BoundTcp {
    type Io = TcpStream;
    type Addr = SocketAddr;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.listener.poll_accept(cx);
        if let Poll::Ready(Ok((stream, _))) = &accepted {
            // Fails only if the client is gone; reading says so.
            let _ = stream.set_nodelay(true);
        }
        accepted
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
