// SPDX-License-Identifier: Apache-2.0

//! Corefiles before and after.

use proptest::prelude::*;

use crate::corefile::{CorefileError, SyntaxError, add_clusterset};

fn add(corefile: &str) -> Result<Option<String>, CorefileError> {
    add_clusterset(corefile, "cluster.local", "clusterset.local")
}

#[track_caller]
fn becomes(before: &str, after: &str) {
    assert_eq!(add(before).unwrap().as_deref(), Some(after));
    assert_eq!(add(after).unwrap(), None, "once more");
}

#[test]
fn a_plugin_without_a_block_gets_one() {
    becomes(
        ".:53 {\n\tkubernetes cluster.local\n\tcache 30\n}\n",
        ".:53 {\n\tkubernetes cluster.local clusterset.local {\n\t\tmulticluster clusterset.local\n\t}\n\tcache 30\n}\n",
    );
}

#[test]
fn an_empty_block_is_filled() {
    becomes(
        "  .:53 {\n  kubernetes cluster.local { # none\n  }\n}",
        "  .:53 {\n  kubernetes cluster.local clusterset.local {\n      multicluster clusterset.local # none\n  }\n}",
    );
}

#[test]
fn what_is_there_is_completed() {
    becomes(
        ".:53 {\n kubernetes cluster.local clusterset.local {\n  pods insecure\n }\n}",
        ".:53 {\n kubernetes cluster.local clusterset.local {\n  multicluster clusterset.local\n  pods insecure\n }\n}",
    );
    becomes(
        ".:53 {\n kubernetes Cluster.Local. {\n  multicluster other.local\n }\n}",
        ".:53 {\n kubernetes Cluster.Local. clusterset.local {\n  multicluster other.local clusterset.local\n }\n}",
    );
}

#[test]
fn lines_may_end_as_on_windows() {
    becomes(
        ".:53 {\r\n  kubernetes cluster.local {\r\n    pods insecure\r\n  }\r\n}\r\n",
        ".:53 {\r\n  kubernetes cluster.local clusterset.local {\r\n    multicluster clusterset.local\r\n    pods insecure\r\n  }\r\n}\r\n",
    );
}

#[test]
fn every_block_for_the_cluster_is_changed_and_no_other() {
    becomes(
        concat!(
            "# kubernetes cluster.local {\n",
            "(common) {\n  log \"kubernetes cluster.local {\"\n}\n",
            "example.org,\n  .:53 {\n  kubernetes cluster.local {\n    ttl 5\n  }\n}\n",
            "corp.example {\n  kubernetes corp.example\n}\n",
            "dns://.:5353 {\n  kubernetes cluster.local\n}\n",
        ),
        concat!(
            "# kubernetes cluster.local {\n",
            "(common) {\n  log \"kubernetes cluster.local {\"\n}\n",
            "example.org,\n  .:53 {\n  kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n    ttl 5\n  }\n}\n",
            "corp.example {\n  kubernetes corp.example\n}\n",
            "dns://.:5353 {\n  kubernetes cluster.local clusterset.local {\n      multicluster clusterset.local\n  }\n}\n",
        ),
    );
}

#[test]
fn snippets_are_changed_where_they_are_defined() {
    becomes(
        "(k8s) {\n kubernetes cluster.local {\n  pods verified\n }\n}\n. {\n import k8s\n}\n",
        "(k8s) {\n kubernetes cluster.local clusterset.local {\n  multicluster clusterset.local\n  pods verified\n }\n}\n. {\n import k8s\n}\n",
    );
}

#[test]
fn a_zone_that_no_query_reaches_is_an_error() {
    let error = add("\ncluster.local:53 {\n kubernetes cluster.local\n}\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "server block `cluster.local:53` in line 2 of the Corefile does not serve zone `clusterset.local`: add the zone to the block"
    );
    for block in [
        "cluster.local clusterset.local",
        "local:53",
        "CLUSTERSET.LOCAL.",
        ".",
    ] {
        let corefile = format!("{block} {{\n kubernetes cluster.local\n}}\n");
        assert!(add(&corefile).unwrap().is_some(), "{block}");
    }
    assert!(add("set.local {\n kubernetes cluster.local\n}").is_err());
}

#[test]
fn other_texts_are_errors() {
    let zone = "cluster.local".to_owned();
    let none = CorefileError::NoPlugin { zone };
    assert_eq!(add(""), Err(none));
    assert!(matches!(
        add(". {\n kubernetes\n}"),
        Err(CorefileError::NoPlugin { .. })
    ));
    for (text, expected) in [
        (". {\n errors", SyntaxError::Open),
        (". {\n}\n}", SyntaxError::Closed { line: 3 }),
        ("\n. {\n log \"x\n}", SyntaxError::Quote { line: 3 }),
    ] {
        assert_eq!(add(text), Err(CorefileError::Syntax(expected)), "{text}");
    }
}

proptest! {
    /// Whatever the text, there is no panic; what was changed once is not changed again, and lost nothing.
    #[test]
    fn a_change_is_made_once_and_only_adds(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "kubernetes", "cluster.local", "clusterset.local", "multicluster", "{", "}", "\n", ".:53 {\n", "  ",
                "\"", "#", "x", "}\n", " ", "kubernetes cluster.local {\n", "\\",
            ]),
            0..40,
        )
    ) {
        let corefile = words.concat();
        if let Ok(Some(changed)) = add(&corefile) {
            prop_assert_eq!(add(&changed), Ok(None));
            let mut rest = changed.chars();
            for character in corefile.chars() {
                prop_assert!(rest.any(|other| other == character), "{:?} -> {:?}", corefile, changed);
            }
        }
    }
}
