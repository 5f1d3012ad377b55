// SPDX-License-Identifier: Apache-2.0

//! Parts of the status about what this agent does not do, as of an agent of Cilium that has it switched off, and the ids of
//! identities.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cfg, Member};
use skep_base_api::StatusProbe;
use skep_base_api_types::{
    BandwidthManager, BigTcp, EncryptionStatus, HostFirewall, HubbleStatus, IdentityRange, Srv6, Status,
    StatusResponse,
};
use skep_base_settings::cluster::ClusterSettings;
use skep_node_local::Device;
use statedb::{Db, Table};

/// The kernel's largest packet without BIG TCP.
const PACKET: u32 = 65536;

struct Features {
    cluster: Cfg<ClusterSettings>,
    devices: Table<Device>,
    db: Db,
}

/// Parts that have no other source.
pub(crate) fn status(
    cluster: Cfg<ClusterSettings>,
    devices: Table<Device>,
    db: Db,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Features { cluster, devices, db }))
}

#[async_trait]
impl StatusProbe for Features {
    fn name(&self) -> &'static str {
        "host-firewall"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let off = || "Disabled".to_owned();
        let snapshot = self.db.read();
        let devices = self.devices.all(&snapshot).filter(|device| device.selected);
        response.host_firewall = Some(HostFirewall {
            devices: devices.map(|device| device.name.to_string()).collect(),
            mode: off(),
        });
        let big_tcp = BigTcp {
            enabled: false,
            max_gro: PACKET,
            max_gso: PACKET,
        };
        response.ipv4_big_tcp = Some(big_tcp.clone());
        response.ipv6_big_tcp = Some(big_tcp);
        response.bandwidth_manager = Some(BandwidthManager::default());
        response.encryption = Some(EncryptionStatus {
            mode: off(),
            ..EncryptionStatus::default()
        });
        response.srv6 = Some(Srv6 {
            enabled: false,
            encap_mode: "reduced".to_owned(),
        });
        response.auth_certificate_provider = Some(Status::default());
        response.hubble = Some(HubbleStatus::default());
        response.hubble_metrics = Some(Status::default());
        let cluster = self.cluster.info();
        let range = skep_identity::IdentityRange::of_cluster(cluster.id, cluster.max_connected_clusters);
        response.identity_range = range.ok().map(|range| IdentityRange {
            max_identity: range.last().get(),
            min_identity: range.first().get(),
        });
        None
    }
}
