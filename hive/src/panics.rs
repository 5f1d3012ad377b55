// SPDX-License-Identifier: Apache-2.0

//! Panics of constructors, hooks and jobs, turned into errors that say where.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

/// A panic that was caught.
#[derive(Debug)]
pub(crate) struct Panic {
    message: String,
    place: Option<String>,
    backtrace: Option<String>,
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "panicked at {place}: {}", self.message),
            None => write!(f, "panicked: {}", self.message),
        }
    }
}

impl std::error::Error for Panic {}

impl Panic {
    /// The stack, if `RUST_BACKTRACE` is set.
    pub(crate) fn backtrace(&self) -> Option<&str> {
        self.backtrace.as_deref()
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<(String, Option<String>)>> = const { RefCell::new(None) };
}

/// Notes place and stack of panics that will be caught, and leaves all others to the hook before.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                let backtrace = Backtrace::capture();
                let backtrace =
                    (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
                CAUGHT.set(Some((place, backtrace)));
            } else {
                before(info);
            }
        }));
    });
}

/// Runs `f`, turning a panic into an error.
pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, Panic> {
    install();
    let before = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    CATCHING.set(before);
    result.map_err(|payload| {
        let (place, backtrace) = CAUGHT
            .take()
            .map_or((None, None), |(place, trace)| (Some(place), trace));
        Panic {
            message: text(payload.as_ref()),
            place,
            backtrace,
        }
    })
}

fn text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "with a value that is no text".to_owned()
    }
}

/// A future whose panics become errors.
pub(crate) struct Caught<F>(pub(crate) F);

impl<F: Future + Unpin> Future for Caught<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch(|| Pin::new(&mut self.0).poll(cx)) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}
