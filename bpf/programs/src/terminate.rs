// SPDX-License-Identifier: Apache-2.0

//! Destroying client sockets of backends that are gone, by a socket iterator (Linux 6.5).

use std::{
    io::{self, Read},
    mem::{MaybeUninit, offset_of, size_of},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    error::LoadError,
    object::{IpFamilies, logged, share},
    skeleton::socketterm::IterSockettermSkelBuilder,
};
use skep_bpf_maps::{MapSizes, lb::U16};
use skep_bpf_sys::{
    link,
    map::{Map, MapError},
    store::MapStore,
};

const OBJECT: &str = "iter_socketterm";

/// A backend that no client must talk to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadBackend {
    pub address: SocketAddr,
    /// IP protocol number: 6 or 17.
    pub proto: u8,
}

/// Why sockets could not be destroyed.
#[derive(Debug, thiserror::Error)]
pub enum TerminateError {
    /// The list of dead backends was not handed to the program.
    #[error("cannot write the dead backends")]
    Map(#[from] MapError),
    #[error("cannot walk the sockets of the network namespace")]
    Iterate(#[source] io::Error),
}

/// Key of the map of dead backends. C twin: `struct dead_backend_key` in
/// `bpf/progs/iter_socketterm.bpf.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DeadBackendKey {
    /// Network order; IPv4 in the first 4 bytes, the rest zero.
    pub(crate) address: [u8; 16],
    pub(crate) port: U16,
    pub(crate) proto: u8,
    /// `AF_INET` or `AF_INET6`.
    pub(crate) family: u8,
}
const _: () = assert!(size_of::<DeadBackendKey>() == 20 && offset_of!(DeadBackendKey, proto) == 18);

impl From<&DeadBackend> for DeadBackendKey {
    fn from(backend: &DeadBackend) -> Self {
        let mut address = [0; 16];
        let family = match backend.address.ip() {
            IpAddr::V4(ip) => {
                address[..4].copy_from_slice(&ip.octets());
                libc::AF_INET
            }
            IpAddr::V6(ip) => {
                address = ip.octets();
                libc::AF_INET6
            }
        };
        Self {
            address,
            port: U16::new(backend.address.port()),
            proto: backend.proto,
            family: family as u8,
        }
    }
}

/// One program of the object: which sockets it destroys.
#[derive(Debug, Clone, Copy)]
struct IterProgram {
    name: &'static str,
    proto: u8,
    is_ipv6: bool,
}

impl IterProgram {
    const fn new(name: &'static str, proto: u8, is_ipv6: bool) -> Self {
        Self { name, proto, is_ipv6 }
    }

    /// Its sockets may be clients of `backend`. IPv6 sockets with mapped addresses are clients of IPv4 backends.
    fn is_for(&self, backend: &DeadBackend) -> bool {
        self.proto == backend.proto && self.is_ipv6 == backend.address.is_ipv6()
    }
}

const PROGRAMS: [IterProgram; 4] = [
    IterProgram::new("cil_sock_udp_destroy_v4", 17, false),
    IterProgram::new("cil_sock_udp_destroy_v6", 17, true),
    IterProgram::new("cil_sock_tcp_destroy_v4", 6, false),
    IterProgram::new("cil_sock_tcp_destroy_v6", 6, true),
];

/// The loaded iterators. Dropped, nothing of them remains in the kernel.
#[derive(Debug)]
pub struct IterTerminator {
    links: Vec<(IterProgram, OwnedFd)>,
    dead: Map<DeadBackendKey, u8>,
}

impl IterTerminator {
    /// Loads the iterators with the reverse socket maps of `store`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Load`] on kernels that do not let programs destroy sockets.
    pub fn load(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        ipv4: bool,
        ipv6: bool,
    ) -> Result<Self, LoadError> {
        let mut storage = MaybeUninit::uninit();
        let mut open = IterSockettermSkelBuilder::default()
            .open(&mut storage)
            .map_err(|source| LoadError::Open {
                object: OBJECT,
                source,
            })?;
        let ip = IpFamilies {
            ipv4,
            ipv6,
            ip_masq_agent: false,
            health_probes: false,
            bandwidth: false,
        };
        share(OBJECT, open.open_object_mut(), store, &sizes.into(), ip)?;
        let skeleton = logged(OBJECT, || open.load())?;

        let attach = |program: &'static str| {
            let found = skeleton
                .object()
                .progs()
                .find(|found| found.name() == program)
                .ok_or(LoadError::NoProgram {
                    object: OBJECT,
                    program,
                })?;
            link::iterator(found.as_fd()).map_err(|source| LoadError::Keep {
                object: OBJECT,
                program,
                source,
            })
        };
        let failed = |source| LoadError::Map {
            object: OBJECT,
            source,
        };
        let links = PROGRAMS
            .into_iter()
            .map(|program| Ok((program, attach(program.name)?)))
            .collect::<Result<_, _>>()?;
        let dead = skeleton
            .maps
            .skep_dead_backends
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| {
                failed(MapError::Inspect {
                    map: "skep_dead_backends".to_owned(),
                    source,
                })
            })?;
        let dead = Map::from_fd("skep_dead_backends", dead).map_err(failed)?;
        Ok(Self { links, dead })
    }

    /// Destroys the client sockets of all `backends` in the calling thread's network namespace; returns
    /// their cookies. One pass over the sockets for each protocol and family, however many
    /// backends there are.
    ///
    /// # Errors
    ///
    /// [`TerminateError`]; sockets may have been destroyed already.
    pub fn run(&self, backends: &[DeadBackend]) -> Result<Vec<u64>, TerminateError> {
        let mut cookies = Vec::new();
        let room = self.dead.max_entries() as usize;
        for chunk in backends.chunks(room.max(1)) {
            let keys: Vec<DeadBackendKey> = chunk.iter().map(Into::into).collect();
            let failures = self.dead.update_batch(&keys, &vec![0; keys.len()]);
            if let Some(failed) = failures.into_iter().next() {
                return Err(failed.error.into());
            }
            let mut result = Ok(());
            for (program, link) in &self.links {
                if result.is_ok() && chunk.iter().any(|backend| program.is_for(backend)) {
                    result = walk(link.as_fd(), &mut cookies);
                }
            }
            self.dead.delete_batch(&keys).all()?;
            result.map_err(TerminateError::Iterate)?;
        }
        Ok(cookies)
    }
}

/// Runs an iterator to its end and collects the cookies it writes.
fn walk(link: BorrowedFd<'_>, cookies: &mut Vec<u64>) -> io::Result<()> {
    let mut output = Vec::new();
    std::fs::File::from(link::iterate(link)?).read_to_end(&mut output)?;
    cookies.extend(
        output
            .chunks_exact(8)
            .filter_map(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))),
    );
    Ok(())
}
