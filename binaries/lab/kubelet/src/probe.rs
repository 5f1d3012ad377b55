// SPDX-License-Identifier: Apache-2.0

//! Probes of containers.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    cri::Cri,
    node::Connect,
    object::{list, number, text, texts},
};

/// A probe and its last results.
#[derive(Debug)]
pub(crate) struct Probe {
    spec: Value,
    next: Instant,
    in_a_row: u64,
    last: Option<bool>,
    /// Whether thresholds of results are reached: `None` until one is.
    pub(crate) outcome: Option<bool>,
}

/// Where a container is reached.
pub(crate) struct Target<'a> {
    pub(crate) cri: &'a Cri,
    pub(crate) id: &'a str,
    pub(crate) container: &'a Value,
    pub(crate) address: Option<IpAddr>,
    pub(crate) connect: &'a Arc<Connect>,
}

impl Probe {
    pub(crate) fn of(container: &Value, kind: &str) -> Option<Self> {
        let spec = container.get(kind).filter(|spec| spec.is_object())?.clone();
        let delay = number(&spec, "/initialDelaySeconds").unwrap_or_default();
        Some(Self {
            spec,
            next: Instant::now() + Duration::from_secs(delay),
            in_a_row: 0,
            last: None,
            outcome: None,
        })
    }

    /// Probes if it is time to.
    pub(crate) async fn run(&mut self, target: &Target<'_>) {
        if Instant::now() < self.next {
            return;
        }
        let result = self.probe(target).await;
        self.next = Instant::now() + self.seconds("/periodSeconds", 10);
        self.note(result);
    }

    fn note(&mut self, result: bool) {
        self.in_a_row = match self.last == Some(result) {
            true => self.in_a_row + 1,
            false => 1,
        };
        self.last = Some(result);
        let (pointer, default) = match result {
            true => ("/successThreshold", 1),
            false => ("/failureThreshold", 3),
        };
        if self.in_a_row >= number(&self.spec, pointer).unwrap_or(default) {
            self.outcome = Some(result);
        }
    }

    fn seconds(&self, pointer: &str, default: u64) -> Duration {
        Duration::from_secs(number(&self.spec, pointer).unwrap_or(default))
    }

    async fn probe(&self, target: &Target<'_>) -> bool {
        let limit = self.seconds("/timeoutSeconds", 1);
        let spec = &self.spec;
        if spec["exec"].is_object() {
            let done = target
                .cri
                .exec(target.id, &texts(spec, "/exec/command"), limit)
                .await;
            return done.is_ok_and(|answer| answer.exit_code == 0);
        }
        let kind = ["httpGet", "tcpSocket", "grpc"]
            .into_iter()
            .find(|kind| spec[kind].is_object());
        let Some(kind) = kind else {
            return true;
        };
        let action = &spec[kind];
        let host = text(action, "/host").parse().ok().or(target.address);
        let (Some(host), Some(port)) = (host, port(target.container, &action["port"])) else {
            return false;
        };
        let request =
            (kind == "httpGet" && text(action, "/scheme") != "HTTPS").then(|| http_request(action, host));
        let connect = target.connect.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&*connect, (host, port).into(), request, limit));
        asked.await.is_ok_and(|result| result.unwrap_or_default())
    }
}

/// A port by number or by its name in the container.
fn port(container: &Value, port: &Value) -> Option<u16> {
    if let Some(number) = port.as_u64() {
        return number.try_into().ok();
    }
    let name = port.as_str()?;
    let mut ports = list(container, "/ports").iter();
    let found = ports.find(|port| text(port, "/name") == name);
    let found = found.and_then(|port| number(port, "/containerPort")?.try_into().ok());
    found.or_else(|| name.parse().ok())
}

fn http_request(action: &Value, host: IpAddr) -> String {
    let path = match text(action, "/path") {
        "" => "/",
        path => path,
    };
    let headers: String = list(action, "/httpHeaders")
        .iter()
        .map(|header| format!("{}: {}\r\n", text(header, "/name"), text(header, "/value")))
        .collect();
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kube-probe\r\nConnection: close\r\n{headers}\r\n"
    )
}

/// Connects, and for HTTP reports whether the status is a success.
fn ask(connect: &Connect, to: SocketAddr, request: Option<String>, limit: Duration) -> std::io::Result<bool> {
    let mut stream = connect(to, limit)?;
    let Some(request) = request else {
        return Ok(true);
    };
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(request.as_bytes())?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    // HTTP/1.1 200
    Ok(start.starts_with(b"HTTP/1.") && matches!(start[9], b'2' | b'3'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outcome_needs_its_threshold() {
        let container = json!({"p": {"failureThreshold": 2, "successThreshold": 2, "httpGet": {}}});
        let mut probe = Probe::of(&container, "p").unwrap();
        let outcomes = [true, true, false, true, false, false].map(|result| {
            probe.note(result);
            probe.outcome
        });
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(outcomes, [None, yes, yes, yes, yes, no]);
    }

    #[test]
    fn ports_have_names() {
        let container = json!({"ports": [{"name": "health", "containerPort": 9879}]});
        assert_eq!(port(&container, &json!("health")), Some(9879));
        assert_eq!(port(&container, &json!(80)), Some(80));
        assert_eq!(port(&container, &json!("none")), None);
    }
}
