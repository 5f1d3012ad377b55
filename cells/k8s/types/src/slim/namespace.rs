// SPDX-License-Identifier: Apache-2.0

//! `v1/Namespace`.

use serde::{Deserialize, Serialize};

use super::Metadata;
use super::codec;

/// A namespace: only its labels and annotations are read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
}
