// SPDX-License-Identifier: Apache-2.0

//! What a cluster's controller manager does and the lab needs: slices of endpoints, deletion of namespaces and of
//! what deleted objects own.

pub(crate) mod endpointslice;
mod follow;
pub(crate) mod garbage;
pub(crate) mod namespace;
