// SPDX-License-Identifier: Apache-2.0

//! Parts that several kinds have: selectors, conditions, addresses, ports.

use std::collections::BTreeMap;

use crate::object::{object, words};
use crate::patterns;

/// An integer whose schema has no format.
pub type Integer = isize;

object! {
    /// Selects objects by their labels. An empty selector selects all.
    #[derive(Eq)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub struct LabelSelector {
        /// Requirements on labels; all must be met.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub match_expressions: Option<Vec<LabelSelectorRequirement>>,
        /// Labels with their values; all must be there.
        #[schemars(extend("x-items" = { "maxLength": 63, "pattern": patterns::LABEL }))]
        pub match_labels: Option<BTreeMap<String, String>>,
    }

    /// A requirement on one label.
    #[derive(Eq)]
    pub struct LabelSelectorRequirement {
        /// Key of the label.
        pub key: String,
        /// How the label relates to the values.
        pub operator: SelectorOperator,
        /// Values for `In` and `NotIn`; none for `Exists` and `DoesNotExist`.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub values: Option<Vec<String>>,
    }

    /// Selects objects by their labels, as [`LabelSelector`] with a schema that checks less.
    #[derive(Eq)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub struct LooseLabelSelector {
        /// Requirements on labels; all must be met.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub match_expressions: Option<Vec<LooseLabelSelectorRequirement>>,
        /// Labels with their values; all must be there.
        pub match_labels: Option<BTreeMap<String, String>>,
    }

    /// A requirement on one label.
    #[derive(Eq)]
    pub struct LooseLabelSelectorRequirement {
        /// Key of the label.
        pub key: String,
        /// `In`, `NotIn`, `Exists` or `DoesNotExist`; not checked by the schema.
        pub operator: String,
        /// Values for `In` and `NotIn`; none for `Exists` and `DoesNotExist`.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub values: Option<Vec<String>>,
    }

    /// One aspect of the state of an object.
    #[derive(Eq)]
    pub struct Condition {
        /// When the status last changed (RFC 3339).
        #[schemars(extend("format" = "date-time"))]
        pub last_transition_time: String,
        /// Details for people.
        #[schemars(extend("maxLength" = 32768))]
        pub message: String,
        /// Generation of the object that the condition is about.
        #[schemars(extend("minimum" = 0))]
        pub observed_generation: Option<i64>,
        /// Why the condition has this status, for programs.
        #[schemars(extend("minLength" = 1, "maxLength" = 1024, "pattern" = patterns::REASON))]
        pub reason: String,
        /// Status of the condition.
        pub status: ConditionStatus,
        /// Name of the condition.
        #[serde(rename = "type")]
        #[schemars(extend("maxLength" = 316, "pattern" = patterns::CONDITION))]
        pub kind: String,
    }

    /// An address of each family.
    #[derive(Eq)]
    pub struct AddressPair {
        /// IPv4 address.
        pub ipv4: Option<String>,
        /// IPv6 address.
        pub ipv6: Option<String>,
    }

    /// A port of a container by name.
    #[derive(Eq)]
    pub struct NamedPort {
        /// Name of the port.
        pub name: Option<String>,
        /// Number of the port.
        pub port: Option<Integer>,
        /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPV6` or `ANY`.
        pub protocol: Option<String>,
    }

    /// Key of an encrypted endpoint or node.
    #[derive(Eq)]
    pub struct EncryptionSpec {
        /// Index of the key; 0 or absent for no encryption.
        pub key: Option<Integer>,
    }

    /// Addresses of an endpoint and where it runs.
    #[derive(Eq)]
    pub struct EndpointNetworking {
        /// Pairs of addresses; one pair for each endpoint today.
        pub addressing: Vec<AddressPair>,
        /// Address of the node that the endpoint runs on.
        pub node: Option<String>,
    }

    /// A status that has conditions and nothing else.
    #[derive(Eq)]
    pub struct ConditionsStatus {
        /// Conditions of the object.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Option<Vec<Condition>>,
    }
}

words! {
    /// How a label relates to the values of a requirement.
    pub enum SelectorOperator {
        /// The label has one of the values.
        In = "In",
        /// The label has none of the values, or is absent.
        NotIn = "NotIn",
        /// The label is there.
        Exists = "Exists",
        /// The label is absent.
        DoesNotExist = "DoesNotExist",
    }

    /// Status of a condition.
    pub enum ConditionStatus {
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        False = "False",
        /// It is not known whether the condition holds.
        Unknown = "Unknown",
    }
}
