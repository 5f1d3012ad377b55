// SPDX-License-Identifier: Apache-2.0

//! What constructors may return.

use std::any::Any;

use crate::error::BoxError;
use crate::inject::{All, Value};
use crate::key::Key;

/// The result of a constructor.
///
/// Implemented for `Arc<T>`, `Arc<dyn Trait>`, every [`Value`], [`Member`] and [`Members`] of groups, tuples of these,
/// and `Result` of all these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a constructor",
    label = "not a thing that the graph can hold",
    note = "return `Arc<T>` or `Arc<dyn Trait>` with `T: Send + Sync`, a type that derives `hive::Value`, `Member<T>`, \
            `Members<T>`, a tuple of these, or a `Result` of one of these",
    note = "a function that gives nothing is added with `.run(function)`",
    note = "an `async fn` cannot be a constructor: use a start hook, `lifecycle.on_start(name, async function)`, or a job"
)]
pub trait Supply: Sized {
    /// Lists what is provided, in the order of [`supply`](Self::supply).
    fn gives(gives: &mut Gives);

    /// Hands the values over.
    ///
    /// # Errors
    ///
    /// The error that the constructor returned.
    fn supply(self, results: &mut Results) -> Result<(), BoxError>;
}

/// How a result is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveKind {
    One,
    Member,
    Members,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Give {
    pub(crate) key: Key,
    pub(crate) kind: GiveKind,
}

/// The list of what a constructor provides, filled by [`Supply::gives`].
#[derive(Clone, Default)]
pub struct Gives(pub(crate) Vec<Give>);

/// The values that one call of a constructor returned.
#[derive(Default)]
pub struct Results(pub(crate) Vec<Box<dyn Any + Send + Sync>>);

impl<T: Value> Supply for T {
    #[inline]
    fn gives(gives: &mut Gives) {
        gives.0.push(Give {
            key: Key::of::<T>(),
            kind: GiveKind::One,
        });
    }

    #[inline]
    fn supply(self, results: &mut Results) -> Result<(), BoxError> {
        results.0.push(Box::new(self));
        Ok(())
    }
}

/// One member of the group [`All<T>`].
///
/// ```
/// use hive::Member;
/// fn list_command() -> Member<&'static str> { Member("list") }
/// # let _ = hive::Cell::module("commands", "Commands").provide(list_command);
/// ```
#[derive(Clone, Debug)]
pub struct Member<T>(pub T);

impl<T: Clone + Send + Sync + 'static> Supply for Member<T> {
    #[inline]
    fn gives(gives: &mut Gives) {
        gives.0.push(Give {
            key: Key::of::<All<T>>(),
            kind: GiveKind::Member,
        });
    }

    #[inline]
    fn supply(self, results: &mut Results) -> Result<(), BoxError> {
        results.0.push(Box::new(self.0));
        Ok(())
    }
}

/// Any number of members of the group [`All<T>`].
///
/// ```
/// use hive::Members;
/// fn commands() -> Members<&'static str> { Members(vec!["list", "show"]) }
/// # let _ = hive::Cell::module("commands", "Commands").provide(commands);
/// ```
#[derive(Clone, Debug)]
pub struct Members<T>(pub Vec<T>);

impl<T: Clone + Send + Sync + 'static> Supply for Members<T> {
    #[inline]
    fn gives(gives: &mut Gives) {
        gives.0.push(Give {
            key: Key::of::<All<T>>(),
            kind: GiveKind::Members,
        });
    }

    #[inline]
    fn supply(self, results: &mut Results) -> Result<(), BoxError> {
        results.0.push(Box::new(self.0));
        Ok(())
    }
}

impl<T: Supply, E: Into<BoxError>> Supply for Result<T, E> {
    #[inline]
    fn gives(gives: &mut Gives) {
        T::gives(gives);
    }

    #[inline]
    fn supply(self, results: &mut Results) -> Result<(), BoxError> {
        self.map_err(Into::into)?.supply(results)
    }
}

macro_rules! tuples {
    () => {};
    ($($name:ident)+) => {
        impl<$($name: Supply),+> Supply for ($($name,)+) {
            #[inline]
            fn gives(gives: &mut Gives) { $($name::gives(gives);)+ }

            #[allow(non_snake_case, reason = "type parameters name the fields")]
            #[inline]
            fn supply(self, results: &mut Results) -> Result<(), BoxError> {
                let ($($name,)+) = self;
                $($name.supply(results)?;)+
                Ok(())
            }
        }
    };
}

for_each_arity!(tuples);
