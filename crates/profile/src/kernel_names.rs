//! The names of the kernel's functions, which samples from outside may have.
//!
//! `/proc/kallsyms` lists the functions of the kernel, of its modules, and of programs that it has
//! compiled (BPF). It shows addresses to root, unless `kernel.kptr_restrict` is 2; everybody else
//! sees zeros. The kernel allows the same users to sample its own code.
//!
//! # References
//!
//! Linux `Documentation/admin-guide/sysctl/kernel.rst`: `kptr_restrict`; nm(1): kinds of symbols.

use std::cmp::Reverse;
use std::fs::File;
use std::io::Read as _;

/// The addresses of the kernel.
const KERNEL: u64 = 1 << 63;

/// The most that is read of the list: several times as much as distributions' kernels have.
const MOST: u64 = 128 << 20;

/// No function of the kernel is longer: an address that is farther from one belongs to none that is
/// known.
const LONGEST: u64 = 64 << 10;

/// A function of the kernel whose name is not shown.
pub(crate) const NAMELESS: &str = "(in the kernel)";

/// The functions of the running kernel.
#[derive(Debug, Default)]
pub(crate) struct KernelNames {
    /// By address; `None` until one is asked for.
    functions: Option<Vec<(u64, Box<str>)>>,
}

impl KernelNames {
    /// The function at an address of the kernel; [`NAMELESS`] where the list does not show it, and
    /// `None` for other addresses.
    ///
    /// # Cost
    ///
    /// The first one reads the list: about a tenth of a second.
    pub(crate) fn get(&mut self, address: u64) -> Option<&str> {
        if address < KERNEL {
            return None;
        }
        let functions = self.functions.get_or_insert_with(|| {
            let mut text = Vec::new();
            let list = File::open("/proc/kallsyms").and_then(|file| file.take(MOST).read_to_end(&mut text));
            if list.is_ok() { parse(&String::from_utf8_lossy(&text)) } else { Vec::new() }
        });
        let behind = functions.partition_point(|(start, _)| *start <= address);
        let before = behind.checked_sub(1).and_then(|at| functions.get(at));
        let known = before.filter(|(start, _)| address - start <= LONGEST);
        Some(known.map_or(NAMELESS, |(_, name)| name))
    }
}

/// The functions in a list, sorted. Of several names for one function the exported one with the
/// fewest underscores in front is taken, as readers of profiles know it.
fn parse(list: &str) -> Vec<(u64, Box<str>)> {
    let mut functions: Vec<(u64, bool, usize, &str)> = list
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let (kind, name) = (words.next()?, words.next()?);
            let is_code = matches!(kind, "t" | "T" | "w" | "W");
            let underscores = name.len() - name.trim_start_matches('_').len();
            (is_code && address >= KERNEL).then_some((address, kind != "T", underscores, name))
        })
        .collect();
    functions.sort_by_key(|&(address, is_local, underscores, name)| {
        (address, is_local, underscores, Reverse(name.len()))
    });
    functions.dedup_by_key(|function| function.0);
    functions.into_iter().map(|(address, .., name)| (address, name.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 t srso_untrain
ffffffff81001000 W __x64_sys_read
ffffffff81001000 T ksys_read
ffffffff81001000 T __ia32_sys_read
ffffffff81003000 D some_data
ffffffff81002000 t copy_to
ffffffffc0100000 t send_frame\t[net]
bad line
";

    #[test]
    fn an_address_has_the_function_before_it() {
        let mut names = KernelNames { functions: Some(parse(LIST)) };
        for (address, name) in [
            (0xffff_ffff_8100_0000, Some("_stext")),
            (0xffff_ffff_8100_1000, Some("ksys_read")),
            (0xffff_ffff_8100_1fff, Some("ksys_read")),
            (0xffff_ffff_8100_3000, Some("copy_to")),
            (0xffff_ffff_8200_0000, Some(NAMELESS)),
            (0xffff_ffff_c010_0010, Some("send_frame")),
            (0xffff_ffff_80ff_ffff, Some(NAMELESS)),
            (0x1000, None),
        ] {
            assert_eq!(names.get(address), name, "{address:#x}");
        }
    }

    #[test]
    fn hidden_addresses_have_no_names() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 T ksys_read\n";
        let mut names = KernelNames { functions: Some(parse(hidden)) };
        assert_eq!(names.get(0xffff_ffff_8100_0000), Some(NAMELESS));
    }
}
