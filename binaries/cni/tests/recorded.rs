// SPDX-License-Identifier: Apache-2.0

//! Runs of Cilium's plugin, recorded with its conversation with the agent: the same input must have the same result.
//!
//! `testdata/*.json`: steps with environment, standard input, exit code, output, requests in their order, and what is in the
//! namespaces then. `${NAME}` stands for a value that the agent answered with (`bindings`), or for one that the plugin made:
//! such a name is bound where it comes first, and stands for the same value from then on. Node, agent and pods are network
//! namespaces of the test.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use serde_json::{Value, json};
use skep_base_net::{
    Link, LinkSpec, Netlink,
    packet::link::{LinkAttribute, Prop},
};
use skep_bpf_sys::testing::{Node, Pod};

const SOCKET: &str = "/run/cilium/cilium.sock";
const QUEUE: &str = "/run/cilium/deleteQueue";
/// The IPAM plugin of the recordings: fixed addresses.
const DELEGATE: &str = r#"#!/bin/sh
cat >/dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.77/24"},{"address":"fd00:10:1::77/64"}]}'
"#;

/// Values of names.
#[derive(Default)]
struct Bindings {
    bound: BTreeMap<String, String>,
    recorded: BTreeMap<String, String>,
}

impl Bindings {
    /// Replaces names by their values, by the recorded ones if they have no other.
    fn fill(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let first: String = text.chars().skip(2).take(3).collect();
                let mut text = text.clone();
                while let Some((name, _)) = first_name(&text) {
                    let value = self
                        .bound
                        .entry(name.clone())
                        .or_insert_with(|| self.recorded[&name].clone());
                    text = text.replace(&format!("${{{name}}}"), value);
                }
                // Numbers of the kernel and of the agent.
                match (first.as_str(), text.parse::<u64>()) {
                    ("IFI" | "EP_", Ok(number)) => number.into(),
                    _ => text.into(),
                }
            }
            Value::Array(list) => list.iter().map(|value| self.fill(value)).collect(),
            Value::Object(object) => {
                let all = object.iter().map(|(key, value)| (key.clone(), self.fill(value)));
                Value::Object(all.collect())
            }
            other => other.clone(),
        }
    }

    /// Compares, and binds names that have no value.
    fn matches(&mut self, expected: &Value, found: &Value) -> Result<(), String> {
        let differs = || Err(format!("{found} is not {expected}"));
        match (expected, found) {
            (Value::String(pattern), found) => {
                let found = found
                    .as_str()
                    .map_or_else(|| found.to_string(), ToOwned::to_owned);
                if self.matches_text(pattern, &found) {
                    Ok(())
                } else {
                    differs()
                }
            }
            (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => expected
                .iter()
                .zip(found)
                .try_for_each(|(expected, found)| self.matches(expected, found)),
            (Value::Object(expected), Value::Object(found)) => {
                let names = |object: &serde_json::Map<String, Value>| -> BTreeSet<String> {
                    object.keys().cloned().collect()
                };
                if names(expected) != names(found) {
                    return differs();
                }
                expected
                    .iter()
                    .try_for_each(|(key, expected)| self.matches(expected, &found[key]))
            }
            (expected, found) if expected == found => Ok(()),
            _ => differs(),
        }
    }

    fn matches_text(&mut self, pattern: &str, found: &str) -> bool {
        let Some((name, at)) = first_name(pattern) else {
            return pattern == found;
        };
        let Some(rest) = found.strip_prefix(&pattern[..at]) else {
            return false;
        };
        let behind = &pattern[at + name.len() + 3..];
        if let Some(value) = self.bound.get(&name).cloned() {
            return rest
                .strip_prefix(&value)
                .is_some_and(|rest| self.matches_text(behind, rest));
        }
        let end = behind.find('$').map_or(behind, |next| &behind[..next]);
        let end = if end.is_empty() {
            rest.len()
        } else {
            rest.find(end).unwrap_or(rest.len())
        };
        self.bound.insert(name, rest[..end].to_owned());
        self.matches_text(behind, &rest[end..])
    }
}

/// The first name of a text, and where it begins.
fn first_name(text: &str) -> Option<(String, usize)> {
    let at = text.find("${")?;
    let name = text[at + 2..].split('}').next()?;
    Some((name.to_owned(), at))
}

/// Conversation of a step: what is expected next, and what went wrong.
#[derive(Default)]
struct Talk {
    expected: Vec<Value>,
    faults: Vec<String>,
}

