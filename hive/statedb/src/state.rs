// SPDX-License-Identifier: Apache-2.0

//! Content of one table at one moment, and the changes a write transaction makes to it.

use std::{any::Any, sync::Arc};

use smallvec::SmallVec;

use crate::{
    Error, Obj, Revision,
    index::{IndexDef, KeyList},
    key::{KeyBuf, KeyBytes, printable},
    revisions::Revisions,
    slots::{Slot, Slots, is_near, place_of},
    tree::{self, KeyAt, Numbers, Texts, Tree},
    watch::Place,
};

/// One table as a snapshot sees it. Cloning shares everything.
pub(crate) struct TableState<T> {
    pub(crate) revision: Revision,
    /// All objects, by the numbers that the indexes hold.
    pub(crate) objects: Slots<Obj<T>>,
    pub(crate) primary: Tree<Texts, Slot>,
    pub(crate) secondary: SmallVec<[Tree<Texts, Slot>; 3]>,
    pub(crate) by_revision: Revisions,
    /// Deleted objects some change iterator has not seen, by primary key: the revision of the deletion.
    pub(crate) graveyard: Tree<Texts, Revision>,
    /// The same by revision of the deletion, with the primary key.
    pub(crate) dead: Tree<Numbers, (KeyBuf, Obj<T>)>,
    /// Highest revision of a deletion that is not in the graveyard any more: an iterator that has seen less must list
    /// again.
    pub(crate) buried: Revision,
    pub(crate) initializers: Initializers,
}

/// Pending initialisers of a table. Nothing is shared or allocated for none.
#[derive(Clone, Default)]
pub(crate) struct Initializers(Option<Arc<Vec<Initializer>>>);

/// A pending initialiser.
#[derive(Debug, Clone)]
pub(crate) struct Initializer {
    /// Number of the registration.
    pub(crate) number: u64,
    pub(crate) name: Arc<str>,
    pub(crate) since: crate::initializer::Since,
}

impl Initializers {
    pub(crate) fn pending(&self) -> &[Initializer] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Returns the names of the pending ones.
    pub(crate) fn names(&self) -> Vec<String> {
        let pending = self.pending().iter();
        pending.map(|pending| pending.name.to_string()).collect()
    }

    pub(crate) fn add(&mut self, initializer: Initializer) {
        Arc::make_mut(self.0.get_or_insert_default()).push(initializer);
    }

    pub(crate) fn remove(&mut self, number: u64) {
        let Some(pending) = &mut self.0 else { return };
        Arc::make_mut(pending).retain(|pending| pending.number != number);
        if pending.is_empty() {
            self.0 = None;
        }
    }

    /// Returns whether both are the same set.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl<T> Clone for TableState<T> {
    fn clone(&self) -> Self {
        Self {
            revision: self.revision,
            objects: self.objects.clone(),
            primary: self.primary.clone(),
            secondary: self.secondary.clone(),
            by_revision: self.by_revision.clone(),
            graveyard: self.graveyard.clone(),
            dead: self.dead.clone(),
            buried: self.buried,
            initializers: self.initializers.clone(),
        }
    }
}

impl<T> TableState<T> {
    pub(crate) fn empty(secondary: usize) -> Self {
        Self {
            revision: 0,
            objects: Slots::default(),
            primary: Tree::default(),
            secondary: (0..secondary).map(|_| Tree::default()).collect(),
            by_revision: Revisions::default(),
            graveyard: Tree::default(),
            dead: Tree::default(),
            buried: 0,
            initializers: Initializers::default(),
        }
    }

    /// Returns the tree of the index at `position`; 0 is the primary one.
    pub(crate) fn tree(&self, position: usize) -> &Tree<Texts, Slot> {
        match position.checked_sub(1) {
            None => &self.primary,
            Some(at) => &self.secondary[at],
        }
    }

    /// Returns the object found under a stored key of the index at `position`.
    #[inline]
    pub(crate) fn find(&self, position: usize, key: &[u8]) -> Option<&Obj<T>> {
        self.objects.get(*self.tree(position).get(key)?)
    }

