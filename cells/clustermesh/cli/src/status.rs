// SPDX-License-Identifier: Apache-2.0

//! How the remote clusters of a running program are.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use clap::Args;
use hive_script::text::jsonpath::Template;
use jiff::Timestamp;
use serde_json::Value;
use skep_clustermesh_mesh::{RemoteClusterStatus, summary};

/// How long connecting and each read may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which clusters are printed, and how.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Include ready clusters.
    #[arg(long)]
    pub verbose: bool,
    /// Output format, with all clusters: json, yaml or jsonpath=TEMPLATE.
    #[arg(long, short, value_parser = format)]
    pub output: Option<Format>,
}

/// A program with an API over HTTP, such as one that answers `GET /v1/cluster`.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// What errors call it.
    pub name: &'a str,
    /// What the status calls its mesh.
    pub title: &'a str,
    /// Host and port of its API.
    pub host: &'a str,
}

#[derive(Clone, Debug)]
pub enum Format {
    Json,
    Yaml,
    /// What a template selects of the JSON.
    JsonPath(Template),
}

/// The form that an option names.
pub fn format(text: &str) -> Result<Format, String> {
    match (text, text.strip_prefix("jsonpath=")) {
        ("json", _) => Ok(Format::Json),
        ("yaml", _) => Ok(Format::Yaml),
        (_, Some(template)) => match template.parse() {
            Ok(template) => Ok(Format::JsonPath(template)),
            Err(error) => Err(error.to_string()),
        },
        _ => Err("expected json, yaml or jsonpath=TEMPLATE".to_owned()),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// It does not run, or has another address.
    #[error("cannot reach {name} at {host}")]
    Connect {
        name: String,
        host: String,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
    /// Something else listens at that address.
    #[error("unexpected answer of {host}: {answer}")]
    Answer {
        host: String,
        /// The first line of the answer.
        answer: String,
    },
    /// Something else listens at that address, or a later version.
    #[error("unexpected status from {host}")]
    Model {
        host: String,
        #[source]
        cause: serde_json::Error,
    },
    /// The document cannot be printed in this form.
    #[error("cannot print the status")]
    Print(#[source] hive_script::text::yaml::Error),
}

/// Asks for the status.
///
/// # Errors
///
/// When there is no answer, or one that is no status.
pub fn run(options: &Options, server: Server<'_>) -> Result<String, StatusError> {
    let body = get(server, "/v1/cluster")?;
    let model = |cause| StatusError::Model {
        host: server.host.to_owned(),
        cause,
    };
    // Go writes an empty list as null.
    let clusters: Option<Vec<RemoteClusterStatus>> = serde_json::from_str(&body).map_err(model)?;
    let clusters = clusters.unwrap_or_default();
    let document = serde_json::from_str::<Value>(&body).map_err(model)?;
    match &options.output {
        None => Ok(text(server.title, &clusters, options.verbose, Timestamp::now())),
        Some(format) => print(&document, format),
    }
}

pub fn print(document: &Value, format: &Format) -> Result<String, StatusError> {
    match format {
        Format::Json => Ok(format!("{document:#}\n")),
        Format::Yaml => hive_script::text::yaml::emit_v2(document).map_err(StatusError::Print),
        Format::JsonPath(template) => Ok(template.render(document) + "\n"),
    }
}

/// The status as Cilium prints it: clusters that are not ready, and those that are if `is_verbose`.
fn text(title: &str, clusters: &[RemoteClusterStatus], is_verbose: bool, now: Timestamp) -> String {
    let mut text = format!("{title}:\t{}\n", summary(clusters));
    for cluster in clusters.iter().filter(|cluster| is_verbose || !cluster.ready) {
        for line in cluster.text(now).lines() {
            text.push_str(&format!("   {line}\n"));
        }
    }
    text
}

/// The answer of a program to `GET` of a path.
///
/// # Errors
///
/// When there is no answer, or another status than 200.
pub fn get(Server { name, host, .. }: Server<'_>, path: &str) -> Result<String, StatusError> {
    let answer = exchange(host, path).map_err(|cause| StatusError::Connect {
        name: name.to_owned(),
        host: host.to_owned(),
        cause,
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let line = head.lines().next().unwrap_or_default();
    if line.split(' ').nth(1) == Some("200") {
        return Ok(body.to_owned());
    }
    Err(StatusError::Answer {
        host: host.to_owned(),
        answer: line.to_owned(),
    })
}

/// One request. With HTTP 1.0 the answer ends with the connection, and has no chunks.
fn exchange(host: &str, path: &str) -> std::io::Result<String> {
    let mut failed = std::io::Error::other("the name has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                return Ok(answer);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn cluster(name: &str, ready: bool) -> RemoteClusterStatus {
        RemoteClusterStatus {
            name: name.to_owned(),
            ready,
            status: "etcd: 1/1 connected".to_owned(),
            ..RemoteClusterStatus::default()
        }
    }

    #[test]
    fn clusters_that_are_ready_are_listed_if_that_is_asked_for() {
        let clusters = [cluster("alder", true), cluster("maple", false)];

        let brief = text("KVStoreMesh", &clusters, false, Timestamp::UNIX_EPOCH);
        let verbose = text("KVStoreMesh", &clusters, true, Timestamp::UNIX_EPOCH);

        assert!(
            brief.starts_with("KVStoreMesh:\t1/2 remote clusters ready\n   maple: not-ready, "),
            "{brief}"
        );
        assert!(brief.contains("\n   └  etcd: 1/1 connected\n"), "{brief}");
        assert!(!brief.contains("alder"), "{brief}");
        assert!(verbose.contains("\n   alder: ready, "), "{verbose}");
    }

    #[test]
    fn other_forms_are_refused() {
        assert_eq!(
            format("xml").expect_err("there is none"),
            "expected json, yaml or jsonpath=TEMPLATE"
        );
        let error = format("jsonpath={.a").expect_err("it does not end");
        assert_eq!(error, "invalid JSONPath at character 4: `}` is missing");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a server that blocks")]
    fn the_status_is_asked_for_at_the_api() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let host = listener.local_addr().expect("it has an address").to_string();
        let server = std::thread::spawn(move || {
            let answers = [
                "HTTP/1.0 200 OK\r\n\r\n[{\"name\":\"alder\",\"ready\":true}]",
                "HTTP/1.0 200 OK\r\n\r\n[{\"name\":\"alder\",\"ready\":true}]",
                "HTTP/1.0 404 Not Found\r\n\r\n",
            ];
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("it is asked");
                // The whole request, however many pieces it comes in: a socket with unread bytes is reset.
                let mut request = Vec::new();
                let mut piece = [0; 1024];
                while !request.ends_with(b"\r\n\r\n") {
                    let length = stream.read(&mut piece).expect("it is read");
                    assert!(length > 0, "it is complete");
                    request.extend_from_slice(&piece[..length]);
                }
                assert!(request.starts_with(b"GET /v1/cluster HTTP/1.0\r\n"));
                stream.write_all(answer.as_bytes()).expect("it is answered");
            }
        });
        let options_for = |output: &str| Options {
            verbose: false,
            output: Some(format(output).expect("it is a form")),
        };
        let options = options_for("json");
        let server_at = |host| Server {
            name: "kvstoremesh",
            title: "KVStoreMesh",
            host,
        };

        let document = run(&options, server_at(&host)).expect("it is answered");
        let name = run(&options_for("jsonpath={[*].name}"), server_at(&host)).expect("it is answered");
        let error = run(&options, server_at(&host))
            .expect_err("it is not found")
            .to_string();
        let gone = run(&options, server_at("127.0.0.1:1"))
            .expect_err("nothing listens")
            .to_string();

        assert!(document.contains("\"name\": \"alder\""), "{document}");
        assert_eq!(name, "alder\n");
        assert!(error.contains("404 Not Found"), "{error}");
        assert_eq!(gone, "cannot reach kvstoremesh at 127.0.0.1:1");
        server.join().expect("it ends");
    }
}
