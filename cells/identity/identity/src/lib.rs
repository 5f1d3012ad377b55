// SPDX-License-Identifier: Apache-2.0

//! Security identities: what ipcache, allocators and policy share.
//!
//! An identity is a number that stands for a set of labels, and rules are about labels.
//!
//! | type | what it is |
//! |---|---|
//! | [`NumericIdentity`] | the number, with its [`Scope`] |
//! | [`MaxConnectedClusters`], [`IdentityRange`] | which ids a cluster of a mesh allocates |
//! | [`Reserved`], [`ReservedLabels`] | reserved identities, and sets of their labels |
//! | [`Label`], [`Labels`] | labels as identities have them, and their texts |
//!
//! No Kubernetes, no BPF, no tables.
//!
//! ```
//! use skep_identity::{IdentityRange, Labels, MaxConnectedClusters, NumericIdentity, Scope};
//!
//! let labels: Labels = "k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;".parse()?;
//! assert_eq!(labels.scope(), Scope::Global);
//! let range = IdentityRange::of_cluster(7, MaxConnectedClusters::Max255)?;
//! assert!(range.contains(NumericIdentity::new(458_752)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod label;
mod labels;
mod numeric;
mod range;
mod reserved;

pub use label::{Label, LabelError, LabelSource};
pub use labels::Labels;
pub use numeric::{NumericIdentity, ParseIdentityError, Scope};
pub use range::{IdentityRange, RangeError};
pub use reserved::{Reserved, ReservedLabels};
pub use skep_base_settings::{MaxConnectedClusters, UnsupportedMax};
