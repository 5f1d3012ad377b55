// SPDX-License-Identifier: Apache-2.0

//! The version of CoreDNS, by the image of its Deployment, and whether that can be restarted.

use serde_json::Value;

/// The first version with option `multicluster` of plugin `kubernetes`.
const FIRST: [u32; 3] = [1, 12, 2];

/// Why CoreDNS cannot be configured with a Deployment as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeploymentError {
    #[error("image `{image}` is too old: CoreDNS 1.12.2 or later is required")]
    Old { image: String },
    /// No pod would be replaced. Resume it first.
    #[error("it is paused")]
    Paused,
}

/// Checks that a Deployment runs a version of CoreDNS with the multi-cluster services API, as far as its image says.
pub(crate) fn check_version(deployment: &Value) -> Result<(), DeploymentError> {
    let image = image(deployment).unwrap_or_default();
    match version(image) {
        None => {
            tracing::warn!(image, "Unknown version of CoreDNS, assuming 1.12.2 or later");
            Ok(())
        }
        Some(version) if version < FIRST => Err(DeploymentError::Old {
            image: image.to_owned(),
        }),
        Some(_) => Ok(()),
    }
}

/// Checks that a Deployment replaces its pods.
pub(crate) fn check_running(deployment: &Value) -> Result<(), DeploymentError> {
    match deployment["spec"]["paused"] {
        Value::Bool(true) => Err(DeploymentError::Paused),
        _ => Ok(()),
    }
}

/// The image of the container called `coredns`, or of the first one.
fn image(deployment: &Value) -> Option<&str> {
    let containers = deployment.pointer("/spec/template/spec/containers")?.as_array()?;
    let named = containers.iter().find(|container| container["name"] == "coredns");
    named.or(containers.first())?["image"].as_str()
}

/// The version in the tag of an image, without what distributions append: `v1.12.2-eksbuild.1`.
fn version(image: &str) -> Option<[u32; 3]> {
    let image = image.split('@').next()?;
    let name = image.rsplit('/').next()?;
    let (_, tag) = name.split_once(':')?;
    let tag = tag.strip_prefix('v').unwrap_or(tag);
    let tag = tag.split(['-', '+', '_']).next()?;
    let mut numbers = tag.split('.').map(str::parse);
    let mut number = || numbers.next()?.ok();
    let version = [number()?, number()?, number()?];
    numbers.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(containers: Value) -> Result<(), String> {
        let deployment = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        check_version(&deployment).map_err(|error| error.to_string())
    }

    #[test]
    fn the_tag_of_the_image_decides() {
        for image in [
            "registry.k8s.io/coredns/coredns:v1.12.2",
            "coredns/coredns:1.12.2",
            "coredns:1.13.0",
            "example.com:5000/coredns:v2.0.0@sha256:0123",
            "602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1.12.2-eksbuild.4",
            // Not readable.
            "coredns",
            "coredns:latest",
            "example.com:5000/coredns",
            "coredns:1.12",
            "coredns:1.12.2.3",
        ] {
            assert_eq!(
                checked(json!([{ "name": "dns", "image": image }])),
                Ok(()),
                "{image}"
            );
        }
        for image in ["coredns:v1.12.1", "dns:1.9.3", "coredns:v0.13.0-x"] {
            let error = checked(json!([{ "image": image }])).unwrap_err();
            assert_eq!(
                error,
                format!("image `{image}` is too old: CoreDNS 1.12.2 or later is required")
            );
        }
    }

    #[test]
    fn the_container_is_found_among_others() {
        let others = |image: &str| {
            json!([
                { "name": "sidecar", "image": "coredns-helper:0.1.0" },
                { "name": "coredns", "image": image },
            ])
        };
        assert_eq!(checked(others("mirror/dns:v1.12.2")), Ok(()));
        assert!(checked(others("mirror/dns:v1.12.1")).is_err());
        assert_eq!(checked(json!([])), Ok(()));
        assert_eq!(checked(json!(null)), Ok(()));
    }
}
