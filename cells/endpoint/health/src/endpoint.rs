// SPDX-License-Identifier: Apache-2.0

//! Keeps the health endpoint: creates it, takes it over, checks that it answers.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hive::{Cfg, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_base_net::netns;
use skep_base_settings::{AddressFamilies, HealthCheckConfig};
use skep_endpoint::{
    CreateError, DatapathConfiguration, Endpoint, EndpointSpec, Endpoints, Mac, Phase, WaitError,
};
use skep_endpoint_ipam::{Family as IpFamily, InfrastructureAddress, NodeOwner};
use skep_identity::{Labels, NumericIdentity};
use skep_listen::BoundTcp;
use statedb::{Db, Obj, ReadTxn, Table};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::network::{Family, HOST, Network, NetworkError, Pair};

/// Pool of its addresses.
const POOL: &str = "default";
/// Time for the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(30);
/// Pause between two requests for it.
const PAUSE: Duration = Duration::from_millis(200);
/// Time without an answer after which it is created anew.
const LONGEST_SILENCE: Duration = Duration::from_secs(5 * 60);

/// Why there is no health endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthEndpointError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("health endpoint: cannot create it")]
    Create(#[from] CreateError),
    #[error("health endpoint: it is not ready")]
    Wait(#[from] WaitError),
    /// Programs or routes between the node and its endpoints are wrong.
    #[error("health endpoint at {address} does not answer: {cause}")]
    Silent { address: IpAddr, cause: String },
    #[error("health endpoint: cannot answer probes")]
    Listener(#[source] std::io::Error),
    #[error(transparent)]
    Job(#[from] SpawnError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The thread that does the work ended.
    #[error("health endpoint was not set up")]
    Interrupted(#[from] tokio::task::JoinError),
}

pub(crate) struct HealthEndpoint {
    config: Cfg<HealthCheckConfig>,
    families: Cfg<AddressFamilies>,
    network: Network,
    endpoints: Endpoints,
    addresses: Table<InfrastructureAddress>,
    db: Db,
    jobs: Jobs,
    running: Mutex<Option<Running>>,
}

/// An endpoint that is served.
struct Running {
    id: u16,
    families: Vec<Family>,
    answered: Instant,
    _responder: DropGuard,
}

impl HealthEndpoint {
    pub(crate) fn new(
        config: Cfg<HealthCheckConfig>,
        families: Cfg<AddressFamilies>,
        network: Network,
        endpoints: Endpoints,
        addresses: Table<InfrastructureAddress>,
        db: Db,
        jobs: Jobs,
    ) -> Self {
        Self {
            config,
            families,
            network,
            endpoints,
            addresses,
            db,
            jobs,
            running: Mutex::new(None),
        }
    }

    /// Creates the endpoint if it is missing or broken, then asks it.
    pub(crate) async fn check(&self) -> Result<(), HealthEndpointError> {
        self.endpoints.accepting().await;
        let families = self.wait_addresses().await;
        if !self.is_served(&families).await? {
            self.serve(families.clone()).await?;
        }
        let answer = self.ask(&families).await;
        let mut running = self.running.lock();
        if let Some(endpoint) = running.as_mut() {
            match &answer {
                Ok(()) => endpoint.answered = Instant::now(),
                Err(_) if endpoint.answered.elapsed() > LONGEST_SILENCE => {
                    tracing::warn!(
                        endpoint = endpoint.id,
                        "Health endpoint does not answer, creating it anew"
                    );
                    *running = None;
                }
                Err(_) => {}
            }
        }
        answer
    }

    /// Removes the endpoint of an earlier run.
    pub(crate) async fn remove(&self, cx: &JobCtx) -> Result<(), HealthEndpointError> {
        self.endpoints.accepting().await;
        self.delete().await?;
        let network = self.network.clone();
        tokio::task::spawn_blocking(move || network.remove()).await??;
        cx.health.ok("Health endpoint is disabled");
        Ok(())
    }

    /// Waits until the node has an address and a gateway of each family.
    async fn wait_addresses(&self) -> Vec<Family> {
        loop {
            let snapshot = self.db.read();
            let watch = self.addresses.table_watch(&snapshot);
            if let Some(found) = self.wanted(&snapshot) {
                return found;
            }
            drop(snapshot);
            watch.closed().await;
        }
    }

    fn wanted(&self, txn: &impl ReadTxn) -> Option<Vec<Family>> {
        let find = |owner, family| {
            let key = InfrastructureAddress::key(owner, family);
            let row = self.addresses.get(txn, InfrastructureAddress::BY_NAME.key(&key));
            row.map(|row| row.ip)
        };
        let families = IpFamily::enabled(&self.families);
        let found = families.map(|family| {
            Some(Family {
                address: find(NodeOwner::Health, family)?,
                gateway: find(NodeOwner::Router, family)?,
            })
        });
        found.collect()
    }

    fn row(&self) -> Option<Obj<Endpoint>> {
        let snapshot = self.db.read();
        let table = self.endpoints.table();
        table.get(&snapshot, Endpoint::BY_INTERFACE.key(HOST)).cloned()
    }

    async fn find(&self, families: &[Family]) -> Result<Option<Pair>, HealthEndpointError> {
        let network = self.network.clone();
        let addresses: BTreeSet<IpAddr> = families.iter().map(|family| family.address).collect();
        Ok(tokio::task::spawn_blocking(move || network.find(&addresses)).await??)
    }

    /// Whether it is there, whole, and answered here.
    async fn is_served(&self, families: &[Family]) -> Result<bool, HealthEndpointError> {
        let of = |running: &Running| (running.families == families).then_some(running.id);
        let served = self.running.lock().as_ref().and_then(of);
        let row = self.row().filter(|row| row.is_live() && Some(row.id) == served);
        let Some(row) = row else { return Ok(false) };
        let pair = self.find(families).await?;
        Ok(pair.is_some_and(|pair| pair.host.index == row.spec.ifindex))
    }

    /// Takes the endpoint of an earlier run over, or creates it, and answers there.
    async fn serve(&self, families: Vec<Family>) -> Result<(), HealthEndpointError> {
        *self.running.lock() = None;
        let id = match self.take_over(&families).await? {
            Some(id) => id,
            None => self.create(&families).await?,
        };
        self.endpoints.wait_ready(id).await?;
        let stop = CancellationToken::new();
        self.respond(stop.clone())?;
        *self.running.lock() = Some(Running {
            id,
            families: families.clone(),
            answered: Instant::now(),
            _responder: stop.drop_guard(),
        });
        let deadline = Instant::now() + FIRST_ANSWER;
        while let Err(error) = self.ask(&families).await {
            if Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::info!(endpoint = id, "Health endpoint answers");
        Ok(())
    }

    async fn take_over(&self, families: &[Family]) -> Result<Option<u16>, HealthEndpointError> {
        let Some(row) = self.row().filter(|row| row.is_live()) else {
            return Ok(None);
        };
        let addresses: BTreeSet<IpAddr> = families.iter().map(|family| family.address).collect();
        let is_same = row.spec.addresses().collect::<BTreeSet<_>>() == addresses
            && row.identity == Some(NumericIdentity::HEALTH)
            && row.spec.datapath.external_ipam;
        let pair = self.find(families).await?;
        let is_there = pair.is_some_and(|pair| pair.host.index == row.spec.ifindex);
        Ok((is_same && is_there).then_some(row.id))
    }

    async fn create(&self, families: &[Family]) -> Result<u16, HealthEndpointError> {
        self.delete().await?;
        let (network, of_pair) = (self.network.clone(), families.to_vec());
        let pair = tokio::task::spawn_blocking(move || network.create(&of_pair)).await??;
        let pin = self.network.pin();
        let mut spec = EndpointSpec {
            netns: pin.display().to_string(),
            netns_cookie: netns::inside(pin, netns::cookie)
                .and_then(|cookie| cookie)
                .unwrap_or_default(),
            interface: HOST.to_owned(),
            ifindex: pair.host.index,
            mac: Mac(pair.inside.mac.unwrap_or_default()),
            host_mac: Mac(pair.host.mac.unwrap_or_default()),
            labels: labels(),
            datapath: datapath(),
            ..EndpointSpec::default()
        };
        for family in families {
            match family.address {
                IpAddr::V4(address) => {
                    spec.ipv4 = Some(address);
                    spec.ipv4_pool = POOL.to_owned();
                }
                IpAddr::V6(address) => {
                    spec.ipv6 = Some(address);
                    spec.ipv6_pool = POOL.to_owned();
                }
            }
        }
        let row = self.endpoints.create(spec, None, Some(NumericIdentity::HEALTH))?;
        tracing::info!(endpoint = row.id, "Created health endpoint");
        Ok(row.id)
    }

    /// Deletes the endpoint at the interface, if there is one.
    async fn delete(&self) -> Result<(), HealthEndpointError> {
        if let Some(row) = self.row() {
            if row.phase != Phase::Disconnected {
                self.endpoints.disconnect(row.id)?;
            }
            self.endpoints.wait_gone(row.id).await?;
        }
        Ok(())
    }

    /// Answers probes in the namespace until `stop`.
    fn respond(&self, stop: CancellationToken) -> Result<(), HealthEndpointError> {
        let listener = self.network.listen(self.config.port)?;
        let listener = tokio::net::TcpListener::from_std(listener).and_then(BoundTcp::new);
        let listener = Mutex::new(Some(listener.map_err(HealthEndpointError::Listener)?));
        let job = Job::once("answer-probes", move |cx: JobCtx| {
            let (listener, stop) = (listener.lock().take(), stop.clone());
            async move {
                let Some(listener) = listener else { return };
                cx.health.ok("Answering probes");
                let _ = cx.until_cancelled(skep_node_health::hello(listener, stop)).await;
            }
        });
        Ok(self.jobs.spawn(job)?)
    }

    /// Asks the endpoint from the node.
    async fn ask(&self, families: &[Family]) -> Result<(), HealthEndpointError> {
        let Some(Family { address, .. }) = families.first().copied() else {
            return Ok(());
        };
        let answer = skep_node_health::ask(SocketAddr::new(address, self.config.port)).await;
        answer
            .map(drop)
            .map_err(|cause| HealthEndpointError::Silent { address, cause })
    }
}

fn labels() -> Labels {
    Labels::from_pairs([("reserved:health", "")]).unwrap_or_default()
}

/// Its addresses are those of the node: they are not allocated for it, and stay when it is deleted.
fn datapath() -> DatapathConfiguration {
    DatapathConfiguration {
        external_ipam: true,
        ..DatapathConfiguration::default()
    }
}
