//! Which memory is shared with a file: a write to it would change the file, and every process that maps it.
//!
//! The loader maps code privately. A tool that has remapped it (to huge pages, say) may have not.

use std::ops::Range;

/// The shared mappings of this process, as `/proc` has them; none where there is no `/proc`, since nothing else
/// tells.
pub(super) fn shared_mappings() -> Vec<Range<usize>> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// `from-to perms …`, where the last of the permissions is `p` or `s`.
fn parse(line: &[u8]) -> Option<Range<usize>> {
    let mut fields = line.split(|&byte| byte == b' ').map(str::from_utf8);
    let (range, permissions) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let (from, to) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    permissions.ends_with('s').then_some(number(from)?..number(to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_mapping_is_told_from_a_private_one() {
        assert_eq!(
            parse(b"7f0000001000-7f0000003000 r-xs 00000000 00:01 7 /tmp/te\xff a"),
            Some(0x7f00_0000_1000..0x7f00_0000_3000)
        );
        for other in [&b"7f0000001000-7f0000003000 r-xp 00000000 00:01 7 /tmp/s"[..], b"", b"x-y rws 0"] {
            assert_eq!(parse(other), None);
        }
    }
}
