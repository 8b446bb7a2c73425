//! `walk/PEER/FORM`: the innermost of [`CALLS`] functions and its callers, found by the thread
//! itself, without a signal.
//!
//! Each peer begins with the same registers, and must find the same addresses.
//!
//! # Safety
//!
//! The unsafe code walks the calling thread's own stack, by two ways, from its stack pointer on.
#![allow(unsafe_code)]

use std::fs;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use dormouse_maps::parse;
use dormouse_sys::own_stack;
use dormouse_sys::process::identity;
use dormouse_unwind::{CallFrame, claim, own, walk};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, ParsedEhFrameHdr, Register,
    RegisterRule, UnwindContext, UnwindSection,
};
use object::{Object, ObjectSection, ObjectSegment};

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;
use crate::workloads::profile::frames::{Built, CALLS, End, at_the_end};

/// The addresses that a walk finds.
type Found = [usize; CALLS];

pub(super) fn rows(bench: &mut Bench) {
    let (tid, gimli) = (identity::tid(), Gimli::of_this_program().map(Rc::new));
    for built in Built::ALL {
        let spec = |peer: &str| Spec::new(format!("walk/{peer}/{}", built.name()), "ns").per("stack").cpu();
        let right = learned(built);
        row(bench, spec("dormouse"), built, right.clone(), move |end, found| {
            by_tables(end, Some(tid), found);
        });
        let unremembered = spec("dormouse-unremembered");
        row(bench, unremembered, built, right.clone(), |end, found| by_tables(end, None, found));
        let Some(gimli) = bench.need(spec("gimli"), gimli.clone()) else { continue };
        let mut context = UnwindContext::new();
        row(bench, spec("gimli"), built, right, move |end, found| _ = gimli.walk(&mut context, end, found));
    }
}

/// Adds a row of `walk`, which gets the registers at the end of the chain, and must find `right`.
fn row(
    bench: &mut Bench,
    spec: Spec,
    built: Built,
    right: Result<Found, Failure>,
    mut walk: impl FnMut(End, &mut Found) + 'static,
) {
    let Some(right) = bench.need(spec.clone(), right) else { return };
    bench.per_iteration(spec, move |times| {
        let (mut took, mut found) = (0, [0; CALLS]);
        at_the_end(built, &mut |end| {
            let began = thread_cpu_ns();
            for _ in 0..times {
                walk(black_box(end), black_box(&mut found));
            }
            took = thread_cpu_ns() - began;
        })?;
        if found != right {
            return Err(Failure::wrong("a walk found other addresses than those of the chain"));
        }
        Ok(Duration::from_nanos(took))
    });
}

/// The addresses of the chain, once all its functions have been learned.
fn learned(built: Built) -> Result<Found, Failure> {
    own_stack::learn();
    own::begin()?;
    let mut found = [0; CALLS];
    // The first walk notes the innermost function, and what may be its callers on the stack above.
    for _ in 0..2 {
        at_the_end(built, &mut |end| by_tables(end, None, &mut found))?;
        own::learn_missed();
    }
    Ok(found)
}

/// Walks as a sample's handler does, with the memory of a thread or without one.
#[inline]
fn by_tables(end: End, tid: Option<u32>, found: &mut Found) {
    let own = own_stack::from(end.stack);
    let cache = tid.and_then(claim);
    let from = CallFrame { instruction: end.instruction, stack: end.stack, frame: end.frame, link: 0 };
    let mut places = found.iter_mut();
    let take = |frame: CallFrame| {
        let place = places.next();
        let is_more = place.is_some();
        if let Some(place) = place {
            *place = frame.instruction;
        }
        is_more
    };
    // SAFETY: the thread can read its own stack.
    unsafe { walk(cache.as_deref(), from, &own, take) };
}

type Bytes = EndianSlice<'static, NativeEndian>;

/// The numbers of registers.
const FRAME: Register = Register(6);
const STACK: Register = Register(7);
const RETURN: Register = Register(16);

/// The peer: the tables of this program, evaluated for each address. They stay as long as the
/// program.
struct Gimli {
    index: ParsedEhFrameHdr<Bytes>,
    entries: EhFrame<Bytes>,
    bases: BaseAddresses,
    /// The distance of the program's addresses from those in its file.
    moved: usize,
}

impl Gimli {
    fn of_this_program() -> Result<Self, Failure> {
        let file = fs::read("/proc/self/exe")?;
        let object = object::File::parse(&file[..])?;
        let section = |name: &str| -> Result<(u64, Bytes), Failure> {
            let section = object.section_by_name(name).ok_or_else(|| format!("no section {name}"))?;
            let bytes: &'static [u8] = section.data()?.to_vec().leak();
            Ok((section.address(), EndianSlice::new(bytes, NativeEndian)))
        };
        let ((entries_at, entries), (index_at, index)) = (section(".eh_frame")?, section(".eh_frame_hdr")?);
        let bases = BaseAddresses::default().set_eh_frame(entries_at).set_eh_frame_hdr(index_at);
        let index = EhFrameHdr::from(index).parse(&bases, 8)?;
        let first = object.segments().find(|segment| segment.file_range().0 == 0);
        let first = first.map(|segment| segment.address()).ok_or("no first segment")?;
        let (maps, own) = (fs::read("/proc/self/maps")?, std::env::current_exe()?);
        let mut lines = parse(&maps).map_while(Result::ok);
        let line =
            lines.find(|line| line.offset == 0 && own.as_os_str().as_encoded_bytes() == line.name.as_ref());
        let start = line.ok_or("this program's file is not mapped")?.start;
        Ok(Self { index, entries: entries.into(), bases, moved: (start - first) as usize })
    }

    /// Follows [`CALLS`] functions of this program.
    fn walk(&self, context: &mut UnwindContext<usize>, end: End, found: &mut Found) -> Option<()> {
        let End { mut instruction, mut stack, mut frame } = end;
        let index = self.index.table()?;
        for place in found {
            *place = instruction;
            let row = index.unwind_info_for_address(
                &self.entries,
                &self.bases,
                context,
                (instruction - self.moved) as u64,
                EhFrame::cie_from_offset,
            );
            let row = row.ok()?;
            let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
            let base = if register == FRAME { frame } else { stack };
            debug_assert!(register == FRAME || register == STACK);
            let caller = base.wrapping_add_signed(offset as isize);
            let saved = |register| match row.register(register) {
                Some(RegisterRule::Offset(at)) => {
                    let at = caller.wrapping_add_signed(at as isize);
                    // SAFETY: the chain's frames are on this thread's stack, above its pointer.
                    Some(unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() })
                }
                _ => None,
            };
            instruction = saved(RETURN)?.checked_sub(1)?;
            frame = saved(FRAME).unwrap_or(frame);
            stack = caller;
        }
        Some(())
    }
}
