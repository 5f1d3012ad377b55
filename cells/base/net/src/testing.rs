// SPDX-License-Identifier: Apache-2.0

//! Network namespaces for tests.

use std::sync::Arc;

use crate::{
    NetError, Netlink,
    netns::{Namespace, NetnsError},
    sysctl,
};

/// Whether new namespaces get the fallback interfaces of tunnels, `tunl0` and others.
const FALLBACK: &str = "net/core/fb_tunnels_only_for_init_net";

/// Why there is no namespace for a test.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Net(#[from] NetError),
}

/// Creates a network namespace that has only a loopback interface, which is down. Returns what moves a thread there.
pub fn thread_start() -> Result<Arc<dyn Fn() + Send + Sync>, TestError> {
    let mut space = Namespace::new()?;
    if space.inside(|| Netlink::open()?.links())??.len() > 1 {
        sysctl::set(FALLBACK, "2")?;
        space = Namespace::new()?;
    }
    Ok(Arc::new(move || {
        space
            .enter()
            .expect("the namespace exists as long as its descriptor")
    }))
}
