// SPDX-License-Identifier: Apache-2.0

//! The metrics that are linked in, whatever cells a program has: so that a setting that names none of them is an error
//! of the plan.

use hive::Members;

use crate::metric::{MetricHandle, MetricSet, Opts};
use crate::namespace::Namespace;
use crate::registry::{UnknownMetric, nearest};

/// A set of metrics; made by [`declare!`](crate::declare).
pub struct Declared {
    metrics: fn() -> Members<MetricHandle>,
}

hive::__private::inventory::collect!(Declared);

impl Declared {
    #[doc(hidden)]
    #[must_use]
    pub const fn of<T: MetricSet + Default>() -> Self {
        Self {
            metrics: || Members(T::default().metrics()),
        }
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn by(metrics: fn() -> Members<MetricHandle>) -> Self {
        Self { metrics }
    }
}

/// Makes the names of a set of metrics known to the check of settings. The derive of [`Metrics`](derive@crate::Metrics)
/// does; a set or a function that makes metrics otherwise needs it.
#[macro_export]
macro_rules! declare {
    (fn $metrics:path) => {
        $crate::__private::inventory::submit! { $crate::__private::Declared::by($metrics) }
    };
    ($set:ty) => {
        $crate::__private::inventory::submit! { $crate::__private::Declared::of::<$set>() }
    };
}

/// What is wrong with `+name`: that no metric has the name, in no program.
pub(crate) fn unknown(name: &str) -> Option<UnknownMetric> {
    let sets = hive::__private::inventory::iter::<Declared>.into_iter();
    let opts: Vec<Opts> = sets
        .flat_map(|set| (set.metrics)().0)
        .map(|metric| metric.opts().clone())
        .collect();
    let full = |namespace: Namespace| opts.iter().map(move |opts| namespace.full_name(opts));
    let is_known = opts.iter().any(|opts| opts.name() == name)
        || Namespace::ALL
            .iter()
            .any(|namespace| full(*namespace).any(|known| known == name));
    if is_known {
        return None;
    }
    // The longest namespace that the name has: that of the agent begins those of the others.
    let own = Namespace::ALL
        .iter()
        .filter(|namespace| name.starts_with(&format!("{namespace}_")));
    let near = match own.max_by_key(|namespace| namespace.to_string().len()) {
        Some(namespace) => nearest(name, full(*namespace)),
        None => nearest(name, opts.iter().map(|opts| opts.name().to_owned())),
    };
    Some(UnknownMetric {
        name: name.to_owned(),
        near,
    })
}
