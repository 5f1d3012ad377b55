// SPDX-License-Identifier: Apache-2.0

//! Endpoint slices that clusters share: protocol buffers in zstd frames.

mod json;
mod message;

use std::io::Read;
use std::net::IpAddr;

use prost::Message;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

pub use message::{ClusterEndpointSlice, Conditions, Endpoint, EndpointPort, Hints, NamedHint, TextEntry};

use crate::error::ValueError;
use crate::remote::{RemoteInfo, check_object};

/// The largest slice that is read. Kubernetes allows 1,000 endpoints a slice, and objects of 1.5 MiB.
const MAX_SIZE: u64 = 4 << 20;

/// Label of a slice with the name of its service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

impl ClusterEndpointSlice {
    /// Reads the value of a remote cluster. `name` is the key below the cluster's prefix: `<namespace>/<name>`.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is invalid or not the cluster's.
    pub fn decode_value(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
        let slice = Self::from_message(&decompress(value)?)?;
        remote.check_cluster(slice.cluster())?;
        check_object(slice.namespace(), slice.name(), name)?;
        remote.check_id(slice.cluster_id())?;
        slice.check_addresses()?;
        Ok(slice)
    }

    fn check_addresses(&self) -> Result<(), ValueError> {
        let is_ipv4 = match self.address_type() {
            "IPv4" => true,
            "IPv6" => false,
            other => {
                return Err(ValueError::Unsupported {
                    field: "addressType",
                    value: other.to_owned(),
                });
            }
        };
        for address in self.endpoints.iter().flat_map(|endpoint| &endpoint.addresses) {
            let ip: Option<IpAddr> = address.parse().ok();
            if ip.is_none_or(|ip| ip.is_ipv4() != is_ipv4) {
                return Err(ValueError::Address {
                    field: "addresses",
                    value: address.clone(),
                });
            }
        }
        Ok(())
    }

    pub fn encode_value(&self) -> Vec<u8> {
        compress_to_vec(self.to_message().as_slice(), CompressionLevel::Fastest)
    }

    /// The message alone, without a frame.
    pub fn to_message(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads a message alone. It is not checked.
    ///
    /// # Errors
    ///
    /// [`ValueError::Message`].
    pub fn from_message(message: &[u8]) -> Result<Self, ValueError> {
        Self::decode(message).map_err(ValueError::Message)
    }

    /// The key below the cluster's prefix.
    pub fn key_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    pub fn service(&self) -> Option<&str> {
        let label = self
            .labels
            .iter()
            .find(|entry| entry.key() == SERVICE_NAME_LABEL)?;
        Some(label.value())
    }
}

fn decompress(value: &[u8]) -> Result<Vec<u8>, ValueError> {
    let error = |error| ValueError::Frame(std::io::Error::other(error));
    let decoder = StreamingDecoder::new(value).map_err(|cause| error(cause.to_string()))?;
    let mut content = Vec::new();
    let size = decoder
        .take(MAX_SIZE + 1)
        .read_to_end(&mut content)
        .map_err(ValueError::Frame)?;
    if size as u64 > MAX_SIZE {
        return Err(error(format!("larger than {MAX_SIZE} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_unpack_to_too_much_are_rejected() {
        let bomb = compress_to_vec(
            vec![0_u8; MAX_SIZE as usize + 1].as_slice(),
            CompressionLevel::Fastest,
        );
        assert!(bomb.len() < 1 << 20);

        let error = decompress(&bomb).expect_err("it is too large");

        let cause = std::error::Error::source(&error)
            .expect("there is a cause")
            .to_string();
        assert_eq!(cause, "larger than 4194304 bytes");
    }
}
