// SPDX-License-Identifier: Apache-2.0

//! The version of CoreDNS, by the image of its Deployment.

use serde_json::Value;

/// The first version with option `multicluster` of plugin `kubernetes`.
const FIRST: [u32; 3] = [1, 12, 2];

/// Why the version of CoreDNS is not supported.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// No container runs CoreDNS.
    #[error("it has no container with an image of CoreDNS")]
    NoContainer,
    /// The tag of the image is not a version. Configure CoreDNS by hand.
    #[error("the version of CoreDNS is unknown: image `{image}` has no version as its tag")]
    Unknown {
        /// The image.
        image: String,
    },
    /// CoreDNS must be updated first.
    #[error("image `{image}` is too old: CoreDNS 1.12.2 or later is required")]
    Old {
        /// The image.
        image: String,
    },
}

/// Checks that a Deployment runs a version of CoreDNS with the multi-cluster services API.
pub(crate) fn check_version(deployment: &Value) -> Result<(), VersionError> {
    let image = image(deployment).ok_or(VersionError::NoContainer)?;
    match version(image) {
        None => Err(VersionError::Unknown {
            image: image.to_owned(),
        }),
        Some(version) if version < FIRST => Err(VersionError::Old {
            image: image.to_owned(),
        }),
        Some(_) => Ok(()),
    }
}

/// The image of the container called `coredns`, or of the first one with such an image.
fn image(deployment: &Value) -> Option<&str> {
    let containers = deployment.pointer("/spec/template/spec/containers")?.as_array()?;
    let named = containers.iter().find(|container| container["name"] == "coredns");
    let imaged = || {
        containers.iter().find(|container| {
            let image = container["image"].as_str().unwrap_or_default();
            image
                .rsplit('/')
                .next()
                .is_some_and(|name| name.contains("coredns"))
        })
    };
    named.or_else(imaged)?["image"].as_str()
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
        ] {
            assert_eq!(
                checked(json!([{ "name": "dns", "image": image }])),
                Ok(()),
                "{image}"
            );
        }
        for image in ["coredns:v1.12.1", "coredns:1.9.3", "coredns:v0.13.0-x"] {
            let error = checked(json!([{ "image": image }])).unwrap_err();
            assert_eq!(
                error,
                format!("image `{image}` is too old: CoreDNS 1.12.2 or later is required")
            );
        }
        for image in [
            "coredns",
            "coredns:latest",
            "example.com:5000/coredns",
            "coredns:1.12",
            "coredns:1.12.2.3",
        ] {
            let error = checked(json!([{ "image": image }])).unwrap_err();
            assert!(error.contains("has no version as its tag"), "{error}");
        }
    }

    #[test]
    fn the_container_is_found_among_others() {
        let others = json!([
            { "name": "sidecar", "image": "coredns-helper:0.1.0" },
            { "name": "coredns", "image": "mirror/dns:v1.12.2" },
        ]);
        assert_eq!(checked(others), Ok(()));
        let none = "it has no container with an image of CoreDNS";
        assert_eq!(
            checked(json!([{ "name": "a", "image": "kube-dns:1.14.0" }])).unwrap_err(),
            none
        );
        assert_eq!(checked(json!([])).unwrap_err(), none);
        assert_eq!(checked(json!(null)).unwrap_err(), none);
    }
}
