// SPDX-License-Identifier: Apache-2.0

//! The cells that are linked into a program, whether it uses them or not.

use std::fmt;

use crate::cell::Cell;
use crate::key::Key;
use crate::supply::Gives;

/// A cell that registered itself with [`catalogue!`](crate::catalogue!).
///
/// ```
/// fn cell() -> hive::Cell { hive::Cell::module("greeter", "Greets") }
/// hive::catalogue!(cell);
/// # fn main() {
/// let entry = hive::catalogue().find(|entry| entry.path.ends_with("::cell")).unwrap();
/// assert_eq!(format!("{:?}", (entry.cell)()), "Cell::module(\"greeter\")");
/// # }
/// ```
pub struct CatalogueEntry {
    /// How to name it in a cell list: `skep_base_health::cell`.
    pub path: &'static str,
    /// Makes it.
    pub cell: fn() -> Cell,
}

inventory::collect!(CatalogueEntry);

/// Registers a cell in the catalogue: for hints about missing values, and for lists of what exists. Stands in the
/// module whose path users write in front of the cell: mostly at the end of `lib.rs`.
///
/// ```
/// use hive::Cell;
/// fn cell() -> Cell { Cell::module("greeter", "Greets") }
/// hive::catalogue!(cell);
/// # fn main() { assert!(hive::catalogue().any(|entry| entry.path.ends_with("::cell"))); }
/// ```
#[macro_export]
macro_rules! catalogue {
    ($cell:ident) => {
        $crate::__private::inventory::submit! {
            $crate::CatalogueEntry { path: concat!(module_path!(), "::", stringify!($cell)), cell: $cell }
        }
    };
}

/// The registered cells, sorted by path.
///
/// ```
/// for entry in hive::catalogue() {
///     println!("{}", entry.path);
/// }
/// ```
pub fn catalogue() -> impl Iterator<Item = &'static CatalogueEntry> {
    let mut entries: Vec<_> = inventory::iter::<CatalogueEntry>.into_iter().collect();
    entries.sort_by_key(|entry| entry.path);
    entries.into_iter()
}

/// A cell of the catalogue by its path: for programs whose list of cells is text.
///
/// # Errors
///
/// If no cell of that path is linked in; names what comes close.
///
/// ```
/// # mod greeter {
/// pub fn cell() -> hive::Cell { hive::Cell::module("greeter", "Greets") }
/// hive::catalogue!(cell);
/// # }
/// # fn main() {
/// let path = hive::catalogue().find(|entry| entry.path.ends_with("greeter::cell")).unwrap().path;
/// let hive = hive::Hive::new([hive::cell_named(path).unwrap()]);
/// let error = hive::cell_named(&path.replace("greeter", "greter")).unwrap_err();
/// assert!(error.to_string().ends_with(&format!("did you mean `{path}`?")));
/// # let _ = hive;
/// # }
/// ```
pub fn cell_named(path: &str) -> Result<Cell, UnknownCell> {
    match catalogue().find(|entry| entry.path == path) {
        Some(entry) => Ok((entry.cell)()),
        None => Err(UnknownCell {
            path: path.to_owned(),
            similar: crate::similar::closest(path, catalogue().map(|entry| entry.path)),
        }),
    }
}

/// A path of which the catalogue has no cell.
///
/// ```
/// let error = hive::cell_named("nobody::cell").unwrap_err();
/// assert_eq!(error.path, "nobody::cell");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCell {
    /// What was asked for.
    pub path: String,
    /// What comes close.
    pub similar: Option<String>,
}

impl fmt::Display for UnknownCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the catalogue has no cell `{}`", self.path)?;
        match &self.similar {
            Some(similar) => write!(f, "; did you mean `{similar}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownCell {}

/// Which cells would provide a key.
pub(crate) fn suggestions(key: Key) -> Vec<String> {
    catalogue()
        .filter(|entry| provides(&(entry.cell)(), key))
        .map(|entry| {
            format!(
                "`{}` provides it; add `{}()` to the cells",
                entry.path, entry.path
            )
        })
        .collect()
}

fn provides(cell: &Cell, key: Key) -> bool {
    use crate::cell::{Item, Visibility};
    cell.node.items.iter().any(|item| match item {
        Item::Provide(provide) => {
            provide.visibility != Visibility::Private && {
                let mut gives = Gives::default();
                provide.function.gives(&mut gives);
                gives.0.iter().any(|give| give.key == key)
            }
        }
        Item::Config(declared) => (declared.config)().key == key,
        Item::Cell(cell) => provides(cell, key),
        _ => false,
    })
}
