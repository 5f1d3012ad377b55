// SPDX-License-Identifier: Apache-2.0

//! Invalid parts of objects: they are left out, and named in health; the rest is published.

use std::collections::BTreeMap;
use std::fmt::Display;

use skep_k8s_types::slim::Str;

/// Collects what is invalid while an object is converted.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<String>);

impl Parts {
    /// Returns a part if it is valid.
    pub(crate) fn take<T>(&mut self, part: Result<T, impl Display>) -> Option<T> {
        part.map_err(|error| self.0.push(error.to_string())).ok()
    }

    pub(crate) fn fault(self) -> Option<Box<str>> {
        let fault = self.0.join(", ");
        (!fault.is_empty()).then(|| fault.into())
    }
}

/// What is invalid in the rows of tables, by their names.
#[derive(Debug, Default)]
pub(crate) struct Faults(BTreeMap<Str, String>);

impl Faults {
    /// Notes what is invalid in a row, or that nothing is.
    pub(crate) fn note(&mut self, name: &Str, fault: Option<&str>) {
        match fault {
            Some(fault) => self.0.insert(name.clone(), format!("`{name}`: {fault}")),
            None => self.0.remove(name),
        };
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// All of them, each with the name of its row.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.values().cloned().collect()
    }
}
