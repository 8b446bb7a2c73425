//! The text of `/proc/PID/maps`: one mapping a line.
//!
//! `start-end perms offset major:minor inode name`, numbers in hex but for the inode, and after blanks the name as the
//! rest of the line. In a name the kernel writes `\012` for a newline and leaves all else as it is. So a file whose
//! name has these four characters in it reads as one with a newline, and one whose name ends in ` (deleted)` as
//! deleted; whoever opens a file by such a name checks what it gets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::region::{FileId, Identity, Kind, Perms};

/// What follows the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

/// A mapping, as the kernel tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) start: u64,
    pub(super) last: u64,
    pub(super) perms: Perms,
    pub(super) offset: u64,
    pub(super) kind: Kind,
    pub(super) identity: Identity,
}

/// Why a text is not a list of mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line is none.
    #[error("line {line} describes no mapping")]
    Line {
        /// Which, from 1.
        line: usize,
    },
    /// A mapping does not lie behind the one before it.
    #[error("line {line} lies before the end of the line before it")]
    Order {
        /// Which, from 1.
        line: usize,
    },
    /// The last line has no end.
    #[error("line {line} breaks off")]
    Cut {
        /// Which, from 1.
        line: usize,
    },
}

/// All mappings, by address.
pub(super) fn lines(text: &[u8]) -> Result<Vec<Line>, ParseError> {
    let mut found: Vec<Line> = Vec::new();
    for (number, line) in (1..).zip(text.split_inclusive(|&byte| byte == b'\n')) {
        let whole = line.strip_suffix(b"\n").ok_or(ParseError::Cut { line: number })?;
        let line = self::line(whole).ok_or(ParseError::Line { line: number })?;
        if found.last().is_some_and(|before| before.last >= line.start) {
            return Err(ParseError::Order { line: number });
        }
        found.push(line);
    }
    Ok(found)
}

fn line(text: &[u8]) -> Option<Line> {
    let mut rest = text;
    let mut word = |end: u8| {
        let at = rest.iter().position(|&byte| byte == end)?;
        let word = &rest[..at];
        rest = &rest[at + 1..];
        Some(word)
    };
    let start = hex(word(b'-')?)?;
    let last = hex(word(b' ')?)?.checked_sub(1)?;
    let perms = perms(word(b' ')?)?;
    let offset = hex(word(b' ')?)?;
    let device = (hex32(word(b':')?)?, hex32(word(b' ')?)?);
    let at = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    let (inode, name) = rest.split_at(at);
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    // Names begin with `/`, `[` or a word, never with a blank.
    let name = unescape(name.trim_ascii_start());
    if start > last {
        return None;
    }
    let (kind, identity) = classify(name, FileId { device, inode });
    Some(Line { start, last, perms, offset, kind, identity })
}

/// What a mapping of this name and file is.
pub(super) fn classify(mut name: Vec<u8>, file: FileId) -> (Kind, Identity) {
    let kind = if file.inode != 0 {
        let is_deleted = name.ends_with(DELETED);
        if is_deleted {
            name.truncate(name.len() - DELETED.len());
        }
        match &*name {
            name if name.starts_with(b"/memfd:") && is_deleted => Kind::Memfd,
            _ if is_deleted => Kind::Deleted,
            _ => Kind::File,
        }
    } else {
        match &*name {
            b"" => Kind::Anonymous,
            b"[heap]" => Kind::Heap,
            b"[stack]" => Kind::Stack,
            b"[vdso]" => Kind::Vdso,
            name if name.starts_with(b"[anon:") => Kind::Anonymous,
            name if name.starts_with(b"[vvar") => Kind::Vvar,
            _ => Kind::Special,
        }
    };
    let file = (file.inode != 0).then_some(file);
    (kind, Identity { name: PathBuf::from(OsStr::from_bytes(&name)), file })
}

