// SPDX-License-Identifier: Apache-2.0

//! What an agent has in its tables and maps, compared with what it should have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use skep_k8s_client::ListOptions;
use skep_k8s_types::Kind;
use skep_lab::session::{Session, at};

/// The port of services, and that of pods.
const PORTS: (u64, u64) = (80, 8080);
/// Identities that are allocated by clusters: others are reserved, or of one node.
const ALLOCATED: std::ops::Range<u32> = 256..1 << 24;

/// Frontends and the backends that they lead to, each as `address:port/PROTOCOL`.
type Frontends = BTreeMap<String, BTreeSet<String>>;

pub(crate) type Identities = BTreeMap<String, u32>;

/// The pods of a cluster and their addresses.
pub(crate) async fn pods(session: &Session) -> Result<BTreeMap<String, Vec<String>>, String> {
    let options = ListOptions::default();
    let list = session.client().list(&Kind::POD, "", &options).await;
    let list = list.map_err(|error| error.to_string())?;
    let mut pods = BTreeMap::new();
    for item in list.items {
        let pod = item.to_value().map_err(|error| error.to_string())?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
        let addresses = addresses.map(|address| text(&address["ip"])).collect();
        pods.insert(text(&pod["metadata"]["name"]), addresses);
    }
    Ok(pods)
}

/// Identities of the addresses of these pods of a cluster, by their CiliumEndpoints.
pub(crate) async fn identities(
    session: &Session,
    kind: &Kind,
    pods: &BTreeMap<String, Vec<String>>,
) -> Result<Identities, String> {
    let list = session.client().list(kind, "", &ListOptions::default()).await;
    let list = list.map_err(|error| error.to_string())?;
    let mut of_names = BTreeMap::new();
    for item in list.items {
        let endpoint = item.to_value().map_err(|error| error.to_string())?;
        let name = endpoint["metadata"]["name"].as_str().unwrap_or_default();
        let identity = endpoint["status"]["identity"]["id"].as_u64();
        let identity = identity.and_then(|identity| u32::try_from(identity).ok());
        of_names.insert(name.to_owned(), identity);
    }
    let mut found = Identities::new();
    for (name, addresses) in pods {
        let identity = of_names.get(name).copied().flatten();
        let identity = identity.ok_or_else(|| format!("pod {name} has no identity"))?;
        let prefixes = addresses.iter().map(|address| match address.contains(':') {
            true => format!("{address}/128"),
            false => format!("{address}/32"),
        });
        found.extend(prefixes.map(|prefix| (prefix, identity)));
    }
    Ok(found)
}

/// The frontends of a service with these addresses and these backends.
pub(crate) fn frontends<'a>(
    addresses: &'a [String],
    backends: &'a [&'a Vec<String>],
) -> impl Iterator<Item = (String, BTreeSet<String>)> + 'a {
    let is_v6 = |address: &str| address.contains(':');
    let of = move |address: &'a String, protocol: &'static str| {
        let addresses = backends.iter().copied().flatten();
        let same = addresses.filter(move |backend| is_v6(backend) == is_v6(address));
        let places = same.map(move |backend| format!("{}/{protocol}", at(backend, PORTS.1)));
        (
            format!("{}/{protocol}", at(address, PORTS.0)),
            places.collect::<BTreeSet<_>>(),
        )
    };
    addresses
        .iter()
        .flat_map(move |address| [of(address, "TCP"), of(address, "UDP")])
}

pub(crate) struct Agent<'a> {
    pub(crate) session: &'a Session,
    pub(crate) node: &'a str,
}

impl Agent<'_> {
    async fn skep(&self, words: &[&str]) -> Result<Value, String> {
        let words: Vec<&str> = ["skep", "-o", "json"]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        let text = self.session.run(self.node, &words).await;
        let text = text.map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("{words:?}: {error}: {text}"))
    }

    /// What the table of frontends says of services with these names.
    async fn desired(&self, services: &[&str]) -> Result<Frontends, String> {
        let mut found = Frontends::new();
        let list = self.skep(&["service", "list"]).await?;
        for service in list.as_array().into_iter().flatten() {
            let spec = &service["status"]["realized"];
            let is_one = services.iter().any(|name| spec["flags"]["name"] == **name);
            if !is_one || spec["flags"]["type"] != "ClusterIP" {
                continue;
            }
            let place = |value: &Value, protocol: &str| {
                let port = value["port"].as_u64().unwrap_or_default();
                let ip = value["ip"].as_str().unwrap_or_default();
                format!("{}/{protocol}", at(ip, port))
            };
            let frontend = &spec["frontend-address"];
            let protocol = frontend["protocol"].as_str().unwrap_or_default();
            let backends = spec["backend-addresses"].as_array().into_iter().flatten();
            let backends = backends.map(|backend| place(backend, protocol)).collect();
            found.insert(place(frontend, protocol), backends);
        }
        Ok(found)
    }

    /// What the service maps have for these addresses.
    async fn realized(&self, addresses: &BTreeSet<String>) -> Result<Frontends, String> {
        let mut found = Frontends::new();
        let entries = self.skep(&["bpf", "lb", "list"]).await?;
        for (key, values) in entries.as_object().into_iter().flatten() {
            // `address:port/PROTOCOL (slot)`.
            let (frontend, slot) = key.split_once(' ').unwrap_or((key, ""));
            let is_one = addresses
                .iter()
                .any(|address| frontend.starts_with(&format!("{}/", at(address, PORTS.0))));
            if !is_one {
                continue;
            }
            let backends = found.entry(frontend.to_owned()).or_default();
            if slot != "(0)" {
                let text = values[0].as_str().unwrap_or_default();
                let backend = text.split_once(' ').map_or(text, |(backend, _)| backend);
                backends.insert(backend.to_owned());
            }
        }
        Ok(found)
    }

    /// Entries of the ipcache with an identity of a cluster.
    async fn identities(&self) -> Result<Identities, String> {
        let entries = self.skep(&["bpf", "ipcache", "list"]).await?;
        let mut found = Identities::new();
        for (key, values) in entries.as_object().into_iter().flatten() {
            let text = values[0].as_str().unwrap_or_default();
            let identity = text
                .strip_prefix("identity=")
                .and_then(|rest| rest.split(' ').next());
            let identity: u32 = identity
                .and_then(|identity| identity.parse().ok())
                .ok_or_else(|| format!("{key}: {text}"))?;
            if ALLOCATED.contains(&identity) {
                found.insert(key.clone(), identity);
            }
        }
        Ok(found)
    }

    /// Compares the services with those that there should be. No other one has an entry for one of these addresses.
    pub(crate) async fn compare_services(
        &self,
        services: &[&str],
        expected: &Frontends,
        addresses: &BTreeSet<String>,
    ) -> Result<(), String> {
        same("services", &self.desired(services).await?, expected)?;
        same("service maps", &self.realized(addresses).await?, expected)
    }

    /// Compares the identities of addresses with those that there should be.
    pub(crate) async fn compare_identities(&self, expected: &Identities) -> Result<(), String> {
        same("ipcache", &self.identities().await?, expected)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {found:#?} instead of {expected:#?}")),
    }
}
