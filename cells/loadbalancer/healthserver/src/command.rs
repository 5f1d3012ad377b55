// SPDX-License-Identifier: Apache-2.0

//! Script commands, behind feature `testing`: `http/get` and `svc/set-proxy-redirect`.

use std::sync::Arc;

use async_trait::async_trait;
use hive::Members;
use hive_script::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Spec};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use skep_loadbalancer_model::types::ProxyRedirect;
use skep_loadbalancer_model::{ServiceName, Writer};
use tokio::net::TcpStream;

/// Port of the proxy unless the command names one.
const PROXY_PORT: u16 = 10000;
/// Ports of the service that go to the proxy.
const PROXIED: [u16; 2] = [80, 443];

pub(crate) fn commands(writer: Writer) -> Members<CommandHandle> {
    let get = Get(Spec::new("http/get", "Fetch a page into a file").args("url file"));
    let redirect = Spec::new("svc/set-proxy-redirect", "Send traffic of a service to a proxy")
        .args("namespace/name [proxy-port]");
    let redirect = SetProxyRedirect {
        spec: redirect,
        writer,
    };
    Members(vec![Arc::new(get), Arc::new(redirect)])
}

struct Get(Spec);

#[async_trait]
impl Command for Get {
    fn spec(&self) -> &Spec {
        &self.0
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let [url, file] = inv.args() else {
            return Err(CommandError::usage("expected url and file"));
        };
        let text = cx.until_interrupted(fetch(url)).await??;
        std::fs::write(cx.path(file), text).map_err(|error| CommandError::chain(&error))?;
        Ok(Outcome::Silent)
    }
}

/// Fetches a page over HTTP/1: status line, sorted headers, `---`, body.
async fn fetch(url: &str) -> Result<String, CommandError> {
    let uri: http::Uri = url
        .parse()
        .map_err(|error| CommandError::new(format_args!("{url}: {error}")))?;
    let host = uri
        .host()
        .ok_or_else(|| CommandError::new(format_args!("{url}: no host")))?;
    let address = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
    let failed = |error: &(dyn std::error::Error + 'static)| CommandError::chain(error);
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| failed(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = http::Request::get(path)
        .header(
            http::header::HOST,
            uri.authority().map_or("", |authority| authority.as_str()),
        )
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        Ok::<_, hyper::Error>((head, body.collect().await?.to_bytes()))
    };
    // The connection makes progress only while it is polled, too.
    let (head, body) = tokio::select! {
        exchanged = exchange => exchanged.map_err(|error| failed(&error))?,
        Err(error) = connection => return Err(failed(&error)),
    };
    let mut text = head.status.to_string();
    for name in sorted_names(&head.headers) {
        let values: Vec<_> = head
            .headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap_or_default())
            .collect();
        let value = if *name == http::header::DATE {
            "<omitted>".to_owned()
        } else {
            values.join(", ")
        };
        text.push_str(&format!("\n{}={value}", canonical(name.as_str())));
    }
    text.push_str("\n---\n");
    text.push_str(&String::from_utf8_lossy(&body));
    Ok(text)
}

fn sorted_names(headers: &http::HeaderMap) -> Vec<&http::HeaderName> {
    let mut names: Vec<_> = headers.keys().collect();
    names.sort_by_key(|name| name.as_str());
    names
}

/// `content-type` as `Content-Type`.
fn canonical(name: &str) -> String {
    let capital = |word: &str| {
        let mut word = word.to_owned();
        if let Some(first) = word.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        word
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

struct SetProxyRedirect {
    spec: Spec,
    writer: Writer,
}

#[async_trait]
impl Command for SetProxyRedirect {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, _cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let (name, port) = match inv.args() {
            [name] => (name, PROXY_PORT),
            [name, port] => {
                let bad = |error| CommandError::new(format_args!("invalid proxy port {port:?}: {error}"));
                (name, port.parse().map_err(bad)?)
            }
            _ => return Err("usage: svc/set-proxy-redirect namespace/name [proxy-port]".into()),
        };
        let parts = name
            .split_once('/')
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'));
        let Some((namespace, service)) = parts else {
            return Err(CommandError::new(format_args!(
                "invalid service name format {name:?}, expected namespace/name"
            )));
        };
        let service = ServiceName::new(namespace, service);
        let redirect = ProxyRedirect {
            proxy_port: port,
            ports: PROXIED.into(),
        };
        let mut txn = self.writer.write();
        self.writer
            .set_proxy_redirects(&mut txn, &service, Some([redirect].into()))
            .map_err(CommandError::new)?;
        txn.commit();
        Ok(Outcome::stdout(format!(
            "Set ProxyRedirect (port={port}) on service {service}\n"
        )))
    }
}
