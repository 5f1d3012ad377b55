// SPDX-License-Identifier: Apache-2.0

//! Configuration of cells: typed structs, read from flags, environment, directory and file.
//!
//! A field is one setting with one name. `stale_after` is the flag `--stale-after`, the environment variable
//! `PREFIX_STALE_AFTER`, the file `stale-after` in a config directory and the key `stale-after` in a config file.
//! What comes first wins: flag, environment, config directory, config file, default.

mod decode;
mod field;
mod regular;
mod settings;
mod value;

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

pub use decode::{Decoder, Faults};
pub use field::Field;
pub use regular::open_regular;
pub use settings::{Origin, Settings, UnknownKeys};
pub use value::{ConfigValue, Raw};

pub(crate) use decode::{DeclaredSetting, Fault, Layers};
pub(crate) use field::{normalize, normalized};

use crate::inject::Value;
use crate::key::Key;

/// The configuration of a cell. Derived; see the [derive macro](derive@crate::Config).
///
/// ```
/// use std::time::Duration;
///
/// /// How the cache behaves.
/// #[derive(Clone, hive::Config)]
/// #[config(validate = CacheConfig::check)]
/// struct CacheConfig {
///     /// How long entries are kept. Longer needs more memory.
///     #[config(default = "5m", flag = "cache-stale-after")]
///     stale_after: Duration,
///     /// Peers to ask.
///     peers: Vec<String>,
/// }
///
/// impl CacheConfig {
///     fn check(&self, faults: &mut hive::config::Faults) {
///         if self.stale_after.is_zero() {
///             faults.add("cache-stale-after", "must be longer than nothing");
///         }
///     }
/// }
///
/// use hive::Config;
/// assert_eq!(CacheConfig::defaults().unwrap().stale_after, Duration::from_secs(300));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a config struct",
    note = "derive it: `#[derive(Clone, hive::Config)]`"
)]
pub trait Config: Clone + Send + Sync + 'static {
    /// The settings, in the order of the fields.
    const FIELDS: &'static [Field];

    /// Reads all fields; `None` when one of them is bad, which the decoder has noted.
    fn decode(decoder: &mut Decoder<'_>) -> Option<Self>;

    /// The values as users would write them, in the order of [`FIELDS`](Self::FIELDS).
    fn render(&self) -> Vec<String>;

    /// Checks the values together and notes all faults.
    fn validate(&self, faults: &mut Faults) {
        let _ = faults;
    }

    /// The struct with all fields at their defaults.
    ///
    /// # Errors
    ///
    /// The default that cannot be read.
    fn defaults() -> Result<Self, String> {
        decode::defaults()
    }
}

/// The decoded configuration `C`, shared cheaply. Dereferences to `C`.
///
/// ```
/// use hive::{Cell, Cfg};
///
/// #[derive(Clone, hive::Config)]
/// struct Greeting {
///     /// Whom to greet.
///     #[config(default = "world")]
///     name: String,
/// }
///
/// fn greet(config: Cfg<Greeting>) { println!("hello {}", config.name); }
///
/// # let _ =
/// Cell::module("greeting", "Prints a greeting").config::<Greeting>().run(greet);
/// ```
pub struct Cfg<C>(Arc<C>);

impl<C: Config> Cfg<C> {
    /// A configuration outside of a hive, for tests of constructors.
    #[must_use]
    pub fn fixed(value: C) -> Self {
        Self(Arc::new(value))
    }
}

impl<C> Clone for Cfg<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C> Deref for Cfg<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: fmt::Debug> fmt::Debug for Cfg<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<C: Config> Value for Cfg<C> {}

/// A config type without its type: how the plan handles them all.
#[derive(Clone, Copy)]
pub(crate) struct ConfigType {
    /// Key of `Cfg<C>`.
    pub(crate) key: Key,
    /// Key of `C`, for its name.
    pub(crate) name: Key,
    pub(crate) fields: &'static [Field],
    decode: fn(&mut Decoder<'_>, &mut Faults) -> Option<Shared>,
}

/// A decoded `C`.
pub(crate) trait Decoded: Any + Send + Sync {
    fn render(&self) -> Vec<String>;
    fn validate(&self, faults: &mut Faults);
    fn as_any(&self) -> &dyn Any;
    /// A changed copy.
    fn changed(&self, change: &mut dyn FnMut(&mut dyn Any)) -> Shared;
}

/// What becomes of a decoded `C`: the `Cfg<C>` for the graph, and the value to be shown.
pub(crate) struct Shared {
    pub(crate) handle: Box<dyn Any + Send + Sync>,
    pub(crate) value: Arc<dyn Decoded>,
}

impl Shared {
    #[inline]
    pub(crate) fn of<C: Config>(value: C) -> Self {
        let value = Arc::new(value);
        Self {
            handle: Box::new(Cfg(value.clone())),
            value,
        }
    }
}

impl<C: Config> Decoded for C {
    fn render(&self) -> Vec<String> {
        Config::render(self)
    }

    fn validate(&self, faults: &mut Faults) {
        Config::validate(self, faults);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn changed(&self, change: &mut dyn FnMut(&mut dyn Any)) -> Shared {
        let mut value = self.clone();
        change(&mut value);
        Shared::of(value)
    }
}

impl ConfigType {
    pub(crate) fn of<C: Config>() -> Self {
        Self {
            key: Key::of::<Cfg<C>>(),
            name: Key::of::<C>(),
            fields: C::FIELDS,
            decode: |decoder, faults| {
                let value = C::decode(decoder)?;
                Config::validate(&value, faults);
                Some(Shared::of(value))
            },
        }
    }

    /// Reads a value, and notes what [`Config::validate`] finds.
    pub(crate) fn decode(&self, decoder: &mut Decoder<'_>, faults: &mut Faults) -> Option<Shared> {
        (self.decode)(decoder, faults)
    }
}
