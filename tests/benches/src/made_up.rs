// SPDX-License-Identifier: Apache-2.0

//! Made-up cells for measuring how a hive scales: up to 1,000 modules, each with a flag, a constructor, a start
//! and a stop hook, depending on a tenth as many other modules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hive::config::{Decoder, Field};
use hive::{Cell, Cfg, Config, Hook, HookCtx, Lifecycle};

/// How many start hooks have run in all.
static STARTED: AtomicU64 = AtomicU64::new(0);

struct Service<const A: u8, const B: u8, const C: u8>;

#[derive(Clone)]
struct Options<const A: u8, const B: u8, const C: u8> {
    size: u64,
}

impl<const A: u8, const B: u8, const C: u8> Options<A, B, C> {
    const BYTES: [u8; 14] = {
        let mut name = *b"bench-000-size";
        name[6] += A;
        name[7] += B;
        name[8] += C;
        name
    };
    const FLAG: &'static str = match std::str::from_utf8(&Self::BYTES) {
        Ok(name) => name,
        Err(_) => "bench-size",
    };
    const MODULE: &'static str = Self::FLAG.split_at(Self::FLAG.len() - "-size".len()).0;
}

impl<const A: u8, const B: u8, const C: u8> Config for Options<A, B, C> {
    const FIELDS: &'static [Field] =
        &[Field::new::<u64>(Self::FLAG, "size").doc("Size of the made-up service.")];

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        Some(Self {
            size: decoder.field(0, || Ok(1))?,
        })
    }

    fn render(&self) -> Vec<String> {
        vec![self.size.to_string()]
    }
}

#[inline(always)]
fn service<const A: u8, const B: u8, const C: u8>(
    options: &Options<A, B, C>,
    lifecycle: &Lifecycle,
) -> Arc<Service<A, B, C>> {
    lifecycle.add(hook(options.size));
    Arc::new(Service)
}

/// Not generic: a thousand copies would take minutes to compile.
fn hook(size: u64) -> Hook {
    Hook::new("service")
        .on_start(move |_: HookCtx| {
            STARTED.fetch_add(size, Ordering::Relaxed);
            std::future::ready(())
        })
        .on_stop(|_: HookCtx| std::future::ready(()))
}

fn first(options: Cfg<Options<0, 0, 0>>, lifecycle: Lifecycle) -> Arc<Service<0, 0, 0>> {
    service(&options, &lifecycle)
}

fn hundred<const A: u8>(
    options: Cfg<Options<A, 0, 0>>,
    lifecycle: Lifecycle,
    _first: Arc<Service<0, 0, 0>>,
) -> Arc<Service<A, 0, 0>> {
    service(&options, &lifecycle)
}

fn ten<const A: u8, const B: u8>(
    options: Cfg<Options<A, B, 0>>,
    lifecycle: Lifecycle,
    _hundred: Arc<Service<A, 0, 0>>,
) -> Arc<Service<A, B, 0>> {
    service(&options, &lifecycle)
}

fn one<const A: u8, const B: u8, const C: u8>(
    options: Cfg<Options<A, B, C>>,
    lifecycle: Lifecycle,
    _ten: Arc<Service<A, B, 0>>,
) -> Arc<Service<A, B, C>> {
    service(&options, &lifecycle)
}

fn demand<const A: u8, const B: u8, const C: u8>(_service: Arc<Service<A, B, C>>) {}

/// Only the constructor that fits the number is compiled.
macro_rules! cell {
    (0 0 0) => {
        || {
            Cell::module(Options::<0, 0, 0>::MODULE, "Made up")
                .config::<Options<0, 0, 0>>()
                .provide(first)
                .run(demand::<0, 0, 0>)
        }
    };
    ($a:literal 0 0) => {
        || {
            Cell::module(Options::<$a, 0, 0>::MODULE, "Made up")
                .config::<Options<$a, 0, 0>>()
                .provide(hundred::<$a>)
                .run(demand::<$a, 0, 0>)
        }
    };
    ($a:literal $b:literal 0) => {
        || {
            Cell::module(Options::<$a, $b, 0>::MODULE, "Made up")
                .config::<Options<$a, $b, 0>>()
                .provide(ten::<$a, $b>)
                .run(demand::<$a, $b, 0>)
        }
    };
    ($a:literal $b:literal $c:literal) => {
        || {
            Cell::module(Options::<$a, $b, $c>::MODULE, "Made up")
                .config::<Options<$a, $b, $c>>()
                .provide(one::<$a, $b, $c>)
                .run(demand::<$a, $b, $c>)
        }
    };
}

macro_rules! thousand {
    (@tens $all:ident $a:tt $($b:tt)*) => { $(
        $all.extend([
            cell!($a $b 0) as fn() -> Cell, cell!($a $b 1), cell!($a $b 2), cell!($a $b 3), cell!($a $b 4),
            cell!($a $b 5), cell!($a $b 6), cell!($a $b 7), cell!($a $b 8), cell!($a $b 9),
        ]);
    )* };
    ($all:ident $($a:tt)*) => { $(thousand!(@tens $all $a 0 1 2 3 4 5 6 7 8 9);)* };
}

/// The first `count` of 1,000 made-up cells.
pub(crate) fn cells(count: usize) -> Vec<Cell> {
    let mut all: Vec<fn() -> Cell> = Vec::with_capacity(1000);
    thousand!(all 0 1 2 3 4 5 6 7 8 9);
    all.into_iter().take(count).map(|cell| cell()).collect()
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};

    use super::*;

    #[tokio::test]
    async fn all_of_them_start() {
        let plan = Hive::new(cells(100)).plan(Settings::new()).unwrap();
        assert_eq!(plan.modules().len(), 100);

        let running = plan.build().unwrap().start().await.unwrap();

        assert_eq!(STARTED.load(Ordering::Relaxed), 100);
        running.stop().await.unwrap();
    }
}
