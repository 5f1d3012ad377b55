// SPDX-License-Identifier: Apache-2.0

//! Which of services and endpoint slices are published and read.

use std::fmt;
use std::str::FromStr;

use crate::config::EndpointSlicesExportMode;

/// Where backends of remote services are read.
#[derive(Debug, Clone, hive::Config)]
pub struct ServiceSettings {
    /// Whether backends of remote clusters are read from services or endpoint slices: `prefer-legacy` reads services,
    /// `prefer-endpointslice` slices of clusters that publish them, `only-endpointslice` nothing else. The latter publishes
    /// slices only, the others both.
    #[config(default = "prefer-legacy", hidden)]
    pub clustermesh_service_v2: ServiceMode,
}

/// Where backends of remote services are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceMode {
    #[default]
    PreferLegacy,
    /// Endpoint slices of clusters that publish them, else services.
    PreferEndpointSlice,
    OnlyEndpointSlice,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode `{0}`, expected prefer-legacy, prefer-endpointslice or only-endpointslice")]
pub struct UnknownMode(String);

impl ServiceMode {
    /// Whether the services of a cluster are read.
    pub fn reads_services(self, published: &EndpointSlicesExportMode) -> bool {
        published.has_services()
            && match self {
                Self::PreferLegacy => true,
                Self::PreferEndpointSlice => !published.has_endpoint_slices(),
                Self::OnlyEndpointSlice => false,
            }
    }

    /// Whether the endpoint slices of a cluster are read.
    pub fn reads_slices(self, published: &EndpointSlicesExportMode) -> bool {
        self != Self::PreferLegacy && published.has_endpoint_slices()
    }

    /// What this cluster publishes of its services.
    pub fn published(self) -> EndpointSlicesExportMode {
        match self {
            Self::PreferLegacy | Self::PreferEndpointSlice => {
                EndpointSlicesExportMode::ServicesAndEndpointSlices
            }
            Self::OnlyEndpointSlice => EndpointSlicesExportMode::EndpointSlicesOnly,
        }
    }
}

impl FromStr for ServiceMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "prefer-legacy" => Ok(Self::PreferLegacy),
            "prefer-endpointslice" => Ok(Self::PreferEndpointSlice),
            "only-endpointslice" => Ok(Self::OnlyEndpointSlice),
            _ => Err(UnknownMode(text.to_owned())),
        }
    }
}

impl fmt::Display for ServiceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreferLegacy => "prefer-legacy",
            Self::PreferEndpointSlice => "prefer-endpointslice",
            Self::OnlyEndpointSlice => "only-endpointslice",
        })
    }
}

hive::config_value!(
    ServiceMode,
    "prefer-legacy, prefer-endpointslice or only-endpointslice"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_both_and_what_is_preferred_if_it_is_there() {
        use EndpointSlicesExportMode::{EndpointSlicesOnly, ServicesAndEndpointSlices, ServicesOnly};
        let published = [ServicesOnly, ServicesAndEndpointSlices, EndpointSlicesOnly];
        for (text, expected) in [
            ("prefer-legacy", ["services", "services", "nothing"]),
            ("prefer-endpointslice", ["services", "slices", "slices"]),
            ("only-endpointslice", ["nothing", "slices", "slices"]),
        ] {
            let mode: ServiceMode = text.parse().expect("it exists");
            assert_eq!(mode.to_string(), text);
            let read = published.each_ref().map(|published| {
                match (mode.reads_services(published), mode.reads_slices(published)) {
                    (true, false) => "services",
                    (false, true) => "slices",
                    (false, false) => "nothing",
                    (true, true) => "both",
                }
            });
            assert_eq!(read, expected, "{text}");
        }
        assert!("legacy".parse::<ServiceMode>().is_err());
    }
}
