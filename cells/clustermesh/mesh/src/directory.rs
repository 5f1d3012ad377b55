// SPDX-License-Identifier: Apache-2.0

//! The directory of configurations: one file a remote cluster.
//!
//! A mounted Secret is a directory of links into another one, `..data`, which is replaced as a whole. All names are looked at
//! after every change, whatever it was about: that is what is there that counts. Changes are gathered until it is quiet for
//! a moment, so that many are one, and a file that is being written is read when it is whole.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::config::open_regular;
use notify::{EventKind, RecursiveMode, Watcher};
use skep_clustermesh_types::ClusterName;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::error::DirectoryError;

/// How long nothing must change before files are read.
const QUIET: Duration = Duration::from_millis(100);
/// How long is waited for that at most.
const LONGEST: Duration = Duration::from_secs(2);
/// How long a file must be gone before its cluster is removed: some tools delete a file and write it again.
const GONE: Duration = Duration::from_secs(1);
/// Files are read at least so often: links may lead out of the directory.
const RESCAN: Duration = Duration::from_secs(30);
/// What every file of a cluster has. Others are certificates and keys.
pub(crate) const MARK: &str = "endpoints:";

/// The configuration of a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: PathBuf,
    pub text: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Configurations, by the name of the cluster.
    pub(crate) clusters: BTreeMap<ClusterName, ConfigFile>,
    /// Files that are not used, and why.
    pub(crate) faults: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The local cluster, whose own file does not count.
    local: ClusterName,
    last: Scan,
    changed: Arc<Notify>,
    _watcher: notify::RecommendedWatcher,
}

impl Directory {
    pub(crate) fn open(path: PathBuf, local: ClusterName) -> Result<Self, DirectoryError> {
        // Told apart from other failures of the watch: most often it does not exist.
        std::fs::read_dir(&path).map_err(|cause| DirectoryError::Read {
            path: path.clone(),
            cause,
        })?;
        let changed = Arc::new(Notify::new());
        let noted = changed.clone();
        let note = move |event: notify::Result<notify::Event>| {
            // Reading causes events as well.
            let is_read = matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(access) if !is_write(access)));
            if !is_read {
                noted.notify_one();
            }
        };
        let watch = |cause| DirectoryError::Watch {
            path: path.clone(),
            cause,
        };
        let mut watcher = notify::recommended_watcher(note).map_err(watch)?;
        watcher.watch(&path, RecursiveMode::NonRecursive).map_err(watch)?;
        Ok(Self {
            path,
            local,
            last: Scan::default(),
            changed,
            _watcher: watcher,
        })
    }

    pub(crate) fn expect(&mut self, clusters: BTreeMap<ClusterName, ConfigFile>) {
        self.last.clusters = clusters;
    }

    /// The configurations as they are now. Those of files that cannot be used stay as they were, if the file was usable before.
    pub(crate) async fn scan(&mut self) -> Result<Scan, DirectoryError> {
        let mut scan = self.read()?;
        let is_gone = |scan: &Scan| {
            self.last
                .clusters
                .keys()
                .any(|name| !scan.clusters.contains_key(name))
        };
        if is_gone(&scan) {
            tokio::time::sleep(GONE).await;
            self.settle().await;
            scan = self.read()?;
        }
        self.last = scan.clone();
        Ok(scan)
    }

    /// Waits until files may have changed.
    pub(crate) async fn changed(&self) {
        if timeout(RESCAN, self.changed.notified()).await.is_ok() {
            self.settle().await;
        }
    }

    /// Waits until nothing changes for a moment.
    async fn settle(&self) {
        let until = Instant::now() + LONGEST;
        while Instant::now() < until && timeout(QUIET, self.changed.notified()).await.is_ok() {}
    }

    fn read(&self) -> Result<Scan, DirectoryError> {
        let error = |cause| DirectoryError::Read {
            path: self.path.clone(),
            cause,
        };
        let mut scan = Scan::default();
        for (name, path) in names(&self.path).map_err(error)? {
            self.read_file(&mut scan, &name, path);
        }
        scan.faults.sort_unstable();
        Ok(scan)
    }

    fn read_file(&self, scan: &mut Scan, name: &str, path: PathBuf) {
        let cluster = name.parse::<ClusterName>();
        let known = cluster
            .as_ref()
            .ok()
            .and_then(|cluster| self.last.clusters.get_key_value(cluster));
        let keep = |scan: &mut Scan, fault: String| {
            if let Some((cluster, file)) = known {
                scan.faults
                    .push(format!("`{name}`: {fault}; what it said before counts"));
                scan.clusters.insert(cluster.clone(), file.clone());
            }
        };
        let text = match read_text(&path) {
            Ok(Some(text)) => text,
            // A directory, or a link that leads nowhere: the file is gone.
            Ok(None) => return,
            Err(cause) if known.is_none() && cluster.is_ok() => {
                scan.faults
                    .push(format!("cannot read `{}`: {cause}", path.display()));
                return;
            }
            Err(cause) => {
                keep(scan, cause.to_string());
                return;
            }
        };
        if !text.contains(MARK) {
            keep(scan, format!("it has no `{MARK}`"));
            return;
        }
        match cluster {
            Ok(cluster) if cluster == self.local => {}
            Ok(cluster) => {
                let text = text.into();
                scan.clusters.insert(cluster, ConfigFile { path, text });
            }
            Err(fault) => scan.faults.push(fault.to_string()),
        }
    }
}