    /// Returns the objects of entries of an index.
    pub(crate) fn found<'a>(
        &'a self,
        entries: impl Iterator<Item = (KeyAt<'a, Texts>, &'a Slot)>,
    ) -> impl Iterator<Item = &'a Obj<T>> {
        let mut objects = self.objects.walk();
        entries.filter_map(move |(_, slot)| objects.get(*slot))
    }

    /// Objects that got their states at `since` or later, in order of their revisions, with their numbers.
    pub(crate) fn since(&self, since: Revision) -> impl Iterator<Item = (Slot, &Obj<T>)> {
        let mut objects = self.objects.walk();
        let slots = self.by_revision.since(since);
        slots.filter_map(move |slot| Some((slot, objects.get(slot)?)))
    }

    /// Returns whether the answer at `place` differs between two states of one table.
    pub(crate) fn differs(&self, other: &Self, place: &Place) -> bool {
        match place {
            Place::Table => self.revision != other.revision,
            Place::Initializers => !self.initializers.same(&other.initializers),
            Place::Exact(index, key) => {
                let revision = |state: &Self| state.find(*index, key.as_bytes()).map(Obj::revision);
                revision(self) != revision(other)
            }
            Place::Prefix(index, prefix) => {
                let prefix = KeyBytes::from_slice(prefix.as_bytes());
                let (a, b) = (self.tree(*index), other.tree(*index));
                let (a, b) = (a.starting(prefix.clone()), b.starting(prefix));
                // The revision identifies the state of an object, from which its keys follow.
                !self
                    .found(a)
                    .map(Obj::revision)
                    .eq(other.found(b).map(Obj::revision))
            }
        }
    }
}

/// Type-erased [`TableState`], the element of a database root.
pub(crate) trait AnyState: Any + Send + Sync {
    fn revision(&self) -> Revision;
    fn objects(&self) -> usize;
    fn zombies(&self) -> usize;
    fn initializers(&self) -> &Initializers;
    fn initializers_mut(&mut self) -> &mut Initializers;
    /// Returns a copy to be changed by a transaction.
    fn copy(&self) -> Arc<dyn AnyState>;
    /// Returns whether the answer at `place` differs between two states of one table.
    fn differs(&self, other: &dyn AnyState, place: &Place) -> bool;
    /// Forgets deletions up to `watermark`; returns how many.
    fn bury(&mut self, watermark: Revision) -> usize;
    /// Revision of the deletion that is `keep` deletions away from the newest one.
    fn deletion_before_last(&self, keep: usize) -> Option<Revision>;
}

impl<T: Send + Sync + 'static> AnyState for TableState<T> {
    fn revision(&self) -> Revision {
        self.revision
    }
    fn objects(&self) -> usize {
        self.primary.len()
    }
    fn zombies(&self) -> usize {
        self.dead.len()
    }
    fn initializers(&self) -> &Initializers {
        &self.initializers
    }
    fn initializers_mut(&mut self) -> &mut Initializers {
        &mut self.initializers
    }
    fn copy(&self) -> Arc<dyn AnyState> {
        Arc::new(self.clone())
    }
    fn differs(&self, other: &dyn AnyState, place: &Place) -> bool {
        match (other as &dyn Any).downcast_ref() {
            Some(other) => TableState::differs(self, other, place),
            None => true,
        }
    }
    fn bury(&mut self, watermark: Revision) -> usize {
        let mut buried = 0;
        while let Some((revision, (key, _))) = self.dead.first()
            && revision.number() <= watermark
        {
            let (revision, key) = (revision.number(), key.clone());
            self.graveyard.remove(key.as_bytes());
            self.dead.remove(&revision);
            self.buried = revision;
            buried += 1;
        }
        buried
    }
    fn deletion_before_last(&self, keep: usize) -> Option<Revision> {
        let surplus = self.dead.len().checked_sub(keep)?;
        let last = self.dead.iter().take(surplus).last();
        last.map(|(revision, _)| revision.number())
    }
}

