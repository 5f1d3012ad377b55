// SPDX-License-Identifier: Apache-2.0

//! Addresses of this node's devices → the host; everything else → the world.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hive::{BoxError, Cfg, JobCtx, Jobs, Params};
use ipnet::IpNet;
use skep_base_settings::NodeName;
use skep_base_settings::{AddressFamilies, TunnelConfig};
use skep_identity::Reserved;
use skep_ipcache::{Claim, Owner, Prefix, Publisher, ResourceId, Source, Writer};
use skep_node_local::{LocalNodeStore, NodeAddress};
use statedb::{Db, ReadTxn, Table};

use crate::claims::{NodeLabels, View};
use crate::local::local_key;

/// Kind of the resources that claim for devices.
const KIND: &str = "daemon";

#[derive(Params)]
pub(crate) struct HostParams {
    db: Db,
    addresses: Table<NodeAddress>,
    families: Cfg<AddressFamilies>,
    tunnel: Cfg<TunnelConfig>,
    ipcache: Writer,
    local: LocalNodeStore,
    name: NodeName,
    jobs: Jobs,
}

/// Registers the job that claims the addresses of devices.
pub(crate) fn start(params: HostParams) -> Result<(), BoxError> {
    let guard = params.ipcache.register_source("node-addresses")?;
    let view = View {
        local: local_key(&params.local, &params.name),
        families: params.families,
        tunnel: params.tunnel,
        // They are not in the table.
        excluded: Vec::new(),
        node_labels: NodeLabels::None,
    };
    let work = HostAddresses {
        db: params.db,
        addresses: params.addresses,
        view,
        publisher: Publisher {
            ipcache: params.ipcache,
            guard,
            kind: KIND,
        },
    };
    let jobs = params.jobs;
    Ok(jobs.keep("claim-node-addresses", work, HostAddresses::follow)?)
}

struct HostAddresses {
    db: Db,
    addresses: Table<NodeAddress>,
    view: View,
    publisher: Publisher,
}

impl HostAddresses {
    async fn follow(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        self.publisher
            .follow(&self.db, &self.addresses, |txn| self.claims(txn), cx)
            .await
    }

    fn claims(&self, txn: &impl ReadTxn) -> Vec<(Prefix, Claim)> {
        let owner = |name: &str| Owner::new(Source::Local, ResourceId::new(KIND, "", name));
        let devices = self.addresses.all(txn).map(|row| {
            let claim = Claim::labels(owner(&row.device_name), Reserved::Host);
            (Prefix::from(row.addr), claim)
        });
        let families = [
            (self.view.families.ipv4, IpAddr::from(Ipv4Addr::UNSPECIFIED)),
            (self.view.families.ipv6, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
        ];
        let worlds = families.into_iter().filter(|(is_on, _)| *is_on);
        let worlds = worlds.filter_map(|(_, address)| {
            let claim = Claim::labels(owner("world"), self.view.world(address));
            Some((Prefix::cidr(IpNet::new(address, 0).ok()?), claim))
        });
        devices.chain(worlds).collect()
    }
}
