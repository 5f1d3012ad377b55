// SPDX-License-Identifier: Apache-2.0

//! CiliumDatapathPlugin.

use crate::object::{kind, object, words};

kind! {
    /// A plugin of the datapath; it has the name of the object.
    CiliumDatapathPlugin, "cilium.io", "v2alpha1", "ciliumdatapathplugins", false, {
        /// How the plugin is used.
        pub spec: DatapathPluginSpec,
    }
}

object! {
    /// How a plugin is used.
    #[derive(Eq)]
    pub struct DatapathPluginSpec {
        /// Whether programs wait for the plugin.
        pub attachment_policy: AttachmentPolicy,
        /// Version of the plugin. A change initializes the datapath again.
        pub version: String,
    }
}

words! {
    /// Whether programs wait for a plugin.
    pub enum AttachmentPolicy {
        /// They wait.
        Always = "Always",
        /// They do not.
        BestEffort = "BestEffort",
    }
}
