//! The text of `/proc/PID/maps`: one mapping on each line.
//!
//! A line is `start-end perms offset major:minor inode name`; numbers are hexadecimal except for
//! the inode, and after blanks the name is the rest of the line. In a name the kernel writes `\012`
//! for a newline and leaves everything else as it is. So a file whose name contains these four
//! characters reads as one with a newline, and one whose name ends in ` (deleted)` as deleted. A
//! caller that opens a file by such a name must check what it gets.

use std::borrow::Cow;
use std::path::Path;
use std::{fs, io};

use crate::kind::{FileId, MappingKind, Perms};

/// Reads of a file that does not parse, before that is an error.
pub(crate) const READS: usize = 4;

/// A mapping, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapsLine<'a> {
    /// First address.
    pub start: u64,
    /// Last address, included.
    pub last: u64,
    /// The mapping's permissions.
    pub perms: Perms,
    /// The offset of the mapping's first byte in the file; 0 without a file.
    pub offset: u64,
    /// The file that is mapped, if any.
    pub file: Option<FileId>,
    /// The kind of memory.
    pub kind: MappingKind,
    /// The path of a file, without the mark of deleted ones, or the kernel's name for other memory;
    /// may be empty.
    pub name: Cow<'a, [u8]>,
}

/// Why a text is not a list of mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line describes no mapping.
    #[error("line {line} describes no mapping")]
    Line {
        /// The number of the line, from 1.
        line: usize,
    },
    /// A mapping does not lie behind the one before it.
    #[error("line {line} lies before the end of the line before it")]
    Order {
        /// The number of the line, from 1.
        line: usize,
    },
    /// The last line has no end.
    #[error("line {line} breaks off")]
    Cut {
        /// The number of the line, from 1.
        line: usize,
    },
}

/// The mappings in the text of a maps file, in order of address. Only a name that contains a
/// newline is copied.
///
/// ```
/// let text = b"1000-3000 r-xp 00002000 fe:01 12    /bin/tea\n7000-8000 rw-p 00000000 00:00 0 \n";
/// let lines: Vec<_> = dormouse_maps::parse(text).collect::<Result<_, _>>()?;
/// assert_eq!((lines[0].start, lines[0].last), (0x1000, 0x2fff));
/// assert_eq!(&*lines[0].name, b"/bin/tea");
/// assert_eq!(lines[1].kind.name(), "anonymous");
/// # Ok::<(), dormouse_maps::ParseError>(())
/// ```
pub fn parse(text: &[u8]) -> impl Iterator<Item = Result<MapsLine<'_>, ParseError>> {
    let mut before = None;
    (1..).zip(text.split_inclusive(|&byte| byte == b'\n')).map(move |(number, line)| {
        let line = line.strip_suffix(b"\n").ok_or(ParseError::Cut { line: number })?;
        let line = self::line(line).ok_or(ParseError::Line { line: number })?;
        if before.is_some_and(|before| before >= line.start) {
            return Err(ParseError::Order { line: number });
        }
        before = Some(line.last);
        Ok(line)
    })
}

/// The text of a maps file. The kernel writes a page at a time, and mappings may change meanwhile:
/// a text that does not hang together is read again, up to four times in all.
///
/// # Errors
///
/// An error of reading the file, or the [`ParseError`] of the last text.
pub fn read_maps(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut reads = 1;
    loop {
        let text = fs::read(&path)?;
        let error = parse(&text).find_map(Result::err);
        match error {
            None => return Ok(text),
            Some(_) if reads < READS => reads += 1,
            Some(error) => return Err(io::Error::other(error)),
        }
    }
}

fn line(text: &[u8]) -> Option<MapsLine<'_>> {
    let mut rest = text;
    let mut word = |end: u8| {
        let at = rest.iter().position(|&byte| byte == end)?;
        let word = &rest[..at];
        rest = &rest[at + 1..];
        Some(word)
    };
    let start = hex(word(b'-')?)?;
    let last = hex(word(b' ')?)?.checked_sub(1).filter(|&last| start <= last)?;
    let perms = Perms::from_letters(word(b' ')?)?;
    let offset = hex(word(b' ')?)?;
    let (major, minor) = (hex(word(b':')?)?, hex(word(b' ')?)?);
    let device = (major.try_into().ok()?, minor.try_into().ok()?);
    let at = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    let (inode, name) = rest.split_at(at);
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    let file = (inode != 0).then_some(FileId { device, inode });
    // Names begin with `/`, `[` or a word, never with a blank.
    let (kind, name) = MappingKind::of(name.trim_ascii_start(), file.is_some());
    Some(MapsLine { start, last, perms, offset, file, kind, name: unescape(name) })
}

