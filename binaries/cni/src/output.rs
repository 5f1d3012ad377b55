// SPDX-License-Identifier: Apache-2.0

//! Results in the forms of all versions.

use serde::{Deserialize, Serialize, Serializer as _};
use serde_json::{Map, Value, json};

/// A result, as version 1 has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct CniResult {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) ips: Vec<Ip>,
    pub(crate) routes: Vec<Value>,
    pub(crate) dns: Map<String, Value>,
    /// Keys that are passed on: another plugin's.
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Interface {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox: String,
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ip {
    pub(crate) address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) gateway: String,
    /// Position among the interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interface: Option<usize>,
}

impl CniResult {
    /// Reads a result of any version.
    pub(crate) fn read(value: &Value) -> Result<Self, String> {
        let version = value["cniVersion"].as_str().unwrap_or("0.1.0");
        if !crate::VERSIONS.contains(&version) {
            return Err(format!(
                "result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is {version:?}"
            ));
        }
        let mut result = Self::deserialize(value).map_err(|error| error.to_string())?;
        result.more.remove("cniVersion");
        for key in ["ip6", "ip4"] {
            let Some(old) = result.more.remove(key) else {
                continue;
            };
            let text = |key: &str| old[key].as_str().unwrap_or_default().to_owned();
            result.ips.push(Ip {
                address: text("ip"),
                gateway: text("gateway"),
                interface: None,
            });
            result
                .routes
                .extend(old["routes"].as_array().cloned().unwrap_or_default());
        }
        Ok(result)
    }

    /// The document of a version.
    pub(crate) fn of_version(&self, version: &str) -> Value {
        match version {
            "0.1.0" | "0.2.0" => self.oldest(version),
            "0.3.0" | "0.3.1" | "0.4.0" => self.old(version),
            _ => {
                let mut document = json!({
                    "cniVersion": version, "interfaces": self.interfaces, "ips": self.ips, "routes": self.routes,
                });
                if !self.dns.is_empty() {
                    document["dns"] = self.dns.clone().into();
                }
                without_empty(document)
            }
        }
    }

    fn old(&self, version: &str) -> Value {
        let interfaces: Vec<Value> = self
            .interfaces
            .iter()
            .map(|interface| {
                let mut document =
                    json!({"name": interface.name, "mac": interface.mac, "sandbox": interface.sandbox});
                if let Some(document) = document.as_object_mut() {
                    document.retain(|_, value| value != "");
                }
                document
            })
            .collect();
        let ips: Vec<Value> = self
            .ips
            .iter()
            .map(|ip| {
                let mut document = Map::new();
                document.insert("version".to_owned(), family(&ip.address).into());
                document.extend(ip.interface.map(|index| ("interface".to_owned(), index.into())));
                document.insert("address".to_owned(), ip.address.clone().into());
                if !ip.gateway.is_empty() {
                    document.insert("gateway".to_owned(), ip.gateway.clone().into());
                }
                document.into()
            })
            .collect();
        without_empty(json!({
            "cniVersion": version, "interfaces": interfaces, "ips": ips, "routes": self.routes, "dns": self.dns,
        }))
    }

    fn oldest(&self, version: &str) -> Value {
        let mut document = json!({"cniVersion": version});
        for (key, wanted) in [("ip4", "4"), ("ip6", "6")] {
            let Some(ip) = self.ips.iter().find(|ip| family(&ip.address) == wanted) else {
                continue;
            };
            let routes = self.routes.iter().filter_map(|route| {
                let to = route["dst"].as_str().filter(|to| family(to) == wanted)?;
                let mut old = json!({"dst": to});
                if let Some(gateway) = route.get("gw") {
                    old["gw"] = gateway.clone();
                }
                Some(old)
            });
            let routes: Vec<Value> = routes.collect();
            let mut part = json!({"ip": ip.address});
            if !ip.gateway.is_empty() {
                part["gateway"] = ip.gateway.clone().into();
            }
            part["routes"] = routes.into();
            document[key] = without_empty(part);
        }
        document["dns"] = self.dns.clone().into();
        document
    }
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "6" } else { "4" }
}

fn without_empty(mut document: Value) -> Value {
    if let Some(object) = document.as_object_mut() {
        object.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
    }
    document
}

/// A document with an indentation of four blanks, without a line end, as other plugins print it.
pub(crate) fn text(document: &Value) -> String {
    let mut out = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, format);
    match serializer.collect_map(document.as_object().into_iter().flatten()) {
        Ok(()) => String::from_utf8_lossy(&out).into_owned(),
        Err(_) => document.to_string(),
    }
}
