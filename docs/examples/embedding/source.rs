// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hive::{BoxError, Cell, JobCtx, Jobs};
use skep_loadbalancer_model::types::L4Proto;
use skep_loadbalancer_model::{
    BackendParams, FrontendKind, FrontendParams, L3n4Addr, Service, ServiceName, Source, Writer, WriterError,
};
use statedb::{InitGuard, WriteTxn};
use tokio::sync::watch;

/// What a registry of yours knows: the address of each service, and its backends.
pub(crate) type Registry = BTreeMap<String, (SocketAddr, Vec<SocketAddr>)>;

/// Cell: writes a registry into the tables of the load balancer.
pub(crate) fn cell(registry: watch::Receiver<Registry>) -> Cell {
    Cell::module("registry-source", "Services of a registry")
        .run(move |writer: Writer, jobs: Jobs| start(registry.clone(), writer, &jobs))
}

struct RegistrySource {
    registry: watch::Receiver<Registry>,
    writer: Writer,
    complete: InitGuard,
}

fn start(registry: watch::Receiver<Registry>, writer: Writer, jobs: &Jobs) -> Result<(), BoxError> {
    // Until the first state is written, the tables do not count as complete.
    let complete = writer.register_initializer("registry")?;
    let source = RegistrySource {
        registry,
        writer,
        complete,
    };
    Ok(jobs.keep("registry", source, RegistrySource::reflect)?)
}

impl RegistrySource {
    async fn reflect(&self, _: &JobCtx) -> Result<(), WriterError> {
        let mut registry = self.registry.clone();
        let mut written = Registry::new();
        loop {
            let wanted = registry.borrow_and_update().clone();
            self.write(&written, &wanted)?;
            written = wanted;
            if registry.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// One transaction: readers and reconcilers see all of it at once.
    fn write(&self, written: &Registry, wanted: &Registry) -> Result<(), WriterError> {
        let mut txn = self.writer.write();
        for name in written.keys().filter(|name| !wanted.contains_key(*name)) {
            remove(&self.writer, &mut txn, name)?;
        }
        for (name, (address, backends)) in wanted {
            upsert(&self.writer, &mut txn, name, *address, backends)?;
        }
        txn.initialized(&self.complete)?;
        txn.commit();
        Ok(())
    }
}

fn upsert(
    writer: &Writer,
    txn: &mut WriteTxn,
    name: &str,
    address: SocketAddr,
    backends: &[SocketAddr],
) -> Result<(), WriterError> {
    let name = ServiceName::new("registry", name);
    let frontend = FrontendParams {
        address: tcp(address),
        kind: FrontendKind::ClusterIp,
        port_name: "".into(),
        service_port: address.port(),
    };
    let backends = backends
        .iter()
        .map(|backend| BackendParams::new(tcp(*backend), Source::Api));
    writer.set_backends(txn, &name, Source::Api, 0, backends.collect())?;
    writer.upsert_service_and_frontends(txn, Service::new(name, Source::Api), vec![frontend])
}

fn remove(writer: &Writer, txn: &mut WriteTxn, name: &str) -> Result<(), WriterError> {
    let name = ServiceName::new("registry", name);
    writer.set_backends(txn, &name, Source::Api, 0, Vec::new())?;
    writer.delete_service_and_frontends(txn, &name)?;
    Ok(())
}

fn tcp(address: SocketAddr) -> L3n4Addr {
    L3n4Addr::new(address.ip(), address.port(), L4Proto::Tcp)
}
