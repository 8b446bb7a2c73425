//! The functions of a stack of another process: those that the kernel has followed by frame
//! pointers, or those in its copy of the stack.

use std::fs;
use std::io;

use dormouse_maps::{AddressSpace, Cache, Perms, Region};
use dormouse_sys::perf::UserStack;
use dormouse_unwind::{CallFrame, CopyEnd, ProcessTables};

use crate::ends::{IN_KERNEL, StackEnd, USER_END};

/// The least and the most bytes of a copied stack: no record may have 64 KiB. Builds without
/// optimisation have stacks of that length.
const COPY: [usize; 2] = [16 << 10, 60 << 10];

/// How many bytes of each stack to copy into a ring of that size. A processor then fills at
/// most a half between two passes, unless the least is more than that. Nothing is copied if the
/// ring has no room for two records.
pub(super) fn copy_in(ring: usize, samples: usize) -> u16 {
    let [least, most] = COPY;
    if ring < 4 * least { 0 } else { (ring / 2 / samples.max(1)).clamp(least, most) as u16 & !7 }
}

/// The means of finding callers.
#[derive(Debug)]
pub(super) struct Callers {
    /// An error: the process's memory cannot be read, so callers are those that the kernel finds.
    tables: io::Result<ProcessTables>,
    cache: Cache<Region>,
    /// The most frames that the kernel follows.
    deepest: usize,
    /// Room for the functions of a stack.
    functions: Vec<u64>,
}

impl Callers {
    pub(super) fn of(pid: u32) -> Self {
        let said = fs::read_to_string("/proc/sys/kernel/perf_event_max_stack").ok();
        let deepest = said.and_then(|said| said.trim().parse().ok()).unwrap_or(127);
        Self { tables: ProcessTables::of(pid), cache: Cache::new(), deepest, functions: Vec::new() }
    }

    /// Why stacks need not be copied.
    pub(super) fn refused(&self) -> Option<&io::Error> {
        self.tables.as_ref().err()
    }

    /// The addresses of a stack, the innermost first, by the kernel's chain of return addresses and
    /// its copy of the stack; and whether they lead to the first function of the thread, which one
    /// of the kernel's own does not have. If they do not, the last one says why.
    pub(super) fn stack(
        &mut self,
        space: &AddressSpace,
        ip: u64,
        mut chain: Vec<u64>,
        copy: Option<&UserStack>,
    ) -> (Vec<u64>, Option<Result<(), StackEnd>>) {
        let lack = match copy {
            Some(copy) => self.follow(space, copy, &mut chain).unwrap_or_else(|lack| {
                let by_links = self.lack_by_links(space, &chain)?;
                Some(if by_links == StackEnd::Unread { lack } else { by_links })
            }),
            None => self.lack_by_links(space, &chain),
        };
        let own = chain.is_empty().then_some(if ip < USER_END { ip } else { IN_KERNEL });
        // Where the process went into the kernel: no return address.
        let entry = chain.iter().position(|&address| address < USER_END);
        let frames = chain.iter().enumerate().map(|(place, &address)| {
            // Callers: inside the instruction that called.
            let is_exact = place == 0 || Some(place) == entry;
            if is_exact { address } else { address.saturating_sub(1) }
        });
        let mut frames: Vec<u64> = own.into_iter().chain(frames).collect();
        if frames.last().is_some_and(|&outermost| outermost >= USER_END) {
            return (frames, None);
        }
        frames.extend(lack.map(|why| why.address(frames.len())));
        (frames, Some(lack.map_or(Ok(()), Err)))
    }

    /// Puts the callers in a copied stack in place of the user's part of a chain, if they are as
    /// many or lead to the thread's first function. Returns why they do not; an error if the chain
    /// stays as it was.
    fn follow(
        &mut self,
        space: &AddressSpace,
        copy: &UserStack,
        chain: &mut Vec<u64>,
    ) -> Result<Option<StackEnd>, StackEnd> {
        let Self { tables: Ok(tables), functions, cache, .. } = self else { return Err(StackEnd::Unread) };
        let [instruction, stack, frame, link] = copy.registers.map(|register| register as usize);
        let end = tables.follow(CallFrame { instruction, stack, frame, link }, &copy.bytes, functions);
        // The kernel's copy ends with the stack, or before a page that nobody has written to.
        let behind = (stack + copy.bytes.len()) as u64;
        let is_stack = |at| {
            space.resolve(cache, at).ok().flatten().is_some_and(|it| it.value.perms.contains(Perms::READ))
        };
        let lack = match end {
            CopyEnd::Copy if !copy.is_cut && is_stack(behind) => Some(StackEnd::Unused),
            end => StackEnd::of_copy(end, copy.is_cut),
        };
        let kernel = chain.iter().take_while(|&&address| address >= USER_END).count();
        let are_as_many = kernel + functions.len() >= chain.len() && !copy.bytes.is_empty();
        if lack.is_none() || are_as_many {
            chain.truncate(kernel);
            // As the kernel reports callers.
            chain.extend(functions.iter().enumerate().map(|(place, &at)| at + u64::from(place > 0)));
            return Ok(lack);
        }
        Err(lack.unwrap_or(StackEnd::NoRule))
    }

    /// Why a chain by frame pointers does not lead to the first function of its thread. It does if
    /// the C library, which calls that function, is the outermost.
    fn lack_by_links(&self, space: &AddressSpace, chain: &[u64]) -> Option<StackEnd> {
        if chain.len() >= self.deepest {
            return Some(StackEnd::Cut);
        }
        let object = chain.last().and_then(|&address| space.resolve(&self.cache, address).ok()?);
        let object = object.and_then(|mapping| space.object(mapping.value.object));
        let is_library = |name: &str| ["libc.", "libc-", "ld-musl-"].iter().any(|it| name.starts_with(it));
        let has_begun = object.is_some_and(|object| is_library(&object.short_name()));
        if has_begun { None } else { Some(StackEnd::Unread) }
    }
}
