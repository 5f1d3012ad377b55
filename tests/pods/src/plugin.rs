// SPDX-License-Identifier: Apache-2.0

//! `cni-*.json`: the plugin, with the recorded agent, in namespaces of its own.

mod agent;
mod namespaces;

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::fcntl::{Flock, FlockArg};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use serde_json::{Value, json};
use skep_base_net::{LinkSpec, Netlink};
use skep_bpf_sys::testing::{Node, Pod};

use self::{
    agent::{Folders, RecordedAgent},
    namespaces::Snapshot,
};
use crate::{
    Boxed, Error, Options, Report,
    bindings::{Bindings, Mismatch},
    differences, program,
};

const SOCKET: &str = "/run/cilium/cilium.sock";
const QUEUE: &str = "/run/cilium/deleteQueue";
/// What was in a queue that the recorder removed, and filled again later.
const SET_ASIDE: &str = "/run/cilium/deleteQueue.aside";
/// `CNI_PATH` in recordings.
const PLUGINS: &str = "/opt/cni/bin";
/// Seconds of a wait for the agent.
const WAIT: f64 = 4.0;
/// The IPAM plugin of the recordings: fixed addresses.
const DELEGATE: &str = r#"#!/bin/sh
cat >/dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.77/24"},{"address":"fd00:10:1::77/64"}]}'
"#;

/// Whether a server listens at the agent's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listening {
    Agent,
    Nobody,
    NoSocket,
}

struct World<'a> {
    node: &'a Node,
    plugin: PathBuf,
    plugins: PathBuf,
    folders: Folders,
    /// File of the settings of the recorded agent.
    configuration: String,
    steps: &'a [Value],
    bindings: Arc<Mutex<Bindings>>,
    pods: BTreeMap<String, Pod>,
    /// Paths of deleted namespaces.
    deleted: Vec<String>,
    listening: Listening,
    lock: Option<Flock<fs::File>>,
}

pub(crate) fn run(path: &Path, recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let name = recording["name"].as_str().unwrap_or_default().to_owned();
    if !name.contains(&options.only) {
        return Ok(Vec::new());
    }
    let plugin = program("skep-cni")?;
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let folders = [path.parent().unwrap_or(Path::new(".")).to_owned(), own];
    let profile = recording["agent_profile"].as_str().unwrap_or_default();
    let profile = profile.split(' ').next().unwrap_or_default();
    let empty = Vec::new();
    let steps = recording["steps"].as_array().unwrap_or(&empty);
    let found = Node::run("cni", |node| -> Result<Vec<Mismatch>, Boxed> {
        let plugins = node.directory().join("plugins");
        prepare(&plugins)?;
        let mut world = World {
            node,
            plugin: plugin.clone(),
            plugins,
            folders: folders.clone(),
            configuration: format!("config-{profile}.json"),
            steps,
            bindings: Arc::new(Mutex::new(Bindings::of(recording))),
            pods: BTreeMap::new(),
            deleted: Vec::new(),
            listening: Listening::Agent,
            lock: None,
        };
        let mut found = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            if options.skips_waits && waits(step) {
                for file in step["delete_queue_added"].as_array().into_iter().flatten() {
                    let name = file["name"].as_str().unwrap_or_default();
                    let content = file["content"].as_str().unwrap_or_default();
                    fs::write(Path::new(QUEUE).join(name), content)?;
                }
                continue;
            }
            let action = step["action"].as_str().unwrap_or_default();
            match action {
                "plugin" => {
                    let what = step["description"].as_str().unwrap_or_default();
                    world.invoke(&format!("{index} {what}"), step, &mut found)?;
                }
                action => world.act(&format!("{index} {action}"), index, step, &mut found)?,
            }
        }
        Ok(found)
    });
    Ok(vec![Report::new(name, found.map_err(Error::Run)?)])
}

