// SPDX-License-Identifier: Apache-2.0

//! What the names of a program's metrics start with.

use std::fmt;

use crate::metric::Opts;

/// The namespace of a program: what the names of its metrics start with. Metrics are declared without it, so that those
/// of shared cells have the name of the program that counts.
///
/// ```
/// use skep_base_metrics::{Namespace, Opts};
///
/// let opts = Opts::new("kvstore_quorum_errors_total", "Quorum errors");
/// assert_eq!(Namespace::AGENT.full_name(&opts), "cilium_kvstore_quorum_errors_total");
/// assert_eq!(Namespace::OPERATOR.full_name(&opts), "cilium_operator_kvstore_quorum_errors_total");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, hive::Value)]
pub struct Namespace(&'static str);

impl Namespace {
    /// Of the agent.
    pub const AGENT: Self = Self("cilium");
    /// Of the operator.
    pub const OPERATOR: Self = Self("cilium_operator");
    /// Of `clustermesh-apiserver clustermesh`.
    pub const CLUSTERMESH_APISERVER: Self = Self("cilium_clustermesh_apiserver");
    /// Of `clustermesh-apiserver kvstoremesh`.
    pub const KVSTOREMESH: Self = Self("cilium_kvstoremesh");

    /// All of them.
    pub(crate) const ALL: [Self; 4] = [
        Self::AGENT,
        Self::OPERATOR,
        Self::CLUSTERMESH_APISERVER,
        Self::KVSTOREMESH,
    ];

    /// The name under which a metric is exported.
    pub fn full_name(self, opts: &Opts) -> String {
        if opts.is_prefixed() {
            format!("{self}_{}", opts.name())
        } else {
            opts.name().to_owned()
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
