// SPDX-License-Identifier: Apache-2.0

//! `iperf3` between places of a lab.

use std::process::Stdio;

use serde_json::Value;
use skep_lab::command;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
};

use crate::TestLab;

/// A server in a pod, ended with this value.
#[derive(Debug)]
pub struct Iperf {
    _server: Child,
}

impl Iperf {
    /// Starts a server in a pod; returns when it listens.
    ///
    /// # Panics
    /// When it does not.
    pub async fn serve(lab: &TestLab, pod: &str, port: u16) -> Self {
        let program = ["iperf3", "--server", "--forceflush", "--port", &port.to_string()];
        let program = program.map(Into::into).to_vec();
        let mut command = match command::in_place(lab.name(), pod, program) {
            Ok(command) => command,
            Err(err) => panic!("iperf3 in {pod}: {err}"),
        };
        let mut server = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
            Ok(server) => server,
            Err(err) => panic!("iperf3 in {pod}: {err}"),
        };
        let Some(out) = server.stdout.take() else {
            panic!("iperf3 in {pod} has no output");
        };
        let mut lines = BufReader::new(out).lines();
        loop {
            match lines.next_line().await {
                Ok(Some(line)) if line.contains("listening") => break,
                Ok(Some(_)) => {}
                end => panic!("iperf3 in {pod} does not listen: {end:?}"),
            }
        }
        // The pipe stays open, or the server would end with the first line that it prints.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { _server: server }
    }

    /// Sends so many bytes by TCP; returns how many arrived.
    ///
    /// # Panics
    /// When the client fails.
    pub async fn tcp(&self, lab: &TestLab, from: &str, to: (&str, u64), bytes: u64) -> u64 {
        let report = self.client(lab, from, to, &["--bytes", &bytes.to_string()]).await;
        report["end"]["sum_received"]["bytes"]
            .as_u64()
            .unwrap_or_default()
    }

    /// Sends so many bytes in datagrams of 1,200 bytes, 20 Mbit/s; returns how many datagrams were sent and lost.
    ///
    /// # Panics
    /// When the client fails.
    pub async fn udp(&self, lab: &TestLab, from: &str, to: (&str, u64), bytes: u64) -> (u64, u64) {
        let bytes = bytes.to_string();
        let how = [
            "--udp",
            "--bandwidth",
            "20M",
            "--length",
            "1200",
            "--bytes",
            &bytes,
        ];
        let report = self.client(lab, from, to, &how).await;
        let count = |name: &str| report["end"]["sum"][name].as_u64().unwrap_or_default();
        (count("packets"), count("lost_packets"))
    }

    async fn client(&self, lab: &TestLab, from: &str, to: (&str, u64), how: &[&str]) -> Value {
        let port = to.1.to_string();
        let mut program = vec!["iperf3", "--json", "--client", to.0, "--port", &port];
        program.extend(how);
        let text = lab.run(from, &program).await;
        serde_json::from_str(&text).unwrap_or_else(|err| panic!("iperf3 to {to:?} printed {text}: {err}"))
    }
}
