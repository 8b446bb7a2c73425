//! The processors that are online.
//!
//! # References
//!
//! Linux `Documentation/admin-guide/cputopology.rst`.

use std::fs;
use std::num::NonZero;

/// The numbers of the processors that are online. Without `/sys` those from 0 on, as many as this
/// process may use.
pub fn online_cpus() -> Vec<u32> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = processors(list.trim());
    if cpus.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        return (0..count as u32).collect();
    }
    cpus
}

/// The numbers in a list as `0-3,5`.
fn processors(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        for (list, right) in [("0", &[0][..]), ("0-2,5", &[0, 1, 2, 5]), ("", &[]), ("x-1,7", &[7])] {
            assert_eq!(processors(list), right, "{list:?}");
        }
    }
}
