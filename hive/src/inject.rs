// SPDX-License-Identifier: Apache-2.0

//! What constructors may ask for.

mod site;

use std::any::Any;
use std::sync::Arc;

use crate::key::Key;
pub(crate) use site::{Shared, Site};

/// A parameter of a constructor.
///
/// Implemented for `Arc<T>`, `Arc<dyn Trait>`, [`Cfg`](crate::Cfg), every [`Value`], `Option` of these (absent
/// only if nothing provides it), [`All`] (a group), tuples, structs deriving [`Params`](crate::Params), and
/// the values whose content is made for the module that asks: [`ModulePath`](crate::ModulePath),
/// [`Health`](crate::Health), [`Jobs`](crate::Jobs), [`Lifecycle`](crate::Lifecycle),
/// [`Shutdown`](crate::Shutdown), [`Readiness`](crate::Readiness), [`Controller`](crate::Controller).
///
/// ```
/// use hive::{All, Health, Params};
/// use std::sync::Arc;
///
/// # struct Clock; struct Cache; struct Probe;
/// #[derive(Params)]
/// struct CacheParams {
///     clock: Arc<Clock>,
///     probe: Option<Arc<Probe>>,
///     names: All<String>,
///     health: Health,
/// }
///
/// fn new_cache(params: CacheParams) -> Arc<Cache> {
///     params.health.ok("Empty");
///     Arc::new(Cache)
/// }
/// # let _ = hive::Cell::module("cache", "Keeps things").provide(new_cache);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a constructor",
    label = "not a thing that the graph can give",
    note = "ask for `Arc<T>`, `Arc<dyn Trait>`, `Option<_>` of these, `All<T>`, `Cfg<Config>`, `Health`, `Jobs`, \
            `Lifecycle`, `ModulePath`, a type that derives `hive::Value`, or a struct that derives `hive::Params`",
    note = "shared values must be `Send + Sync + 'static`"
)]
pub trait Inject: Sized {
    /// Lists what is needed, in the order in which [`inject`](Self::inject) takes it.
    fn needs(needs: &mut Needs);

    /// Takes the values. Written by derive macros.
    fn inject(arguments: &mut Arguments<'_>) -> Self;
}

/// A cheaply cloned handle that lives in the graph as it is.
///
/// `Arc<T>` is one. Derive it for handle types: `#[derive(Clone, hive::Value)]`.
///
/// ```
/// #[derive(Clone, hive::Value)]
/// struct Table(std::sync::Arc<Vec<u8>>);
///
/// fn new_table() -> Table { Table(Default::default()) }
/// fn use_table(table: Table) { assert!(table.0.is_empty()); }
/// # let _ = hive::Cell::module("tables", "Tables").provide(new_table).run(use_table);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value of the graph",
    label = "cannot be shared between cells",
    note = "constructors take and give `Arc<T>` or `Arc<dyn Trait>` with `T: Send + Sync`, `Cfg<Config>`, and \
            `Clone` handle types that derive `hive::Value`"
)]
pub trait Value: Clone + Send + Sync + 'static {}

impl<T: ?Sized + Send + Sync + 'static> Value for Arc<T> {}

/// Implements [`Value`] for types, instead of the derive.
///
/// ```
/// #[derive(Clone)]
/// struct Handle;
/// hive::value!(Handle);
/// # fn is_value<T: hive::Value>() {}
/// # is_value::<Handle>();
/// ```
#[macro_export]
macro_rules! value {
    ($($type:ty),+ $(,)?) => { $(impl $crate::Value for $type {})+ };
}

/// All members of a group, in the order in which their cells and constructors were declared.
///
/// Members come from constructors that return [`Member`](crate::Member) or
/// [`Members`](crate::Members), also from cells that know nothing of each other. No member is fine.
///
/// ```
/// use hive::{All, Cell, Hive, Member, Settings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cells = [
///     Cell::module("north", "First").provide(|| Member("north")),
///     Cell::module("south", "Second").provide(|| Member("south")),
/// ];
/// let built = Hive::new(cells).root::<All<&'static str>>().plan(Settings::new())?.build()?;
/// assert_eq!(built.get::<All<&'static str>>().unwrap().to_vec(), ["north", "south"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct All<T>(pub(crate) Vec<T>);

impl<T> All<T> {
    /// The members.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T> std::ops::Deref for All<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> IntoIterator for All<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a All<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> FromIterator<T> for All<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        Self(members.into_iter().collect())
    }
}

/// How a parameter is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeedKind {
    /// One provider must exist.
    One,
    /// One provider may exist.
    Optional,
    /// Any number of members.
    Group,
    /// Made for the module that asks.
    Builtin(Builtin),
    /// Not a value: must be constructed and started before.
    After,
}

/// Values made for the module that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    ModulePath,
    Health,
    Jobs,
    Lifecycle,
    Shutdown,
    Readiness,
    Controller,
}

