// SPDX-License-Identifier: Apache-2.0

//! Hooks of endpoints in memory, for tests of those who call them.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{self, Future},
    io,
    net::IpAddr,
    pin::Pin,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{EndpointFlows, EndpointHooks, ForgetError, HookError};

/// Hooks in memory. There are no programs until [`load`](Self::load), and no interfaces but those that were
/// [added](Self::add_interface).
///
/// ```
/// use skep_datapath_hooks::{EndpointHooks, testing::FakeHooks};
///
/// let hooks = FakeHooks::default();
/// hooks.load();
/// hooks.add_interface("lxc1");
/// hooks.attach(17, "lxc1")?;
/// assert_eq!(hooks.attached()[&17], "lxc1");
/// # Ok::<(), skep_datapath_hooks::HookError>(())
/// ```
#[derive(Debug)]
pub struct FakeHooks {
    loaded: watch::Sender<bool>,
    interfaces: Mutex<BTreeSet<String>>,
    attached: Mutex<BTreeMap<u16, String>>,
    egress: Mutex<BTreeMap<u16, String>>,
}

impl Default for FakeHooks {
    fn default() -> Self {
        Self {
            loaded: watch::Sender::new(false),
            interfaces: Mutex::default(),
            attached: Mutex::default(),
            egress: Mutex::default(),
        }
    }
}

impl FakeHooks {
    /// Programs are loaded from now on.
    pub fn load(&self) {
        self.loaded.send_replace(true);
    }

    /// There is an interface of this name from now on.
    pub fn add_interface(&self, name: &str) {
        self.interfaces.lock().insert(name.to_owned());
    }

    /// The interface of this name is gone, and what was attached to it.
    pub fn remove_interface(&self, name: &str) {
        self.interfaces.lock().remove(name);
        for attached in [&self.attached, &self.egress] {
            attached.lock().retain(|_, interface| interface != name);
        }
    }

    /// Endpoints with a program at their interface, and the interface.
    pub fn attached(&self) -> BTreeMap<u16, String> {
        self.attached.lock().clone()
    }

    /// As [`attached`](Self::attached), of the program for what the kernel sends to endpoints.
    pub fn attached_egress(&self) -> BTreeMap<u16, String> {
        self.egress.lock().clone()
    }

    /// Whether something may be attached there.
    fn check(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        if !*self.loaded.borrow() {
            return Err(HookError::NotLoaded { endpoint });
        }
        if !self.interfaces.lock().contains(interface) {
            return Err(HookError::NoInterface {
                endpoint,
                interface: interface.to_owned(),
            });
        }
        Ok(())
    }
}

impl EndpointHooks for FakeHooks {
    fn attach(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        self.check(endpoint, interface)?;
        self.attached.lock().insert(endpoint, interface.to_owned());
        Ok(())
    }

    fn attach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        self.check(endpoint, interface)?;
        self.egress.lock().insert(endpoint, interface.to_owned());
        Ok(())
    }

    fn detach_egress(&self, endpoint: u16, _: &str) -> Result<(), HookError> {
        self.egress.lock().remove(&endpoint);
        Ok(())
    }

    fn detach(&self, endpoint: u16) -> Result<(), HookError> {
        self.attached.lock().remove(&endpoint);
        self.egress.lock().remove(&endpoint);
        Ok(())
    }

    fn loaded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut loaded = self.loaded.subscribe();
        Box::pin(async move {
            // The sender lives as long as the future borrows from it.
            let _ = loaded.wait_for(|loaded| *loaded).await;
        })
    }
}

#[derive(Debug, Default)]
pub struct FakeFlows {
    forgotten: Mutex<Vec<IpAddr>>,
    fails: Mutex<bool>,
}

impl FakeFlows {
    /// Addresses whose flows were forgotten, in this order.
    pub fn forgotten(&self) -> Vec<IpAddr> {
        self.forgotten.lock().clone()
    }

    /// Nothing can be removed from now on.
    pub fn fail(&self) {
        *self.fails.lock() = true;
    }
}

impl EndpointFlows for FakeFlows {
    fn forget(
        &self,
        addresses: Vec<IpAddr>,
    ) -> Pin<Box<dyn Future<Output = Result<(), ForgetError>> + Send + '_>> {
        let result = if *self.fails.lock() {
            Err(ForgetError {
                addresses,
                source: io::Error::other("the test says so").into(),
            })
        } else {
            self.forgotten.lock().extend(addresses);
            Ok(())
        };
        Box::pin(future::ready(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_nothing_to_attach_until_programs_are_loaded() {
        let hooks = FakeHooks::default();
        hooks.add_interface("lxc1");
        assert!(matches!(
            hooks.attach(1, "lxc1"),
            Err(HookError::NotLoaded { endpoint: 1 })
        ));

        hooks.load();
        hooks.loaded().await;

        hooks.attach(1, "lxc1").unwrap();
        assert!(matches!(
            hooks.attach(2, "lxc2"),
            Err(HookError::NoInterface { .. })
        ));
        hooks.remove_interface("lxc1");
        assert!(hooks.attached().is_empty());
        hooks.detach(1).unwrap();
    }
}
