//! The states that features keep for a client.

use std::any::Any;
use std::fmt::Debug;

use dormouse_keys::Key;

/// Something that a feature does for a client as long as the client is connected.
pub(crate) trait ClientState: Any + Send + Debug {
    /// A description of its work for people: `counts task-clock`.
    fn what(&self) -> String;

    /// The keys that it alone keeps on, each once for each lease.
    fn keys(&self) -> Vec<&'static Key> {
        Vec::new()
    }

    /// The keys that it keeps on by leases in which other states may have a part.
    fn shared_keys(&self) -> Vec<&'static Key> {
        Vec::new()
    }

    /// The memory that it adds to an answer about all groups, in bytes.
    fn answer_bytes(&self) -> usize {
        0
    }

    /// Whether its end takes memory. When its client has gone, the agent waits for that memory.
    fn ends_with_memory(&self) -> bool {
        false
    }
}

/// States of one client, several of a type if the feature allows that.
#[derive(Debug, Default)]
pub(crate) struct ClientStates(Vec<Box<dyn ClientState>>);

impl ClientStates {
    /// All states, of all features.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn ClientState> {
        self.0.iter().map(|state| &**state)
    }

    /// The states of this type, in the order in which they began.
    pub(crate) fn all<T: ClientState>(&self) -> impl Iterator<Item = &T> {
        self.iter().filter_map(|state| (state as &dyn Any).downcast_ref())
    }

    /// All states of this type, mutable.
    pub(crate) fn all_mut<T: ClientState>(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().filter_map(|state| (&mut **state as &mut dyn Any).downcast_mut())
    }

    /// The state of a type of which a client has one at most.
    pub(crate) fn get<T: ClientState>(&self) -> Option<&T> {
        self.all().next()
    }

    pub(crate) fn add<T: ClientState>(&mut self, state: T) {
        self.0.push(Box::new(state));
    }

    /// Puts a state in the place of what the client has of that type, which ends.
    pub(crate) fn set<T: ClientState>(&mut self, state: T) {
        self.end::<T>();
        self.add(state);
    }

    /// Ends the states of this type.
    pub(crate) fn end<T: ClientState>(&mut self) {
        self.0.retain(|state| !(&**state as &dyn Any).is::<T>());
    }

    /// Ends the states whose end takes no memory.
    pub(super) fn end_at_once(&mut self) {
        self.0.retain(|state| state.ends_with_memory());
    }

    /// Ends all of them.
    pub(super) fn end_all(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
