//! The name of a peer, and what it may contain.
//!
//! A name is made on the thread that calls, in a buffer of its own, from what the caller passes. It
//! contains what the service's author has written, and nothing that a request brings along: of a
//! URL the host, of a statement the text without its values, of a command of Redis its first word.

use std::fmt;

use super::buffer::NameBuffer;
use super::statement;

/// How many bytes of a command of Redis are kept: the longest one of Redis 8 has 20.
const LONGEST_COMMAND: usize = 24;

/// The kind of an outgoing call, which decides what the name of its peer contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum CallKind {
    /// Any other call; the name is the one that the service gives it.
    #[default]
    Other = 0,
    /// A request of HTTP. The name is the host, with its port if it has one. A whole URL is cut
    /// down to that.
    Http = 1,
    /// A request of gRPC. The name is service and method, as in `tea.Kitchen/Brew`.
    Grpc = 2,
    /// A statement of SQL. The name is its text, without comments, and with `?` for each value.
    Sql = 3,
    /// A command of Redis. The name is its first word.
    Redis = 4,
}

impl CallKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Other, Self::Http, Self::Grpc, Self::Sql, Self::Redis];

    /// The word for the kind in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Sql => "sql",
            Self::Redis => "redis",
        }
    }
}

/// The name of a peer, cut to [`LONGEST_PEER`](super::LONGEST_PEER) bytes at the end of a
/// character, and its kind.
#[derive(Clone, Copy)]
pub struct PeerName {
    buffer: NameBuffer,
    kind: CallKind,
}

impl PeerName {
    /// The name of a peer of that kind.
    ///
    /// ```
    /// use dormouse_waits::calls::{CallKind, PeerName};
    ///
    /// let name = |kind, text: &str| PeerName::of(kind, text).as_str().to_owned();
    /// let statement = "SELECT 1 FROM tea WHERE cups > 3";
    /// assert_eq!(name(CallKind::Http, "https://me:word@tea.test:8443/cup?id=7"), "tea.test:8443");
    /// assert_eq!(name(CallKind::Grpc, "/tea.Kitchen/Brew"), "tea.Kitchen/Brew");
    /// assert_eq!(name(CallKind::Sql, statement), "SELECT ? FROM tea WHERE cups > ?");
    /// assert_eq!(name(CallKind::Redis, "get cup:7"), "GET");
    /// ```
    pub fn of(kind: CallKind, text: &str) -> Self {
        let mut name = Self { buffer: NameBuffer::new(), kind };
        match kind {
            CallKind::Other => name.push_str(text),
            CallKind::Http => name.push_str(host(text)),
            CallKind::Grpc => name.push_str(before(text.trim_start_matches('/'), &['?', '#'])),
            CallKind::Sql => statement::write(text, &mut name.buffer),
            CallKind::Redis => name.push_command(text),
        }
        name.finish()
    }

    /// A host of HTTP, and its port.
    pub fn host(host: &str, port: Option<u16>) -> Self {
        let mut name = Self::of(CallKind::Http, host);
        if let Some(port) = port {
            // Five digits, without an allocation.
            let digits = [10_000, 1_000, 100, 10, 1].map(|unit| b'0' + (port / unit % 10) as u8);
            let zeros = digits.iter().take(4).take_while(|digit| **digit == b'0').count();
            name.buffer.push(b':');
            digits[zeros..].iter().for_each(|digit| name.buffer.push(*digit));
        }
        name
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        str::from_utf8(self.buffer.written()).unwrap_or_default()
    }

    /// The kind of calls to the peer.
    pub fn kind(&self) -> CallKind {
        self.kind
    }

    #[inline]
    pub(super) fn hash(&self) -> u64 {
        let seed = u64::from(self.kind as u8) << 8 | self.buffer.written().len() as u64;
        let mixed = self
            .buffer
            .words()
            .fold(seed, |hash, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95));
        // The upper half of a product is the better one.
        mixed >> 32
    }

    fn push_str(&mut self, text: &str) {
        self.buffer.push_all(text.as_bytes());
    }

    /// The first word, which is no value. A word that no command of Redis can be stays unnamed.
    fn push_command(&mut self, text: &str) {
        let word = before(text.trim_start(), &[' ', '\t', '\r', '\n']);
        let is_command = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if word.len() <= LONGEST_COMMAND && word.as_bytes().iter().all(is_command) {
            word.bytes().for_each(|byte| self.buffer.push(byte.to_ascii_uppercase()));
        }
    }

    /// Ends with a whole character. A name of nothing is `?`: the empty one is that of further
    /// peers.
    fn finish(mut self) -> Self {
        if let Err(cut) = str::from_utf8(self.buffer.written()) {
            let whole = cut.valid_up_to();
            self.buffer.truncate(whole);
        }
        if self.buffer.written().is_empty() {
            self.buffer.push(b'?');
        }
        self
    }
}

