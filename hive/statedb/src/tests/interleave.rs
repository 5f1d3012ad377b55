// SPDX-License-Identifier: Apache-2.0

//! Commits against watches in every order of their steps: the threads are real, but one runs at a time, from one
//! [`Step`] to the next.

use std::{cell::RefCell, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};

use super::{ID, Item, NAME, TAG, item, items, put};
use crate::{Db, RwTable, Snapshot, Watch, step::Step};

/// Lets one of several threads go on at a time.
#[derive(Default)]
struct Stage {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By thread: the step at which it waits, `None` while it runs.
    waiting: Vec<Option<Step>>,
    done: Vec<bool>,
    /// Who may go on.
    turn: Option<usize>,
    /// Who holds the lock of the watches.
    inside: Option<usize>,
}

thread_local! {
    static ACTOR: RefCell<Option<(Arc<Stage>, usize)>> = const { RefCell::new(None) };
}

/// Waits for the thread's turn, if it takes part in a test of this module.
pub(crate) fn at(step: Step) {
    ACTOR.with_borrow(|actor| {
        if let Some((stage, me)) = actor {
            stage.wait(*me, step);
        }
    });
}

impl Stage {
    fn wait(&self, me: usize, step: Step) {
        let mut state = self.state.lock();
        if step == Step::Left {
            state.inside = None;
        }
        state.waiting[me] = Some(step);
        self.changed.notify_all();
        while state.turn != Some(me) {
            self.changed.wait(&mut state);
        }
        state.turn = None;
        state.waiting[me] = None;
        if step == Step::Enter {
            state.inside = Some(me);
        }
    }

    /// Runs all threads to their ends. `choose` returns which one of those that can go on does.
    fn direct(&self, mut choose: impl FnMut(usize) -> usize) {
        let mut state = self.state.lock();
        loop {
            while state.turn.is_some()
                || (0..state.done.len()).any(|at| !state.done[at] && state.waiting[at].is_none())
            {
                self.changed.wait(&mut state);
            }
            let ready: Vec<usize> = (0..state.done.len())
                .filter(|&at| !state.done[at])
                .filter(|&at| state.waiting[at] != Some(Step::Enter) || state.inside.is_none())
                .collect();
            if ready.is_empty() {
                assert!(state.done.iter().all(|&done| done), "no thread can go on");
                return;
            }
            let next = if ready.len() == 1 { 0 } else { choose(ready.len()) };
            state.turn = Some(ready[next]);
            self.changed.notify_all();
        }
    }
}

/// Runs `act` of two threads in every order of their steps, with `world` made anew; then `check`s. Returns the number of
/// orders.
fn every_order<W: Sync, A: Send, B: Send>(
    world: impl Fn() -> W,
    first: impl Fn(&W) -> A + Sync,
    second: impl Fn(&W) -> B + Sync,
    check: impl Fn(&W, A, B),
) -> usize {
    // Choices made and how many there were: counted up like the digits of a number.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for order in 1.. {
        let world = world();
        let stage = Arc::new(Stage::default());
        *stage.state.lock() = State {
            waiting: vec![None; 2],
            done: vec![false; 2],
            ..State::default()
        };
        let mut taken = 0;
        let (a, b) = thread::scope(|scope| {
            let a = scope.spawn(|| enact(&stage, 0, || first(&world)));
            let b = scope.spawn(|| enact(&stage, 1, || second(&world)));
            stage.direct(|among| {
                if taken == path.len() {
                    path.push((0, among));
                }
                assert_eq!(path[taken].1, among, "the same choices lead to the same place");
                taken += 1;
                path[taken - 1].0
            });
            (a.join().unwrap(), b.join().unwrap())
        });
        check(&world, a, b);
        while let Some((choice, among)) = path.pop() {
            if choice + 1 < among {
                path.push((choice + 1, among));
                break;
            }
        }
        if path.is_empty() {
            return order;
        }
    }
    unreachable!("the loop ends by returning")
}

