//! Where in the code a hit came from, and on which thread.

use std::collections::HashMap;

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{Frame, Symbol, Symbolizer};
use dormouse_protocol::{HitRow, SiteRow, WireAccess, WireHitStackEnd};
use dormouse_sys::arch::WATCHES_STOP_BEHIND;
use dormouse_unwind::{CallFrame, CopyEnd, ProcessTables};
use serde::Serialize;

use super::snapshot::WatchSnapshot;
use crate::render::frame::CodeFrame;
use crate::sample::tasks::Numbers;
use crate::target::process::read_text;
use crate::target::{Proc, Process};

/// Places and threads that are kept; beyond it, all are looked up again.
const MOST: usize = 1 << 16;

/// A place in the code. Of several functions the innermost, which was inlined into the others,
/// comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CodePlace {
    /// The address that the processor reported.
    pub(crate) addr: String,
    /// The file that is mapped there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    pub(crate) frames: Vec<CodeFrame>,
}

/// A thread as it is seen from here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SeenThread {
    /// `None` for one of another pid namespace that has ended.
    pub(crate) tid: Option<u32>,
    pub(crate) name: Option<String>,
}

/// The names of one process. They are those of the first snapshot, so that code and threads that go
/// keep theirs.
pub(crate) struct Places {
    space: Option<AddressSpace>,
    symbolizer: Symbolizer,
    /// Whether the kernel reports the address behind the instruction that made the access.
    is_after: bool,
    known: HashMap<(u64, bool), CodePlace>,
    proc: Proc,
    pid: u32,
    numbers: Option<Numbers>,
    threads: HashMap<u32, SeenThread>,
    /// For copied stacks; none before there is one, or if the process's memory cannot be read.
    tables: Option<ProcessTables>,
    /// The callers in copied stacks, and how far they lead, by the address of the hit.
    callers: HashMap<u64, (Vec<u64>, WireHitStackEnd)>,
}

impl Places {
    /// The places of a process that is watched for `access`, from outside or by itself; in the
    /// second case it has its own thread ids. If its mappings cannot be read, there are addresses
    /// without names.
    pub(crate) fn of(process: &Process, access: WireAccess, is_outside: bool) -> Places {
        let proc = Proc::system();
        Places {
            space: AddressSpace::of(process.pid).ok().filter(|space| space.refresh().is_ok()),
            symbolizer: Symbolizer::new(),
            is_after: WATCHES_STOP_BEHIND && access != WireAccess::Execute,
            known: HashMap::new(),
            numbers: if is_outside { None } else { Numbers::of(proc.clone(), process.pid) },
            proc,
            pid: process.pid,
            threads: HashMap::new(),
            tables: None,
            callers: HashMap::new(),
        }
    }

    /// Gives the sites of a snapshot the callers in their copied stacks, if they have one, in place
    /// of those by frame pointers.
    pub(crate) fn unwind(&mut self, snapshot: &mut WatchSnapshot) {
        if self.tables.is_none() && !snapshot.copied.is_empty() {
            self.tables = ProcessTables::of(self.pid).ok();
        }
        for (ip, stack) in snapshot.copied.drain(..) {
            let Some(tables) = &mut self.tables else { continue };
            let [instruction, pointer, frame, link] = stack.registers.map(|register| register as usize);
            let (from, mut functions) = (CallFrame { instruction, stack: pointer, frame, link }, Vec::new());
            let end = match tables.follow(from, &stack.bytes, &mut functions) {
                CopyEnd::Outermost => WireHitStackEnd::Whole,
                CopyEnd::Copy | CopyEnd::Enough => WireHitStackEnd::Cut,
                CopyEnd::NoRule | CopyEnd::NoTable | CopyEnd::Unlearned => WireHitStackEnd::Lost,
            };
            // Callers, as return addresses.
            let callers = functions.iter().skip(1).map(|function| function + 1);
            keep(&mut self.callers, ip, (callers.collect(), end));
        }
        for SiteRow { last, .. } in &mut snapshot.row.sites {
            if let Some((callers, end)) =
                self.callers.get(&last.ip).filter(|(callers, _)| !callers.is_empty())
            {
                last.stack.clone_from(callers);
                last.end = Some(*end);
                last.inner = (*end == WireHitStackEnd::Cut).then_some(callers.len() as u32);
            }
        }
    }

