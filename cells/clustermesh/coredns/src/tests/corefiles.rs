// SPDX-License-Identifier: Apache-2.0

//! Corefiles before and after.

use proptest::prelude::*;

use crate::corefile::{CorefileError, add_clusterset};

fn add(corefile: &str) -> Result<Option<String>, CorefileError> {
    add_clusterset(corefile, "cluster.local", "clusterset.local")
}

#[track_caller]
fn becomes(before: &str, after: &str) {
    assert_eq!(add(before).unwrap().as_deref(), Some(after));
    assert_eq!(add(after).unwrap(), None, "once more");
}

#[test]
fn the_zone_is_added_wherever_that_of_the_cluster_is_named() {
    becomes(
        concat!(
            "# cluster.local and others\n",
            "cluster.local:53 corp.example {\n\tkubernetes cluster.local {\n\t\tpods verified\n\t}\n",
            "\tcache 30 {\n\t\tdisable success cluster.local\n\t\tdisable denial cluster.local\n\t}\n}\n",
            ". {\n  kubernetes in-addr.arpa cluster.local. { # reverse\n  }\n}",
        ),
        concat!(
            "# cluster.local clusterset.local and others\n",
            "cluster.local clusterset.local:53 corp.example {\n",
            "\tkubernetes cluster.local clusterset.local {\n\t   multicluster clusterset.local\n\t\tpods verified\n\t}\n",
            "\tcache 30 {\n\t\tdisable success cluster.local clusterset.local\n",
            "\t\tdisable denial cluster.local clusterset.local\n\t}\n}\n",
            ". {\n  kubernetes in-addr.arpa cluster.local clusterset.local. { # reverse\n     multicluster clusterset.local\n  }\n}",
        ),
    );
}

#[test]
fn lines_may_end_as_on_windows() {
    becomes(
        ". {\r\n  kubernetes cluster.local {\r\n  }\r\n}\r\n",
        ". {\r\n  kubernetes cluster.local clusterset.local {\r\n     multicluster clusterset.local\r\n  }\r\n}\r\n",
    );
}

#[test]
fn other_zones_and_names_stay() {
    becomes(
        ". {\n rewrite name cart.example cart.shop.svc.cluster.local\n forward my-cluster.local 192.0.2.1\n kubernetes corp.example {\n }\n kubernetes cluster.local {\n }\n}\n",
        ". {\n rewrite name cart.example cart.shop.svc.cluster.local\n forward my-cluster.local 192.0.2.1\n kubernetes corp.example {\n }\n kubernetes cluster.local clusterset.local {\n    multicluster clusterset.local\n }\n}\n",
    );
}

#[test]
fn what_was_configured_by_hand_stays() {
    for corefile in [
        ". {\n kubernetes cluster.local clusterset.local {\n }\n}",
        ". {\n kubernetes cluster.local {\n  multicluster other.local\n }\n}",
        "# clusterset.local",
    ] {
        assert_eq!(add(corefile), Ok(None), "{corefile}");
    }
}

#[test]
fn without_a_plugin_with_options_it_is_an_error() {
    for corefile in [
        "",
        ". {\n kubernetes {\n }\n}",
        ". {\n kubernetes cluster.local\n}",
        ". {\n # kubernetes cluster.local {\n}",
        ". {\n kubernetesx cluster.local {\n }\n}",
        ". {\n kubernetes svc.cluster.local {\n }\n}",
    ] {
        let zone = "cluster.local".to_owned();
        assert_eq!(add(corefile), Err(CorefileError::NoPlugin { zone }), "{corefile}");
    }
}

proptest! {
    /// Whatever the text, there is no panic; what was changed once is not changed again, and lost nothing.
    #[test]
    fn a_change_is_made_once_and_only_adds(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "kubernetes", "cluster.local", ".", "{", "}", "\n", ".:53 {\n", "  ",
                "\"", "#", "ä", "}\n", " ", "kubernetes cluster.local {\n", "\r",
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
