//! The locks of a batch: the patch lock with the registry, then the holds. Batches on other threads
//! wait until it is complete. A batch that a signal handler starts while it interrupts a batch of
//! its thread is refused, because the patch lock records its owner.

use super::changes::Changes;
use crate::Error;
use crate::hold::{self, Holds};
use crate::primitive::MutexGuard;
#[cfg(not(all(test, loom)))]
use crate::registry;
#[cfg(all(test, loom))]
use model as registry;

pub(crate) struct Guards {
    // Given up in this order.
    pub(crate) holds: MutexGuard<Holds>,
    pub(super) registry: registry::Registry,
}

impl Guards {
    pub(crate) fn lock() -> Result<Self, Error> {
        let registry = registry::lock()?;
        Ok(Self { holds: hold::lock()?, registry })
    }

    /// The locks for these changes, with the objects of their keys pinned where they must stay.
    pub(crate) fn lock_for(changes: &Changes) -> Result<Self, Error> {
        let Some(keys) = changes.lasting() else { return Self::lock() };
        let registry = registry::lock_pinned(&keys)?;
        Ok(Self { holds: hold::lock()?, registry })
    }
}

/// Keys that are in no object and have one site each, which decides whether it can be written.
#[cfg(all(test, loom))]
mod model {
    use std::sync::atomic::Ordering;

    use crate::patch_lock::PatchLock;
    use crate::{BatchReport, Error, Key, Protocol};

    pub(crate) struct Registry;

    pub(crate) fn lock() -> Result<Registry, Error> {
        Ok(Registry)
    }

    pub(crate) fn lock_pinned(_: &impl Iterator<Item = &'static Key>) -> Result<Registry, Error> {
        Ok(Registry)
    }

    impl Registry {
        pub(crate) fn check_there(&self, _: impl Iterator<Item = &'static Key>) -> Result<(), Error> {
            Ok(())
        }

        pub(crate) fn write(
            &self,
            keys: impl Iterator<Item = (&'static Key, bool)>,
            count: usize,
            _: Protocol,
        ) -> Result<BatchReport, Error> {
            let keys: Vec<_> = keys.collect();
            if let Some((refused, _)) = keys.iter().find(|(key, _)| key.site.foreign.load(Ordering::Relaxed))
            {
                return Err(Error::NotText { key: refused.name(), addr: 0 });
            }
            keys.iter().for_each(|(key, enabled)| key.site.write(*enabled));
            Ok(BatchReport { sites: count, ..BatchReport::default() })
        }

        /// A model's holds stand for the patch lock.
        pub(crate) fn patch_lock(&self) -> PatchLock<'_> {
            PatchLock::of_model()
        }
    }
}
