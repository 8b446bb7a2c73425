//! The tables of the objects that stay mapped as long as this process lives.
//!
//! | object | found by | stays, because |
//! |---|---|---|
//! | the C library, of older ones also that of threads | two of its functions | this code needs it, and is kept loaded itself ([`loader::pin_self`]) |
//! | the dynamic linker | `AT_BASE` | it never leaves |
//! | the vDSO | `AT_SYSINFO_EHDR` | the kernel's |
//!
//! Their entries are read where they are mapped, because the file of that name may be another one
//! by now. The executable itself (for example a static one) is left out.
//!
//! # Safety
//!
//! The unsafe code reads the auxiliary vector, makes a slice of mapped memory that is never
//! written, and makes a reference from a pointer to a leaked value.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use dormouse_sys::readable::is_readable;
use dormouse_sys::{loader, memory};

use crate::bytes::MappedBytes;
use crate::rule::{CallFrame, CallerStep};
use crate::table::RowTable;

/// The most objects that have tables.
const MOST: usize = 4;

/// More memory than the tables take: those of glibc take a fifth of this.
const ROOM: usize = 1 << 20;

/// Made once, and leaked: a handler may be reading them at any time.
static LIBRARIES: AtomicPtr<Libraries> = AtomicPtr::new(ptr::null_mut());

/// The unwind tables of the system's libraries in this process.
#[derive(Debug, Default)]
pub struct Libraries {
    tables: [Option<RowTable>; MOST],
}

/// The tables of this process; `None` before [`prepare_libraries`].
///
/// # Async-signal-safety
///
/// One load.
pub fn libraries() -> Option<&'static Libraries> {
    // SAFETY: null, or leaked below. Acquire: pairs with the exchange there.
    unsafe { LIBRARIES.load(Ordering::Acquire).as_ref() }
}

/// Reads the tables, once for a process. If there is no memory, or the loader cannot keep this code
/// loaded, nothing is read, and the next call tries again.
///
/// # Cost
///
/// Two milliseconds at the first call, which waits for the loader: it must not be made under a lock
/// that a constructor takes. 100 to 300 KB, which are never freed.
pub fn prepare_libraries() {
    if libraries().is_some() || !memory::is_there(ROOM) || loader::pin_self().is_err() {
        return;
    }
    let made = Box::into_raw(Box::new(Libraries::read()));
    // Release: pairs with the load above.
    if LIBRARIES.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Relaxed).is_err() {
        // SAFETY: made above, and no thread has seen it.
        drop(unsafe { Box::from_raw(made) });
    }
}

impl Libraries {
    fn read() -> Self {
        let mut libraries = Self::default();
        let left = |name| {
            // SAFETY: reads the auxiliary vector, which the kernel has written.
            unsafe { libc::getauxval(name) as usize }
        };
        let objects = [
            libc::getpid as *const () as usize,
            libc::pthread_create as *const () as usize,
            left(libc::AT_BASE),
            left(libc::AT_SYSINFO_EHDR),
        ];
        for (at, object) in objects.into_iter().enumerate() {
            libraries.tables[at] = libraries.table_of(object);
        }
        libraries
    }

    /// The table of the object that an address lies in, if it is not there yet: newer C libraries
    /// have the functions of threads, and musl has the dynamic linker.
    fn table_of(&self, address: usize) -> Option<RowTable> {
        if self.contains(address) {
            return None;
        }
        let object = loader::find(address).filter(|object| !object.is_executable())?;
        let index = object.unwind_index()?;
        // Their entries lie side by side.
        let segment = object.segments.iter().find(|segment| segment.range.contains(&index))?;
        let range = segment.range.start..segment.file_end;
        if segment.flags & libc::PF_W != 0 || !is_readable(range.clone()) {
            return None;
        }
        // SAFETY: `is_readable` has just found the range readable, and it stays mapped, as the
        // header's table guarantees. Its segment cannot be written.
        let bytes =
            unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(range.start), range.len()) };
        let table = RowTable::read(MappedBytes { address: range.start as u64, bytes }, index as u64)?;
        let (start, _) = table.rows().next()?;
        (!self.contains(start as usize)).then_some(table)
    }

    fn table(&self, address: usize) -> Option<&RowTable> {
        self.tables.iter().flatten().find(|table| table.contains(address))
    }

    /// The tables, each of one object.
    pub fn tables(&self) -> impl Iterator<Item = &RowTable> {
        self.tables.iter().flatten()
    }

    /// Whether an address lies in the code of one of the libraries.
    ///
    /// # Async-signal-safety
    ///
    /// Some comparisons.
    pub fn contains(&self, address: usize) -> bool {
        self.table(address).is_some()
    }

    /// The caller of a function with the registers `from`. `read` returns the word at an address of
    /// the stack, if it can be read.
    ///
    /// # Async-signal-safety
    ///
    /// If `read` is: no lock, allocation or panic.
    pub fn caller(&self, from: CallFrame, read: impl FnMut(usize) -> Option<usize>) -> CallerStep {
        match self.table(from.instruction) {
            Some(table) => table.rule(from.instruction).caller(from, read),
            None => CallerStep::Unknown,
        }
    }
}