fn enact<R>(stage: &Arc<Stage>, me: usize, act: impl FnOnce() -> R) -> R {
    /// Says that the thread is done, also if it panics.
    struct Done<'a>(&'a Stage, usize);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            let mut state = self.0.state.lock();
            state.done[self.1] = true;
            state.waiting[self.1] = Some(Step::Left);
            if state.inside == Some(self.1) {
                state.inside = None;
            }
            self.0.changed.notify_all();
        }
    }
    ACTOR.set(Some((Arc::clone(stage), me)));
    let _done = Done(stage, me);
    stage.wait(me, Step::Outside);
    act()
}

type World = (Db, RwTable<Item>);

fn world() -> World {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "old", &["t"]), item(2, "other", &[])]);
    (db, table)
}

fn names(found: Vec<&crate::Obj<Item>>) -> Vec<String> {
    found.iter().map(|item| item.name.clone()).collect()
}

/// What a query found, and its watch.
type Answer = (Vec<String>, Watch);

/// Queries that the commits of [`check_query`] change.
const QUERIES: [fn(&RwTable<Item>, &Snapshot) -> Answer; 5] = [
    |table, snapshot| {
        let (found, watch) = table.get_watch(snapshot, ID.key(&1));
        (names(found.into_iter().collect()), watch)
    },
    |table, snapshot| {
        let (found, watch) = table.get_watch(snapshot, NAME.key("new"));
        (names(found.into_iter().collect()), watch)
    },
    |table, snapshot| {
        let (found, watch) = table.list_watch(snapshot, TAG.key("t"));
        (names(found.collect()), watch)
    },
    |table, snapshot| {
        let (found, watch) = table.prefix_watch(snapshot, NAME.key("n"));
        (names(found.collect()), watch)
    },
    |table, snapshot| {
        let (found, watch) = table.all_watch(snapshot);
        (names(found.collect()), watch)
    },
];

/// A reader looks twice while a writer commits once or twice. At the end a watch is closed if the answer that came
/// with it is not the newest one any more, and only then.
fn check_query(query: fn(&RwTable<Item>, &Snapshot) -> Answer, commits: &[&str]) -> usize {
    every_order(
        world,
        |(db, table)| {
            for name in commits {
                put(db, table, &[item(1, name, &["t"])]);
            }
        },
        |(db, table)| {
            let look = || {
                let snapshot = db.read();
                at(Step::Outside);
                query(table, &snapshot)
            };
            [look(), look()]
        },
        |(db, table), (), looks| {
            let newest = query(table, &db.read()).0;
            for (found, watch) in looks {
                assert_eq!(watch.is_closed(), found != newest, "{found:?} before {newest:?}");
            }
        },
    )
}

#[test]
fn every_order_of_commit_and_watch_tells_of_the_change() {
    for query in QUERIES {
        assert!(check_query(query, &["new"]) > 50, "that many orders there are");
    }
}

#[test]
fn every_order_of_two_commits_and_watches_tells_of_the_change() {
    assert!(check_query(QUERIES[0], &["mid", "new"]) > 500);
}

#[test]
fn every_order_of_commit_and_initializer_watch_tells_of_the_change() {
    every_order(
        || {
            let (db, table) = world();
            let mut txn = db.write(&[&table]);
            let guard = table.register_initializer(&mut txn, "source").unwrap();
            txn.commit();
            (db, table, guard)
        },
        |(db, table, guard)| {
            let mut txn = db.write(&[table]);
            txn.initialized(guard).unwrap();
            txn.commit();
        },
        |(db, table, _)| {
            let snapshot = db.read();
            at(Step::Outside);
            table.initialized_watch(&snapshot)
        },
        |(db, table, _), (), (is_initialized, watch)| {
            assert!(table.is_initialized(&db.read()));
            assert_eq!(watch.is_closed(), !is_initialized);
        },
    );
}
