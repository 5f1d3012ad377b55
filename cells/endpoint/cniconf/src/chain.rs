// SPDX-License-Identifier: Apache-2.0

//! Finds the network of another plugin, and adds an entry to its text. The rest of the text stays as it is.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use hive::config::open_regular;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{file::is_one_of, render::PLUGIN};

const EXTENSIONS: [&str; 4] = ["conflist", "conf", "json", "cilium_bak"];

#[derive(Deserialize)]
struct Network<'a> {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(borrow)]
    plugins: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Plugin {
    #[serde(default, rename = "type")]
    kind: String,
}

/// The list of plugins of network `target` in the other files of the directory of `own`, by name: its file and its text.
pub(crate) fn find(own: &Path, target: &str) -> io::Result<Option<(PathBuf, String)>> {
    let directory = own.parent().unwrap_or(Path::new("/"));
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    paths.retain(|path| path != own && is_one_of(path, &EXTENSIONS));
    paths.sort_unstable();
    let found = paths.into_iter().find_map(|path| {
        let text = open_regular(&path).and_then(io::read_to_string);
        let text = text.inspect_err(
            |error| tracing::warn!(path = %path.display(), %error, "Cannot read CNI configuration file"),
        );
        Some((path, list(&text.ok()?, target)?))
    });
    Ok(found)
}

/// The text as a list of plugins, if it is that of network `target` with another plugin than the own one.
fn list(text: &str, target: &str) -> Option<String> {
    let network: Network<'_> = serde_json::from_str(text).ok()?;
    if target != "*" && network.name != target {
        return None;
    }
    let Some(plugins) = network.plugins else {
        let is_other = !network.kind.is_empty() && network.kind != PLUGIN;
        return is_other.then(|| converted(text, target)).flatten();
    };
    let plugins: Vec<Plugin> = serde_json::from_str(plugins.get()).ok()?;
    let is_other = plugins.iter().any(|plugin| plugin.kind != PLUGIN);
    is_other.then(|| text.to_owned())
}

/// A configuration of one plugin as a list. Its name is the wanted one, also if that is `*`: as in Cilium.
fn converted(text: &str, target: &str) -> Option<String> {
    let plugin: Value = serde_json::from_str(text).ok()?;
    let version = plugin
        .get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut list = json!({"cniVersion": version, "name": target, "plugins": [plugin]});
    list.sort_all_objects();
    Some(list.to_string())
}

/// The text of a list with `entry` in place of the plugin's first entry, or after all others.
pub(crate) fn with_entry(text: &str, entry: &str) -> Result<String, serde_json::Error> {
    let network: Network<'_> = serde_json::from_str(text)?;
    let plugins = network.plugins.map_or("[]", RawValue::get);
    let entries: Vec<&RawValue> = serde_json::from_str(plugins)?;
    // Raw values are parts of the text.
    let start = |part: &str| part.as_ptr().addr() - text.as_ptr().addr();
    for raw in &entries {
        if serde_json::from_str::<Plugin>(raw.get()).is_ok_and(|plugin| plugin.kind == PLUGIN) {
            let at = start(raw.get());
            return Ok([&text[..at], entry, &text[at + raw.get().len()..]].concat());
        }
    }
    let end = start(plugins) + plugins.len() - 1;
    Ok([&text[..end], ",", entry, &text[end..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_entry_is_replaced_in_place() {
        let text = r#"{"name":"a","plugins":[ {"type":"x"}, {"type":"cilium-cni","old":1} ,{"type":"y"}]}"#;

        let found = with_entry(text, r#"{"new":2}"#).unwrap();

        assert_eq!(
            found,
            r#"{"name":"a","plugins":[ {"type":"x"}, {"new":2} ,{"type":"y"}]}"#
        );
    }

    #[test]
    fn only_valid_networks_of_other_plugins_match() {
        let list_of = |kind: &str| format!(r#"{{"name":"a","plugins":[{{"type":"{kind}"}}]}}"#);
        for (text, target, is_found) in [
            (list_of("x"), "a", true),
            (list_of("x"), "*", true),
            (list_of("x"), "b", false),
            (list_of(PLUGIN), "*", false),
            (r#"{"name":"a","plugins":[]}"#.to_owned(), "a", false),
            (r#"{"name":"a"}"#.to_owned(), "a", false),
            (r#"{"name":"a","type":"x"}"#.to_owned(), "a", true),
            (r#"{"name":"a","type":"cilium-cni"}"#.to_owned(), "*", false),
            ("{bad".to_owned(), "*", false),
        ] {
            assert_eq!(list(&text, target).is_some(), is_found, "{text} for {target}");
        }
        let converted = list(r#"{"type":"x","name":"a"}"#, "*").unwrap();
        assert_eq!(
            converted,
            r#"{"cniVersion":"","name":"*","plugins":[{"name":"a","type":"x"}]}"#
        );
    }
}
