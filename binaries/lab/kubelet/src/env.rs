// SPDX-License-Identifier: Apache-2.0

//! Environment, command and arguments of containers.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use serde_json::Value;
use skep_k8s_client::{ApiError, Client};
use skep_k8s_types::Kind;

use crate::{
    object::{flag, list, text},
    volumes::data,
};

/// Why a container has no environment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvError {
    #[error(transparent)]
    Source(#[from] ApiError),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key {
        key: String,
        kind: &'static str,
        namespace: String,
        name: String,
    },
}

/// Names and values, in order: later ones may refer to earlier ones.
pub(crate) type Env = Vec<(String, String)>;

/// Reads the environment of a container.
pub(crate) async fn read(
    client: &dyn Client,
    pod: &Value,
    container: &Value,
    addresses: &[IpAddr],
    api: SocketAddr,
) -> Result<Env, EnvError> {
    let mut env: Env = vec![
        ("KUBERNETES_SERVICE_HOST".to_owned(), api.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT".to_owned(), api.port().to_string()),
    ];
    let mut objects = Objects {
        client,
        namespace: text(pod, "/metadata/namespace"),
        read: BTreeMap::new(),
    };
    for source in list(container, "/envFrom") {
        for (kind, key) in [(&Kind::CONFIG_MAP, "configMapRef"), (&Kind::SECRET, "secretRef")] {
            if source[key].is_object() {
                let values = objects
                    .get(kind, text(&source[key], "/name"), flag(&source[key], "/optional"))
                    .await?;
                let prefix = text(source, "/prefix");
                let values = values.into_iter().flatten();
                env.extend(values.map(|(name, value)| (format!("{prefix}{name}"), lossy(&value))));
            }
        }
    }
    for variable in list(container, "/env") {
        let name = text(variable, "/name").to_owned();
        let source = &variable["valueFrom"];
        let value = if let Some(path) = source.pointer("/fieldRef/fieldPath").and_then(Value::as_str) {
            Some(field(pod, path, addresses))
        } else if let Some(resource) = source
            .pointer("/resourceFieldRef/resource")
            .and_then(Value::as_str)
        {
            Some(limit(container, resource))
        } else if source["configMapKeyRef"].is_object() {
            objects
                .key(&Kind::CONFIG_MAP, "ConfigMap", &source["configMapKeyRef"])
                .await?
        } else if source["secretKeyRef"].is_object() {
            objects
                .key(&Kind::SECRET, "Secret", &source["secretKeyRef"])
                .await?
        } else {
            Some(expand(text(variable, "/value"), &env))
        };
        if let Some(value) = value {
            env.retain(|(known, _)| *known != name);
            env.push((name, value));
        }
    }
    Ok(env)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Keys and values of a ConfigMap or Secret.
type Values = BTreeMap<String, Vec<u8>>;

struct Objects<'a> {
    client: &'a dyn Client,
    namespace: &'a str,
    read: BTreeMap<(String, String), Option<Values>>,
}

impl Objects<'_> {
    async fn get(&mut self, kind: &Kind, name: &str, is_optional: bool) -> Result<Option<Values>, EnvError> {
        let key = (kind.plural.to_string(), name.to_owned());
        if let Some(known) = self.read.get(&key) {
            return Ok(known.clone());
        }
        let found = match self.client.get(kind, self.namespace, name).await {
            Err(err) if err.is_not_found() && is_optional => None,
            other => Some(data(&*other?.to_value().map_err(ApiError::from)?)),
        };
        self.read.insert(key, found.clone());
        Ok(found)
    }

    async fn key(
        &mut self,
        kind: &Kind,
        word: &'static str,
        source: &Value,
    ) -> Result<Option<String>, EnvError> {
        let is_optional = flag(source, "/optional");
        let (name, key) = (text(source, "/name"), text(source, "/key"));
        let found = self.get(kind, name, is_optional).await?;
        match found.and_then(|mut found| found.remove(key)) {
            Some(value) => Ok(Some(lossy(&value))),
            None if is_optional => Ok(None),
            None => Err(EnvError::Key {
                key: key.to_owned(),
                kind: word,
                namespace: self.namespace.to_owned(),
                name: name.to_owned(),
            }),
        }
    }
}

