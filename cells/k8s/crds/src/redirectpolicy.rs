// SPDX-License-Identifier: Apache-2.0

//! CiliumLocalRedirectPolicy.

use crate::object::{kind, object, words};
use crate::patterns;
use crate::shared::LabelSelector;

kind! {
    /// Sends traffic for an address or a Service to pods of the same node.
    CiliumLocalRedirectPolicy, "cilium.io", "v2", "ciliumlocalredirectpolicies", true, {
        /// What is redirected, and to which pods.
        pub spec: Option<RedirectPolicySpec>,
        /// Not written; no sub-resource.
        pub status: Option<RedirectPolicyStatus>,
    }
}

object! {
    /// What is redirected, and to which pods. Nothing but the description can change.
    #[derive(Eq)]
    pub struct RedirectPolicySpec {
        /// Free text for people.
        pub description: Option<String>,
        /// Where the traffic goes.
        #[schemars(extend("x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "redirectBackend is immutable" },
        ]))]
        pub redirect_backend: RedirectBackend,
        /// Which traffic is redirected.
        #[schemars(extend("x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "redirectFrontend is immutable" },
        ]))]
        pub redirect_frontend: RedirectFrontend,
        /// Traffic of the pods themselves goes to its original destination. Default: false.
        #[schemars(extend("x-default" = false, "x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "skipRedirectFromBackend is immutable" },
        ]))]
        pub skip_redirect_from_backend: Option<bool>,
    }

    /// Where redirected traffic goes.
    #[derive(Eq)]
    pub struct RedirectBackend {
        /// Pods of the same node and of the namespace of the policy.
        pub local_endpoint_selector: LabelSelector,
        /// Ports of the pods.
        pub to_ports: Vec<RedirectPort>,
    }

    /// Which traffic is redirected.
    #[derive(Eq)]
    #[schemars(extend("oneOf" = [{ "required": ["addressMatcher"] }, { "required": ["serviceMatcher"] }]))]
    pub struct RedirectFrontend {
        /// Traffic to an address.
        pub address_matcher: Option<AddressMatcher>,
        /// Traffic to a Service.
        pub service_matcher: Option<ServiceMatcher>,
    }

    /// Traffic to an address.
    #[derive(Eq)]
    pub struct AddressMatcher {
        /// The address.
        #[schemars(extend("pattern" = patterns::IP))]
        pub ip: String,
        /// Ports of the address.
        pub to_ports: Vec<RedirectPort>,
    }

    /// Traffic to a Service.
    #[derive(Eq)]
    pub struct ServiceMatcher {
        /// Namespace of the Service: that of the policy.
        pub namespace: String,
        /// Name of the Service.
        pub service_name: String,
        /// Ports of the Service; absent for all.
        pub to_ports: Option<Vec<RedirectPort>>,
    }

    /// A port.
    #[derive(Eq)]
    pub struct RedirectPort {
        /// Name; needed if there are several ports.
        #[schemars(extend("pattern" = patterns::REDIRECT_PORT_NAME))]
        pub name: Option<String>,
        /// Number.
        #[schemars(extend("pattern" = patterns::REDIRECT_PORT))]
        pub port: String,
        /// Protocol.
        pub protocol: RedirectProtocol,
    }

    /// Without function.
    #[derive(Eq)]
    pub struct RedirectPolicyStatus {
        /// Not written.
        pub ok: Option<bool>,
    }
}

words! {
    /// Protocols that can be redirected.
    pub enum RedirectProtocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
    }
}
