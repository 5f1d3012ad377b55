// SPDX-License-Identifier: Apache-2.0

//! CiliumCIDRGroup.

use crate::object::{kind, object};

kind! {
    /// Networks outside of the clusters that policies name together.
    CiliumCIDRGroup, "cilium.io", "v2", "ciliumcidrgroups", false, {
        /// The networks.
        pub spec: CidrGroupSpec,
    }
}

object! {
    /// Networks of a group.
    #[derive(Eq)]
    pub struct CidrGroupSpec {
        /// The networks; the list can be empty.
        #[serde(rename = "externalCIDRs")]
        #[schemars(extend("minItems" = 0, "x-items" = { "format": "cidr" }))]
        pub external_cidrs: Vec<String>,
    }
}
