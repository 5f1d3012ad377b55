// SPDX-License-Identifier: Apache-2.0

//! Names, versions and columns of the definitions, against a table.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use skep_k8s_crds::{Definition, Subresources, definitions};

/// Kind, plural, short names, categories, scope, versions (`*` stored, `-` not served, `d` deprecated), sub-resources.
const NAMES: &str = "
CiliumNetworkPolicy ciliumnetworkpolicies cnp,ciliumnp cilium,ciliumpolicy Namespaced v2* status
CiliumClusterwideNetworkPolicy ciliumclusterwidenetworkpolicies ccnp cilium,ciliumpolicy Cluster v2* status
CiliumEndpoint ciliumendpoints cep,ciliumep cilium Namespaced v2* {}
CiliumEndpointSlice ciliumendpointslices ces cilium Cluster v2alpha1* none
CiliumIdentity ciliumidentities ciliumid cilium Cluster v2* status
CiliumNode ciliumnodes cn,ciliumn cilium Cluster v2* status
CiliumNodeConfig ciliumnodeconfigs - cilium Namespaced v2* none
CiliumLocalRedirectPolicy ciliumlocalredirectpolicies clrp cilium,ciliumpolicy Namespaced v2* {}
CiliumLoadBalancerIPPool ciliumloadbalancerippools ippools,ippool,lbippool,lbippools cilium Cluster v2*,v2alpha1d status
CiliumPodIPPool ciliumpodippools cpip cilium Cluster v2-,v2alpha1* none
CiliumEnvoyConfig ciliumenvoyconfigs cec cilium Namespaced v2* {}
CiliumClusterwideEnvoyConfig ciliumclusterwideenvoyconfigs ccec cilium Cluster v2* {}
CiliumEgressGatewayPolicy ciliumegressgatewaypolicies cegp cilium,ciliumpolicy Cluster v2* {}
CiliumBGPClusterConfig ciliumbgpclusterconfigs cbgpcluster cilium,ciliumbgp Cluster v2*,v2alpha1d status
CiliumBGPPeerConfig ciliumbgppeerconfigs cbgppeer cilium,ciliumbgp Cluster v2*,v2alpha1d status
CiliumBGPAdvertisement ciliumbgpadvertisements cbgpadvert cilium,ciliumbgp Cluster v2*,v2alpha1d {}
CiliumBGPNodeConfig ciliumbgpnodeconfigs cbgpnode cilium,ciliumbgp Cluster v2*,v2alpha1d status
CiliumBGPNodeConfigOverride ciliumbgpnodeconfigoverrides cbgpnodeoverride cilium,ciliumbgp Cluster v2*,v2alpha1d {}
CiliumL2AnnouncementPolicy ciliuml2announcementpolicies l2announcement cilium Cluster v2alpha1* status
CiliumCIDRGroup ciliumcidrgroups ccg cilium Cluster v2*,v2alpha1d none
CiliumGatewayClassConfig ciliumgatewayclassconfigs cgcc cilium Namespaced v2alpha1* status
CiliumDatapathPlugin ciliumdatapathplugins cddp cilium Cluster v2alpha1*d none
ServiceExport serviceexports svcex,svcexport - Namespaced v1alpha1,v1beta1* status
ServiceImport serviceimports svcim,svcimport - Namespaced v1alpha1,v1beta1* status
";

fn all() -> Vec<Definition> {
    let mut all = definitions::cilium();
    all.extend(definitions::multi_cluster());
    all
}

fn row(definition: &Definition) -> String {
    let list = |names: &[&str]| {
        if names.is_empty() {
            "-".to_owned()
        } else {
            names.join(",")
        }
    };
    let versions: Vec<String> = definition
        .versions
        .iter()
        .map(|version| {
            let mut text = version.name.clone();
            text.push_str(if version.storage { "*" } else { "" });
            text.push_str(if version.served { "" } else { "-" });
            text.push_str(if version.deprecated { "d" } else { "" });
            text
        })
        .collect();
    let subresources = match definition.versions[0].subresources {
        Subresources::Absent => "none",
        Subresources::Empty => "{}",
        Subresources::Status => "status",
    };
    assert!(
        definition
            .versions
            .iter()
            .all(|v| v.subresources == definition.versions[0].subresources)
    );
    format!(
        "{} {} {} {} {} {} {subresources}",
        definition.kind,
        definition.plural,
        list(&definition.short_names),
        list(&definition.categories),
        if definition.namespaced {
            "Namespaced"
        } else {
            "Cluster"
        },
        versions.join(","),
    )
}

