// SPDX-License-Identifier: Apache-2.0

//! Random hook scripts and random graphs against what must always hold.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{Cell, Hive, Hook, HookCtx, Lifecycle, Settings, Shutdown, StartError, StopError, Value};
use proptest::prelude::*;

/// What a hook does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Fine,
    Slow,
    Fail,
    Panic,
    Hang,
    Shutdown,
}

fn start_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => Just(Act::Fine), 2 => Just(Act::Slow), 1 => Just(Act::Fail), 1 => Just(Act::Panic),
        1 => Just(Act::Hang), 1 => Just(Act::Shutdown),
    ]
}

fn stop_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Fine), 1 => Just(Act::Slow), 1 => Just(Act::Fail), 1 => Just(Act::Panic), 1 => Just(Act::Hang),
        1 => Just(Act::Shutdown),
    ]
}

type Notes = Arc<Mutex<Vec<(usize, &'static str)>>>;

async fn act(act: Act, shutdown: Shutdown, number: usize) -> Result<(), std::io::Error> {
    match act {
        Act::Fine => Ok(()),
        Act::Slow => {
            // Less than every hook gets, however late it is.
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(())
        }
        Act::Fail => Err(std::io::Error::other("failed")),
        Act::Panic => panic!("panicked"),
        Act::Hang => std::future::pending().await,
        Act::Shutdown => {
            shutdown.request(format!("hook {number}"));
            Ok(())
        }
    }
}

fn cell(number: usize, start: Act, stop: Act, notes: &Notes) -> Cell {
    let notes = notes.clone();
    Cell::module(format!("module-{number}").leak(), "Model").run(
        move |lifecycle: Lifecycle, shutdown: Shutdown| {
            let (starting, stopping) = (notes.clone(), notes.clone());
            let (at_start, at_stop) = (shutdown.clone(), shutdown);
            lifecycle.add(
                Hook::new("hook")
                    .on_start(move |_: HookCtx| {
                        let (notes, shutdown) = (starting.clone(), at_start.clone());
                        notes.lock().unwrap().push((number, "start"));
                        async move {
                            act(start, shutdown, number).await?;
                            notes.lock().unwrap().push((number, "started"));
                            Ok::<_, std::io::Error>(())
                        }
                    })
                    .on_stop(move |_: HookCtx| {
                        let shutdown = at_stop.clone();
                        stopping.lock().unwrap().push((number, "stop"));
                        act(stop, shutdown, number)
                    }),
            );
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn hooks_keep_their_promises_whatever_they_do(
        script in prop::collection::vec((start_act(), stop_act()), 1..12),
        parallel in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let notes = Notes::default();
            let cells: Vec<Cell> =
                script.iter().enumerate().map(|(number, (start, stop))| cell(number, *start, *stop, &notes)).collect();
            let settings = Settings::new()
                .args(["--hive-start-timeout=10s", "--hive-stop-timeout=10s"])
                .flag("hive-parallel", parallel.to_string());
            let built = Hive::new(cells).plan(settings).unwrap().build().unwrap();
            let controller = built.controller();
            let begun = tokio::time::Instant::now();

            let started = built.start().await;
            let mut stop_failures = 0;
            match started {
                Ok(running) => {
                    prop_assert!(script.iter().all(|(start, _)| matches!(start, Act::Fine | Act::Slow | Act::Shutdown)));
                    if let Err(StopError::Failed(failures)) = running.stop().await {
                        stop_failures = failures.len();
                    }
                }
                Err(StartError::Hook { rollback, .. }) => stop_failures = rollback.len(),
                Err(StartError::Cancelled { cause, rollback, .. }) => {
                    // The first request is the cause.
                    let first = script.iter().position(|(start, _)| *start == Act::Shutdown).unwrap();
                    prop_assert!(cause.to_string().ends_with(&format!("hook {first}")), "{}", cause);
                    stop_failures = rollback.len();
                }
                Err(error) => prop_assert!(false, "{}", error),
            }

            let log = notes.lock().unwrap().clone();
            let of = |what| log.iter().filter(|(_, note)| *note == what).map(|(number, _)| *number).collect::<Vec<_>>();
            let (mut started, mut stopped) = (of("started"), of("stop"));
            if parallel {
                // These hooks do not depend on each other.
                started.sort_unstable();
                stopped.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
            }
            prop_assert!(started.windows(2).all(|pair| pair[0] < pair[1]), "order of start: {log:?}");
            stopped.reverse();
            prop_assert_eq!(&started, &stopped, "exactly the started ones are stopped once, in reverse");
            let bad = stopped.iter().filter(|number| matches!(script[**number].1, Act::Fail | Act::Panic | Act::Hang));
            prop_assert_eq!(bad.count(), stop_failures, "every failure to stop is reported");
            // Two phases of 10 s, and 0.1 s for each of those that come late.
            prop_assert!(begun.elapsed() < Duration::from_secs(22), "bounded: {:?}", begun.elapsed());

            // A second stop does nothing.
            prop_assert!(controller.stop().await.is_ok());
            Ok(())
        })?;
    }
}

#[derive(Clone, Value)]
struct Part<const N: usize>;

macro_rules! parts {
    ($make:ident; $($number:literal)*) => {
        /// Constructor of part `number` that needs some parts of lower numbers.
        fn $make(number: usize, needs: [Option<usize>; 2]) -> Cell {
            let cell = Cell::module(format!("part-{number}").leak(), "Part").library();
            match number {
                $($number => give::<$number>(cell, needs),)*
                _ => cell,
            }
        }

        fn give<const N: usize>(cell: Cell, needs: [Option<usize>; 2]) -> Cell {
            let mut cell = cell.provide(|| Part::<N>);
            for need in needs.into_iter().flatten() {
                cell = match need {
                    $($number => cell.after::<Part<$number>>(),)*
                    _ => cell,
                };
            }
            cell
        }

        fn demand(hive: Hive, number: usize) -> Hive {
            match number {
                $($number => hive.root::<Part<$number>>(),)*
                _ => hive,
            }
        }
    };
}

parts!(part; 0 1 2 3 4 5 6 7 8 9 10 11);

fn graph() -> impl Strategy<Value = (Vec<[Option<usize>; 2]>, Vec<usize>)> {
    let needs = |number: usize| {
        let need = move || {
            if number == 0 {
                Just(None).boxed()
            } else {
                prop::option::of(0..number).boxed()
            }
        };
        [need(), need()]
    };
    let all: Vec<_> = (0..12).map(needs).collect();
    (all, Just((0..12).collect::<Vec<_>>()).prop_shuffle())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn order_is_topological_and_a_removed_provider_is_missed_by_its_users(
        (needs, declared) in graph(),
        removed in 0usize..12,
    ) {
        let hive = |without: Option<usize>| {
            let cells = declared.iter().filter(|number| Some(**number) != without);
            let mut hive = Hive::new(cells.map(|number| part(*number, needs[*number])));
            for number in (0..12).filter(|number| Some(*number) != without) {
                hive = demand(hive, number);
            }
            hive
        };

        let plan = hive(None).plan(Settings::new()).unwrap();
        let order: Vec<usize> = plan
            .order()
            .lines()
            .filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("part-")?.parse().ok()))
            .collect();
        prop_assert_eq!(order.len(), 12);
        let place = |number: usize| order.iter().position(|other| *other == number).unwrap();
        for (number, needs) in needs.iter().enumerate() {
            for need in needs.iter().flatten() {
                prop_assert!(place(*need) < place(number), "{number} before its need {need}: {order:?}");
            }
        }

        let users: usize = needs.iter().flatten().flatten().filter(|need| **need == removed).count()
            - needs[removed].iter().flatten().filter(|need| **need == removed).count();
        match hive(Some(removed)).plan(Settings::new()) {
            Ok(_) => prop_assert_eq!(users, 0),
            Err(report) => {
                prop_assert_eq!(report.errors().count(), users, "{}", report);
                let expected = format!("nothing provides `Part<{removed}>`");
                prop_assert!(report.errors().all(|finding| finding.message == expected), "{}", report);
            }
        }
    }
}
