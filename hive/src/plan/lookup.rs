// SPDX-License-Identifier: Apache-2.0

//! Who provides a key, seen from a module.

use super::{Entry, Module, Provider};

/// Where a lookup ended.
pub(crate) enum Found {
    Provider(Provider),
    /// A decorator, by its node.
    Decorator(u32),
    Nothing,
}

/// Finds the provider of an entry as seen from `module`. `before`: a decorator that asks for what it wraps
/// sees only what stands further out, or before it in its own module.
pub(crate) fn find(modules: &[Module], entry: &Entry, module: u32, before: Option<u32>) -> Found {
    if entry.private.is_empty() && entry.decorators.is_empty() {
        return entry.public.map_or(Found::Nothing, Found::Provider);
    }
    let mut at = module;
    let mut before = before;
    loop {
        let decorator = entry
            .decorators
            .iter()
            .rev()
            .find(|(of, node)| *of == at && before.is_none_or(|before| *node < before));
        if let Some((_, node)) = decorator {
            return Found::Decorator(*node);
        }
        if let Some((_, provider)) = entry.private.iter().find(|(of, _)| *of == at) {
            return Found::Provider(*provider);
        }
        if at == 0 {
            return entry.public.map_or(Found::Nothing, Found::Provider);
        }
        before = None;
        at = modules[at as usize].parent;
    }
}

/// Whether `module` is `outer` or inside of it.
pub(crate) fn is_inside(modules: &[Module], module: u32, outer: u32) -> bool {
    let mut at = module;
    loop {
        if at == outer {
            return true;
        }
        if at == 0 {
            return false;
        }
        at = modules[at as usize].parent;
    }
}