#[test]
fn every_kind_is_called_as_the_api_calls_it() {
    let mut found: Vec<String> = all().iter().map(row).collect();
    let mut expected: Vec<&str> = NAMES.trim().lines().collect();
    found.sort();
    expected.sort_unstable();

    assert_eq!(found, expected);
}

#[test]
fn columns_are_those_of_the_api() {
    let columns = |definition: &Definition| -> Vec<String> {
        let columns = &definition.versions[0].columns;
        columns
            .iter()
            .map(|c| format!("{} {:?} {} {}", c.name, c.ty, c.path, c.priority))
            .collect()
    };
    const AGE: &str = "Age Date .metadata.creationTimestamp 0";
    const VALID: &str = "Valid Text .status.conditions[?(@.type=='Valid')].status 0";

    for definition in all() {
        let expected: Vec<&str> = match definition.kind.as_str() {
            "CiliumNetworkPolicy" => vec![AGE, VALID],
            "CiliumClusterwideNetworkPolicy" => vec![VALID],
            "CiliumEndpoint" => vec![
                "Security Identity Integer .status.identity.id 0",
                "Ingress Enforcement Text .status.policy.ingress.state 1",
                "Egress Enforcement Text .status.policy.egress.state 1",
                "Endpoint State Text .status.state 0",
                "IPv4 Text .status.networking.addressing[0].ipv4 0",
                "IPv6 Text .status.networking.addressing[0].ipv6 0",
            ],
            "CiliumIdentity" => vec![
                r"Namespace Text .metadata.labels.io\.kubernetes\.pod\.namespace 0",
                AGE,
            ],
            "CiliumNode" => vec![
                r#"CiliumInternalIP Text .spec.addresses[?(@.type=="CiliumInternalIP")].ip 0"#,
                r#"InternalIP Text .spec.addresses[?(@.type=="InternalIP")].ip 0"#,
                AGE,
            ],
            "CiliumLoadBalancerIPPool" => vec![
                "Disabled Boolean .spec.disabled 0",
                r#"Conflicting Text .status.conditions[?(@.type=="cilium.io/PoolConflict")].status 0"#,
                r#"IPs Available Text .status.conditions[?(@.type=="cilium.io/IPsAvailable")].message 0"#,
                AGE,
            ],
            "CiliumGatewayClassConfig" => vec![
                r#"Accepted Text .status.conditions[?(@.type=="Accepted")].status 0"#,
                AGE,
                "Description Text .spec.description 1",
            ],
            "CiliumEndpointSlice"
            | "CiliumNodeConfig"
            | "CiliumPodIPPool"
            | "CiliumCIDRGroup"
            | "CiliumDatapathPlugin" => vec![],
            "ServiceImport" => vec!["Type Text .spec.type 0", "IP Text .spec.ips 0", AGE],
            _ => vec![AGE],
        };
        assert_eq!(columns(&definition), expected, "{}", definition.kind);
    }
}

#[test]
fn objects_have_the_labels_and_nothing_else() {
    let object = definitions::cilium_identity().to_object();

    assert_eq!(
        object["metadata"],
        serde_json::json!({
            "name": "ciliumidentities.cilium.io",
            "labels": { "io.cilium.k8s.crd.schema.version": "1.33.9" },
        })
    );
    assert_eq!(object["spec"]["group"], "cilium.io");
    assert!(object["spec"]["names"].get("listKind").is_none() && object["spec"].get("conversion").is_none());
    assert_eq!(
        definitions::service_import().to_object()["metadata"]["labels"],
        serde_json::json!({
            "multicluster.x-k8s.io/release-version": "v0.5.0",
            "multicluster.x-k8s.io/crd-schema-revision": "1",
        })
    );
}
