// SPDX-License-Identifier: Apache-2.0

//! Inner maps that are pinned by themselves.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{error::Error, fs};

use skep_bpf_sys::{MapFlags, MapKind, MapStore, RawMap as _, RawSpec, testing::Node};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PIN: &str = "policy_00007";

#[test]
fn an_inner_map_is_kept_if_it_fits_and_replaced_if_not() {
    let result: Outcome = Node::run("inner", |node| {
        let store = node.store();
        assert_eq!(store.pins("policy_")?, [""; 0], "nothing was pinned yet");
        let spec = RawSpec {
            name: "policy",
            kind: MapKind::LpmTrie,
            key_size: 12,
            value_size: 12,
            max_entries: 8,
            flags: MapFlags::NO_PREALLOC,
            inner: None,
        };
        let map = store.provide_inner(&spec, PIN)?;
        assert!(map.update(&[0; 12], &[1; 12]).is_empty());

        let again = store.provide_inner(&spec, PIN)?;
        assert_eq!(again.info().id, map.info().id);
        let larger = RawSpec {
            max_entries: 16,
            ..spec
        };
        let after_restart = MapStore::new(store.root());
        let other = after_restart.provide_inner(&larger, PIN)?;
        assert_ne!(other.info().id, map.info().id);
        let mut entries = 0;
        other.walk(&mut |_, _| entries += 1)?;
        assert_eq!(entries, 0);
        assert_eq!(store.pins("policy_")?, [PIN]);

        assert!(store.unpin(PIN)?);
        assert_eq!(store.pins("policy_")?, [""; 0]);
        fs::create_dir(store.path(PIN))?;
        let error = store.provide_inner(&spec, PIN).unwrap_err();
        assert_eq!(error.map(), PIN);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