    /// Learns the names that a report of `snapshot` needs, while the process is there to give them.
    pub(crate) fn learn(&mut self, snapshot: &WatchSnapshot) {
        for SiteRow { last, .. } in &snapshot.row.sites {
            self.of_hit(last.ip);
            self.of_stack(last);
            self.thread(last.tid);
        }
    }

    /// The instruction that made a hit: where a watch stops behind it, the one before the address
    /// at which the thread went on.
    pub(crate) fn of_hit(&mut self, ip: u64) -> CodePlace {
        self.place(ip, self.is_after)
    }

    /// The calls on a hit's stack, the innermost first.
    pub(crate) fn of_stack(&mut self, hit: &HitRow) -> Vec<CodePlace> {
        hit.stack.iter().map(|&addr| self.place(addr, true)).collect()
    }

    /// The thread of a hit, by its number inside.
    pub(crate) fn thread(&mut self, inner_tid: u32) -> SeenThread {
        if let Some(known) = self.threads.get(&inner_tid) {
            return known.clone();
        }
        let tid = match &mut self.numbers {
            Some(numbers) => numbers.outer(inner_tid),
            None => Some(inner_tid),
        };
        let comm = tid.map(|tid| self.proc.path(self.pid, &format!("task/{tid}/comm")));
        let name = comm.and_then(|path| read_text(&path).ok()).map(|name| name.trim_end().to_owned());
        let seen = SeenThread { tid, name };
        keep(&mut self.threads, inner_tid, seen.clone());
        seen
    }

    fn place(&mut self, addr: u64, is_after: bool) -> CodePlace {
        if let Some(known) = self.known.get(&(addr, is_after)) {
            return known.clone();
        }
        let asked = addr.saturating_sub(u64::from(is_after));
        let found = self.space.as_ref().and_then(|space| {
            // Of a process that has ended, or executes another program, the mappings seen before.
            let seen = || space.mappings().ok()?.into_iter().find(|mapping| mapping.contains(asked));
            let mapping = space.resolve_now(asked).unwrap_or_else(|_| seen())?;
            Some(self.symbolizer.symbol(space, &mapping, asked))
        });
        let place = CodePlace::new(addr, found.as_deref());
        keep(&mut self.known, (addr, is_after), place.clone());
        place
    }
}

fn keep<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: V) {
    if map.len() >= MOST {
        map.clear();
    }
    map.insert(key, value);
}

impl CodePlace {
    fn new(addr: u64, symbol: Option<&Symbol>) -> CodePlace {
        let frame = |frame: &Frame| CodeFrame {
            function: frame.function.to_string(),
            inlined: frame.offset.is_none(),
            file: frame.source.as_ref().map(|source| source.file.to_string()),
            line: frame.source.as_ref().and_then(|source| source.line),
            is_own: false,
        };
        CodePlace {
            addr: format!("{addr:#x}"),
            object: symbol.map(|symbol| format!("{}+{:#x}", symbol.object, symbol.offset)),
            frames: symbol.map(|symbol| symbol.frames.iter().map(frame).collect()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_and_thread_have_names() {
        let me = Proc::system().process(std::process::id()).unwrap();
        let mut places = Places::of(&me, WireAccess::Execute, false);
        let place = places.of_hit(Places::of as *const () as u64);
        assert!(place.frames.last().unwrap().function.contains("Places"), "{place:?}");
        let nowhere = places.of_hit(0);
        assert_eq!((nowhere.addr.as_str(), nowhere.frames.len()), ("0x0", 0));
        let thread = places.thread(me.inner_pid);
        assert_eq!((thread.tid, thread.name), (Some(me.pid), Some(me.comm)));
        assert_eq!(places.thread(u32::MAX).name, None);
    }
}
