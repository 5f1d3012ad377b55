// SPDX-License-Identifier: Apache-2.0

//! The files: what a node was like (facts), and what its programs did with packets (scenarios).

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use skep_bpf_programs::testing::run::SkBuff;

use crate::Error;

/// Bytes, written as hexadecimal digits; blanks and colons between them mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        bytes(&text).map(Hex).map_err(de::Error::custom)
    }
}

fn bytes(text: &str) -> Result<Vec<u8>, hex::FromHexError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    hex::decode(digits.replace(|c: char| c == ':' || c.is_whitespace(), ""))
}

/// A MAC address, written with colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = bytes(&text).map_err(de::Error::custom)?;
        bytes
            .try_into()
            .map(Mac)
            .map_err(|_| de::Error::custom(format!("{text} is not a MAC address")))
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Device {
    pub(crate) ifindex: u32,
    pub(crate) mac: Mac,
}

/// An endpoint; the host has an id and an identity alone.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) id: u16,
    pub(crate) identity: u32,
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) ipv6: Option<Ipv6Addr>,
}

/// An address or a network of both families, as text; empty where the node has only the other family.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pair {
    #[serde(deserialize_with = "nullable")]
    pub(crate) ipv4: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) ipv6: String,
}

/// Who is at the other end of a link.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Neighbour {
    #[serde(flatten)]
    pub(crate) addresses: Pair,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) mac: Mac,
}

/// Addresses and routes of the node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Addresses {
    #[serde(deserialize_with = "nullable")]
    pub(crate) node: Pair,
    #[serde(deserialize_with = "nullable")]
    pub(crate) router: Pair,
    #[serde(deserialize_with = "nullable")]
    pub(crate) native_routing_cidr: Pair,
    #[serde(deserialize_with = "nullable")]
    pub(crate) remote_node: Neighbour,
    #[serde(deserialize_with = "nullable")]
    pub(crate) client: Neighbour,
    #[serde(deserialize_with = "nullable")]
    pub(crate) routes: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: Hex,
    pub(crate) value: Hex,
}

/// Values that were given to one object of programs when it was loaded.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct LoadTime {
    #[serde(default)]
    pub(crate) variables: BTreeMap<String, Hex>,
}

/// What a node was like while scenarios were recorded.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Facts {
    #[serde(default)]
    pub(crate) what: String,
    #[serde(default)]
    pub(crate) devices: BTreeMap<String, Device>,
    #[serde(default)]
    pub(crate) endpoints: BTreeMap<String, Endpoint>,
    #[serde(default)]
    pub(crate) addresses: Addresses,
    #[serde(default)]
    pub(crate) maps: BTreeMap<String, Vec<Entry>>,
    #[serde(default)]
    pub(crate) load_time_config: BTreeMap<String, LoadTime>,
    /// The agent's settings, by their keys with underscores.
    #[serde(default)]
    pub(crate) agent_options: BTreeMap<String, Value>,
}

