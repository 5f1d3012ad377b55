// SPDX-License-Identifier: Apache-2.0

//! The modules of the crate form layers: none imports, by way of others, a module that imports it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Adds the words after `crate::` in code that is not for tests.
fn add_imports(path: PathBuf, words: &mut BTreeSet<String>) {
    if path.is_dir() {
        let entries = path.read_dir().unwrap();
        return entries.for_each(|entry| add_imports(entry.unwrap().path(), words));
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let paths = line.replace("$crate::", "").replace("crate::", "\0");
        let end = |c: char| !c.is_alphanumeric() && c != '_';
        words.extend(
            paths
                .split('\0')
                .skip(1)
                .map(|path| path.split(end).next().unwrap().to_owned()),
        );
    }
}

#[test]
fn modules_form_layers() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = std::fs::read_to_string(src.join("lib.rs")).unwrap();
    let declared = lib
        .lines()
        .filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';'));
    let mut above: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for module in declared {
        let imports = above.entry(module.to_owned()).or_default();
        add_imports(src.join(module).with_extension("rs"), imports);
        add_imports(src.join(module), imports);
        imports.remove(module);
    }
    // By the module that has it: what is exported at the root hides where it comes from.
    let root =
        |word: &&String| !above.contains_key(*word) && !matches!(word.as_str(), "lock" | "config_value");
    assert_eq!(
        above.values().flatten().find(root),
        None,
        "imported from the root"
    );
    while let Some(free) =
        (above.iter()).find(|(_, imports)| !imports.iter().any(|word| above.contains_key(word)))
    {
        let free = free.0.clone();
        above.remove(&free);
    }
    assert!(
        above.is_empty(),
        "a circle of imports, and what imports it: {above:#?}"
    );
}