fn hex(word: &[u8]) -> Option<u64> {
    // `from_str_radix` takes a sign, the kernel writes none.
    let digits = std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

fn unescape(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.contains(&b'\\') {
        return Cow::Borrowed(name);
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(br"\012");
        plain.push(if escaped.is_some() { b'\n' } else { byte });
        rest = escaped.unwrap_or(after);
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(text: &[u8]) -> Result<Vec<MapsLine<'_>>, ParseError> {
        parse(text).collect()
    }

    fn one(text: &str) -> MapsLine<'static> {
        let text = format!("{text}\n");
        let mut found = lines(text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        let line = found.remove(0);
        MapsLine { name: line.name.into_owned().into(), ..line }
    }

    #[test]
    fn file_has_path_device_and_inode() {
        let line = one(
            "55e0c0a00000-55e0c0a21000 r-xp 00001000 fe:01 9007199254740993                   /opt/tea house/a b",
        );
        assert_eq!((line.start, line.last, line.offset), (0x55e0_c0a0_0000, 0x55e0_c0a2_0fff, 0x1000));
        assert_eq!((line.kind, line.perms.to_string()), (MappingKind::File, "r-xp".into()));
        assert_eq!(&*line.name, b"/opt/tea house/a b");
        assert_eq!(line.file, Some(FileId { device: (0xfe, 1), inode: 9_007_199_254_740_993 }));
    }

    #[test]
    fn each_kind_is_told_from_the_others() {
        for (rest, kind, name) in [
            ("fe:01 7 /bin/cat", MappingKind::File, "/bin/cat"),
            ("fe:01 7 /bin/cat (deleted)", MappingKind::Deleted, "/bin/cat"),
            (r"fe:01 7 /a\012b\012 (deleted)", MappingKind::Deleted, "/a\nb\n"),
            (r"fe:01 7 /a\01b\\012", MappingKind::File, "/a\\01b\\\n"),
            ("00:01 7 /memfd:code (deleted)", MappingKind::Memfd, "/memfd:code"),
            ("00:01 7 /dev/zero (deleted)", MappingKind::Deleted, "/dev/zero"),
            ("00:00 0 ", MappingKind::Anonymous, ""),
            ("00:00 0", MappingKind::Anonymous, ""),
            ("00:00 0   [anon:a name]", MappingKind::Anonymous, "[anon:a name]"),
            ("00:00 0   [heap]", MappingKind::Heap, "[heap]"),
            ("00:00 0   [stack]", MappingKind::Stack, "[stack]"),
            ("00:00 0   [vdso]", MappingKind::Vdso, "[vdso]"),
            ("00:00 0   [vvar]", MappingKind::Vvar, "[vvar]"),
            ("00:00 0   [vvar_vclock]", MappingKind::Vvar, "[vvar_vclock]"),
            ("00:00 0   [vsyscall]", MappingKind::Special, "[vsyscall]"),
            ("00:0e 0   anon_inode:[perf_event]", MappingKind::Special, "anon_inode:[perf_event]"),
        ] {
            let line = one(&format!("1000-2000 rw-s 00000000 {rest}"));
            assert_eq!((line.kind, &*line.name), (kind, name.as_bytes()), "{rest}");
            assert_eq!(line.file.is_some(), kind.has_file(), "{rest}");
        }
    }

    #[test]
    fn last_page_and_long_names_are_lines() {
        let last = one("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]");
        assert_eq!(last.last, 0xffff_ffff_ff60_0fff);
        let long = format!("/{}", "x/".repeat(40_000));
        let line = one(&format!("0-1000 r--p 0 00:01 5 {long}"));
        assert_eq!(line.name.len(), long.len());
    }

    #[test]
    fn broken_text_is_refused_by_line() {
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

    /// The line as the kernel writes it.
    fn shown(line: &MapsLine<'_>, is_deleted: bool) -> Vec<u8> {
        let file = line.file.unwrap_or(FileId { device: (0, 0), inode: 0 });
        let (major, minor) = file.device;
        let (start, end) = (line.start, line.last + 1);
        let mut text = format!(
            "{start:08x}-{end:08x} {} {:08x} {major:02x}:{minor:02x} {} ",
            line.perms, line.offset, file.inode
        )
        .into_bytes();
        text.resize(text.len().max(73), b' ');
        for &byte in &*line.name {
            if byte == b'\n' { text.extend(br"\012") } else { text.push(byte) }
        }
        if is_deleted {
            text.extend(b" (deleted)");
        }
        text.push(b'\n');
        text
    }

    proptest! {
        #[test]
        fn kernel_text_is_read_back(
            pages in prop::collection::vec((1_u64..100, 1_u64..100, any::<u8>(), any::<u64>(), any::<u64>(), "/[^\0\\\\]{0,40}"), 0..30),
            is_deleted: bool,
        ) {
            let mut at = 0;
            let (mut all, mut text) = (Vec::new(), Vec::new());
            for (gap, length, bits, offset, inode, name) in pages {
                let start = at + gap * 4096;
                at = start + length * 4096;
                let file = FileId { device: (bits.into(), 1), inode: inode.max(1) };
                // A name with this end would read as a deleted file.
                let name = name.trim_end_matches(" (deleted)").to_owned();
                let kind = match is_deleted {
                    true if name.starts_with("/memfd:") => MappingKind::Memfd,
                    true => MappingKind::Deleted,
                    false => MappingKind::File,
                };
                let (perms, name) = (Perms::from_bits(bits.into()), name.into_bytes().into());
                let line = MapsLine { start, last: at - 1, perms, offset, file: Some(file), kind, name };
                text.extend(shown(&line, is_deleted));
                all.push(line);
            }
            prop_assert_eq!(lines(&text), Ok(all.clone()));
            // A page that was read half never passes for a shorter list, unless it ends with a
            // line.
            if let Some(cut) = text.len().checked_sub(7).filter(|&cut| text[cut - 1] != b'\n') {
                let short = lines(&text[..cut]);
                prop_assert!(short.is_err(), "{:?}", short);
            }
        }

        #[test]
        fn no_text_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = lines(&text);
        }

        #[test]
        fn no_nearly_right_text_panics(text in "([0-9a-f]{1,20}-[0-9a-f]{1,20} [rwxsp-]{3,5} [0-9a-f]{1,20} [0-9a-f:]{1,9} [0-9]{0,22} .{0,9}\n){0,4}") {
            let _ = lines(text.as_bytes());
        }
    }
}
