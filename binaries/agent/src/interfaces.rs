// SPDX-License-Identifier: Apache-2.0

//! Parts of the status about programs at interfaces, in the words of Cilium's clients.

use std::sync::Arc;

use async_trait::async_trait;
use hive::Member;
use skep_api::StatusProbe;
use skep_api_types::{Masquerading, MasqueradingProtocols, Status, StatusResponse};
use skep_datapath_config::Acceleration;
use skep_datapath_loader::{Attachment, PacketDatapath};

/// The device that leads to other nodes; empty if there is none.
pub(crate) fn direct_routing_device(packets: &PacketDatapath) -> String {
    let direct = packets.status().direct_routing;
    direct.map(|direct| direct.device).unwrap_or_default()
}

/// Translation of node ports in XDP.
pub(crate) fn acceleration(packets: &PacketDatapath) -> String {
    match packets.settings().attach.acceleration {
        Acceleration::Disabled => "Disabled",
        Acceleration::Native => "Native",
        Acceleration::BestEffort => "Best-Effort",
        Acceleration::TestingOnly => "Testing-Only",
    }
    .to_owned()
}

struct Interfaces(Arc<PacketDatapath>);

/// Parts `masquerading` and `attach-mode`.
pub(crate) fn status(packets: Arc<PacketDatapath>) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Interfaces(packets)))
}

#[async_trait]
impl StatusProbe for Interfaces {
    fn name(&self) -> &'static str {
        "masquerading"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let status = self.0.status();
        response.attach_mode = match status.attachment {
            None => String::new(),
            Some(Attachment::Link) => "tcx".to_owned(),
            Some(Attachment::Filter { .. }) => "tc".to_owned(),
        };
        response.masquerading = Some(match status.masquerading {
            [None, None] => Masquerading {
                mode: "Disabled".to_owned(),
                ..Masquerading::default()
            },
            [ipv4, ipv6] => Masquerading {
                mode: "BPF".to_owned(),
                enabled: true,
                enabled_protocols: MasqueradingProtocols {
                    ipv4: ipv4.is_some(),
                    ipv6: ipv6.is_some(),
                },
                exclusion4: ipv4.unwrap_or_default(),
                exclusion6: ipv6.unwrap_or_default(),
            },
        });
        None
    }
}
