// SPDX-License-Identifier: Apache-2.0

//! What a plan shows of itself: tree, configuration, drawings.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use hive::{Cell, Config, GraphFormat, GraphView, Hive, Settings};

struct Store;

fn use_store(_store: Arc<Store>) {}

#[test]
fn introspection_comes_from_the_plan() {
    fn never() -> Arc<Store> {
        panic!("the plan constructs nothing")
    }
    #[derive(Clone, Config)]
    struct Options {
        /// Password.
        #[config(default = "hunter2", secret)]
        password: String,
        /// Size.
        size: u8,
    }
    let cell = Cell::module("widgets", "Keeps widgets in step")
        .config::<Options>()
        .provide_private(never)
        .run(use_store);
    let plan = hive::testing::plan(Hive::new([cell]), Settings::new().args(["--size=4"]));

    let tree = plan.tree();
    assert!(tree.contains("  Ⓜ️ widgets (Keeps widgets in step):\n"), "{tree}");
    assert!(
        tree.contains(
            "      🚧🔒️ introspection::introspection_comes_from_the_plan::never (hive/tests/introspection.rs:"
        ),
        "{tree}"
    );
    assert!(tree.contains("          ⇦ Arc<Store>\n"), "{tree}");
    assert!(
        tree.contains("      🛠️ introspection::use_store (hive/tests/introspection.rs:"),
        "{tree}"
    );
    assert!(
        tree.contains("          size: 4\n") && !tree.contains("hunter2"),
        "{tree}"
    );
    let config = plan.show_config();
    assert!(
        config.contains("password") && config.contains("***") && !config.contains("hunter2"),
        "{config}"
    );
    let view = |format, from: Option<&str>| {
        plan.draw(&GraphView {
            format,
            from: from.map(str::to_owned),
            ..Default::default()
        })
        .unwrap()
    };
    assert!(view(GraphFormat::Dot, None).contains("subgraph \"cluster_widgets\""));
    assert!(view(GraphFormat::Mermaid, None).contains("-->|\"Arc&lt;Store&gt;\"|"));
    let json = view(GraphFormat::Json, Some("Arc<Store>"));
    assert!(json.contains("::never") && !json.contains("use_store"), "{json}");
}

#[test]
fn drawing_what_is_not_there_is_an_error() {
    let cell = Cell::module("widgets", "Keeps widgets in step").run(|| ());
    let plan = hive::testing::plan(Hive::new([cell]), Settings::new());

    let view = |module: Option<&str>, from: Option<&str>| GraphView {
        module: module.map(str::to_owned),
        from: from.map(str::to_owned),
        ..Default::default()
    };

    assert!(plan.draw(&view(Some("widgets"), None)).is_ok());
    assert_eq!(
        plan.draw(&view(Some("widget"), None)).unwrap_err().to_string(),
        "there is no module `widget`; did you mean `widgets`?"
    );
    assert_eq!(
        plan.draw(&view(None, Some("Arc<Nobody>")))
            .unwrap_err()
            .to_string(),
        "no function is named or gives `Arc<Nobody>`"
    );
}
