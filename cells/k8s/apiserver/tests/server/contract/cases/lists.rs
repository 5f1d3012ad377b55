// SPDX-License-Identifier: Apache-2.0

//! Lists: pages that belong together, selectors.

use skep_k8s_client::ListOptions;
use skep_k8s_types::Kind;
use skep_k8s_types::selector::FieldSelector;

use super::{Space, code, names};

pub(super) async fn pages(space: &Space<'_>) {
    for name in ["a", "b", "c", "d", "e"] {
        space.config(name, "").await;
    }
    let page = |continue_token: &str| ListOptions {
        limit: 2,
        continue_token: continue_token.to_owned(),
        ..ListOptions::default()
    };
    let first = space.list(&page("")).await.unwrap();
    assert_eq!(first.items.len(), 2);
    // What changes between pages does not show.
    space.delete(&Kind::CONFIG_MAP, "d").await.unwrap();
    space.config("f", "").await;

    let mut found = Vec::new();
    let mut token = first.continue_token.clone();
    while !token.is_empty() {
        let next = space.list(&page(&token)).await.unwrap();
        assert_eq!(next.resource_version, first.resource_version);
        found.extend(names(&next));
        token = next.continue_token;
    }

    assert_eq!(found, ["c", "d", "e"]);
    assert_eq!(code(space.list(&page("nonsense")).await), 400);
}

pub(super) async fn selectors(space: &Space<'_>) {
    for name in ["a", "b", "c"] {
        space.config(name, "").await;
    }
    let labelled = async |text: &str| {
        let options = ListOptions {
            labels: text.parse().unwrap(),
            ..ListOptions::default()
        };
        names(&space.list(&options).await.unwrap())
    };
    let field = |path: &str| ListOptions {
        fields: FieldSelector::equal(path, "b"),
        ..ListOptions::default()
    };

    assert_eq!(labelled("app=a").await, ["a"]);
    assert_eq!(labelled("app!=a").await, ["b", "c"]);
    assert_eq!(labelled("app in (a,c)").await, ["a", "c"]);
    assert_eq!(labelled("app notin (a),app").await, ["b", "c"]);
    assert_eq!(labelled("!app").await, [""; 0]);
    assert_eq!(names(&space.list(&field("metadata.name")).await.unwrap()), ["b"]);
    assert_eq!(code(space.list(&field("data.k")).await), 400);
}
