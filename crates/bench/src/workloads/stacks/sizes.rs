//! `table/…`: the tables of whole objects, this program and the C library: their size, and the CPU
//! time to make them.

use std::fs;

use dormouse_maps::parse;
use dormouse_unwind::ProcessTables;

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::eh_frame;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The name of an object's rows, and the address of a function inside of it.
type Named = (&'static str, fn() -> u64);

const OBJECTS: [Named; 2] =
    [("program", || rows as *const () as u64), ("libc", || libc::getpid as *const () as u64)];

pub(super) fn rows(bench: &mut Bench) {
    for (name, inside) in OBJECTS {
        let specs = [
            Spec::new(format!("table/{name}/rows"), "rows"),
            Spec::new(format!("table/{name}/row"), "bytes").per("row"),
            Spec::new(format!("table/{name}/size"), "% of .eh_frame").better(Better::Lower),
            Spec::new(format!("table/{name}/time"), "ms").better(Better::Lower).cpu(),
        ];
        bench.sample(specs, move || whole(inside()));
    }
}

pub(super) fn compare(bench: &mut Bench) {
    for (name, _) in OBJECTS {
        bench.at_most(&format!("{name}: a row at most 8 bytes"), &format!("table/{name}/row"), 8.0);
        let text = format!("{name}: the whole table at most as long as .eh_frame");
        bench.at_most(&text, &format!("table/{name}/size"), 100.0);
    }
}

/// The rows of the object with this address, the bytes of each, the table's size in percent of
/// what it was made from, and the time for that.
fn whole(inside: u64) -> Result<[f64; 4], Failure> {
    let maps = fs::read("/proc/self/maps")?;
    let sizes = eh_frame::sizes(&maps);
    let mut lines = parse(&maps).map_while(Result::ok);
    let line = lines.find(|line| (line.start..=line.last).contains(&inside)).ok_or("no such mapping")?;
    let path = eh_frame::path(&line);
    let section = *sizes.get(&path).ok_or_else(|| format!("{} has no .eh_frame", path.display()))?;
    let mut own = ProcessTables::own()?;
    let began = thread_cpu_ns();
    let table = own.tables().read_whole(inside).ok_or("the object has no table")?;
    let ms = (thread_cpu_ns() - began) as f64 / 1e6;
    let (rows, bytes) = (table.rows().count().max(1) as f64, table.size() as f64);
    Ok([rows, bytes / rows, 100.0 * bytes / section as f64, ms])
}