impl PartialEq for PeerName {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.buffer.written() == other.buffer.written()
    }
}

impl Eq for PeerName {}

impl fmt::Debug for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.name(), self.as_str())
    }
}

/// The host in a URL or in an authority, with its port. One pass by bytes: a search for `://` by std
/// takes as long as the rest of a call. Most clients have an authority without a user, which is one
/// look at sixteen bytes at a time.
fn host(text: &str) -> &str {
    let bytes = text.as_bytes();
    if !has_delimiters(bytes) {
        return text;
    }
    let is_end = |byte: &u8| matches!(byte, b'/' | b'?' | b'#' | b'\\' | b' ');
    let end = |from: usize| bytes[from..].iter().position(is_end).map_or(bytes.len(), |at| from + at);
    let (mut from, mut to) = (0, end(0));
    if bytes[..to].ends_with(b":") && bytes[to..].starts_with(b"//") {
        from = to + 2;
        to = end(from);
    }
    // A password may contain anything. The ends are ASCII, so no character is cut.
    let name = bytes[from..to].iter().rposition(|byte| *byte == b'@').map_or(from, |at| from + at + 1);
    &text[name..to]
}

/// The bytes that stand between the parts of a URL.
const DELIMITERS: [u8; 6] = *b"/?#\\ @";

/// Whether the text has any of them.
fn has_delimiters(bytes: &[u8]) -> bool {
    // Nothing of this ends early, so the compiler compares all bytes of a block at once.
    let is_any = |block: &[u8]| {
        let add = |any: u8, byte: &u8| DELIMITERS.iter().fold(any, |any, one| any | u8::from(byte == one));
        block.iter().fold(0, add) != 0
    };
    let (blocks, rest) = bytes.as_chunks::<16>();
    match bytes.last_chunk::<16>() {
        // It overlaps the last block.
        Some(last) => blocks.iter().any(|block| is_any(block)) || is_any(last),
        None => is_any(rest),
    }
}

fn before<'a>(text: &'a str, ends: &[char]) -> &'a str {
    text.split_once(ends).map_or(text, |(before, _)| before)
}

#[cfg(test)]
mod tests {
    use super::super::LONGEST_PEER;
    use super::*;

    fn name(kind: CallKind, text: &str) -> String {
        PeerName::of(kind, text).as_str().to_owned()
    }

    #[test]
    fn hosts_come_without_the_rest() {
        let host = |text: &str| name(CallKind::Http, text);
        assert_eq!(host("tea.test"), "tea.test");
        assert_eq!(host("http://me:p@ss@tea.test:80/a@b"), "tea.test:80");
        assert_eq!(host("https://[::1]:8080/x"), "[::1]:8080");
        assert_eq!([host(""), host("/only/a/path")], ["?", "?"]);
        assert_eq!(host("tea.test/to?url=http://other.test/"), "tea.test");
        assert_eq!([host("http://"), host("http:///x"), host("tä:1//x")], ["?", "?", "tä:1"]);
        for delimiter in ["/", "?", "#", "\\", " "] {
            for length in 0..40 {
                let name = "a".repeat(length);
                let shown = if name.is_empty() { "?" } else { &name };
                assert_eq!(host(&format!("{name}{delimiter}secret")), shown);
                assert_eq!(host(&format!("secret@{name}{delimiter}secret@b")), shown);
                assert_eq!(host(&name), shown);
            }
        }
        let with_port = |port| PeerName::host("tea.test", Some(port)).as_str().to_owned();
        assert_eq!([0, 80, 65_535].map(with_port), ["tea.test:0", "tea.test:80", "tea.test:65535"]);
        assert_eq!(PeerName::host("tea.test", None), PeerName::of(CallKind::Http, "tea.test"));
    }

    #[test]
    fn commands_are_one_word() {
        let command = |text| name(CallKind::Redis, text);
        assert_eq!(command(" hset user:7 name Ann"), "HSET");
        assert_eq!(command("FT.SEARCH x"), "FT.SEARCH");
        assert_eq!([command("user:7"), command(&"A".repeat(25)), command("")], ["?", "?", "?"]);
    }

    #[test]
    fn names_are_cut_between_characters() {
        let long = "ä".repeat(LONGEST_PEER);
        for kind in [CallKind::Other, CallKind::Http, CallKind::Grpc, CallKind::Sql] {
            let cut = name(kind, &format!("x{long}"));
            assert_eq!(cut.len(), LONGEST_PEER - 1, "{kind:?}");
            assert!(long.starts_with(&cut[1..]));
        }
    }

    #[test]
    fn equal_names_have_equal_hashes() {
        let (mut a, b) = (PeerName::of(CallKind::Other, "abcdefghij"), PeerName::of(CallKind::Other, "abc"));
        assert_ne!(a.hash(), b.hash());
        a.buffer.truncate(3);
        assert_eq!((a, a.hash()), (b, b.hash()), "bytes after the name are zeros");
    }
}