impl Facts {
    /// What these files say, one after the other.
    pub(crate) fn read_all(files: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, Error> {
        let mut all = Self::default();
        for file in files {
            all.merge(read(file.as_ref())?);
        }
        Ok(all)
    }

    /// Adds what another file says; what it has of a map is all of the map.
    fn merge(&mut self, other: Self) {
        self.what = format!("{} {}", self.what, other.what);
        self.devices.extend(other.devices);
        self.endpoints.extend(other.endpoints);
        self.maps.extend(other.maps);
        self.load_time_config.extend(other.load_time_config);
        self.agent_options.extend(other.agent_options);
        let node = &other.addresses.node;
        if !node.ipv4.is_empty() || !node.ipv6.is_empty() {
            self.addresses = other.addresses;
        }
    }

    pub(crate) fn has_xdp(&self) -> bool {
        self.load_time_config
            .keys()
            .any(|object| object.starts_with("bpf_xdp "))
    }

    /// Packets to endpoints pass a program at their interfaces.
    pub(crate) fn has_endpoint_routes(&self) -> bool {
        let mut objects = self.load_time_config.values();
        objects.any(|object| {
            let value = object.variables.get("__config_enable_endpoint_routes");
            value.is_some_and(|value| value.0.first() == Some(&1))
        })
    }

    /// A value that an object was given.
    pub(crate) fn variable(&self, object: &str, name: &str) -> Option<&[u8]> {
        let object = self.load_time_config.get(object)?;
        Some(&object.variables.get(&format!("__config_{name}"))?.0)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Context {
    #[serde(deserialize_with = "nullable")]
    pub(crate) mark: u32,
    pub(crate) cb: Option<[u32; 5]>,
    /// None where it follows from the hook.
    pub(crate) ingress_ifindex: Option<u32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) priority: u32,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Change {
    pub(crate) map: String,
    pub(crate) op: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) key: Hex,
    #[serde(default)]
    pub(crate) value: Option<Hex>,
    #[serde(default)]
    pub(crate) key_fields: Value,
    #[serde(default)]
    pub(crate) delta: Value,
}

/// An entry that the recorder changed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Write {
    pub(crate) map: String,
    pub(crate) key: Hex,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) value: Hex,
    #[serde(default)]
    pub(crate) value_fields: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Metric {
    pub(crate) key: Hex,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// A record of the event ring.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Event {
    pub(crate) hex: Hex,
}

/// A packet, or what the recorder did instead.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Step {
    #[serde(deserialize_with = "nullable")]
    pub(crate) note: String,
    pub(crate) program: Option<String>,
    /// Name of the interface; of a pod its own.
    #[serde(deserialize_with = "nullable")]
    pub(crate) dev: String,
    pub(crate) ifindex: Option<u32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) ctx_in: Context,
    #[serde(deserialize_with = "nullable")]
    pub(crate) packet_in: Hex,
    #[serde(deserialize_with = "packet_out")]
    pub(crate) packet_out: Option<Hex>,
    pub(crate) ret: Option<u32>,
    /// None where it was not recorded.
    pub(crate) ctx_out: Option<Context>,
    pub(crate) metadata_out: Option<Hex>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) map_changes: Vec<Change>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) metrics: Vec<Metric>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) events: Vec<Event>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) now_monotonic_s: u64,
    pub(crate) user_space_write: Option<Write>,
    pub(crate) user_space_delete: Option<Write>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) live_only: bool,
}

impl Step {
    /// What the program knows of the packet, at an interface of this index.
    pub(crate) fn context(&self, ifindex: u32) -> SkBuff {
        let program = self.program.as_deref().unwrap_or_default();
        let ingress = if is_ingress(program) { ifindex } else { 0 };
        SkBuff {
            mark: self.ctx_in.mark,
            ifindex,
            ingress_ifindex: self.ctx_in.ingress_ifindex.unwrap_or(ingress),
            cb: self.ctx_in.cb.unwrap_or_default(),
            priority: self.ctx_in.priority,
            ..SkBuff::default()
        }
    }
}

/// The program sees packets that arrive at an interface.
fn is_ingress(program: &str) -> bool {
    !matches!(
        program,
        "cil_to_netdev" | "cil_from_host" | "cil_to_container" | "cil_to_overlay"
    )
}

/// `null` is as if the field were missing.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// `same` is none.
fn packet_out<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Hex>, D::Error> {
    match Option::<String>::deserialize(deserializer)? {
        None => Ok(None),
        Some(text) if text == "same" => Ok(None),
        Some(text) => bytes(&text)
            .map(|bytes| Some(Hex(bytes)))
            .map_err(de::Error::custom),
    }
}

/// Packets in a row, from empty maps on.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "AnyScenario")]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Why the step behind these is none.
    pub(crate) broken: Option<String>,
}

/// A scenario whose steps were not read yet.
#[derive(Deserialize)]
struct AnyScenario {
    name: String,
    steps: Vec<Value>,
}

impl From<AnyScenario> for Scenario {
    /// A step that is broken is the error of its scenario, and not of the file.
    fn from(any: AnyScenario) -> Self {
        let read: Result<Vec<Step>, _> = any.steps.iter().map(Step::deserialize).collect();
        let broken = read.err().map(|error| error.to_string());
        let steps = any.steps.iter().map_while(|step| Step::deserialize(step).ok());
        Self {
            name: any.name,
            steps: steps.collect(),
            broken,
        }
    }
}

