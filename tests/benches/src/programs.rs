// SPDX-License-Identifier: Apache-2.0

//! The programs of a cluster mesh beside the agent: operator, clustermesh-apiserver and kvstoremesh, at rest and with a large
//! cluster; and the agent with 255 small remote clusters.

mod clusters;

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use skep_bpf_sys::testing::Node;
use skep_clustermesh_types::{Kind, keys};
use skep_kvstore_client::{Backend, KeyRange, RangeRequest};

use crate::agent::{self, Process, ServerOptions};
use crate::etcd::{Etcd, EtcdOptions};
use crate::mesh::remote::{self, Size};
use crate::mesh::store;
use crate::report::{Report, Row};
use crate::usage;

const OPERATOR: &str = "skep-operator";
const APISERVER: &str = "skep-clustermesh-apiserver";
/// Longest wait for a program to do something.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between looks into a store.
const POLL: Duration = Duration::from_millis(20);
/// After this a program has handed the pages that only its start needed back to the kernel.
const REST: Duration = Duration::from_secs(13);
/// How long a program with nothing to do is watched.
const IDLE: Duration = Duration::from_secs(10);
/// The kinds that a large cluster here has.
const KINDS: [Kind; 4] = [Kind::Nodes, Kind::Services, Kind::Ips, Kind::Identities];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// The operator without objects, and with identities and endpoints.
    Operator,
    /// The clustermesh-apiserver without objects, and with a large cluster.
    Exporter,
    /// kvstoremesh without a remote cluster, and with a large one.
    Kvstoremesh,
    /// The agent with 255 remote clusters.
    Clusters,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What is measured; by default all.
    cases: Vec<Case>,
    /// The folder of the programs; by default that of this program.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// The large cluster.
    #[command(flatten)]
    size: Size,
    /// Small remote clusters.
    #[arg(long, default_value_t = 255, value_parser = clap::value_parser!(u32).range(1..=510))]
    clusters: u32,
    /// Nodes of each.
    #[arg(long, default_value_t = 100)]
    nodes_per_cluster: u32,
    /// The etcd of each cluster.
    #[command(flatten)]
    etcd: EtcdOptions,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let folder = match &options.programs {
        Some(folder) => fs::canonicalize(folder).with_context(|| folder.display().to_string())?,
        None => std::env::current_exe()?.with_file_name(""),
    };
    let cases = match options.cases.as_slice() {
        [] => &[Case::Operator, Case::Exporter, Case::Kvstoremesh, Case::Clusters],
        cases => cases,
    };
    for case in cases {
        let rows = Node::run("programs-benchmark", |node| {
            let bench = Bench {
                options,
                node,
                programs: &folder,
            };
            // Made in the namespace, so that its threads are there.
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            Ok::<_, std::io::Error>(runtime.block_on(async {
                match case {
                    Case::Operator => bench.operator().await,
                    Case::Exporter => bench.exporter().await,
                    Case::Kvstoremesh => bench.kvstoremesh().await,
                    Case::Clusters => bench.clusters().await,
                }
            }))
        })??;
        for row in rows {
            report.add(row);
        }
    }
    Ok(())
}

struct Bench<'a> {
    options: &'a Options,
    node: &'a Node,
    programs: &'a Path,
}

