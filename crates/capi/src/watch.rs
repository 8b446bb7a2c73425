//! Watches: C's options, and their results in C's form.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use dormouse::{Access, Group, Watch, WatchReport, WatchSite, WatchSpec, WatchState};

use crate::call::{Out, answer, contained, memory_for, owned};
use crate::error::{Code, Error, Refusal};
use crate::groups::GroupId;

/// `struct dormouse_watch_spec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Spec {
    pub(crate) size: u32,
    pub(crate) access: u32,
    pub(crate) address: *const c_void,
    pub(crate) length: usize,
    pub(crate) name: *const c_char,
    pub(crate) group: GroupId,
    pub(crate) flags: u32,
    pub(crate) rate: u32,
    pub(crate) most: u64,
    pub(crate) equals: u64,
    pub(crate) mask: u64,
}

/// `enum dormouse_access`.
pub(crate) const ACCESSES: [(u32, Access); 3] =
    [(1, Access::Write), (2, Access::ReadWrite), (3, Access::Execute)];

/// `enum dormouse_watch_flags`.
pub(crate) mod flag {
    pub(crate) const CHANGED: u32 = 1;
    pub(crate) const EQUALS: u32 = 2;
    pub(crate) const SCOPED: u32 = 4;
    pub(crate) const FLEXIBLE: u32 = 8;
    pub(crate) const ALL_SLOTS: u32 = 16;
    pub(crate) const ALL: u32 = 31;
}

/// `enum dormouse_watch_state`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) enum State {
    Armed = 1,
    Resting = 2,
    Over = 3,
}

/// `struct dormouse_watch_report`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) size: u32,
    pub(crate) state: u32,
    pub(crate) hits: u64,
    pub(crate) delivered: u64,
    pub(crate) passed: u64,
    pub(crate) lost: u64,
    pub(crate) sites: u64,
    pub(crate) other_sites: u64,
    pub(crate) threads_armed: u32,
    pub(crate) threads_alive: u32,
    pub(crate) armed_ns: u64,
    pub(crate) wall_ns: u64,
    pub(crate) late: u64,
    pub(crate) unread: u64,
    pub(crate) unarmed: u64,
    pub(crate) rests: u32,
    pub(crate) signal_taken: u32,
}

/// `struct dormouse_watch_site`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Place {
    pub(crate) size: u32,
    pub(crate) thread: u32,
    pub(crate) address: usize,
    pub(crate) group: GroupId,
    pub(crate) hits: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) task: u64,
    pub(crate) time_ns: u64,
    /// Into the report that the watch keeps.
    pub(crate) stack: *const usize,
    pub(crate) depth: usize,
    pub(crate) has_values: u32,
    pub(crate) reserved: u32,
}

/// `struct dormouse_watch`: a watch, and its last reading.
#[derive(Debug)]
pub(crate) struct Watched {
    watch: Watch,
    sites: Vec<WatchSite>,
    at: usize,
}

/// Room for what a watch and a reading of it allocate, in keys of `memory_for`: two hundred bytes
/// for each of a thousand threads, and as many places with a stack.
const ROOM: usize = 1 << 10;

const NO_WATCH: Refusal = Refusal::Invalid("no watch: the pointer is NULL");
const NO_REPORT: Refusal =
    Refusal::Invalid("the report's size is unknown: initialise it by DORMOUSE_WATCH_REPORT_INIT");

impl From<&WatchReport> for Counts {
    fn from(report: &WatchReport) -> Self {
        let state = match report.state {
            WatchState::Armed => State::Armed,
            WatchState::Resting => State::Resting,
            WatchState::Over => State::Over,
        };
        let coverage = &report.coverage;
        Self {
            size: size_of::<Self>() as u32,
            state: state as u32,
            hits: report.hits,
            delivered: report.delivered,
            passed: report.passed,
            lost: report.lost,
            sites: report.sites.len() as u64,
            other_sites: report.other_sites,
            threads_armed: coverage.threads_armed,
            threads_alive: coverage.threads_alive,
            armed_ns: coverage.armed_ns,
            wall_ns: coverage.wall_ns,
            late: coverage.late,
            unread: coverage.unread,
            unarmed: coverage.unarmed,
            rests: coverage.rests,
            signal_taken: coverage.is_signal_taken.into(),
        }
    }
}