/// One thing that a function needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) key: Key,
    pub(crate) kind: NeedKind,
}

/// The list of what a function needs, filled by [`Inject::needs`].
#[derive(Clone, Default)]
pub struct Needs(pub(crate) Vec<Need>);

impl Needs {
    pub(crate) fn push(&mut self, key: Key, kind: NeedKind) {
        self.0.push(Need { key, kind });
    }
}

/// Where the value of a parameter is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In this slot.
    Slot(u32),
    /// Nowhere, which is fine.
    Absent,
    /// In these slots; `true` when the slot holds several members.
    Group(Box<[(u32, bool)]>),
    /// Made on the spot.
    Builtin,
    /// No value belongs to this need.
    Edge,
}

/// Values by slot; a value is boxed as the exact type of its key.
pub(crate) type Slots = Vec<Option<Box<dyn Any + Send + Sync>>>;

/// The values for one call of a constructor, taken in the order of its needs.
///
/// ```
/// use hive::{Arguments, Inject, Needs};
/// use std::sync::Arc;
///
/// // What `#[derive(Params)]` writes.
/// struct Pair { left: Arc<u8>, right: Option<Arc<u16>> }
///
/// impl Inject for Pair {
///     fn needs(needs: &mut Needs) {
///         <Arc<u8> as Inject>::needs(needs);
///         <Option<Arc<u16>> as Inject>::needs(needs);
///     }
///     fn inject(arguments: &mut Arguments<'_>) -> Self {
///         Self { left: Inject::inject(arguments), right: Inject::inject(arguments) }
///     }
/// }
///
/// fn sum(pair: Pair) -> Arc<u64> { Arc::new(u64::from(*pair.left) + pair.right.map_or(0, |right| (*right).into())) }
/// # use hive::{Cell, Hive, Settings};
/// let cell = Cell::module("sum", "Adds").provide(|| Arc::new(3_u8)).provide(sum);
/// let built = Hive::new([cell]).root::<Arc<u64>>().plan(Settings::new())?.build()?;
/// assert_eq!(*built.get::<Arc<u64>>().unwrap(), 3);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Arguments<'a> {
    sources: std::slice::Iter<'a, Source>,
    slots: &'a Slots,
    site: Option<&'a Site<'a>>,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(sources: &'a [Source], slots: &'a Slots, site: Option<&'a Site<'a>>) -> Self {
        Self {
            sources: sources.iter(),
            slots,
            site,
        }
    }

    fn next(&mut self) -> &'a Source {
        self.sources
            .next()
            .expect("as many sources as needs: both come from `Inject::needs`")
    }

    #[inline]
    fn read<T: 'static>(&self, slot: u32) -> &'a T {
        self.slots[slot as usize]
            .as_ref()
            .and_then(|value| value.downcast_ref())
            .expect("the plan orders constructors, and slots are typed by their key")
    }

    pub(crate) fn site(&mut self) -> &'a Site<'a> {
        self.next();
        self.site
            .expect("module-scoped values are only resolved inside of the build")
    }
}

impl<T: Value> Inject for T {
    #[inline]
    fn needs(needs: &mut Needs) {
        needs.push(Key::of::<T>(), NeedKind::One);
    }

    #[inline]
    fn inject(arguments: &mut Arguments<'_>) -> Self {
        match arguments.next() {
            Source::Slot(slot) => arguments.read::<T>(*slot).clone(),
            _ => unreachable!("the plan resolves required values to a slot"),
        }
    }
}

impl<T: Value> Inject for Option<T> {
    #[inline]
    fn needs(needs: &mut Needs) {
        needs.push(Key::of::<T>(), NeedKind::Optional);
    }

    #[inline]
    fn inject(arguments: &mut Arguments<'_>) -> Self {
        match arguments.next() {
            Source::Slot(slot) => Some(arguments.read::<T>(*slot).clone()),
            _ => None,
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Inject for All<T> {
    #[inline]
    fn needs(needs: &mut Needs) {
        needs.push(Key::of::<Self>(), NeedKind::Group);
    }

    fn inject(arguments: &mut Arguments<'_>) -> Self {
        let Source::Group(slots) = arguments.next() else {
            return Self(Vec::new());
        };
        let mut members = Vec::with_capacity(slots.len());
        for &(slot, many) in slots {
            if many {
                members.extend_from_slice(arguments.read::<Vec<T>>(slot));
            } else {
                members.push(arguments.read::<T>(slot).clone());
            }
        }
        Self(members)
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Inject),*> Inject for ($($name,)*) {
            #[inline]
            fn needs(_needs: &mut Needs) { $($name::needs(_needs);)* }

            #[inline]
            #[allow(clippy::unused_unit, reason = "the empty tuple")]
            fn inject(_arguments: &mut Arguments<'_>) -> Self { ($($name::inject(_arguments),)*) }
        }
    };
}

for_each_arity!(tuples);
