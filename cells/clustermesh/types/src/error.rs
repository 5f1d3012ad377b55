// SPDX-License-Identifier: Apache-2.0

//! Why a value of a remote cluster is rejected.

use skep_identity::IdentityRange;

/// Why a value of a remote cluster is invalid. Only this value is dropped; fix whatever writes it.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// Not JSON, or a field has the wrong type.
    #[error("unable to unmarshal JSON")]
    Json(#[source] serde_json::Error),

    #[error("unable to marshal JSON")]
    Encode(#[source] serde_json::Error),

    /// Not a zstd frame, or too large.
    #[error("unable to decompress")]
    Frame(#[source] std::io::Error),

    /// Not a protocol buffer of this message.
    #[error("unable to unmarshal protocol buffer")]
    Message(#[source] prost::DecodeError),

    /// A field must not be empty.
    #[error("{field} is empty")]
    Empty { field: &'static str },

    /// The value belongs to another cluster than the one that is read.
    #[error("unexpected cluster name: got `{found}`, expected `{expected}`")]
    Cluster { found: String, expected: String },

    /// The value belongs under another key.
    #[error("name `{found}` does not match key `{expected}`")]
    Name { found: String, expected: String },

    /// The value has another cluster id than the configuration of the cluster.
    #[error("unexpected cluster id: got {found}, expected {expected}")]
    ClusterId {
        found: u32,
        /// In the configuration of the cluster.
        expected: u32,
    },

    /// The identity is not one of the cluster's, nor a reserved one.
    #[error("identity {id} is outside of the range {} to {} of the cluster", range.first(), range.last())]
    Identity { id: u32, range: IdentityRange },

    /// The key of an identity is not a number.
    #[error("`{name}` is not an identity")]
    IdentityName { name: String },

    /// An address, mask or prefix is malformed.
    #[error("invalid {field} `{value}`")]
    Address { field: &'static str, value: String },

    /// A field has none of the values that it may have.
    #[error("unsupported {field} `{value}`")]
    Unsupported { field: &'static str, value: String },
}