/// Stored keys touched: position of the index, and the key.
type Touched = Vec<(usize, KeyBuf)>;

/// A table inside a write transaction.
pub(crate) struct Open {
    /// A working copy, which becomes the table's state as it is.
    pub(crate) state: Arc<dyn AnyState>,
    /// Keys touched, if logged.
    pub(crate) touched: Option<Touched>,
    /// Whether anything may differ from the state before.
    pub(crate) changed: bool,
}

impl Open {
    pub(crate) fn new(base: &dyn AnyState, log_keys: bool) -> Self {
        Self {
            state: base.copy(),
            touched: log_keys.then(Vec::new),
            changed: false,
        }
    }

    /// Returns the working copy, to which there is no other reference.
    fn own(state: &mut Arc<dyn AnyState>) -> &mut dyn AnyState {
        Arc::get_mut(state).expect("a working copy is shared when it is committed, not before")
    }

    pub(crate) fn initializers_mut(&mut self) -> &mut Initializers {
        self.changed = true;
        Self::own(&mut self.state).initializers_mut()
    }

    /// See [`AnyState::bury`].
    pub(crate) fn bury(&mut self, watermark: Revision) -> usize {
        let buried = Self::own(&mut self.state).bury(watermark);
        self.changed |= buried > 0;
        buried
    }

    /// Returns the table to be changed, if it is one of `T`.
    #[inline]
    pub(crate) fn work<T: 'static>(&mut self) -> Option<Work<'_, T>> {
        let state: &mut dyn Any = Self::own(&mut self.state);
        Some(Work {
            state: state.downcast_mut()?,
            touched: &mut self.touched,
            changed: &mut self.changed,
        })
    }
}

/// Objects of a table inside a write transaction.
pub(crate) struct Work<'a, T> {
    pub(crate) state: &'a mut TableState<T>,
    touched: &'a mut Option<Touched>,
    changed: &'a mut bool,
}

/// When an insert may replace what is there.
pub(crate) enum Condition {
    Always,
    Revision(Revision),
}

/// The replacement of an object that is still at a revision. Has the same keys.
pub(crate) struct Exchange<T> {
    /// Number of the object.
    pub(crate) slot: Slot,
    pub(crate) revision: Revision,
    pub(crate) object: Option<Obj<T>>,
}

/// Stored keys of an object in all indexes.
fn touched_by<T>(defs: &[IndexDef<T>], key: &[u8], object: &T) -> Touched {
    let mut touched = vec![(0, KeyBuf::new(key))];
    for (at, def) in defs.iter().enumerate().skip(1) {
        let stored = def.stored(def.keys(object), key);
        touched.extend(stored.iter().map(|stored| (at, KeyBuf::new(stored))));
    }
    touched
}

impl<T: Send + Sync + 'static> Work<'_, T> {
    #[inline]
    fn touch(&mut self, index: usize, key: &[u8]) {
        if let Some(touched) = self.touched {
            touched.push((index, KeyBuf::new(key)));
        }
    }

    /// Returns the primary key of an object.
    #[inline]
    pub(crate) fn primary_key(table: &str, defs: &[IndexDef<T>], object: &T) -> Result<KeyBytes, Error> {
        let mut keys = defs[0].keys(object);
        match (keys.pop(), keys.len()) {
            (Some(key), 0) => Ok(key),
            (last, rest) => Err(Error::PrimaryKey {
                table: table.to_owned(),
                keys: rest + usize::from(last.is_some()),
            }),
        }
    }

    /// Inserts or replaces; on error nothing is changed. Returns the number of the object and the old one.
    pub(crate) fn insert(
        &mut self,
        table: &str,
        defs: &[IndexDef<T>],
        object: T,
        condition: &Condition,
    ) -> Result<(Slot, Option<Obj<T>>), Error> {
        let key = Self::primary_key(table, defs, &object)?;
        let found = self.state.primary.find(&key).copied();
        if let Condition::Revision(expected) = *condition {
            self.check_revision(table, &key, found.as_ref().ok().copied(), expected)?;
        }
        match found {
            Ok(slot) => {
                let old = self.replace(table, defs, &key, slot, object)?;
                Ok((slot, old))
            }
            Err(vacant) => Ok((self.add(table, defs, &key, &vacant, object)?, None)),
        }
    }