impl From<&WatchSite> for Place {
    fn from(site: &WatchSite) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            thread: site.tid,
            address: site.ip,
            group: GroupId { number: site.group, flags: 0 },
            hits: site.hits,
            before: site.old.unwrap_or(0),
            after: site.new.unwrap_or(0),
            task: site.task,
            time_ns: site.mono_ns,
            stack: site.stack.as_ptr(),
            depth: site.stack.len(),
            has_values: (site.old.is_some() && site.new.is_some()).into(),
            reserved: 0,
        }
    }
}

impl Spec {
    /// The watch that it requests, and the group during whose tasks alone it is armed.
    ///
    /// # Safety
    ///
    /// C's promise 5 for the name.
    unsafe fn read(&self) -> Result<(WatchSpec, Option<Group>), Refusal> {
        let access = ACCESSES.iter().find(|(number, _)| *number == self.access);
        let access = access.ok_or(Refusal::Invalid("the access is none of enum dormouse_access"))?.1;
        if self.flags & !flag::ALL != 0 {
            return Err(Refusal::Invalid("a flag is none of enum dormouse_watch_flags"));
        }
        let has = |flag| self.flags & flag != 0;
        let group = match self.group.number {
            0 => None,
            number => Some(Group::by_id(number).ok_or(Refusal::Invalid("there is no such group"))?),
        };
        let mut spec = WatchSpec::new(self.address.addr(), self.length, access);
        if !self.name.is_null() {
            // SAFETY: promise 5.
            let name = unsafe { CStr::from_ptr(self.name) };
            spec = spec.named(&name.to_string_lossy());
        }
        if has(flag::CHANGED) {
            spec = spec.changed();
        }
        if has(flag::EQUALS) {
            spec = spec.equals(self.equals);
        }
        if has(flag::FLEXIBLE) {
            spec = spec.flexible();
        }
        if has(flag::ALL_SLOTS) {
            spec = spec.all_slots();
        }
        if self.mask != 0 {
            spec = spec.masked(self.mask);
        }
        if self.rate != 0 {
            spec = spec.rate(self.rate);
        }
        if self.most != 0 {
            spec = spec.max_hits(self.most);
        }
        if has(flag::SCOPED) {
            let group = group.ok_or(Refusal::Invalid("DORMOUSE_WATCH_SCOPED asks for a group"))?;
            return Ok((spec, Some(group)));
        }
        Ok((group.map_or(spec.clone(), |group| spec.in_group(group.id())), None))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_watch_begin(
    spec: *const Spec,
    watch: *mut *mut Watched,
    error: *mut Error,
) -> Code {
    // SAFETY: promises 1 and 3 for the specification, 5 for its name, 1 for the place of the watch,
    // 3 for the error.
    unsafe {
        answer(error, || {
            let place =
                NonNull::new(watch).ok_or(Refusal::Invalid("no place for the watch: the pointer is NULL"))?;
            let is_known = !spec.is_null()
                && spec.is_aligned()
                && spec.cast::<u32>().read() as usize >= size_of::<Spec>();
            if !is_known {
                return Err(Refusal::Invalid(
                    "no specification: the pointer is NULL, or it was not initialised by DORMOUSE_WATCH_SPEC",
                ));
            }
            memory_for(ROOM)?;
            let (spec, scope) = spec.read().read()?;
            let watch = match scope {
                Some(group) => Watch::for_group(group, &spec)?,
                None => Watch::arm(&spec)?,
            };
            place.write(Box::into_raw(Box::new(Watched { watch, sites: Vec::new(), at: 0 })));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_watch_read(
    watch: *mut Watched,
    report: *mut Counts,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 4 for the watch, 3 for the report and the error.
    unsafe {
        answer(error, || {
            let watched = watch.as_mut().ok_or(NO_WATCH)?;
            let out = Out::new(report).ok_or(NO_REPORT)?;
            memory_for(ROOM)?;
            let found = watched.watch.report();
            // Of a watch that is over, no later counts will come.
            if let (Some(why), false) = (found.coverage.stale_because, found.state == WatchState::Over) {
                return Err(Refusal::Stale(why));
            }
            out.fill(&found);
            (watched.sites, watched.at) = (found.sites, 0);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_watch_next(watch: *mut Watched, site: *mut Place) -> bool {
    // SAFETY: promise 4 for the watch, 3 for the structure.
    contained(false, || unsafe {
        let (Some(watched), Some(out), false) = (watch.as_mut(), Out::new(site), site.is_null()) else {
            return false;
        };
        let Some(found) = watched.sites.get(watched.at) else { return false };
        watched.at += 1;
        out.fill(found);
        true
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_watch_end(watch: *mut Watched) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(watch) }));
}
