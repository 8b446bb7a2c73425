//! Work added on purpose, to test whether a comparison finds it.
//!
//! `DORMOUSE_BENCH_INJECT='off/*=10,read/rdtsc=5'` has loops of these rows make that many percent
//! more iterations than are counted: the machine does more work, no number is changed afterwards.
//! The report notes it.

const VARIABLE: &str = "DORMOUSE_BENCH_INJECT";

/// How many percent of work to add to a row, and the note for the report.
pub(crate) fn percent(row: &str) -> Option<(u64, String)> {
    let percent = wanted(&std::env::var(VARIABLE).ok()?, row)?;
    Some((percent, format!("INJECTED by {VARIABLE}: {row} does {percent} % more work than it counts")))
}

fn wanted(list: &str, row: &str) -> Option<u64> {
    list.split(',').find_map(|item| {
        let (name, percent) = item.split_once('=')?;
        let is_meant = match name.strip_suffix('*') {
            Some(start) => row.starts_with(start),
            None => row == name,
        };
        percent.parse().ok().filter(|percent| is_meant && *percent <= 1000)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_meant_by_name_or_start() {
        let list = "off/*=10,read/rdtsc=5,nonsense,x=y";
        let rows = ["off/none", "read/rdtsc", "read/rdtscp", "nonsense", "x"];
        assert_eq!(rows.map(|row| wanted(list, row)), [Some(10), Some(5), None, None, None]);
    }
}
