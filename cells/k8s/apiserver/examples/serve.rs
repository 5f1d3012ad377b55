// SPDX-License-Identifier: Apache-2.0

//! Serves the API on loopback, to try kubectl on it: `kubectl --server http://127.0.0.1:8001 get namespaces`.

use skep_k8s_apiserver::{HttpOptions, HttpServer, OpenApiSchemas};
use skep_k8s_memory::{ApiServer, Mode, Registry, Rows, Settings, Tracker};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8001".to_owned());
    let tracker = Tracker::new(Rows::new(&statedb::Db::new())?, 10_000, false);
    let settings = Settings {
        schemas: Some(std::sync::Arc::new(OpenApiSchemas)),
        ..Settings::default()
    };
    let api = ApiServer::new(tracker, Registry::builtin(), Mode::Real(settings));
    let server = HttpServer::bind(address.parse()?, api, HttpOptions::default())?;
    println!("http://{}", server.address());
    server.serve(CancellationToken::new()).await;
    Ok(())
}