/// Answers as recorded until stopped.
fn agent(listener: &UnixListener, talk: &Mutex<Talk>, bindings: &Mutex<Bindings>, stop: &AtomicBool) {
    for stream in listener.incoming() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let mut stream = stream.unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut length, mut has_expiration) = (String::new(), 0, false);
        reader.read_line(&mut line).unwrap();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let header = header.trim_end().to_lowercase();
            if header.is_empty() {
                break;
            }
            has_expiration |= header == "expiration: true";
            if let Some(text) = header.strip_prefix("content-length: ") {
                length = text.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let request = line.rsplit_once(' ').unwrap().0.to_owned();

        let mut talk = talk.lock().unwrap();
        let mut bindings = bindings.lock().unwrap();
        let (mut status, mut answer) = (500, Value::Null);
        if talk.expected.is_empty() {
            talk.faults.push(format!("unexpected {request}"));
        } else {
            let next = talk.expected.remove(0);
            let wanted = json!({"line": bindings.fill(&next["request"]), "body": next["body"]});
            if let Err(fault) = bindings.matches(&wanted, &json!({"line": request, "body": body})) {
                talk.faults.push(fault);
            }
            if request.starts_with("POST /v1/ipam") && !has_expiration {
                talk.faults.push("allocations do not expire".to_owned());
            }
            status = next["status"].as_u64().unwrap();
            answer = match next["answer"]["see"].as_str() {
                Some(file) => serde_json::from_str(&fs::read_to_string(testdata(file)).unwrap()).unwrap(),
                None => bindings.fill(&next["answer"]),
            };
        }
        let answer = if answer.is_null() {
            String::new()
        } else {
            format!("{answer}\n")
        };
        let head = format!(
            "HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        // A client that has its answer is free to go.
        let _ = stream.write_all((head + &answer).as_bytes());
    }
}

fn testdata(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file)
}

struct World<'a> {
    node: &'a Node,
    pods: BTreeMap<String, Pod>,
    bindings: Arc<Mutex<Bindings>>,
    plugins: PathBuf,
}

fn link_names() -> BTreeSet<String> {
    let links = Netlink::open().unwrap().links().unwrap();
    links.into_iter().map(|link| link.name).collect()
}

