// SPDX-License-Identifier: Apache-2.0

//! Ports of pods by name.

use std::collections::BTreeMap;

use skep_identity::{Labels, NumericIdentity};
use skep_ipcache::{IpcacheEntry, Prefix};
use skep_policy_model::{Policies, Protocol, map_state::OwnPorts};

/// Key of the label that names the ports of the pods of an identity, `<name>.<protocol>.<port>` joined by `_`. Long texts go on with
/// `-1`, `-2`.
const LABEL: &str = "io.cilium.k8s.named-ports";

/// The ports that the labels of an identity name.
pub(crate) fn own_ports(labels: &Labels) -> OwnPorts {
    let parts = labels.iter().filter_map(|label| {
        let rest = label.key().strip_prefix(LABEL)?;
        let order: usize = match rest.strip_prefix('-') {
            None if rest.is_empty() => 0,
            None => return None,
            Some(number) => number.parse().ok()?,
        };
        Some((order, label.value()))
    });
    let parts: BTreeMap<usize, &str> = parts.collect();
    let text: Vec<&str> = parts.into_values().collect();
    let ports = text.iter().flat_map(|part| part.split('_')).filter_map(|port| {
        let mut fields = port.rsplitn(3, '.');
        let number = fields.next()?.parse().ok()?;
        let protocol = Protocol::from_name(fields.next()?)?;
        Some(((fields.next()?.to_owned(), protocol), number))
    });
    ports.collect()
}

/// A port as a claim names it.
type Port = (NumericIdentity, String, u8, u16);

/// The named ports of the pods in the ipcache, by prefix.
#[derive(Debug, Default)]
pub(crate) struct PodPorts(BTreeMap<Prefix, Vec<Port>>);

impl PodPorts {
    /// Takes in a row; `None` for one that is gone. Returns whether ports changed.
    pub(crate) fn set(
        &mut self,
        prefix: Prefix,
        row: Option<&IpcacheEntry>,
        policies: &mut Policies,
    ) -> bool {
        let now = row.map(ports).unwrap_or_default();
        let before = match now.is_empty() {
            true => self.0.remove(&prefix),
            false => self.0.insert(prefix, now.clone()),
        };
        let before = before.unwrap_or_default();
        if before == now {
            return false;
        }
        for (identity, name, protocol, port) in now {
            policies.add_named_port(identity, &name, Protocol(protocol), port);
        }
        for (identity, name, protocol, port) in before {
            policies.remove_named_port(identity, &name, Protocol(protocol), port);
        }
        true
    }
}

fn ports(row: &IpcacheEntry) -> Vec<Port> {
    let Some(resolved) = row.resolve() else {
        return Vec::new();
    };
    let ports = resolved.pod.into_iter().flat_map(|pod| &pod.named_ports);
    ports
        .map(|(name, protocol, port)| (resolved.identity, name.to_string(), *protocol, *port))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_label_and_its_continuations() {
        let labels: Labels = [
            "k8s:app=cart",
            "gen:io.cilium.k8s.named-ports=dns.UDP.53_http.TCP.8080",
            "gen:io.cilium.k8s.named-ports-1=my-sctp.SCTP.132",
        ]
        .into_iter()
        .map(|label| label.parse().unwrap())
        .collect();

        let port = |name: &str, protocol, port| ((name.to_owned(), protocol), port);
        let expected: OwnPorts = [
            port("dns", Protocol::UDP, 53),
            port("http", Protocol::TCP, 8080),
            port("my-sctp", Protocol::SCTP, 132),
        ]
        .into();
        assert_eq!(own_ports(&labels), expected);
    }
}
