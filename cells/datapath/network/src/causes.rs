// SPDX-License-Identifier: Apache-2.0

//! Statuses with the causes of errors.

use statedb::{
    Obj, Revision,
    reconciler::{Ops, Round},
    row::BoxError,
};

/// Operations whose errors have the text of all causes: a status shows the text alone.
pub(crate) struct WithCauses<O>(pub(crate) O);

fn with_causes(error: BoxError) -> BoxError {
    hive::error_chain(&*error).into()
}

impl<T, O: Ops<T>> Ops<T> for WithCauses<O> {
    fn update(&mut self, round: &Round<'_>, revision: Revision, object: &mut T) -> Result<(), BoxError> {
        self.0.update(round, revision, object).map_err(with_causes)
    }

    fn delete(&mut self, round: &Round<'_>, revision: Revision, object: &T) -> Result<(), BoxError> {
        self.0.delete(round, revision, object).map_err(with_causes)
    }

    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<T>>,
    ) -> Result<(), BoxError> {
        self.0.prune(round, objects).map_err(with_causes)
    }
}
