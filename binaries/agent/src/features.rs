// SPDX-License-Identifier: Apache-2.0

//! Parts of the status about what this agent does not do, as of an agent of Cilium that has it switched off, and the ids of
//! identities.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cfg, Member};
use skep_base_api::StatusProbe;
use skep_base_api_types::{
    EncryptionStatus, HostFirewall, HubbleStatus, IdentityRange, Srv6, Status, StatusResponse,
};
use skep_base_settings::{PacketConfig, cluster::ClusterSettings};
use skep_node_local::Device;
use statedb::{Db, Table};

use crate::interfaces::packet_sizes;

struct Features {
    cluster: Cfg<ClusterSettings>,
    packets: Cfg<PacketConfig>,
    devices: Table<Device>,
    db: Db,
}

/// Parts that have no other source.
pub(crate) fn status(
    cluster: Cfg<ClusterSettings>,
    packets: Cfg<PacketConfig>,
    devices: Table<Device>,
    db: Db,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Features {
        cluster,
        packets,
        devices,
        db,
    }))
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
        let devices: Vec<String> = devices.map(|device| device.name.to_string()).collect();
        let [ipv6, ipv4] = packet_sizes(&devices);
        response.ipv4_big_tcp = Some(ipv4);
        response.ipv6_big_tcp = Some(ipv6);
        response.host_firewall = Some(HostFirewall {
            devices,
            mode: match self.packets.host_firewall {
                true => "Enabled".to_owned(),
                false => off(),
            },
        });
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
