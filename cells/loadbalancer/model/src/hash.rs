// SPDX-License-Identifier: Apache-2.0

//! Hash tables with a quick hash function. (Its seeds differ from process to process, so that no client can prepare
//! names or addresses that collide.)

use std::collections;

use foldhash::fast::RandomState;

/// A map.
pub type HashMap<K, V> = collections::HashMap<K, V, RandomState>;
/// A set.
pub type HashSet<T> = collections::HashSet<T, RandomState>;
