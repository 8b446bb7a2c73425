//! Requests as lines: what one debug register watches.

use dormouse_sys::arch::{USER_END, WATCH_REGISTERS, WATCHES_SHARE_REGISTERS};
use dormouse_sys::perf::{Breakpoint, WatchLen};

use super::target::TargetProcess;
use crate::watch::split::{Piece, Unfit, split};
use crate::{Access, Error, WatchSpec};

/// The bytes that one debug register watches.
#[derive(Debug)]
pub(super) struct Line {
    /// The place of its request.
    pub(super) watch: usize,
    pub(super) breakpoint: Breakpoint,
    pub(super) addr: usize,
    /// The bytes whose value a hit shows, by address and length; executions have none.
    pub(super) shown: Option<(usize, usize)>,
    /// Their value before the last pass in which its watch had hits, and the value at that pass;
    /// `None` if it could not be read.
    pub(super) old: Option<u64>,
    pub(super) new: Option<u64>,
}

impl Line {
    /// The value as it is now becomes the new one.
    pub(super) fn read(&mut self, target: &TargetProcess) {
        let new = self.shown.and_then(|(addr, len)| target.value(addr, len));
        (self.old, self.new) = (self.new, new);
    }
}

/// The lines of all requests, in their order.
pub(super) fn lines_of(specs: &[WatchSpec]) -> Result<Vec<Line>, Error> {
    let mut lines: Vec<Line> = Vec::new();
    for (watch, spec) in specs.iter().enumerate() {
        if let Some(what) = only_inside(spec) {
            return Err(Error::OnlyInside { name: spec.name.clone(), what });
        }
        // Arming counts registers, of one kind.
        let is_of_code = |spec: &WatchSpec| spec.access == Access::Execute;
        if !WATCHES_SHARE_REGISTERS && is_of_code(spec) != is_of_code(&specs[0]) {
            return Err(unwatchable(
                spec,
                "this processor has other registers for instructions than for memory: watch one of them at a time",
            ));
        }
        for piece in pieces(spec)? {
            let Piece { addr, len, .. } = piece;
            // A record contains the watched address, and nothing else to tell lines apart.
            if lines.iter().any(|line| line.addr == addr) {
                return Err(unwatchable(spec, "another watch has the same address"));
            }
            let breakpoint = Breakpoint::watch(addr, len, spec.access)
                .map_err(|_| unwatchable(spec, "its address is not aligned"))?;
            let has_value = spec.access != Access::Execute;
            let shown = has_value.then(|| piece.shown(spec.addr, spec.len));
            lines.push(Line { watch, breakpoint, addr, shown, old: None, new: None });
        }
    }
    Ok(lines)
}

fn pieces(spec: &WatchSpec) -> Result<Vec<Piece>, Error> {
    let end = spec.addr.checked_add(spec.len).filter(|&end| end <= USER_END);
    if end.is_none() {
        return Err(unwatchable(spec, "it does not lie in the memory of a program"));
    }
    if spec.access == Access::Execute {
        return Ok(vec![Piece { addr: spec.addr, len: WatchLen::Eight, watched: u64::MAX }]);
    }
    // Never wider than requested: a value that is read later cannot show whether a store went
    // beside the range.
    let most = WATCH_REGISTERS - u32::from(!spec.all_slots);
    split(spec.addr, spec.len, most, false).map_err(|unfit| {
        unwatchable(
            spec,
            match unfit {
                Unfit::Empty => "it has no bytes",
                Unfit::Wraps => "it ends after the last address",
                Unfit::TooLong { .. } => {
                    "it takes more debug registers than a thread has beside the one left to debuggers, and one \
                     watches 8 aligned bytes at most: cut it off, as in NAME:8"
                }
            },
        )
    })
}

/// The first thing asked for that needs dormouse in the process.
fn only_inside(spec: &WatchSpec) -> Option<&'static str> {
    let filter = &spec.filter;
    let asked = [
        (filter.changed || filter.equals.is_some() || filter.mask.is_some(), "a filter by value"),
        (filter.group.is_some(), "a filter by group"),
        (spec.flexible, "turns"),
        (spec.event.is_some(), "an event"),
    ];
    asked.into_iter().find_map(|(is_asked, what)| is_asked.then_some(what))
}

fn unwatchable(spec: &WatchSpec, reason: &'static str) -> Error {
    Error::Unwatchable { addr: spec.addr, len: spec.len, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_value_show_all_of_it() {
        let shown = |addr, len, access| {
            let lines = lines_of(&[WatchSpec::new(addr, len, access)]).unwrap();
            lines.iter().map(|line| line.shown).collect::<Vec<_>>()
        };
        assert_eq!(shown(0x1004, 8, Access::Write), [Some((0x1004, 8)); 2]);
        assert_eq!(shown(0x1004, 12, Access::Write), [Some((0x1004, 4)), Some((0x1008, 8))]);
        assert_eq!(shown(0x1004, 8, Access::Execute), [None]);
    }
}
