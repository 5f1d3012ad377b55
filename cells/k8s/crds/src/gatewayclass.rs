// SPDX-License-Identifier: Apache-2.0

//! CiliumGatewayClassConfig.

use crate::object::{kind, object, words};
use crate::shared::ConditionsStatus;

kind! {
    /// Settings for the gateways of a GatewayClass, which refers to it.
    CiliumGatewayClassConfig, "cilium.io", "v2alpha1", "ciliumgatewayclassconfigs", true, {
        /// The settings.
        pub spec: Option<GatewayClassSpec>,
        /// What the operator says about them.
        pub status: Option<ConditionsStatus>,
    }
}

object! {
    /// Settings for gateways.
    #[derive(Eq)]
    pub struct GatewayClassSpec {
        /// Free text for people.
        #[schemars(extend("maxLength" = 64))]
        pub description: Option<String>,
        /// Settings of HTTP listeners.
        pub http_options: Option<HttpOptions>,
        /// Settings of the Service of a gateway.
        pub service: Option<GatewayServiceSpec>,
    }

    /// Settings of HTTP listeners.
    #[derive(Eq)]
    pub struct HttpOptions {
        /// Translation of gRPC-Web to gRPC.
        pub grpc_web_translation: Option<GrpcWebTranslation>,
    }

    /// Translation of gRPC-Web to gRPC.
    #[derive(Eq)]
    pub struct GrpcWebTranslation {
        /// It is on. Default: true.
        #[schemars(extend("x-default" = true))]
        pub enabled: Option<bool>,
    }

    /// Settings of the Service of a gateway.
    #[derive(Eq)]
    pub struct GatewayServiceSpec {
        /// The Service has node ports.
        pub allocate_load_balancer_node_ports: Option<bool>,
        /// Where external traffic may go. Default: Cluster.
        #[schemars(extend("x-default" = "Cluster"))]
        pub external_traffic_policy: Option<String>,
        /// IP versions.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub ip_families: Option<Vec<String>>,
        /// Whether the Service has one IP version or two.
        pub ip_family_policy: Option<String>,
        /// Implementation of the load balancer.
        pub load_balancer_class: Option<String>,
        /// Sources that are allowed or denied.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub load_balancer_source_ranges: Option<Vec<String>>,
        /// What the source ranges mean. Default: Allow.
        #[schemars(extend("x-default" = "Allow"))]
        pub load_balancer_source_ranges_policy: Option<SourceRangesPolicy>,
        /// Which endpoints are preferred.
        pub traffic_distribution: Option<String>,
        /// Type of the Service. Default: LoadBalancer.
        #[serde(rename = "type")]
        #[schemars(extend("x-default" = "LoadBalancer"))]
        pub kind: Option<GatewayServiceType>,
    }
}

words! {
    /// What source ranges mean.
    pub enum SourceRangesPolicy {
        /// Only these sources are allowed.
        Allow = "Allow",
        /// These sources are denied.
        Deny = "Deny",
    }

    /// Types of the Service of a gateway.
    pub enum GatewayServiceType {
        /// LoadBalancer.
        LoadBalancer = "LoadBalancer",
        /// NodePort.
        NodePort = "NodePort",
    }
}
