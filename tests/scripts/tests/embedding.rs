// SPDX-License-Identifier: Apache-2.0

//! The pieces of code that `docs/embedding.md` shows.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

const PAGE: &str = include_str!("../../../docs/embedding.md");

#[path = "../../../docs/examples/embedding"]
mod shown {
    pub(super) mod channel;
    mod fake_client;
    pub(super) mod row;
}

#[test]
fn the_page_shows_the_code_as_it_is() {
    for code in [
        include_str!("../../../docs/examples/embedding/fake_client.rs"),
        include_str!("../../../docs/examples/embedding/channel.rs"),
        include_str!("../../../docs/examples/embedding/row.rs"),
        include_str!("../../../docs/examples/embedding/source.rs"),
    ] {
        let code = code.split_once("\n\n").unwrap().1;
        assert!(
            PAGE.contains(&format!("```rust\n{code}```")),
            "the page lacks\n{code}"
        );
    }
}

#[tokio::test]
async fn events_of_a_channel_are_handled_in_order() {
    use hive::{Cell, Hive, Jobs};
    use shown::channel::{Event, Events, consume};
    use tokio::sync::mpsc;

    let (sender, events) = mpsc::channel(4);
    let (totals, mut handled) = mpsc::channel(4);
    let events = Events::new(events);
    let cell = Cell::module("consumer", "Handles events")
        .run(move |jobs: Jobs| consume(events.clone(), totals.clone(), &jobs));
    let running = hive::testing::start(Hive::new([cell])).await;

    for number in 1..=3 {
        sender.send(Event(number)).await.unwrap();
    }

    for expected in [10, 20, 30] {
        assert_eq!(handled.recv().await, Some(expected));
    }
    hive::testing::stop(running).await;
}

#[tokio::test]
async fn a_row_with_a_status_is_inserted_as_pending() {
    use hive_script::{Environment, Lifetime, State, default_commands};
    use shown::row::Route;
    use statedb::{Db, reconciler::StatusKind};

    let db = Db::new();
    let routes = Route::table(&db).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("route.yaml"), "destination: 10.0.0.0/8\n").unwrap();
    let mut commands = default_commands();
    commands.extend(
        statedb::command::commands(&db)
            .into_iter()
            .map(hive_script::named),
    );
    let mut state = State::new(
        folder.path(),
        commands,
        Environment::new(),
        Lifetime::unlimited(),
        Box::new(|_| {}),
    );

    state
        .execute("insert", "db/insert routes route.yaml\n")
        .await
        .unwrap();

    let snapshot = db.read();
    let row = routes
        .get(&snapshot, Route::BY_DESTINATION.key("10.0.0.0/8"))
        .unwrap();
    assert_eq!(row.status.kind, StatusKind::Pending);
    state
        .execute(
            "show",
            "db/get -f yaml routes 10.0.0.0/8\nstdout '^destination: 10.0.0.0/8$'\n",
        )
        .await
        .unwrap();
}

/// `hive` and `statedb` on crates.io are other people's crates.
#[test]
fn docs_take_the_framework_from_the_repository() {
    let pages = [
        PAGE,
        include_str!("../../../docs/scripts.md"),
        include_str!("../../../hive/src/lib.rs"),
    ];
    let mut found = 0;
    for line in pages.iter().flat_map(|page| page.lines()) {
        let line = line.trim_start_matches("//!").trim();
        let Some((name, dependency)) = line.split_once(" = {") else {
            continue;
        };
        if ["hive", "statedb", "hive-script"].contains(&name) {
            found += 1;
            assert!(
                dependency.contains(&format!("package = \"skep-{name}\"")),
                "{line}"
            );
            assert!(
                dependency.contains("path = ") || dependency.contains("git = "),
                "{line}"
            );
            assert!(!dependency.contains("version"), "{line}");
        }
    }
    assert_eq!(found, 6, "all lines are looked at");
}
