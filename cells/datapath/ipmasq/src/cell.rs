// SPDX-License-Identifier: Apache-2.0

//! Cell: the file of the ip-masq-agent → maps. Requires: the settings of [`skep_base_settings`], the maps.

use std::{collections::BTreeSet, fmt::Debug, path::Path, sync::Arc, time::Duration};

use hive::{Cell, Cfg, JobCtx, Jobs, Member, Params, SpawnError};
use ipnet::IpNet;
use skep_base_settings::{AddressFamilies, MasqueradeConfig};
use skep_bpf_maps::ip_masq::{IP_MASQ4, IP_MASQ6, IpMasqKey4, IpMasqKey6, OWNER};
use skep_bpf_sys::{Map, MapError};
use skep_datapath_maps::{MapOwner, Maps};

use crate::file::{FileError, Networks};

/// How often the file is read. What kubelet mounts is a link to another directory after a change: no watch sees that
/// everywhere.
const INTERVAL: Duration = Duration::from_secs(5);

/// Keeps the maps of networks without masquerade in step with the file.
pub fn cell() -> Cell {
    Cell::module("ip-masq-agent", "Networks that pods reach without masquerade")
        .provide(map_owner)
        .run(start)
}

/// The maps exist only where programs look them up.
fn map_owner(config: Cfg<MasqueradeConfig>, families: Cfg<AddressFamilies>) -> Member<MapOwner> {
    let is_on = config.has_ip_masq_agent();
    Member(MapOwner::new(OWNER).ip(is_on && families.ipv4, is_on && families.ipv6))
}

