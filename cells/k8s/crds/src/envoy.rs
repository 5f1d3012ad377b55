// SPDX-License-Identifier: Apache-2.0

//! CiliumEnvoyConfig and CiliumClusterwideEnvoyConfig, whose schemas are the same.

use serde_json::{Map, Value};

use crate::object::{kind, object};
use crate::shared::{Integer, LabelSelector};

kind! {
    /// Resources for Envoy, of one namespace.
    CiliumEnvoyConfig, "cilium.io", "v2", "ciliumenvoyconfigs", true, {
        /// The resources and the traffic for them.
        pub spec: Option<EnvoyConfigSpec>,
    }
}

kind! {
    /// Resources for Envoy, of the cluster.
    CiliumClusterwideEnvoyConfig, "cilium.io", "v2", "ciliumclusterwideenvoyconfigs", false, {
        /// The resources and the traffic for them.
        pub spec: Option<EnvoyConfigSpec>,
    }
}

object! {
    /// Resources for Envoy and the traffic that they get.
    #[derive(Eq)]
    pub struct EnvoyConfigSpec {
        /// Services whose backends Envoy gets.
        pub backend_services: Option<Vec<EnvoyBackendService>>,
        /// Nodes that the resources are for; absent for all.
        pub node_selector: Option<LabelSelector>,
        /// The resources: protobuf messages (`Any`) as JSON, with `@type`.
        #[schemars(with = "Vec<crate::schema::AnyFields>")]
        pub resources: Vec<Map<String, Value>>,
        /// Services whose traffic goes to a listener.
        pub services: Option<Vec<EnvoyServiceListener>>,
    }

    /// A Service whose backends Envoy gets.
    #[derive(Eq)]
    pub struct EnvoyBackendService {
        /// Name of the Service.
        pub name: String,
        /// Namespace of the Service. Without it no Service matches.
        pub namespace: Option<String>,
        /// Ports by number or name; absent for all.
        pub number: Option<Vec<String>>,
    }

    /// A Service whose traffic goes to a listener.
    #[derive(Eq)]
    pub struct EnvoyServiceListener {
        /// Name of the listener; absent for the first of the resources.
        pub listener: Option<String>,
        /// Name of the Service.
        pub name: String,
        /// Namespace of the Service. Without it no Service matches.
        pub namespace: Option<String>,
        /// Ports of the Service; absent for all.
        pub ports: Option<Vec<Integer>>,
    }
}
