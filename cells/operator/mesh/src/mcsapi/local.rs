// SPDX-License-Identifier: Apache-2.0

//! What the local cluster exports: a ServiceExport and its Service, as other clusters see them.

use skep_clustermesh_types::{ExportPort, ServiceExport};
use skep_k8s_types::slim::Str;

use super::condition::Desired;
use crate::namespace::NamespaceState;
use crate::object::{ExportObject, ServiceObject};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalid {
    NoService,
    ServiceType,
    NamespaceNotGlobal,
}

impl Invalid {
    pub(crate) fn conditions(self) -> [Desired; 2] {
        let (reason, ready, message) = match self {
            Self::NoService => ("NoService", "Pending", "The Service does not exist"),
            Self::ServiceType => (
                "InvalidServiceType",
                "Failed",
                "Services of type ExternalName cannot be exported",
            ),
            Self::NamespaceNotGlobal => (
                "NamespaceNotGlobal",
                "Failed",
                "The namespace is not shared with other clusters",
            ),
        };
        [
            Desired::new("Valid", false, reason, message),
            Desired::new("Ready", false, ready, "The Service is not exported"),
        ]
    }
}

/// The export of the local cluster.
pub(crate) fn local_export(
    cluster: &str,
    namespace: NamespaceState,
    export: &ExportObject,
    service: Option<&ServiceObject>,
) -> Result<ServiceExport, Invalid> {
    if namespace == NamespaceState::Local {
        return Err(Invalid::NamespaceNotGlobal);
    }
    let service = service
        .filter(|service| service.metadata.deletion_timestamp.is_none())
        .ok_or(Invalid::NoService)?;
    let spec = &service.spec;
    if spec.kind.as_deref() == Some("ExternalName") {
        return Err(Invalid::ServiceType);
    }
    let exported = export.spec.clone().unwrap_or_default();
    let text = |text: &Option<Str>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
    let mut merged = ServiceExport::default();
    merged.cluster = cluster.to_owned();
    merged.name = service.metadata.name.to_string();
    merged.namespace = service.metadata.namespace.to_string();
    merged.annotations = exported.exported_annotations.unwrap_or_default();
    merged.labels = exported.exported_labels.unwrap_or_default();
    merged.export_creation_timestamp = export.metadata.creation_timestamp;
    merged.ports = Some(spec.ports.iter().map(port).collect());
    merged.kind = if spec.is_headless() {
        "Headless"
    } else {
        "ClusterSetIP"
    }
    .to_owned();
    merged.session_affinity = text(&spec.session_affinity).unwrap_or_else(|| "None".to_owned());
    merged.session_affinity_config = spec
        .session_affinity_config
        .clone()
        .and_then(|config| serde_json::from_value(config).ok());
    merged.ip_families = spec.ip_families.iter().flatten().map(Str::to_string).collect();
    merged.internal_traffic_policy = text(&spec.internal_traffic_policy);
    merged.traffic_distribution = text(&spec.traffic_distribution);
    Ok(merged)
}

fn port(port: &crate::object::ServicePort) -> ExportPort {
    let text = |text: &Option<Str>| text.as_deref().unwrap_or_default().to_owned();
    ExportPort {
        name: text(&port.name),
        protocol: match port.protocol.as_deref() {
            None | Some("") => "TCP".to_owned(),
            Some(protocol) => protocol.to_owned(),
        },
        app_protocol: port.app_protocol.as_deref().map(str::to_owned),
        port: port.port,
    }
}
