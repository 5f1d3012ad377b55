// SPDX-License-Identifier: Apache-2.0

//! Kinds of objects that have endpoints.

use skep_k8s_types::Resource;
use skep_k8s_types::slim::{CiliumEndpoint, CiliumEndpointSlice, DescribedEndpoint};

/// A kind of objects that have endpoints.
pub(crate) trait EndpointObject: Resource {
    fn endpoints(&self) -> Vec<DescribedEndpoint<'_>>;
}

impl EndpointObject for CiliumEndpoint {
    fn endpoints(&self) -> Vec<DescribedEndpoint<'_>> {
        self.described().into_iter().collect()
    }
}

impl EndpointObject for CiliumEndpointSlice {
    fn endpoints(&self) -> Vec<DescribedEndpoint<'_>> {
        self.described().collect()
    }
}