fn is_write(access: notify::event::AccessKind) -> bool {
    use notify::event::{AccessKind, AccessMode};
    matches!(access, AccessKind::Close(AccessMode::Write))
}

/// What a directory has, by name. `..data` and what it leads to are directories; other names are no texts.
pub(crate) fn names(directory: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push((name, entry.path()));
        }
    }
    Ok(names)
}

/// The text of a file; `None` if there is none, or it is a directory. What is not UTF-8 is not a configuration. Pipes and
/// devices, whose end a read could wait for without limit, are errors.
pub(crate) fn read_text(path: &Path) -> std::io::Result<Option<String>> {
    if path.is_dir() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    match open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
        directory: Directory,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("there is a folder");
            let local = "birch".parse().expect("valid");
            let directory = Directory::open(folder.path().to_owned(), local).expect("it can be watched");
            Self { folder, directory }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).expect("it is written");
        }

        async fn scan(&mut self) -> (Vec<String>, Vec<String>) {
            let scan = self.directory.scan().await.expect("it can be read");
            let text = |(name, file): (&ClusterName, &ConfigFile)| format!("{name}={}", file.text.trim());
            (scan.clusters.iter().map(text).collect(), scan.faults)
        }

        /// Waits for a change, then scans.
        async fn next(&mut self) -> Vec<String> {
            timeout(Duration::from_secs(20), self.directory.changed())
                .await
                .expect("it changes");
            self.scan().await.0
        }
    }

    #[tokio::test]
    async fn files_of_clusters_are_told_from_others() {
        let mut fixture = Fixture::new();
        fixture.write("alder", "endpoints: [a]");
        fixture.write("birch", "endpoints: [own]");
        fixture.write("local-etcd-client.key", "secret");
        fixture.write("Cedar", "endpoints: [c]");
        fs::create_dir(fixture.folder.path().join("..2026_06_01")).expect("it is made");
        symlink("..2026_06_01", fixture.folder.path().join("..data")).expect("it is made");
        symlink("nowhere", fixture.folder.path().join("dangling")).expect("it is made");
        // Links to themselves cannot be read.
        symlink("elm", fixture.folder.path().join("elm")).expect("it is made");
        symlink("tls.key", fixture.folder.path().join("tls.key")).expect("it is made");

        let (clusters, faults) = fixture.scan().await;

        assert_eq!(clusters, ["alder=endpoints: [a]"]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let unreadable = format!("cannot read `{}`: ", fixture.folder.path().join("elm").display());
        assert!(faults[0].starts_with(&unreadable), "{faults:?}");
        assert!(
            faults[1].starts_with("invalid cluster name `Cedar`"),
            "{faults:?}"
        );
    }

    #[tokio::test]
    async fn pipes_are_no_configurations() {
        let mut fixture = Fixture::new();
        let pipe = fixture.folder.path().join("alder");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("there is mkfifo").success());

        let (clusters, faults) = fixture.scan().await;

        assert_eq!(clusters, [""; 0]);
        assert_eq!(
            faults,
            [format!(
                "cannot read `{}`: it is not a regular file",
                pipe.display()
            )]
        );
    }

    #[tokio::test]
    async fn a_secret_that_is_replaced_as_a_whole_is_noticed() {
        let mut fixture = Fixture::new();
        let path = fixture.folder.path().to_owned();
        for (version, text) in [("..1", "endpoints: [1]"), ("..2", "endpoints: [2]")] {
            fs::create_dir(path.join(version)).expect("it is made");
            fs::write(path.join(version).join("alder"), text).expect("it is written");
        }
        fs::write(path.join("..2/cedar"), "endpoints: [c]").expect("it is written");
        symlink("..1", path.join("..data")).expect("it is made");
        symlink("..data/alder", path.join("alder")).expect("it is made");
        symlink("..data/cedar", path.join("cedar")).expect("it is made");
        assert_eq!(fixture.scan().await.0, ["alder=endpoints: [1]"]);

        symlink("..2", path.join("..data_tmp")).expect("it is made");
        fs::rename(path.join("..data_tmp"), path.join("..data")).expect("it is replaced");

        let mut seen = fixture.next().await;
        while seen.len() < 2 {
            seen = fixture.next().await;
        }
        assert_eq!(seen, ["alder=endpoints: [2]", "cedar=endpoints: [c]"]);
    }

    #[tokio::test]
    async fn a_file_that_is_emptied_or_half_written_keeps_what_it_said() {
        let mut fixture = Fixture::new();
        fixture.write("alder", "endpoints: [a]");
        assert_eq!(fixture.scan().await.0, ["alder=endpoints: [a]"]);

        fixture.write("alder", "endp");
        let (clusters, faults) = fixture.scan().await;
        assert_eq!(clusters, ["alder=endpoints: [a]"]);
        assert_eq!(
            faults,
            ["`alder`: it has no `endpoints:`; what it said before counts"]
        );

        fixture.write("alder", "endpoints: [b]");
        assert_eq!(
            fixture.scan().await,
            (vec!["alder=endpoints: [b]".to_owned()], vec![])
        );
    }

    #[tokio::test]
    async fn a_file_that_is_deleted_and_written_again_is_never_gone() {
        let mut fixture = Fixture::new();
        fixture.write("alder", "endpoints: [a]");
        fixture.write("cedar", "endpoints: [c]");
        assert_eq!(fixture.scan().await.0.len(), 2);
        let path = fixture.folder.path().to_owned();
        fs::remove_file(path.join("alder")).expect("it is removed");
        fs::remove_file(path.join("cedar")).expect("it is removed");

        let (clusters, ()) = tokio::join!(fixture.directory.scan(), async {
            tokio::time::sleep(GONE / 2).await;
            fs::write(path.join("alder"), "endpoints: [b]").expect("it is written");
        });

        let clusters = clusters.expect("it can be read").clusters;
        assert_eq!(
            clusters.keys().map(ClusterName::as_str).collect::<Vec<_>>(),
            ["alder"]
        );
    }

    #[tokio::test]
    async fn many_changes_are_one() {
        let mut fixture = Fixture::new();
        for at in 0..200 {
            fixture.write(&format!("c{at}"), "endpoints: [a]");
        }

        assert_eq!(fixture.next().await.len(), 200);

        // Reading causes no change.
        timeout(QUIET * 3, fixture.directory.changed())
            .await
            .expect_err("nothing changed");
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_it() {
        let error =
            Directory::open("/nonexistent/mesh".into(), ClusterName::default()).expect_err("it is missing");
        assert_eq!(
            error.to_string(),
            "cannot read clustermesh-config directory `/nonexistent/mesh`"
        );
    }
}