    fn check_revision(
        &self,
        table: &str,
        key: &[u8],
        slot: Option<Slot>,
        expected: Revision,
    ) -> Result<(), Error> {
        match slot.and_then(|slot| self.state.objects.get(slot)) {
            None => Err(Error::NotFound {
                table: table.to_owned(),
                key: printable(key),
            }),
            Some(old) if old.revision() != expected => Err(Error::RevisionMismatch {
                table: table.to_owned(),
                key: printable(key),
                expected,
                found: old.revision(),
            }),
            Some(_) => Ok(()),
        }
    }

    /// Adds an object with a primary key that no other has, and which belongs at `vacant`.
    fn add(
        &mut self,
        table: &str,
        defs: &[IndexDef<T>],
        key: &[u8],
        vacant: &tree::Place,
        object: T,
    ) -> Result<Slot, Error> {
        let mut keys: SmallVec<[KeyList; 2]> = SmallVec::new();
        for (at, def) in defs.iter().enumerate().skip(1) {
            let stored = def.stored(def.keys(&object), key);
            if def.unique {
                self.check_unique(table, defs, at, None, &stored)?;
            }
            keys.push(stored);
        }

        self.state.revision += 1;
        *self.changed = true;
        let revision = self.state.revision;
        if !self.state.dead.is_empty()
            && let Some(deleted) = self.state.graveyard.remove(key)
        {
            self.state.dead.remove(&deleted);
        }
        let slot = self.state.objects.add(Obj::new(object, revision));
        self.state.primary.fill(vacant, key, slot);
        self.state.by_revision.push(revision, slot);
        for (at, keys) in keys.iter().enumerate() {
            for stored in keys {
                self.state.secondary[at].insert(stored, slot);
                self.touch(at + 1, stored);
            }
        }
        self.touch(0, key);
        Ok(slot)
    }

    /// Replaces the object with this number by one that has the same primary key.
    fn replace(
        &mut self,
        table: &str,
        defs: &[IndexDef<T>],
        key: &[u8],
        slot: Slot,
        object: T,
    ) -> Result<Option<Obj<T>>, Error> {
        // Only the keys that differ concern an index: others lead to the object's number as before.
        let mut moved: SmallVec<[(usize, KeyList, KeyList); 1]> = SmallVec::new();
        if let Some(old) = self.state.objects.get(slot) {
            for (at, def) in defs.iter().enumerate().skip(1) {
                let (was, is) = (def.keys(old), def.keys(&object));
                if was == is {
                    continue;
                }
                let (was, is) = (def.stored(was, key), def.stored(is, key));
                if def.unique {
                    self.check_unique(table, defs, at, Some(slot), &is)?;
                }
                moved.push((at, was, is));
            }
        }
        let object = Obj::new(object, self.state.revision + 1);
        self.touch_all(defs, key, &object);
        for (at, was, is) in moved {
            for gone in was.iter().filter(|gone| !is.contains(gone)) {
                self.state.secondary[at - 1].remove(gone);
            }
            for new in is.iter().filter(|new| !was.contains(new)) {
                self.state.secondary[at - 1].insert(new, slot);
            }
            was.iter().for_each(|gone| self.touch(at, gone));
        }
        Ok(self.exchange(slot, object))
    }

    /// Replaces an object by one with the same keys, as the latest change.
    fn exchange(&mut self, slot: Slot, object: Obj<T>) -> Option<Obj<T>> {
        self.state.revision += 1;
        *self.changed = true;
        let old = self.state.objects.replace(slot, object);
        if let Some(old) = &old {
            self.state.by_revision.remove(&[old.revision()]);
        }
        self.state.by_revision.push(self.state.revision, slot);
        old
    }