fn prepare(plugins: &Path) -> Result<(), Boxed> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
    fs::create_dir_all("/run/netns")?;
    fs::create_dir_all(QUEUE)?;
    // A running agent has made it.
    fs::write(Path::new(QUEUE).join("lockfile"), "")?;
    fs::create_dir_all(plugins)?;
    let delegate = plugins.join("gc-ipam");
    fs::write(&delegate, DELEGATE)?;
    fs::set_permissions(&delegate, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Whether an invocation waited for an agent that does not answer.
fn waits(step: &Value) -> bool {
    let mut asked = step["http"].as_array().into_iter().flatten();
    let is_answered = asked.any(|exchange| exchange["request"]["line"] != "GET /v1/config HTTP/1.1");
    step["seconds"].as_f64().unwrap_or_default() > WAIT && !is_answered
}

fn netns_of(step: &Value) -> &str {
    step["environment"]["CNI_NETNS"].as_str().unwrap_or_default()
}

impl World<'_> {
    fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespace at a path in `/var/run/netns`, made where it is named first, unless the recorded one was missing.
    fn pod(&mut self, netns: &str) -> Result<Option<Pod>, Boxed> {
        if let Some(pod) = self.pods.get(netns) {
            return Ok(Some(pod.clone()));
        }
        let Some(name) = netns
            .strip_prefix("/var")
            .unwrap_or(netns)
            .strip_prefix("/run/netns/")
        else {
            return Ok(None);
        };
        let first = self.steps.iter().find(|step| netns_of(step) == netns);
        let texts =
            first.map(|step| format!("{} {} {}", step["stdout"], step["stderr"], step["log_file_lines"]));
        let says = |text: &str| texts.as_ref().is_some_and(|texts| texts.contains(text));
        let path = Path::new("/run/netns").join(name);
        if says(&format!("open {netns}: no such file"))
            || path.exists()
            || self.deleted.iter().any(|deleted| deleted == netns)
        {
            return Ok(None);
        }
        fs::write(&path, "")?;
        if says("set netns: invalid argument") {
            return Ok(None);
        }
        let pod = self.node.pod(name)?;
        mount_bind(pod.path(), &path)?;
        self.pods.insert(netns.to_owned(), pod.clone());
        Ok(Some(pod))
    }

    fn invoke(&mut self, place: &str, step: &Value, to: &mut Vec<Mismatch>) -> Result<(), Boxed> {
        let pod = self.pod(netns_of(step))?;
        let snapshots = || (Snapshot::take(), pod.as_ref().map(|pod| pod.run(Snapshot::take)));
        let before = snapshots();
        let queued = queue();
        let log = step["stdin"]["log-file"].as_str().unwrap_or_default().to_owned();
        let logged = fs::read_to_string(&log).unwrap_or_default().len();
        let socket = self.socket(step);
        let server = (self.listening == Listening::Agent).then(|| {
            RecordedAgent::start(
                &socket,
                // What was asked at another socket was not recorded.
                step["http"].as_array().filter(|_| socket == Path::new(SOCKET)),
                step,
                self.configuration.clone(),
                self.bindings.clone(),
                self.folders.clone(),
            )
        });
        let output = self.plugin(step)?;
        let container = step["environment"]["CNI_CONTAINERID"]
            .as_str()
            .unwrap_or_default();
        let talked = server.transpose()?.map(|server| server.finish(place, container));
        if let Some(name) = differences::of_step(step) {
            to.push(Mismatch {
                place: format!("{place}: {name}"),
                expected: step["stdout"].clone(),
                found: String::from_utf8_lossy(&output.stdout).into(),
            });
            return Ok(());
        }
        to.extend(talked.into_iter().flatten());
        remove_as_agent(step)?;
        let text = |bytes: &[u8]| {
            let plugins = self.plugins.display().to_string();
            String::from_utf8_lossy(bytes).replace(&plugins, PLUGINS)
        };
        let stdout = text(&output.stdout);
        let code = output.status.code();
        let mut bindings = self.bindings();
        bindings.compare(
            &format!("{place}/exit_code"),
            &step["exit_code"],
            &json!(code),
            to,
        );
        let parsed: Value = serde_json::from_str(&stdout).unwrap_or_default();
        let count = to.len();
        bindings.compare(&format!("{place}/stdout"), &step["stdout"], &parsed, to);
        if count == to.len() {
            let place = format!("{place}/stdout_text");
            bindings.compare(&place, &step["stdout_text"], &stdout.into(), to);
        }
        lines(
            &mut bindings,
            &format!("{place}/stderr"),
            step,
            "stderr",
            &text(&output.stderr),
            to,
        );
        let logged = fs::read(&log).unwrap_or_default().split_off(logged);
        let place_of_log = format!("{place}/log_file_lines");
        lines(
            &mut bindings,
            &place_of_log,
            step,
            "log_file_lines",
            &text(&logged),
            to,
        );
        let added: Vec<Value> = queue()
            .iter()
            .filter(|(name, _)| !queued.contains_key(*name))
            .map(|(name, mode)| {
                let content = fs::read_to_string(Path::new(QUEUE).join(name)).unwrap_or_default();
                json!({"name": name, "mode": mode, "content": content})
            })
            .collect();
        let expected = match &step["delete_queue_added"] {
            Value::Null => json!([]),
            expected => expected.clone(),
        };
        bindings.compare(
            &format!("{place}/delete_queue_added"),
            &expected,
            &added.into(),
            to,
        );
        // What changed was not always recorded; errors leave nothing behind.
        if step["node_changes"].is_null() && step["exit_code"] == 0 {
            return Ok(());
        }
        let after = snapshots();
        let place_of = |name: &str| format!("{place}/{name}");
        let changes = &step["node_changes"];
        after
            .0
            .compare(&before.0, changes, &mut bindings, &place_of("node_changes"), to);
        if let (Some(before), Some(after)) = (before.1, after.1) {
            let changes = &step["pod_namespace_changes"];
            let place = place_of("pod_namespace_changes");
            after.compare(&before, changes, &mut bindings, &place, to);
        }
        Ok(())
    }

    /// Where the agent listens: at the socket that the invocation names, if that is in its directory.
    fn socket(&self, step: &Value) -> PathBuf {
        let named = step["environment"]["CILIUM_SOCK"].as_str().unwrap_or_default();
        match named.strip_prefix("/var/run/cilium/") {
            Some(name) => Path::new("/run/cilium").join(name),
            None => SOCKET.into(),
        }
    }

    fn plugin(&self, step: &Value) -> Result<Output, Boxed> {
        let (environment, input) = {
            let mut bindings = self.bindings();
            (bindings.fill(&step["environment"]), bindings.fill(&step["stdin"]))
        };
        let input = input.as_str().map_or_else(|| spaced(&input), ToOwned::to_owned);
        let mut command = Command::new(&self.plugin);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for (name, value) in environment.as_object().into_iter().flatten() {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), ToOwned::to_owned);
            match name.as_str() {
                "CNI_PATH" => command.env(name, &self.plugins),
                _ => command.env(name, value),
            };
        }
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = piped.spawn()?;
        if let Some(mut stdin) = process.stdin.take() {
            let _ = stdin.write_all(input.as_bytes());
        }
        Ok(process.wait_with_output()?)
    }

    /// Does what the recorder did between invocations. What it looked at in an agent is not replayed here.
    fn act(&mut self, place: &str, index: usize, step: &Value, to: &mut Vec<Mismatch>) -> Result<(), Boxed> {
        let action = step["action"].as_str().unwrap_or_default().to_owned();
        let next = self
            .steps
            .get(index + 1)
            .map(netns_of)
            .unwrap_or_default()
            .to_owned();
        let lock = Path::new(QUEUE).join("lockfile");
        self.lock = None;
        if let Some(pair) = action.strip_prefix("another plugin made a veth pair: ") {
            return self.pair(pair, &next);
        }
        match action.as_str() {
            "ip netns del NS" => {
                let path = next.strip_prefix("/var").unwrap_or(&next);
                unmount(path, UnmountFlags::DETACH)?;
                fs::remove_file(path)?;
                self.deleted.push(next.clone());
                if let Some(pod) = self.pods.remove(&next) {
                    let before = Netlink::open()?.links()?.len();
                    unmount(pod.path(), UnmountFlags::DETACH)?;
                    // The kernel removes its links a moment later.
                    let deadline = Instant::now() + Duration::from_secs(2);
                    while Netlink::open()?.links()?.len() == before && Instant::now() < deadline {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
            "directory deleteQueue removed" => fs::rename(QUEUE, SET_ASIDE)?,
            "queue now" => {
                for filler in queue().keys().filter(|name| name.starts_with("filler-")) {
                    fs::remove_file(Path::new(QUEUE).join(filler))?;
                }
                let found = json!(queue());
                self.bindings()
                    .compare(&format!("{place}/queue"), &step["queue"], &found, to);
                if let Some(mode) = step["directory_mode"].as_str() {
                    let found = json!(mode_of(Path::new(QUEUE)));
                    self.bindings()
                        .compare(&format!("{place}/directory_mode"), &mode.into(), &found, to);
                }
            }
            _ if action.starts_with("agent stopped") => {
                let _ = fs::remove_file(SOCKET);
                self.listening = Listening::NoSocket;
            }
            _ if action.starts_with("socket file exists") => {
                drop(std::os::unix::net::UnixListener::bind(SOCKET)?);
                self.listening = Listening::Nobody;
            }
            _ if action.starts_with("another process holds") => {
                let kind = match action.contains("exclusive") {
                    true => FlockArg::LockExclusive,
                    false => FlockArg::LockShared,
                };
                let file = fs::File::create(lock)?;
                self.lock = Some(Flock::lock(file, kind).map_err(|(_, error)| error)?);
            }
            _ => {
                let words = action
                    .trim_start_matches("queue filled up to ")
                    .split(' ')
                    .collect::<Vec<_>>();
                if let [count, "files"] = words[..] {
                    let count: usize = count.parse()?;
                    for file in fs::read_dir(SET_ASIDE).into_iter().flatten().flatten() {
                        fs::rename(file.path(), Path::new(QUEUE).join(file.file_name()))?;
                    }
                    let present = queue().keys().filter(|name| name.ends_with(".delete")).count();
                    for number in present..count {
                        fs::write(Path::new(QUEUE).join(format!("filler-{number}.delete")), "")?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What another plugin did before: `eth0 (MAC) in the pod's namespace, veth0 (MAC) on the node; addresses A B`.
    fn pair(&mut self, text: &str, netns: &str) -> Result<(), Boxed> {
        let text = self.bindings().fill_text(text);
        let (links, addresses) = text
            .split_once("; addresses ")
            .ok_or("a pair without addresses")?;
        let mut ends = links.split(", ").filter_map(|end| {
            let (name, rest) = end.split_once(" (")?;
            Some((name.to_owned(), mac(rest.split(')').next()?)?))
        });
        let (Some(inside), Some(host)) = (ends.next(), ends.next()) else {
            return Err("a pair without ends".into());
        };
        let pod = self.pod(netns)?.ok_or("a pair without a pod")?;
        let file = fs::File::open(pod.path())?;
        let peer = LinkSpec::new()
            .name(&inside.0)
            .mac(inside.1)
            .netns(std::os::fd::AsFd::as_fd(&file));
        let net = Netlink::open()?;
        net.add_link(LinkSpec::veth(&host.0, peer).mac(host.1))?;
        net.set_link(&net.link(&host.0)?, LinkSpec::new().up())?;
        pod.run(|| -> Result<(), Boxed> {
            let net = Netlink::open()?;
            let link = net.link(&inside.0)?;
            net.set_link(&link, LinkSpec::new().up())?;
            for address in addresses.split(' ').filter(|address| *address != "None") {
                net.add_address(&link, address.parse()?)?;
            }
            // The kernel adds the link-local address a moment later.
            let deadline = Instant::now() + Duration::from_secs(5);
            let is_there = |net: &Netlink| -> Result<bool, Boxed> {
                let all = net.addresses(&link)?;
                Ok(all
                    .iter()
                    .any(|found| found.address.to_string().starts_with("fe80:")))
            };
            while !is_there(&net)? && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
    }
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let octets: Option<Vec<u8>> = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok())
        .collect();
    octets?.try_into().ok()
}

fn mode_of(path: &Path) -> String {
    let mode = fs::metadata(path).map(|file| file.permissions().mode() & 0o777);
    format!("{:#o}", mode.unwrap_or_default())
}

/// Names and modes of the deletion queue.
fn queue() -> BTreeMap<String, String> {
    let entries = fs::read_dir(QUEUE).into_iter().flatten().flatten();
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries
        .map(|entry| (name(&entry), mode_of(&entry.path())))
        .collect()
}

/// JSON in the form of the recorder: `{"a": 1, "b": 2}`.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(object) => {
            let all = object
                .iter()
                .map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), spaced(value)));
            format!("{{{}}}", all.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// An agent removes the host's side of an endpoint that the plugin leaves: of another interface, or of a chain.
fn remove_as_agent(step: &Value) -> Result<(), Boxed> {
    let names = |changes: &str| step[changes]["link"]["removed"].as_array().into_iter().flatten();
    let interface = &step["environment"]["CNI_IFNAME"];
    let is_left = !names("pod_namespace_changes").any(|name| name == interface)
        || step["stdin"]["chaining-mode"].is_string();
    let asked = step["http"].as_array().into_iter().flatten();
    let mut asked = asked.filter_map(|exchange| exchange["request"]["line"].as_str());
    if is_left && asked.any(|line| line.starts_with("DELETE /v1/endpoint ")) {
        for name in names("node_changes").filter_map(Value::as_str) {
            Netlink::open()?.delete_link(name)?;
        }
    }
    Ok(())
}

/// Compares lines, in their order; those of other containers are left out.
fn lines(bindings: &mut Bindings, place: &str, step: &Value, key: &str, found: &str, to: &mut Vec<Mismatch>) {
    let own = step["environment"]["CNI_CONTAINERID"]
        .as_str()
        .unwrap_or_default();
    let is_own = |line: &&Value| {
        let line = line.as_str().unwrap_or_default();
        let named = line.split_once("containerID=").map(|(_, rest)| rest);
        let named = named.and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        named.trim_matches('"').is_empty() || named == own
    };
    let expected: Vec<Value> = step[key]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_own)
        .cloned()
        .collect();
    let found: Vec<&str> = found.lines().collect();
    for index in 0..expected.len().max(found.len()) {
        let expected = expected.get(index).cloned().unwrap_or_default();
        let found = found.get(index).map(|line| json!(line)).unwrap_or_default();
        bindings.compare(&format!("{place}/{index}"), &expected, &found, to);
    }
}