/// A field of a pod, as the downward API has it.
pub(crate) fn field(pod: &Value, path: &str, addresses: &[IpAddr]) -> String {
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = pod.pointer(&format!("/{}", map.replace('.', "/")));
        return map
            .and_then(|map| map[key].as_str())
            .unwrap_or_default()
            .to_owned();
    }
    let all = || {
        let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        texts.join(",")
    };
    match path {
        "status.podIP" => addresses.first().map(IpAddr::to_string).unwrap_or_default(),
        "status.podIPs" => all(),
        "metadata.labels" | "metadata.annotations" => {
            let map = pod.pointer(&format!("/{}", path.replace('.', "/")));
            let map: BTreeMap<&str, &str> = map
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
                .collect();
            map.iter()
                .map(|(key, value)| format!("{key}={value:?}\n"))
                .collect()
        }
        _ => text(pod, &format!("/{}", path.replace('.', "/"))).to_owned(),
    }
}

/// A limit of a container, as a number of cores or bytes.
fn limit(container: &Value, resource: &str) -> String {
    let (group, name) = resource.split_once('.').unwrap_or_default();
    let quantity = container["resources"][group][name].clone();
    let quantity = match quantity {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text,
        // Without a limit: what the machine has.
        _ if name == "cpu" => std::thread::available_parallelism()
            .map_or(1, usize::from)
            .to_string(),
        _ => return "9223372036854775807".to_owned(),
    };
    let units = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
    ];
    let scaled = units.into_iter().find_map(|(unit, factor): (_, u64)| {
        let number: u64 = quantity.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    });
    let milli = || Some(quantity.strip_suffix('m')?.parse::<u64>().ok()?.div_ceil(1000));
    scaled
        .or_else(milli)
        .map_or(quantity.clone(), |number| number.to_string())
}

/// Replaces `$(NAME)` by values; `$$` is a dollar sign.
pub(crate) fn expand(input: &str, env: &Env) -> String {
    let (mut output, mut rest) = (String::new(), input);
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        rest = &rest[at..];
        let reference = rest.strip_prefix("$(").and_then(|inner| inner.split_once(')'));
        let value = reference.and_then(|(name, after)| {
            let (_, value) = env.iter().find(|(known, _)| known == name)?;
            Some((value, after))
        });
        if let Some((value, after)) = value {
            output.push_str(value);
            rest = after;
        } else {
            output.push('$');
            rest = rest.strip_prefix("$$").unwrap_or(&rest[1..]);
        }
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_expanded_once() {
        let env = vec![("A".to_owned(), "x$(B)".to_owned())];
        for (input, expected) in [
            ("--a=$(A)", "--a=x$(B)"),
            ("$$(A)", "$(A)"),
            ("$(C) $", "$(C) $"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expand(input, &env), expected, "{input}");
        }
    }

    #[test]
    fn fields_and_limits_of_a_pod_are_values() {
        let pod = json!({"metadata": {"name": "p", "labels": {"a/b": "c"}}, "spec": {"nodeName": "n"}});
        assert_eq!(field(&pod, "spec.nodeName", &[]), "n");
        assert_eq!(field(&pod, "metadata.labels['a/b']", &[]), "c");
        assert_eq!(
            field(&pod, "status.podIP", &["10.0.0.1".parse().unwrap()]),
            "10.0.0.1"
        );
        let container = json!({"resources": {"limits": {"memory": "2Mi", "cpu": "1500m"}}});
        assert_eq!(limit(&container, "limits.memory"), "2097152");
        assert_eq!(limit(&container, "limits.cpu"), "2");
    }
}