impl Bench<'_> {
    /// Starts a program; its log is in the node's directory.
    fn start(&self, program: &str, command: Option<&str>, settings: &[String]) -> anyhow::Result<Process> {
        let folder = self.node.directory();
        let at = |name: &str| folder.join(name).display().to_string();
        let log = fs::File::create(folder.join("program.log"))?;
        let child = Command::new(self.programs.join(program))
            .args(command)
            .args([format!("--shell-sock-path={}", at("shell.sock"))])
            .args([format!("--health-history-file={}", at("health-history.log"))])
            .args(settings)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        Ok(Process::new(child.with_context(|| program.to_owned())?))
    }

    fn server_settings(&self, url: &str) -> [String; 2] {
        let state = self.node.directory().join("api-server");
        [
            format!("--k8s-api-server-urls={url}"),
            format!("--k8s-api-server-state-file={}", state.display()),
        ]
    }

    async fn operator(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        let size = 5_000;
        for (objects, target) in [(0, 12.0), (size, 30.0)] {
            let (_server, url) = agent::start_server(&ServerOptions {
                pods: objects,
                identities: objects,
                ..ServerOptions::default()
            })?;
            let mut settings = vec![
                "--k8s-namespace=kube-system".to_owned(),
                "--operator-api-serve-addr=127.0.0.1:9234".to_owned(),
                "--cluster-pool-ipv4-cidr=10.128.0.0/9".to_owned(),
                "--cluster-pool-ipv6-cidr=fd00::/104".to_owned(),
            ];
            settings.extend(self.server_settings(&url));
            let mut operator = self.start(OPERATOR, None, &settings)?;
            let case = match objects {
                0 => "operator at rest".to_owned(),
                _ => format!("operator, {objects} identities and endpoints"),
            };
            self.rest(&case, &mut operator, &mut rows, Some(target)).await?;
        }
        Ok(rows)
    }

    async fn exporter(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        let size = self.options.size;
        let nothing = ServerOptions::default();
        let large = ServerOptions {
            services: size.services,
            backends_per_service: size.backends,
            global: true,
            pods: size.pods,
            identities: size.identities,
            nodes: size.nodes,
            ..ServerOptions::default()
        };
        for (objects, keys) in [(nothing, 0), (large, keys_of(size))] {
            let etcd = Etcd::start(&self.options.etcd).await?;
            let (_server, url) = agent::start_server(&objects)?;
            let mut settings = cluster_settings(remote::NAME, remote::ID, &etcd);
            settings.extend(self.server_settings(&url));
            let begun = Instant::now();
            let mut exporter = self.start(APISERVER, Some("clustermesh"), &settings)?;
            let case = match keys {
                0 => format!("clustermesh-apiserver at rest{}", self.options.etcd),
                _ => format!("clustermesh-apiserver, {keys} keys{}", self.options.etcd),
            };
            self.filled(&mut exporter, &etcd, false, keys).await?;
            if keys > 0 {
                let seconds = begun.elapsed().as_secs_f64();
                let used = usage::processor_time_of(exporter.id())?.as_secs_f64();
                rows.push(Row::cost(format!("{case}: from start to canaries"), seconds, "s").target(8.0));
                rows.push(Row::cost(format!("{case}: processor time for it"), used, "s"));
            }
            let target = if keys == 0 { 25.0 } else { 120.0 };
            self.rest(&case, &mut exporter, &mut rows, Some(target)).await?;
        }
        Ok(rows)
    }

    async fn kvstoremesh(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        let size = self.options.size;
        let options = &self.options.etcd;
        let (source, own) = (Etcd::start(options).await?, Etcd::start(options).await?);
        store::write(&source.backend(), remote::items(size)?).await?;
        let config = self.node.directory().join("clustermesh");
        fs::create_dir(&config)?;
        let mut settings = cluster_settings("local", 1, &own);
        settings.push(format!("--clustermesh-config={}", config.display()));
        settings.push("--api-serve-addr=127.0.0.1:9889".to_owned());
        let mut mesh = self.start(APISERVER, Some("kvstoremesh"), &settings)?;
        let case = format!("kvstoremesh at rest{options}");
        self.rest(&case, &mut mesh, &mut rows, Some(25.0)).await?;
        let keys = keys_of(size);
        let case = format!("kvstoremesh, {keys} keys{options}");
        // Anew: later than at a start, writes are limited to `etcd.qps`. The lock of a leader that is killed is kept for the
        // time of its lease.
        mesh.stop()?;
        connect(&config, remote::NAME, &source)?;
        let begun = Instant::now();
        let mut mesh = self.start(APISERVER, Some("kvstoremesh"), &settings)?;
        self.filled(&mut mesh, &own, true, keys).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let used = usage::processor_time_of(mesh.id())?;
        rows.push(Row::cost(format!("{case}: from start to canaries"), seconds, "s").target(5.0));
        rows.push(Row::cost(
            format!("{case}: processor time for it"),
            used.as_secs_f64(),
            "s",
        ));
        self.rest(&case, &mut mesh, &mut rows, Some(60.0)).await?;
        Ok(rows)
    }

    /// Waits until a store has the canaries of a large cluster, and checks that it has all keys then.
    async fn filled(
        &self,
        program: &mut Process,
        etcd: &Etcd,
        is_cached: bool,
        keys: u32,
    ) -> anyhow::Result<()> {
        let store = etcd.backend();
        let canaries = KINDS.map(|kind| keys::canary(remote::NAME, kind, is_cached));
        let begun = Instant::now();
        for canary in canaries {
            let waited = self.until(program, begun, "the canaries are written", async || {
                Ok(count(&store, KeyRange::key(&canary)).await? > 0)
            });
            waited.await?;
        }
        let mut found = 0;
        for kind in KINDS {
            found += count(&store, KeyRange::prefix(&kind.prefix(remote::NAME, is_cached))).await?;
        }
        anyhow::ensure!(
            found >= keys as usize,
            "{found} of {keys} keys when canaries are written"
        );
        Ok(())
    }

    /// Waits until something is so; fails if the program ended, or if it takes too long.
    async fn until<F: Future<Output = anyhow::Result<bool>>>(
        &self,
        program: &mut Process,
        since: Instant,
        what: &str,
        is_so: impl Fn() -> F,
    ) -> anyhow::Result<()> {
        let log = || agent::last_lines(&self.node.directory().join("program.log"));
        while !is_so().await? {
            program.check().with_context(log)?;
            anyhow::ensure!(
                since.elapsed() < PATIENCE,
                "not within {PATIENCE:?}: {what}\n{}",
                log()
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Memory and processor time of a program that has nothing to do any more.
    async fn rest(
        &self,
        case: &str,
        program: &mut Process,
        rows: &mut Vec<Row>,
        target: Option<f64>,
    ) -> anyhow::Result<()> {
        let pid = program.id();
        tokio::time::sleep(REST.saturating_sub(IDLE)).await;
        let used = usage::processor_time_of(pid)?;
        tokio::time::sleep(IDLE).await;
        let used = usage::processor_time_of(pid)? - used;
        let log = || agent::last_lines(&self.node.directory().join("program.log"));
        program.check().with_context(log)?;
        rows.push(
            Row::cost(
                format!("{case}: resident memory"),
                usage::resident_mib(pid)?,
                "MiB",
            )
            .target(target),
        );
        for (what, mib) in [
            ("of that heap and stacks", usage::own_mib(pid)?),
            ("highest resident memory", usage::highest_mib(pid)?),
        ] {
            rows.push(Row::cost(format!("{case}: {what}"), mib, "MiB"));
        }
        let share = used.as_secs_f64() / IDLE.as_secs_f64() * 100.0;
        rows.push(Row::cost(format!("{case}: processor when idle"), share, "%"));
        Ok(())
    }
}

/// Keys of a large cluster, without those that say what it is.
fn keys_of(size: Size) -> u32 {
    size.pods + size.services + size.nodes + size.identities
}

fn cluster_settings(name: &str, id: u32, etcd: &Etcd) -> Vec<String> {
    vec![
        format!("--cluster-name={name}"),
        format!("--cluster-id={id}"),
        "--kvstore=etcd".to_owned(),
        format!("--kvstore-opt=etcd.config={}", etcd.client_config().display()),
        // As in Cilium's chart.
        "--kvstore-opt=etcd.bootstrapQps=10000".to_owned(),
        "--health-port=9880".to_owned(),
    ]
}

/// Adds a remote cluster to a configuration.
fn connect(config: &Path, cluster: &str, etcd: &Etcd) -> anyhow::Result<()> {
    fs::copy(etcd.client_config(), config.join(cluster))?;
    Ok(())
}

async fn count(store: &Arc<dyn Backend>, range: KeyRange) -> anyhow::Result<usize> {
    let request = RangeRequest {
        keys_only: true,
        ..RangeRequest::new(range)
    };
    Ok(store.range(request).await?.items.len())
}
