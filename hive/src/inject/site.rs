// SPDX-License-Identifier: Apache-2.0

//! Values made for the module that asks.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::{Arguments, Builtin, Inject, NeedKind, Needs};
use crate::control::Control;
use crate::health::{Health, HealthHub};
use crate::jobs::{Group, JobRegistry, Jobs};
use crate::key::Key;
use crate::lifecycle::{Hook, Lifecycle};
use crate::module::ModulePath;
use crate::readiness::{Readiness, ReadinessState};
use crate::shutdown::{Shutdown, ShutdownState};

/// What module-scoped values are made of.
pub(crate) struct Shared {
    pub(crate) hub: Arc<HealthHub>,
    pub(crate) registry: Arc<JobRegistry>,
    pub(crate) shutdown: Arc<ShutdownState>,
    pub(crate) readiness: ReadinessState,
    pub(crate) control: Control,
}

/// Where a constructor runs.
pub(crate) struct Site<'a> {
    pub(crate) module: &'a ModulePath,
    pub(crate) lifecycle: u32,
    pub(crate) shared: &'a Shared,
    pub(crate) hooks: Rc<RefCell<Vec<Hook>>>,
    pub(crate) group: OnceCell<Arc<Group>>,
}

impl Site<'_> {
    fn health(&self) -> Health {
        Health::new(self.shared.hub.clone(), self.module.clone())
    }

    fn group(&self) -> Arc<Group> {
        let new = || {
            Arc::new(Group::new(
                self.module.clone(),
                self.lifecycle,
                self.shared.registry.clone(),
            ))
        };
        self.group.get_or_init(new).clone()
    }
}

macro_rules! builtin {
    ($($type:ty, $variant:ident, |$site:ident| $make:expr;)*) => {$(
        impl Inject for $type {
            #[inline]
            fn needs(needs: &mut Needs) {
                needs.push(Key::of::<$type>(), NeedKind::Builtin(Builtin::$variant));
            }

            #[inline]
            fn inject(arguments: &mut Arguments<'_>) -> Self {
                let $site = arguments.site();
                $make
            }
        }
    )*};
}

builtin! {
    ModulePath, ModulePath, |site| site.module.clone();
    Health, Health, |site| site.health();
    Jobs, Jobs, |site| Jobs::new(site.group(), site.health());
    Lifecycle, Lifecycle, |site| Lifecycle::new(site.hooks.clone());
    Shutdown, Shutdown, |site| Shutdown::new(site.shared.shutdown.clone(), site.module.clone());
    Readiness, Readiness, |site| Readiness::new(site.shared.readiness.clone(), site.module.clone());
}