impl World<'_> {
    /// The pod of a namespace in `/var/run/netns`, made when it is named first.
    fn pod(&mut self, netns: &str) -> Option<&Pod> {
        let name = netns
            .rsplit('/')
            .next()
            .filter(|name| name.starts_with("gc-") && *name != "gc-none")?;
        if !self.pods.contains_key(name) {
            let path = Path::new("/run/netns").join(name);
            fs::write(&path, "").unwrap();
            if name != "gc-plain" {
                let pod = self.node.pod(name).unwrap();
                mount_bind(pod.path(), &path).unwrap();
                self.pods.insert(name.to_owned(), pod);
            }
        }
        self.pods.get(name)
    }

    fn step(&mut self, step: &Value) -> Result<(), String> {
        if let Some(path) = step["remove"].as_str() {
            unmount(path, UnmountFlags::DETACH).unwrap();
            return fs::remove_file(path).map_err(|error| error.to_string());
        }
        if let Some(count) = step["queue_fill"].as_u64() {
            (0..count)
                .for_each(|number| fs::write(Path::new(QUEUE).join(format!("{number}.delete")), "").unwrap());
            return Ok(());
        }
        let step = step.clone();
        let netns = step["environment"]["CNI_NETNS"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let pod_links = |world: &mut Self| world.pod(&netns).map(|pod| pod.run(link_names));
        let before = (link_names(), pod_links(self));
        let (output, talk) = self.run(&step);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut faults = talk.faults;
        faults.extend(
            talk.expected
                .iter()
                .map(|next| format!("missing request {}", next["request"])),
        );
        if output.status.code() != step["exit"].as_i64().map(|code| code as i32) {
            faults.push(format!("exit code {:?}", output.status.code()));
        }
        let found: Value = serde_json::from_str(&text).unwrap_or_default();
        let mut bindings = self.bindings.lock().unwrap();
        if step["code_only"] == true {
            faults.extend((found["code"] != step["stdout"]["code"]).then(|| text.clone()));
        } else {
            faults.extend(bindings.matches(&step["stdout"], &found).err());
            if let Some(expected) = step["text"].as_str() {
                faults.extend((bindings.fill(&expected.into()) != text).then(|| format!("text {text}")));
            }
        }
        drop(bindings);
        for file in step["queue"].as_array().into_iter().flatten() {
            let content = fs::read_to_string(Path::new(QUEUE).join(file["name"].as_str().unwrap()));
            if content.ok().as_deref() != file["content"].as_str() {
                faults.push(format!("queue has no {file}"));
            }
        }
        if step["exit"] != 0 && step["environment"]["CNI_COMMAND"] == "ADD" {
            // What an earlier ADD left in the pod's namespace is removed, and with it its other side.
            let after = (link_names(), pod_links(self));
            if !after.0.is_subset(&before.0)
                || !after
                    .1
                    .unwrap_or_default()
                    .is_subset(&before.1.unwrap_or_default())
            {
                faults.push(format!("links are left: {:?}", link_names()));
            }
        }
        if !step["pod"].is_null() {
            let pod = self.pod(&netns).unwrap();
            let wanted = &step["pod"];
            let found = pod.run(|| seen(wanted));
            let host = seen(&step["node"]);
            let mut bindings = self.bindings.lock().unwrap();
            faults.extend(bindings.matches(wanted, &found).err());
            faults.extend(bindings.matches(&step["node"], &host).err());
        }
        if faults.is_empty() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "{}: {}\n{text}\n{stderr}",
            step["what"],
            faults.join("\n")
        ))
    }

    /// Runs the plugin beside an agent.
    fn run(&mut self, step: &Value) -> (std::process::Output, Talk) {
        let _ = fs::remove_file(SOCKET);
        let listener = UnixListener::bind(SOCKET).unwrap();
        let expected = step["http"].as_array().cloned().unwrap_or_default();
        let talk = Arc::new(Mutex::new(Talk {
            expected,
            faults: Vec::new(),
        }));
        let stop = Arc::new(AtomicBool::new(false));
        // Without an agent the socket exists without a listener.
        let thread = (step["agent"] != false).then(|| {
            let (talk, bindings, stop) = (talk.clone(), self.bindings.clone(), stop.clone());
            std::thread::spawn(move || agent(&listener, &talk, &bindings, &stop))
        });
        let mut bindings = self.bindings.lock().unwrap();
        let environment = bindings.fill(&step["environment"]);
        let input = bindings.fill(&step["stdin"]);
        drop(bindings);
        let input = input
            .as_str()
            .map_or_else(|| input.to_string(), ToOwned::to_owned);
        let mut command = Command::new(env!("CARGO_BIN_EXE_skep-cni"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        for (name, value) in environment.as_object().unwrap() {
            let value = value.as_str().unwrap();
            let value = if name == "CNI_PATH" {
                self.plugins.to_str().unwrap()
            } else {
                value
            };
            command.env(name, value);
        }
        let piped = || (Stdio::piped(), Stdio::piped(), Stdio::piped());
        let (stdin, stdout, stderr) = piped();
        let mut process = command
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
        let mut output = process.wait_with_output().unwrap();
        let plugins = self.plugins.to_str().unwrap();
        output.stdout = String::from_utf8_lossy(&output.stdout)
            .replace(plugins, "/opt/cni/bin")
            .into_bytes();
        stop.store(true, Ordering::SeqCst);
        if let Some(thread) = thread {
            let _ = std::os::unix::net::UnixStream::connect(SOCKET);
            thread.join().unwrap();
        }
        let talk = std::mem::take(&mut *talk.lock().unwrap());
        (output, talk)
    }

    /// Does what another plugin did before: a pair with addresses.
    fn chained(&mut self, step: &Value, netns: &str) {
        let host = step["veth"].as_str().unwrap().to_owned();
        let macs = [0, 1].map(|index| {
            let text = step["macs"][index].as_str().unwrap();
            let octets: Vec<u8> = text
                .split(':')
                .map(|octet| u8::from_str_radix(octet, 16).unwrap())
                .collect();
            <[u8; 6]>::try_from(octets).unwrap()
        });
        let pod = self.pod(netns).unwrap();
        let file = fs::File::open(pod.path()).unwrap();
        let peer = LinkSpec::new()
            .name("eth0")
            .mac(macs[0])
            .netns(std::os::fd::AsFd::as_fd(&file));
        let net = Netlink::open().unwrap();
        net.add_link(LinkSpec::veth(&host, peer).mac(macs[1])).unwrap();
        net.set_link(&net.link(&host).unwrap(), LinkSpec::new().up())
            .unwrap();
        pod.run(|| {
            let net = Netlink::open().unwrap();
            let link = net.link("eth0").unwrap();
            net.set_link(&link, LinkSpec::new().up()).unwrap();
            for address in step["addresses"].as_array().unwrap() {
                net.add_address(&link, address.as_str().unwrap().parse().unwrap())
                    .unwrap();
            }
            // The kernel adds the link-local address a moment later.
            let is_there = |net: &Netlink| {
                let all = net.addresses(&link).unwrap();
                all.iter()
                    .any(|found| found.address.to_string().starts_with("fe80:"))
            };
            while !is_there(&net) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
    }
}

/// What is in the namespace of the calling thread, in the form of `wanted`.
fn seen(wanted: &Value) -> Value {
    let net = Netlink::open().unwrap();
    let link: Link = net.link(wanted["name"].as_str().unwrap()).unwrap();
    let mac: Vec<String> = link
        .mac
        .unwrap()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut found = json!({"name": link.name, "mtu": link.mtu, "mac": mac.join(":")});
    if wanted["routes"].is_null() {
        return found;
    }
    let names = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::PropList(names) => Some(names),
        _ => None,
    });
    let names = names.flatten().filter_map(|name| match name {
        Prop::AltIfName(name) => Some(name.as_str().into()),
        _ => None,
    });
    found["altnames"] = names.collect::<Vec<Value>>().into();
    let addresses = net
        .addresses(&link)
        .unwrap()
        .into_iter()
        .map(|found| found.address);
    let global = addresses.filter(|address| !address.to_string().starts_with("fe80:"));
    found["addresses"] = global
        .map(|address| address.to_string().into())
        .collect::<Vec<Value>>()
        .into();
    let all = ["-4", "-6"].map(|family| {
        let shown = Command::new("ip")
            .args(["-j", "-d", family, "route", "show", "proto", "boot"])
            .output();
        serde_json::from_slice::<Value>(&shown.unwrap().stdout).unwrap()
    });
    let routes = all.iter().flat_map(|list| list.as_array().unwrap()).map(|route| {
        let mut found = json!({"dst": route["dst"]});
        for (key, value) in [
            ("gateway", &route["gateway"]),
            ("mtu", &route["metrics"][0]["mtu"]),
            ("scope", &route["scope"]),
        ] {
            if !value.is_null() {
                found[key] = value.clone();
            }
        }
        found
    });
    // In the order of the recording.
    let mut routes: Vec<Value> = routes.collect();
    let text = |route: &Value| (route["dst"] == "default", route["dst"].to_string().contains(':'));
    let order: Vec<_> = wanted["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["dst"] == "default")
        .collect();
    routes.sort_by_key(|route| (text(route).1, text(route).0));
    if order.first() == Some(&true) {
        routes.sort_by_key(|route| (text(route).1, !text(route).0));
    }
    found["routes"] = routes.into();
    let sysctl = wanted["sysctl"].as_object().unwrap().keys().map(|name| {
        let path = name.replace('.', "/");
        (name.clone(), skep_base_net::sysctl::get(&path).unwrap().into())
    });
    found["sysctl"] = Value::Object(sysctl.collect());
    found
}

fn replay(name: &str) {
    let scenario: Value =
        serde_json::from_str(&fs::read_to_string(testdata(&format!("{name}.json"))).unwrap()).unwrap();
    let steps = scenario["steps"].as_array().unwrap();
    let done: std::io::Result<()> = Node::run("cni", |node| {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        fs::create_dir_all("/run/netns")?;
        fs::create_dir_all(QUEUE)?;
        let plugins = node.directory().join("plugins");
        fs::create_dir_all(&plugins)?;
        let delegate = plugins.join("gc-ipam");
        fs::write(&delegate, DELEGATE)?;
        fs::set_permissions(&delegate, fs::Permissions::from_mode(0o755))?;
        let recorded = scenario["bindings"].as_object().unwrap().iter();
        let bindings = Bindings {
            recorded: recorded
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
            ..Bindings::default()
        };
        let mut world = World {
            node,
            pods: BTreeMap::new(),
            bindings: Arc::new(Mutex::new(bindings)),
            plugins,
        };
        let mut faults = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            if step["veth"].is_string() {
                let netns = steps[index + 1]["environment"]["CNI_NETNS"].as_str().unwrap();
                world.chained(step, netns);
            } else if let Err(fault) = world.step(step) {
                faults.push(format!("step {index}: {fault}"));
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(std::io::Error::other(faults.join("\n\n"))),
        }
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

macro_rules! recorded {
    ($($test:ident: $file:literal,)*) => {
        $(#[test]
        fn $test() {
            replay($file);
        })*
    };
}

recorded! {
    results_of_0_1_0: "add-0-1-0",
    results_of_0_3_1: "add-0-3-1",
    results_of_1_1_0: "add-1-1-0",
    pods_that_are_added_twice: "add-twice",
    errors_of_the_agent_at_add: "agent-answers-add",
    errors_of_the_agent_at_del_check_and_status: "agent-answers-del",
    deletions_without_an_agent_are_queued: "agent-down",
    networks_named_after_a_mode_are_chained: "chain-aws-name",
    errors_of_chains: "chain-errors",
    chained_pods: "chain-generic-veth",
    chained_pods_of_0_3_1: "chain-generic-veth-031",
    chained_pods_with_another_mac_address: "chain-mac-annotation",
    chains_without_a_previous_result: "chain-mode-no-prevresult",
    chained_pods_without_addresses: "chain-no-address",
    pods_that_are_gone_are_deleted: "del-forms",
    errors_of_the_input: "errors-input",
    garbage_collection_is_the_agents: "gc",
    names_of_interfaces: "ids-and-names",
    previous_results_without_a_mode: "prevresult-no-mode",
    addresses_of_another_plugin: "profile-d",
    routes_of_tunnels: "profile-t",
    status: "status",
    versions: "version",
}