/// Why packets are masqueraded otherwise than the file says.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    /// The file is not in force.
    #[error("the file of ip-masq-agent-config-path is not in force")]
    File(#[from] FileError),
    /// A map was not written.
    #[error("networks were not written")]
    Map(#[from] MapError),
}

#[derive(Params)]
struct AgentParams {
    config: Cfg<MasqueradeConfig>,
    families: Cfg<AddressFamilies>,
    maps: Arc<Maps>,
    jobs: Jobs,
}

fn start(params: AgentParams) -> Result<(), SpawnError> {
    let AgentParams {
        config,
        families,
        maps,
        jobs,
    } = params;
    if !config.has_ip_masq_agent() {
        return Ok(());
    }
    let agent = Agent {
        path: config.ip_masq_agent_config_path.clone(),
        ipv4: families.ipv4.then(|| maps.handle(&IP_MASQ4)),
        ipv6: families.ipv6.then(|| maps.handle(&IP_MASQ6)),
    };
    jobs.keep("networks", agent, Agent::follow)
}

struct Agent {
    path: String,
    ipv4: Option<Map<IpMasqKey4, u8>>,
    ipv6: Option<Map<IpMasqKey6, u8>>,
}

impl Agent {
    async fn follow(&self, JobCtx { health, .. }: &JobCtx) {
        let mut applied: Option<Networks> = None;
        let mut reported: Option<String> = None;
        loop {
            let result = Networks::read(Path::new(&self.path))
                .map_err(AgentError::from)
                .and_then(|networks| {
                    if applied.as_ref() != Some(&networks) {
                        self.apply(&networks.0)?;
                    }
                    Ok(networks)
                });
            match result {
                Ok(networks) => {
                    let text = format!("{} networks are reached without masquerade", networks.0.len());
                    if applied.as_ref() != Some(&networks) {
                        tracing::info!(networks = networks.0.len(), "Updated nonMasqueradeCIDRs");
                    }
                    applied = Some(networks);
                    reported = None;
                    health.ok(text);
                }
                Err(error) => {
                    // A report is logged: one for a failure, not for each look at the file.
                    let text = hive::error_chain(&error);
                    if reported.as_ref() != Some(&text) {
                        health.degraded(
                            "Cannot update nonMasqueradeCIDRs, keeping the previous ones",
                            &error,
                        );
                        reported = Some(text);
                    }
                }
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Writes the networks, then deletes others, also those of an earlier process.
    fn apply(&self, networks: &BTreeSet<IpNet>) -> Result<(), MapError> {
        if let Some(map) = &self.ipv4 {
            let wanted = networks.iter().filter_map(|network| match network {
                IpNet::V4(network) => Some(IpMasqKey4::new(network.network(), network.prefix_len())),
                IpNet::V6(_) => None,
            });
            replace(map, &wanted.collect())?;
        }
        if let Some(map) = &self.ipv6 {
            let wanted = networks.iter().filter_map(|network| match network {
                IpNet::V6(network) => Some(IpMasqKey6::new(network.network(), network.prefix_len())),
                IpNet::V4(_) => None,
            });
            replace(map, &wanted.collect())?;
        }
        Ok(())
    }
}

fn replace<K>(map: &Map<K, u8>, wanted: &BTreeSet<K>) -> Result<(), MapError>
where
    K: skep_bpf_sys::map::Plain + Ord + Debug,
{
    for key in wanted {
        map.update(key, &0)?;
    }
    for key in map.keys()? {
        if !wanted.contains(&key) {
            map.delete(&key)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Instant};

    use hive::{Hive, MemoryHealth, Running, Settings};

    use super::*;

    struct World {
        running: Running,
        health: Arc<MemoryHealth>,
        maps: Arc<Maps>,
    }

    impl World {
        async fn start(path: &Path) -> Self {
            let flags = [
                "--enable-bpf-masquerade".to_owned(),
                "--enable-ip-masq-agent".to_owned(),
                format!("--ip-masq-agent-config-path={}", path.display()),
            ];
            let plan = Hive::new([
                skep_base_settings::cell(),
                skep_datapath_maps::in_memory_cell(),
                cell(),
            ])
            .root::<Arc<Maps>>()
            .plan(Settings::new().args(flags))
            .unwrap();
            let running = plan.build().unwrap().start().await.unwrap();
            Self {
                health: running.health(),
                maps: running.get().unwrap(),
                running,
            }
        }

        async fn until(&self, what: &str, is_so: impl Fn(&str, usize, usize) -> bool) {
            let deadline = Instant::now() + Duration::from_secs(30);
            loop {
                let entries = self.health.entries();
                let text: Vec<String> = entries
                    .iter()
                    .filter(|entry| entry.id.to_string().contains("networks"))
                    .map(|entry| format!("{} {}", entry.message, entry.error.clone().unwrap_or_default()))
                    .collect();
                let text = text.join("; ");
                let ipv4 = self.maps.handle(&IP_MASQ4).keys().map_or(0, |keys| keys.len());
                let ipv6 = self.maps.handle(&IP_MASQ6).keys().map_or(0, |keys| keys.len());
                if is_so(&text, ipv4, ipv6) {
                    return;
                }
                assert!(Instant::now() < deadline, "not {what}: {text}, {ipv4}, {ipv6}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn maps_follow_the_file_and_keep_what_was_good() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ip-masq-agent");
        let world = World::start(&path).await;
        world
            .until("the defaults", |_, ipv4, ipv6| (ipv4, ipv6) == (12, 1))
            .await;

        fs::write(&path, "nonMasqueradeCIDRs: [10.0.0.0/8, fd00::/8]").unwrap();
        world
            .until("the file's", |_, ipv4, ipv6| (ipv4, ipv6) == (2, 2))
            .await;

        fs::write(&path, "nonMasqueradeCIDRs: [10.0.0.0/8, nonsense]").unwrap();
        world
            .until("rejected", |text, ipv4, ipv6| {
                text.contains("`nonsense`")
                    && text.contains("keeping the previous ones")
                    && (ipv4, ipv6) == (2, 2)
            })
            .await;

        fs::write(&path, "nonMasqueradeCIDRs: []").unwrap();
        world
            .until("well again", |text, ipv4, ipv6| {
                text.contains("2 networks") && (ipv4, ipv6) == (1, 1)
            })
            .await;
        world.running.stop().await.unwrap();
    }
}
