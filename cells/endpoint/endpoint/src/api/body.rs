// SPDX-License-Identifier: Apache-2.0

//! Bodies of requests about endpoints.

use skep_base_api::{BodyError, BodyModel};

/// States that a request may name.
const STATES: &str = "waiting-for-identity not-ready waiting-to-regenerate regenerating restoring ready disconnecting \
                      disconnected invalid";

pub(super) const ENDPOINT: BodyModel = BodyModel {
    parameter: "endpoint",
    name: "EndpointChangeRequest",
    fields: &[
        ("addressing", "models.AddressPair"),
        ("container-id", "string"),
        ("container-interface-name", "string"),
        ("container-netns-path", "string"),
        ("datapath-configuration", "models.EndpointDatapathConfiguration"),
        ("host-mac", "string"),
        ("id", "int64"),
        ("interface-index", "int64"),
        ("interface-name", "string"),
        ("k8s-namespace", "string"),
        ("k8s-pod-name", "string"),
        ("k8s-uid", "string"),
        ("labels", "models.Labels"),
        ("mac", "string"),
        ("netns-cookie", "string"),
        ("properties", "map[string]interface {}"),
        ("state", "models.EndpointState"),
        ("sync-build-endpoint", "bool"),
    ],
};
pub(super) const DELETION: BodyModel = BodyModel {
    parameter: "endpoint",
    name: "EndpointBatchDeleteRequest",
    fields: &[("container-id", "string")],
};
pub(super) const CONFIGURATION: BodyModel = BodyModel {
    parameter: "endpointConfiguration",
    name: "EndpointConfigurationSpec",
    fields: &[
        ("label-configuration", "models.LabelConfigurationSpec"),
        ("options", "models.ConfigurationMap"),
    ],
};
pub(super) const LABEL_CONFIGURATION: BodyModel = BodyModel {
    parameter: "configuration",
    name: "LabelConfigurationSpec",
    fields: &[("user", "models.Labels")],
};

/// Checks the state that a request names.
pub(super) fn check_state(state: &str) -> Result<(), BodyError> {
    match state {
        "" => Err(BodyError::required("state")),
        state if STATES.split(' ').any(|known| known == state) => Ok(()),
        _ => Err(BodyError::not_listed("state", STATES)),
    }
}
