// SPDX-License-Identifier: Apache-2.0

//! CiliumBGPAdvertisement.

use crate::object::{kind, object, words};
use crate::patterns;
use crate::shared::{Integer, LabelSelector};

kind! {
    /// Routes that are advertised to peers, which find it by its labels.
    CiliumBGPAdvertisement, "cilium.io", "v2", "ciliumbgpadvertisements", false, {
        /// The routes.
        pub spec: AdvertisementSpec,
    }
}

object! {
    /// Routes that are advertised.
    #[derive(Eq)]
    pub struct AdvertisementSpec {
        /// The routes.
        pub advertisements: Vec<Advertisement>,
    }

    /// Routes of one type.
    #[derive(Eq)]
    #[schemars(extend("x-kubernetes-validations" = [
        {
            "rule": "self.advertisementType != 'Service' || has(self.service)",
            "message": "service field is required for the 'Service' advertisementType",
        },
        {
            "rule": "self.advertisementType == 'Service' || !has(self.service)",
            "message": "service field is not allowed for non-'Service' advertisementType",
        },
        {
            "rule": "self.advertisementType != 'Interface' || has(self.interface)",
            "message": "interface field is required for the 'Interface' advertisementType",
        },
        {
            "rule": "self.advertisementType == 'Interface' || !has(self.interface)",
            "message": "interface field is not allowed for non-'Interface' advertisementType",
        },
        {
            "rule": "self.advertisementType != 'PodCIDR' || !has(self.selector)",
            "message": "selector field is not allowed for the 'PodCIDR' advertisementType",
        },
    ]))]
    pub struct Advertisement {
        /// What is advertised.
        pub advertisement_type: AdvertisementType,
        /// Attributes of the routes.
        pub attributes: Option<Attributes>,
        /// The interface of type `Interface`.
        pub interface: Option<InterfaceAdvertisement>,
        /// Which objects of the type; absent for none. Not for type `PodCIDR`.
        pub selector: Option<LabelSelector>,
        /// The addresses of type `Service`.
        pub service: Option<ServiceAdvertisement>,
    }

    /// Attributes of routes.
    #[derive(Eq)]
    pub struct Attributes {
        /// Communities.
        pub communities: Option<Communities>,
        /// Local preference.
        pub local_preference: Option<i64>,
    }

    /// Communities of routes.
    #[derive(Eq)]
    pub struct Communities {
        /// Large communities.
        #[schemars(extend("x-items" = { "pattern": patterns::LARGE_COMMUNITY }))]
        pub large: Option<Vec<String>>,
        /// Standard communities.
        #[schemars(extend("x-items" = { "pattern": patterns::COMMUNITY }))]
        pub standard: Option<Vec<String>>,
        /// Standard communities by name.
        pub well_known: Option<Vec<WellKnownCommunity>>,
    }

    /// Addresses of an interface.
    #[derive(Eq)]
    pub struct InterfaceAdvertisement {
        /// Name of the interface.
        pub name: String,
    }

    /// Addresses of Services.
    #[derive(Eq)]
    pub struct ServiceAdvertisement {
        /// Which addresses.
        #[schemars(extend("minItems" = 1))]
        pub addresses: Vec<ServiceAddress>,
        /// Length of IPv4 prefixes; absent for single addresses.
        #[serde(rename = "aggregationLengthIPv4")]
        #[schemars(extend("minimum" = 0, "maximum" = 31))]
        pub aggregation_length_ipv4: Option<Integer>,
        /// Length of IPv6 prefixes; absent for single addresses.
        #[serde(rename = "aggregationLengthIPv6")]
        #[schemars(extend("minimum" = 0, "maximum" = 127))]
        pub aggregation_length_ipv6: Option<Integer>,
    }
}

words! {
    /// What is advertised.
    pub enum AdvertisementType {
        /// Networks of the pods of a node.
        PodCidr = "PodCIDR",
        /// Networks of pools.
        CiliumPodIpPool = "CiliumPodIPPool",
        /// Addresses of Services.
        Service = "Service",
        /// Addresses of an interface.
        Interface = "Interface",
    }

    /// Addresses of a Service.
    pub enum ServiceAddress {
        /// Those of its load balancer.
        LoadBalancerIp = "LoadBalancerIP",
        /// Its cluster addresses.
        ClusterIp = "ClusterIP",
        /// Its external addresses.
        ExternalIp = "ExternalIP",
    }

    /// Standard communities by name.
    pub enum WellKnownCommunity {
        /// 0:0.
        Internet = "internet",
        /// 65535:0.
        PlannedShut = "planned-shut",
        /// 65535:1.
        AcceptOwn = "accept-own",
        /// 65535:2.
        RouteFilterTranslatedV4 = "route-filter-translated-v4",
        /// 65535:3.
        RouteFilterV4 = "route-filter-v4",
        /// 65535:4.
        RouteFilterTranslatedV6 = "route-filter-translated-v6",
        /// 65535:5.
        RouteFilterV6 = "route-filter-v6",
        /// 65535:6.
        LlgrStale = "llgr-stale",
        /// 65535:7.
        NoLlgr = "no-llgr",
        /// 65535:666.
        Blackhole = "blackhole",
        /// 65535:65281.
        NoExport = "no-export",
        /// 65535:65282.
        NoAdvertise = "no-advertise",
        /// 65535:65283.
        NoExportSubconfed = "no-export-subconfed",
        /// 65535:65284.
        NoPeer = "no-peer",
    }
}
