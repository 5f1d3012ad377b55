// SPDX-License-Identifier: Apache-2.0

//! `skep service`: services as the agent's API tells them.

use serde_json::Value;

use crate::print;

/// Services in columns, sorted by id; one line a backend. `affinity` marks backends that the service prefers.
pub(crate) fn list(services: &Value, affinity: bool) -> String {
    let mut services: Vec<&Value> = services
        .as_array()
        .map(|all| all.iter().collect())
        .unwrap_or_default();
    services.sort_by_key(|service| service["spec"]["id"].as_u64());
    let rows = services.into_iter().flat_map(|service| {
        let spec = &service["spec"];
        let flags = &spec["flags"];
        let remote = if flags["cluster"]
            .as_str()
            .is_some_and(|cluster| !cluster.is_empty())
        {
            " (Remote)"
        } else {
            ""
        };
        let head = [
            spec["id"].as_u64().unwrap_or_default().to_string(),
            address(&spec["frontend-address"]),
            format!("{}{remote}", flags["type"].as_str().unwrap_or_default()),
        ];
        let backends = spec["backend-addresses"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (number, backend) in backends.iter().enumerate() {
            let state = backend["state"].as_str().unwrap_or("active");
            let mut row = if number == 0 {
                head.to_vec()
            } else {
                vec![String::new(); 3]
            };
            let preferred = if affinity && backend["preferred"] == true {
                " (preferred)"
            } else {
                ""
            };
            row.push(format!(
                "{} => {} ({state}){preferred}",
                number + 1,
                address(backend)
            ));
            rows.push(row);
        }
        if rows.is_empty() {
            rows.push(head.into_iter().chain([String::new()]).collect());
        }
        rows
    });
    print::table(&["ID", "Frontend", "Service Type", "Backend"], rows)
}

/// The service with this id.
pub(crate) fn by_id(services: &Value, id: u64) -> Option<&Value> {
    services
        .as_array()?
        .iter()
        .find(|service| service["spec"]["id"].as_u64() == Some(id))
}

/// `ip:port/PROTOCOL`, with `/i` for the internal scope.
pub(crate) fn address(value: &Value) -> String {
    let ip = value["ip"].as_str().unwrap_or_default();
    let ip = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let port = value["port"].as_u64().unwrap_or_default();
    let protocol = value["protocol"].as_str().unwrap_or("TCP");
    let scope = if value["scope"] == "internal" { "/i" } else { "" };
    format!("{ip}:{port}/{protocol}{scope}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn services() -> Value {
        json!([
            {"spec": {"id": 3, "frontend-address": {"ip": "fd00::1", "port": 80, "protocol": "TCP", "scope": "internal"},
                "flags": {"type": "NodePort"}}},
            {"spec": {"id": 2, "frontend-address": {"ip": "10.96.0.10", "port": 53, "protocol": "UDP", "scope": "external"},
                "backend-addresses": [
                    {"ip": "10.0.1.5", "port": 53, "protocol": "UDP", "state": "active"},
                    {"ip": "10.0.2.8", "port": 53, "protocol": "UDP", "state": "terminating"}],
                "flags": {"type": "ClusterIP"}}},
        ])
    }

    #[test]
    fn lists_by_id_with_a_line_for_each_backend() {
        let expected = [
            "ID   Frontend             Service Type   Backend",
            "2    10.96.0.10:53/UDP    ClusterIP      1 => 10.0.1.5:53/UDP (active)",
            "                                         2 => 10.0.2.8:53/UDP (terminating)",
            "3    [fd00::1]:80/TCP/i   NodePort       ",
            "",
        ];
        assert_eq!(list(&services(), false), expected.join("\n"));
    }

    #[test]
    fn preferred_backends_are_marked_if_asked_for() {
        let services = json!([{"spec": {"id": 1, "frontend-address": {"ip": "10.96.0.1", "port": 80},
            "backend-addresses": [{"ip": "10.0.1.5", "port": 80, "preferred": true}, {"ip": "10.0.1.6", "port": 80}],
            "flags": {"type": "ClusterIP", "cluster": "west"}}}]);
        let text = list(&services, true);
        assert!(text.contains("ClusterIP (Remote)"), "{text}");
        assert!(
            text.contains("1 => 10.0.1.5:80/TCP (active) (preferred)\n"),
            "{text}"
        );
        assert!(text.contains("2 => 10.0.1.6:80/TCP (active)\n"), "{text}");
        assert!(!list(&services, false).contains("preferred"));
    }

    #[test]
    fn finds_by_id() {
        let all = services();
        assert_eq!(by_id(&all, 2).unwrap()["spec"]["flags"]["type"], "ClusterIP");
        assert!(by_id(&all, 9).is_none());
    }
}
