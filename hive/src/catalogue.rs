// SPDX-License-Identifier: Apache-2.0

//! The cells that are linked into a program, whether it uses them or not.

use crate::cell::Cell;
use crate::key::Key;
use crate::supply::Gives;

/// A cell that registered itself with [`catalogue!`](crate::catalogue!).
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
pub fn catalogue() -> impl Iterator<Item = &'static CatalogueEntry> {
    let mut entries: Vec<_> = inventory::iter::<CatalogueEntry>.into_iter().collect();
    entries.sort_by_key(|entry| entry.path);
    entries.into_iter()
}

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