fn perms(word: &[u8]) -> Option<Perms> {
    let [read, write, execute, shared] = *word else { return None };
    [
        (read, b'r', b'-', Perms::READ),
        (write, b'w', b'-', Perms::WRITE),
        (execute, b'x', b'-', Perms::EXECUTE),
        (shared, b's', b'p', Perms::SHARED),
    ]
    .into_iter()
    .try_fold(Perms::default(), |perms, (byte, yes, no, perm)| match byte {
        _ if byte == yes => Some(perms.union(perm)),
        _ if byte == no => Some(perms),
        _ => None,
    })
}

fn hex(word: &[u8]) -> Option<u64> {
    // `from_str_radix` takes a sign, the kernel writes none.
    let digits = std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

fn hex32(word: &[u8]) -> Option<u32> {
    hex(word)?.try_into().ok()
}

fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(br"\012");
        plain.push(if escaped.is_some() { b'\n' } else { byte });
        rest = escaped.unwrap_or(after);
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> Line {
        let mut found = lines(format!("{text}\n").as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn a_file_is_known_by_its_path_device_and_inode() {
        let line = one(
            "55e0c0a00000-55e0c0a21000 r-xp 00001000 fe:01 9007199254740993                   /opt/tea house/a b",
        );
        assert_eq!((line.start, line.last, line.offset), (0x55e0_c0a0_0000, 0x55e0_c0a2_0fff, 0x1000));
        assert_eq!((line.kind, line.perms.to_string()), (Kind::File, "r-xp".into()));
        assert_eq!(line.identity.name, PathBuf::from("/opt/tea house/a b"));
        assert_eq!(line.identity.file, Some(FileId { device: (0xfe, 1), inode: 9_007_199_254_740_993 }));
    }

    #[test]
    fn each_kind_is_told_from_the_others() {
        for (rest, kind, name) in [
            ("fe:01 7 /bin/cat", Kind::File, "/bin/cat"),
            ("fe:01 7 /bin/cat (deleted)", Kind::Deleted, "/bin/cat"),
            (r"fe:01 7 /a\012b\012 (deleted)", Kind::Deleted, "/a\nb\n"),
            (r"fe:01 7 /a\01b\\012", Kind::File, "/a\\01b\\\n"),
            ("00:01 7 /memfd:code (deleted)", Kind::Memfd, "/memfd:code"),
            ("00:01 7 /dev/zero (deleted)", Kind::Deleted, "/dev/zero"),
            ("00:00 0 ", Kind::Anonymous, ""),
            ("00:00 0", Kind::Anonymous, ""),
            ("00:00 0   [anon:a name]", Kind::Anonymous, "[anon:a name]"),
            ("00:00 0   [heap]", Kind::Heap, "[heap]"),
            ("00:00 0   [stack]", Kind::Stack, "[stack]"),
            ("00:00 0   [vdso]", Kind::Vdso, "[vdso]"),
            ("00:00 0   [vvar]", Kind::Vvar, "[vvar]"),
            ("00:00 0   [vvar_vclock]", Kind::Vvar, "[vvar_vclock]"),
            ("00:00 0   [vsyscall]", Kind::Special, "[vsyscall]"),
            ("00:0e 0   anon_inode:[perf_event]", Kind::Special, "anon_inode:[perf_event]"),
        ] {
            let line = one(&format!("1000-2000 rw-s 00000000 {rest}"));
            assert_eq!((line.kind, line.identity.name.to_str()), (kind, Some(name)), "{rest}");
            assert_eq!(line.identity.file.is_some(), kind.has_file(), "{rest}");
        }
    }

    #[test]
    fn the_last_page_of_all_and_long_names_are_lines_like_others() {
        let last = one("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]");
        assert_eq!(last.last, 0xffff_ffff_ff60_0fff);
        let long = format!("/{}", "x/".repeat(40_000));
        let line = one(&format!("0-1000 r--p 0 00:01 5 {long}"));
        assert_eq!(line.identity.name.as_os_str().len(), long.len());
    }

    #[test]
    fn what_is_cut_off_or_out_of_order_is_refused_by_its_line() {
        let good = "1000-2000 rw-p 00000000 00:00 0 \n";
        for (text, error) in [
            (format!("{good}2000-3000 rw-p 0000"), ParseError::Cut { line: 2 }),
            (format!("{good}{good}"), ParseError::Order { line: 2 }),
            ("2000-1000 rw-p 00000000 00:00 0 \n".into(), ParseError::Line { line: 1 }),
            ("1000-1000 rw-p 00000000 00:00 0 \n".into(), ParseError::Line { line: 1 }),
            ("0-0 rw-p 00000000 00:00 0 \n".into(), ParseError::Line { line: 1 }),
            ("+1-2000 rw-p 00000000 00:00 0 \n".into(), ParseError::Line { line: 1 }),
            ("1000-2000 rwxq 00000000 00:00 0 \n".into(), ParseError::Line { line: 1 }),
            ("1000-2000 rw-p 00000000 0000 0 \n".into(), ParseError::Line { line: 1 }),
            ("1000-2000 rw-p 00000000 00:00 -1 \n".into(), ParseError::Line { line: 1 }),
            ("\n".into(), ParseError::Line { line: 1 }),
        ] {
            assert_eq!(lines(text.as_bytes()), Err(error), "{text:?}");
        }
        assert_eq!(lines(b""), Ok(Vec::new()));
    }

    /// As the kernel writes it.
    fn shown(line: &Line, is_deleted: bool) -> Vec<u8> {
        let file = line.identity.file.unwrap_or(FileId { device: (0, 0), inode: 0 });
        let (major, minor) = file.device;
        let (start, end) = (line.start, line.last + 1);
        let mut text = format!(
            "{start:08x}-{end:08x} {} {:08x} {major:02x}:{minor:02x} {} ",
            line.perms, line.offset, file.inode
        )
        .into_bytes();
        text.resize(text.len().max(73), b' ');
        for &byte in line.identity.name.as_os_str().as_bytes() {
            if byte == b'\n' { text.extend(br"\012") } else { text.push(byte) }
        }
        if is_deleted {
            text.extend(DELETED);
        }
        text.push(b'\n');
        text
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read_back(
            pages in prop::collection::vec((1_u64..100, 1_u64..100, any::<u8>(), any::<u64>(), any::<u64>(), "/[^\0\\\\]{0,40}"), 0..30),
            is_deleted: bool,
        ) {
            let mut at = 0;
            let (mut all, mut text) = (Vec::new(), Vec::new());
            for (gap, length, bits, offset, inode, name) in pages {
                let start = at + gap * 4096;
                at = start + length * 4096;
                let file = FileId { device: (bits.into(), 1), inode: inode.max(1) };
                // What ends so could not be told from a deleted file.
                let name = name.trim_end_matches(" (deleted)").to_owned();
                let identity = Identity { name: name.into(), file: Some(file) };
                let kind = match identity.name.as_os_str().as_bytes() {
                    name if is_deleted && name.starts_with(b"/memfd:") => Kind::Memfd,
                    _ if is_deleted => Kind::Deleted,
                    _ => Kind::File,
                };
                let line = Line { start, last: at - 1, perms: Perms::from_bits(bits), offset, kind, identity };
                text.extend(shown(&line, is_deleted));
                all.push(line);
            }
            prop_assert_eq!(lines(&text), Ok(all.clone()));
            // A page that was read half never passes for a shorter list, unless it ends with a line.
            if let Some(cut) = text.len().checked_sub(7).filter(|&cut| text[cut - 1] != b'\n') {
                let short = lines(&text[..cut]);
                prop_assert!(short.is_err(), "{:?}", short);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = lines(&text);
        }

        #[test]
        fn nor_does_one_that_nearly_is_a_list(text in "([0-9a-f]{1,20}-[0-9a-f]{1,20} [rwxsp-]{3,5} [0-9a-f]{1,20} [0-9a-f:]{1,9} [0-9]{0,22} .{0,9}\n){0,4}") {
            let _ = lines(text.as_bytes());
        }
    }
}