    /// Replaces objects that are still at their revisions; takes those written out of `list`. Quick if numbers and
    /// revisions are in order.
    pub(crate) fn exchange_all<W>(
        &mut self,
        table: &str,
        defs: &[IndexDef<T>],
        list: &mut [W],
        exchange: impl Fn(&mut W) -> &mut Exchange<T>,
    ) {
        let mut left: Vec<Revision> = Vec::with_capacity(list.len());
        let mut list = list.iter_mut().map(exchange).peekable();
        while let Some(&mut &mut Exchange { slot: first, .. }) = list.peek_mut() {
            let mut places = self.state.objects.places(first);
            while let Some(entry) = list.next_if(|entry| is_near(entry.slot, first)) {
                // The revision is of this object and of no other: a number that belongs to another one by now is noticed.
                let place = places
                    .as_mut()
                    .and_then(|places| places[place_of(entry.slot)].as_mut());
                let Some(old) = place.filter(|old| old.revision() == entry.revision) else {
                    continue;
                };
                let next = self.state.revision + 1;
                let Some(mut object) = entry.object.take() else {
                    continue;
                };
                if !object.set_revision(next) {
                    entry.object = Some(object);
                    continue;
                }
                self.state.revision = next;
                self.state.by_revision.push(next, entry.slot);
                left.push(entry.revision);
                if let Some(touched) = self.touched
                    && let Ok(key) = Self::primary_key(table, defs, &object)
                {
                    touched.extend(touched_by(defs, &key, &object));
                }
                *old = object;
            }
        }
        *self.changed |= !left.is_empty();
        self.state.by_revision.remove(&left);
    }

    /// Logs the keys of an object that is about to be inserted.
    fn touch_all(&mut self, defs: &[IndexDef<T>], key: &[u8], object: &T) {
        if let Some(touched) = self.touched {
            touched.extend(touched_by(defs, key, object));
        }
    }

    fn check_unique(
        &self,
        table: &str,
        defs: &[IndexDef<T>],
        at: usize,
        own: Option<Slot>,
        keys: &KeyList,
    ) -> Result<(), Error> {
        for key in keys {
            if let Some(&slot) = self.state.secondary[at - 1].get(key)
                && own != Some(slot)
                && let Some(holder) = self.state.objects.get(slot)
            {
                return Err(Error::Conflict {
                    table: table.to_owned(),
                    index: defs[at].name,
                    existing: printable(&Self::primary_key(table, defs, holder)?),
                });
            }
        }
        Ok(())
    }

    /// Like [`Work::delete`] if the object is still at a revision.
    pub(crate) fn delete_if(
        &mut self,
        table: &str,
        defs: &[IndexDef<T>],
        key: &[u8],
        expected: Revision,
        tracked: bool,
    ) -> Result<Option<Obj<T>>, Error> {
        let slot = self.state.primary.get(key).copied();
        self.check_revision(table, key, slot, expected)?;
        Ok(self.delete(defs, key, tracked))
    }

    /// Removes the object with this primary key; keeps it in the graveyard if there are change iterators.
    pub(crate) fn delete(&mut self, defs: &[IndexDef<T>], key: &[u8], tracked: bool) -> Option<Obj<T>> {
        let old = self.state.objects.remove(self.state.primary.remove(key)?)?;
        self.state.revision += 1;
        *self.changed = true;
        self.state.by_revision.remove(&[old.revision()]);
        for (at, def) in defs.iter().enumerate().skip(1) {
            for stored in def.stored(def.keys(&old), key) {
                self.state.secondary[at - 1].remove(&stored);
                self.touch(at, &stored);
            }
        }
        if tracked {
            self.state.graveyard.insert(key, self.state.revision);
            self.state
                .dead
                .insert(&self.state.revision, (KeyBuf::new(key), old.clone()));
        } else {
            self.state.buried = self.state.revision;
        }
        self.touch(0, key);
        Some(old)
    }
}
