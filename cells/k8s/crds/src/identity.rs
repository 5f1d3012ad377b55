// SPDX-License-Identifier: Apache-2.0

//! CiliumIdentity.

use std::collections::BTreeMap;

use crate::object::kind;

kind! {
    /// A security identity. Its name is the decimal number of the identity.
    CiliumIdentity, "cilium.io", "v2", "ciliumidentities", false, {
        /// Labels that the identity stands for: `source:key` with the value.
        #[serde(rename = "security-labels")]
        pub security_labels: BTreeMap<String, String>,
    }
}