impl Scenario {
    /// The clock when a step was recorded that has no packet: that of the packet before it, or after it.
    pub(crate) fn time_at(&self, index: usize) -> Option<u64> {
        let (before, after) = self.steps.split_at_checked(index)?;
        let steps = before.iter().rev().chain(after);
        let mut times = steps.map(|step| step.now_monotonic_s);
        times.find(|now| *now != 0)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Static {
    #[serde(default)]
    pub(crate) see: String,
}

/// A file of facts, as opposed to one of scenarios.
#[derive(Deserialize)]
struct FactsAlone {
    #[expect(dead_code, reason = "that it is there is what matters")]
    what: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Group {
    format: u32,
    pub(crate) group: String,
    #[serde(default, rename = "static")]
    pub(crate) facts: Static,
    pub(crate) scenarios: Vec<Scenario>,
}

impl Group {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let group: Self = match read(path) {
            Err(Error::Parse { .. }) if read::<FactsAlone>(path).is_ok() => {
                return Err(Error::FactsAlone {
                    path: path.to_owned(),
                });
            }
            group => group?,
        };
        if group.format == 1 {
            Ok(group)
        } else {
            Err(Error::Format {
                path: path.to_owned(),
                format: group.format,
            })
        }
    }

    /// Files of facts for the scenarios of this file, which is `path`: those that it names, later ones over earlier ones.
    ///
    /// A file of `given` is taken in place of the one of its name. If there is none for the first, which says what the
    /// node was like, those with other names are taken for it. What is not given is looked for beside `path`, then
    /// beside what is given.
    pub(crate) fn facts_files(&self, path: &Path, given: &[PathBuf]) -> Vec<PathBuf> {
        let words = self
            .facts
            .see
            .split(|c: char| c.is_whitespace() || c == ';' || c == ',');
        let named: Vec<&str> = words.filter(|word| word.ends_with(".json")).collect();
        let is = |file: &PathBuf, name: &str| file.file_name() == Path::new(name).file_name();
        let folders: Vec<&Path> = std::iter::once(path)
            .chain(given.iter().map(PathBuf::as_path))
            .map(|file| file.parent().unwrap_or(Path::new("")))
            .collect();
        let beside = |name: &str| {
            let mut files = folders.iter().map(|folder| folder.join(name));
            files
                .find(|file| file.exists())
                .unwrap_or_else(|| folders[0].join(name))
        };
        let has_first = named
            .first()
            .is_some_and(|name| given.iter().any(|file| is(file, name)));
        let mut files: Vec<PathBuf> = given
            .iter()
            .filter(|file| !has_first && !named.iter().any(|name| is(file, name)))
            .cloned()
            .collect();
        let first = usize::from(!files.is_empty());
        files.extend(named.into_iter().skip(first).map(|name| {
            let given = given.iter().find(|file| is(file, name));
            given.cloned().unwrap_or_else(|| beside(name))
        }));
        files
    }
}

fn read<T: de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|source| Error::Parse {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(see: &str) -> Group {
        Group {
            format: 1,
            group: String::new(),
            facts: Static { see: see.to_owned() },
            scenarios: Vec::new(),
        }
    }

    #[test]
    fn facts_are_those_that_are_named_and_given_ones_take_their_places() {
        let group = group("facts.json and facts-xdp.json");
        let chosen = |given: &[&str]| {
            let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
            let files = group.facts_files("r/scenarios.json".as_ref(), &given);
            files
                .iter()
                .map(|file| file.display().to_string())
                .collect::<Vec<_>>()
        };

        assert_eq!(chosen(&[]), ["r/facts.json", "r/facts-xdp.json"]);
        assert_eq!(chosen(&["o/facts.json"]), ["o/facts.json", "r/facts-xdp.json"]);
        assert_eq!(
            chosen(&["o/facts-xdp.json"]),
            ["r/facts.json", "o/facts-xdp.json"]
        );
        let both = ["o/facts.json", "o/facts-xdp.json"];
        assert_eq!(chosen(&both), both);
        assert_eq!(chosen(&[both[1], both[0]]), both);
        assert_eq!(chosen(&["o/node.json"]), ["o/node.json", "r/facts-xdp.json"]);
        assert_eq!(chosen(&["o/node.json", both[1]]), ["o/node.json", both[1]]);
        assert_eq!(
            chosen(&[both[0], "o/facts-pol.json"]),
            ["o/facts.json", "r/facts-xdp.json"]
        );
    }

    #[test]
    fn facts_that_are_not_given_are_looked_for_beside_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let facts = ["facts.json", "facts-xdp.json"].map(|name| folder.path().join(name));
        for file in &facts {
            fs::write(file, "{}").unwrap();
        }

        let group = group("facts.json and facts-xdp.json");

        assert_eq!(group.facts_files("r/scenarios.json".as_ref(), &facts[..1]), facts);
    }
}
