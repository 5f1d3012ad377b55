// SPDX-License-Identifier: Apache-2.0

//! `cniconf.json`: the CNI configuration that the agent writes, as a directory before and after, and its status.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hive::{All, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_base_api::StatusProbe;
use skep_base_api_types::StatusResponse;

use crate::{Boxed, Error, Options, Report, bindings::Bindings};

const DIRECTORY: &str = "/etc/cni/net.d";
/// Where sources of `read-cni-conf` were.
const SOURCES: &str = "/var/run/cilium/custom";
/// How long the directory may take to be as recorded.
const PATIENCE: Duration = Duration::from_secs(20);

type Probes = All<Arc<dyn StatusProbe>>;

pub(crate) fn run(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let mut reports = Vec::new();
    for case in recording["cases"].as_array().into_iter().flatten() {
        let name = format!("cniconf/{}", case["name"].as_str().unwrap_or_default());
        if !name.contains(&options.only) {
            continue;
        }
        // Time of the runtime passes at once; that of watches does not.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        let runtime = runtime.map_err(|error| Error::Run(error.into()))?;
        reports.push(
            runtime
                .block_on(run_case(name, recording, case))
                .map_err(Error::Run)?,
        );
    }
    Ok(reports)
}

async fn run_case(name: String, recording: &Value, case: &Value) -> Result<Report, Boxed> {
    let (root, sources) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let root = root.path();
    for file in case["directory_before"].as_array().into_iter().flatten() {
        let path = root.join(file["name"].as_str().unwrap_or_default());
        match file["name"].as_str().unwrap_or_default().ends_with('/') {
            true => fs::create_dir_all(path)?,
            false => fs::write(path, file["text"].as_str().unwrap_or_default())?,
        }
    }
    let mut flags = vec![format!(
        "--write-cni-conf-when-ready={DIRECTORY}/05-cilium.conflist"
    )];
    for flag in case["flags"].as_array().into_iter().flatten() {
        let flag = flag.as_str().unwrap_or_default();
        let (key, _) = flag.split_once('=').unwrap_or((flag, ""));
        flags.retain(|other| other.split_once('=').is_none_or(|(other, _)| other != key));
        match flag.contains(SOURCES) {
            true => {
                let source = sources.path().join("source");
                let text = case["directory_after"][0]["text"].as_str();
                fs::write(&source, text.unwrap_or_default())?;
                flags.push(format!("{key}={}", source.display()));
            }
            false => flags.push(flag.to_owned()),
        }
    }
    let directory = root.display().to_string();
    let flags: Vec<String> = flags
        .iter()
        .map(|flag| flag.replace(DIRECTORY, &directory))
        .collect();
    let cells = [
        skep_base_settings::cell(),
        skep_base_logging::cell(),
        skep_endpoint_cniconf::cell(),
    ];
    let plan = Hive::new(cells)
        .root::<Probes>()
        .plan(Settings::new().args(flags))?;
    let running = plan.build()?.start().await?;

    let mut bindings = Bindings::of(recording);
    let after = json!({"directory": case["directory_after"], "status": case["status"]});
    let mut found = until(&running, root, "after", &after, &mut bindings).await?;
    for step in case["steps"].as_array().into_iter().flatten() {
        act(root, step)?;
        let place = step["action"].as_str().unwrap_or_default();
        found.extend(until(&running, root, place, step, &mut bindings).await?);
    }
    running.stop().await?;
    Ok(Report::new(name, found))
}

/// Waits until directory and status are as recorded.
async fn until(
    running: &Running,
    root: &Path,
    place: &str,
    step: &Value,
    bindings: &mut Bindings,
) -> Result<Vec<crate::bindings::Mismatch>, Boxed> {
    let mut expected = json!({"directory": step["directory"], "status": step["status"]});
    if let Some(status) = expected["status"].as_object_mut() {
        status.remove("controller write-cni-file");
        // The recorded program has no version.
        if let Some(msg) = status["cilium"]["msg"].as_str() {
            let msg = msg.replacen(" (v-)", env!("CARGO_PKG_VERSION"), 1);
            status["cilium"]["msg"] = msg.into();
        }
    }
    for entry in expected["directory"].as_array_mut().into_iter().flatten() {
        // Directories have no text.
        if entry["name"].as_str().is_some_and(|name| name.ends_with('/'))
            && let Some(entry) = entry.as_object_mut()
        {
            entry.remove("text");
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = json!({"directory": listing(root, root)?, "status": status(running, root).await?});
        let (mut trial, mut differing) = (bindings.clone(), Vec::new());
        trial.compare(place, &expected, &found, &mut differing);
        if differing.is_empty() || Instant::now() > deadline {
            *bindings = trial;
            return Ok(differing);
        }
        std::thread::sleep(Duration::from_millis(2));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Names, modes and texts in a directory, in the order of their names.
fn listing(root: &Path, directory: &Path) -> Result<Vec<Value>, Boxed> {
    let entries = fs::read_dir(directory)?.flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root)?.display().to_string();
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        let mode = format!("{:#o}", metadata.permissions().mode() & 0o777);
        if metadata.is_dir() {
            found.push(json!({"name": format!("{name}/"), "mode": mode}));
            found.extend(listing(root, &path)?);
        } else {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.push(json!({"name": name, "mode": mode, "text": text}));
        }
    }
    Ok(found)
}

async fn status(running: &Running, root: &Path) -> Result<Value, Boxed> {
    let mut response = StatusResponse::default();
    let mut cilium = json!({"state": "Ok", "msg": env!("CARGO_PKG_VERSION")});
    for probe in running.get::<Probes>().ok_or("no probes")?.iter() {
        if let Some(part) = probe.probe(&mut response).await {
            cilium = json!({"state": part.state, "msg": probe.failure(&part.msg)});
        }
    }
    let text = json!({
        "cni-file": response.cni_file, "cni-chaining": response.cni_chaining, "cilium": cilium,
    });
    let text = text.to_string().replace(&root.display().to_string(), DIRECTORY);
    Ok(serde_json::from_str(&text)?)
}

/// Does what a step of a case says: `NAME written`, `NAME changed`, `NAME deleted`, `NAME renamed to NAME`.
fn act(root: &Path, step: &Value) -> Result<(), Boxed> {
    let action = step["action"].as_str().unwrap_or_default();
    let words: Vec<&str> = action.split(' ').collect();
    let path = root.join(words[0]);
    let backup = format!("{}.cilium_bak", words[0]);
    let entries = step["directory"].as_array().into_iter().flatten();
    let mut named = entries.filter(|entry| entry["name"] == words[0] || entry["name"] == *backup);
    let text = named
        .next()
        .and_then(|entry| entry["text"].as_str())
        .unwrap_or_default();
    match words[1..] {
        ["written", ..] => fs::write(path, text)?,
        ["changed", ..] => fs::write(path, "{}")?,
        ["deleted", ..] => fs::remove_file(path)?,
        ["renamed", "to", to, ..] => {
            fs::write(&path, text)?;
            fs::rename(path, root.join(to))?;
        }
        _ => return Err(format!("unknown action {action}").into()),
    }
    Ok(())
}
