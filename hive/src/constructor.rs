// SPDX-License-Identifier: Apache-2.0

//! Plain functions as constructors, of up to 16 parameters.

use crate::error::BoxError;
use crate::inject::Inject;

/// A function that the graph can call. `A` is the tuple of its parameters.
///
/// Implemented for functions, methods and closures of up to 16 parameters. Named functions are better than
/// closures: reports show their path.
///
/// ```
/// # use std::sync::Arc; struct A; struct B;
/// fn new_b(_a: Arc<A>) -> Arc<B> { Arc::new(B) }
/// # fn check<A, F: hive::Constructor<A>>(_: F) {}
/// # check(new_b);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a constructor",
    label = "not a function of at most 16 parameters by value",
    note = "gather more parameters in a struct that derives `hive::Params`",
    note = "closures need the types of their parameters written out"
)]
pub trait Constructor<A>: Send + Sync + 'static {
    /// What the function returns.
    type Output;

    /// Calls the function.
    fn construct(&self, arguments: A) -> Self::Output;
}

/// The result of a function added with [`Cell::run`](crate::Cell::run): nothing, or an error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a function that is run",
    label = "a function added with `run` gives nothing, or a `Result<(), E>`",
    note = "a function that gives values is added with `.provide(function)`"
)]
pub trait RunOutput {
    /// As a result.
    ///
    /// # Errors
    ///
    /// The error that the function returned.
    fn into_result(self) -> Result<(), BoxError>;
}

impl RunOutput for () {
    #[inline]
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> RunOutput for Result<(), E> {
    #[inline]
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

macro_rules! constructors {
    ($($name:ident)*) => {
        impl<Func, Out, $($name),*> Constructor<($($name,)*)> for Func
        where
            Func: Fn($($name),*) -> Out + Send + Sync + 'static,
        {
            type Output = Out;

            #[inline]
            #[allow(non_snake_case, reason = "type parameters name the arguments")]
            fn construct(&self, arguments: ($($name,)*)) -> Out {
                let ($($name,)*) = arguments;
                self($($name),*)
            }
        }
    };
}

for_each_arity!(constructors);

/// Parameters of a constructor: a tuple of [`Inject`].
pub trait ParameterList: Inject {}

macro_rules! lists {
    ($($name:ident)*) => {
        impl<$($name: Inject),*> ParameterList for ($($name,)*) {}
    };
}

for_each_arity!(lists);
