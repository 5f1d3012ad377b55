// SPDX-License-Identifier: Apache-2.0

//! Tokens of service accounts: the key that signs them, what they claim, and the user that they stand for.

mod claims;
mod key;
mod user;

pub(crate) use claims::{Bound, Claims, Reference};
pub use key::{SigningKey, SigningKeyError};
pub(crate) use user::{TokenError, User, account_name};

/// Name of the account that every namespace has, and that pods use which name none.
pub(crate) const DEFAULT: &str = "default";
/// ConfigMap of every namespace with the certificate that verifies the API server.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
/// Where pods find the token of their account.
pub(crate) const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
