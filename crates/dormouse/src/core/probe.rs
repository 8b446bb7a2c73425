//! Probes: named places with fields, each asleep behind a static key of its own.
//!
//! # Safety
//!
//! The unsafe code asserts that the number of the attachment is this type's alone.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_clock::overhead::RECORDS;
use dormouse_clock::stamp;
use dormouse_keys::{Attachment, Text};
use dormouse_sys::thread::Current;
use dormouse_sys::{records, rendezvous};

use crate::core::record::{RecordKind, Writer};

/// A probe, attached to its key: [`probe!`](crate::probe) makes it, and
/// [`Key::attached`](crate::Key::attached) finds it.
///
/// The layout is an ABI: C defines probes too (`struct dormouse_probe`). It grows only at its end.
///
/// ```
/// fn brew(cups: u32) {
///     dormouse::probe!("brew.start", cups, kind = "green");
/// }
/// # brew(2);
///
/// for found in dormouse::keys::all() {
///     let key = found.key;
///     if let Some(probe) = key.attached::<dormouse::Probe>() {
///         println!("{}({})", key.name(), probe.fields().collect::<Vec<_>>().join(", "));
///     }
/// }
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Probe {
    /// Bytes of this structure; later versions are longer.
    size: u32,
    /// 0 until it is first requested.
    id: AtomicU32,
    /// The text between the macro's parentheses, as a C preprocessor would see it: the name, then
    /// the fields.
    arguments: Text,
}

const _: () = assert!(size_of::<Probe>() == 24 && align_of::<Probe>() == 8);

#[expect(unsafe_code, reason = "the number must be this type's alone")]
// SAFETY: 1 is the number of `Probe` alone, and `repr(C)` with the assertion above keeps the
// layout.
unsafe impl Attachment for Probe {
    const KIND: u32 = 1;
}

impl Probe {
    /// The offsets of the parts, for other languages that define probes.
    #[doc(hidden)]
    pub const LAYOUT: [(&str, usize); 3] = [
        ("size", offset_of!(Self, size)),
        ("id", offset_of!(Self, id)),
        ("arguments", offset_of!(Self, arguments)),
    ];

    /// Called by the macros.
    #[doc(hidden)]
    pub const fn new(arguments: &'static str) -> Self {
        Self { size: size_of::<Self>() as u32, id: AtomicU32::new(0), arguments: Text::new(arguments) }
    }

    /// The names of the probe's fields, in the order of a record's values. The name of a C probe's
    /// field is its expression, or the name given with `DORMOUSE_FIELD`.
    pub fn fields(&self) -> impl Iterator<Item = &'static str> {
        items(self.arguments.as_str()).skip(1).map(field_name)
    }

    /// The number in the probe's records; never reused in a process.
    pub fn id(&self) -> u32 {
        let id = self.id.load(Ordering::Relaxed);
        if id != 0 {
            return id;
        }
        let new = rendezvous::next_probe();
        // If another thread was faster, our number remains unused.
        self.id
            .compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|first| first, |_| new)
    }
}

/// The arguments of a macro of C or C++: commas in brackets and in quotes are not between two of
/// them. In C++ those between `<` and `>` are, because `<` may also mean "less".
fn items(text: &'static str) -> impl Iterator<Item = &'static str> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    // The first character of the word or number before.
    let mut word: Option<char> = None;
    text.split(move |c| {
        // In a number, ' is between two digits.
        let is_digits = c == '\'' && quote.is_none() && word.is_some_and(|first| first.is_ascii_digit());
        word = word.or(Some(c)).filter(|_| c.is_alphanumeric() || c == '_' || is_digits);
        match (c, quote) {
            _ if escaped => escaped = false,
            ('\\', Some(_)) => escaped = true,
            (c, Some(q)) if c == q => quote = None,
            ('"' | '\'', None) if !is_digits => quote = Some(c),
            ('(' | '[' | '{', None) => depth += 1,
            (')' | ']' | '}', None) => depth = depth.saturating_sub(1),
            (',', None) => return depth == 0,
            _ => {}
        }
        false
    })
    .map(str::trim)
}

/// The name of a field: its text, or the first argument if it is a macro of ours. If that was
/// expanded in a macro around the probe, the first argument is in quotes.
fn field_name(item: &'static str) -> &'static str {
    let ours = item.strip_prefix("DORMOUSE_").or_else(|| item.strip_prefix("dormouse_field_"));
    let arguments = ours.and_then(|ours| ours.split_once('(')).map(|(_, arguments)| arguments);
    arguments.and_then(|all| items(all).next()).map_or(item, |name| name.trim_matches('"'))
}

/// Lays a record down: header, what `fill` adds, into the thread's ring.
///
/// # Async-signal-safety
///
/// As `fill`, once the thread has its block. A handler that interrupts a record of its own thread
/// drops its own.
#[inline]
fn record(probe: &Probe, phase: RecordKind, tsc: u64, fill: impl FnOnce(&mut Writer)) {
    record_of(probe, phase, tsc, records::current_task(), fill);
}

/// Does what [`record`] does, for a task that need not be the thread's.
#[inline]
pub(crate) fn record_of(
    probe: &Probe,
    phase: RecordKind,
    tsc: u64,
    whose: Current,
    fill: impl FnOnce(&mut Writer),
) {
    let _timed = RECORDS.begin();
    let mut writer = Writer::new(phase, probe.id(), tsc, whose.task, whose.group);
    fill(&mut writer);
    records::push(writer.finish());
}

/// Records a hit of an awake [`probe!`](crate::probe).
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn point(probe: &Probe, fill: impl FnOnce(&mut Writer)) {
    record(probe, RecordKind::Point, stamp(), fill);
}

/// Lasts from the beginning to the end of a [`probed`](macro@crate::probed) function that was awake
/// when it began.
#[doc(hidden)]
#[derive(Debug)]
pub struct ProbedScope {
    probe: &'static Probe,
    start: u64,
}

impl ProbedScope {
    /// Records the beginning of the function.
    #[cold]
    #[inline(never)]
    pub fn enter(probe: &'static Probe, fill: impl FnOnce(&mut Writer)) -> Self {
        let start = stamp();
        record(probe, RecordKind::Enter, start, fill);
        Self { probe, start }
    }
}

impl Drop for ProbedScope {
    fn drop(&mut self) {
        let end = stamp();
        let elapsed = dormouse_clock::ticks_to_ns(end.wrapping_sub(self.start));
        record(self.probe, RecordKind::Exit, end, |writer| writer.unsigned(elapsed));
    }
}

/// A probe: a named place with fields, asleep behind its own static key.
///
/// ```
/// # let (cups, kind, order, table) = (2, "green", Some(7), "window");
/// dormouse::probe!("brew.step", cups = cups, kind, order = ?order, where_to = %table);
/// ```
///
/// A field is `name = value` for a [`Value`](crate::Value) (numbers, booleans, text),
/// `name = ?value` for its `Debug`, `name = %value` for its `Display`; `name` alone stands for
/// `name = name`, also with `?` and `%`.
///
/// # Cost
///
/// Asleep one instruction; the fields are not evaluated. Awake a time stamp and a copy into a ring
/// that belongs to the thread: no lock, no allocation, no system call (a `Debug` or `Display` may
/// do as it likes). A full ring loses its oldest records,
/// and counts them.
#[macro_export]
macro_rules! probe {
    ($name:expr $(, $($fields:tt)*)?) => {{
        $crate::__dormouse_fields!(@point $name, [] [] $($($fields)*)?)
    }};
}

/// The statement that [`macro@crate::probed`] puts at the beginning of a function.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_scope {
    ($name:expr $(, $($fields:tt)*)?) => {{
        $crate::__dormouse_fields!(@scope $name, [] [] $($($fields)*)?)
    }};
}

/// Collects `[names] [(how, value)]` and then lays down the site.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_fields {
    // All collected.
    (@$what:ident $name:expr, [$($field:ident)*] [$(($how:ident $value:expr))*] $(,)?) => {{
        // Items of a macro are visible to the fields: these names are nobody else's.
        static __DORMOUSE_PROBE: $crate::Probe =
            $crate::Probe::new(concat!("" $(, ",", stringify!($field))*));
        static __DORMOUSE_KEY: $crate::StaticKey<false> =
            $crate::StaticKey::new($name, file!(), line!()).with(&__DORMOUSE_PROBE);
        $crate::__dormouse_awake!(@$what __DORMOUSE_KEY __DORMOUSE_PROBE $(($how $value))*)
    }};
    // `name = ?value`, `name = %value`, `name = value`.
    (@$what:ident $name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident = ?$value:expr $(, $($rest:tt)*)?) => {
        $crate::__dormouse_fields!(@$what $name, [$($n)* $field] [$($v)* (debug $value)] $($($rest)*)?)
    };
    (@$what:ident $name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident = %$value:expr $(, $($rest:tt)*)?) => {
        $crate::__dormouse_fields!(@$what $name, [$($n)* $field] [$($v)* (display $value)] $($($rest)*)?)
    };
    (@$what:ident $name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__dormouse_fields!(@$what $name, [$($n)* $field] [$($v)* (value $value)] $($($rest)*)?)
    };
    // `?name`, `%name`, `name`.
    (@$what:ident $name:expr, [$($n:ident)*] [$($v:tt)*] ?$field:ident $(, $($rest:tt)*)?) => {
        $crate::__dormouse_fields!(@$what $name, [$($n)* $field] [$($v)* (debug $field)] $($($rest)*)?)
    };
    (@$what:ident $name:expr, [$($n:ident)*] [$($v:tt)*] %$field:ident $(, $($rest:tt)*)?) => {
        $crate::__dormouse_fields!(@$what $name, [$($n)* $field] [$($v)* (display $field)] $($($rest)*)?)
    };
    (@$what:ident $name:expr, [$($n:ident)*] [$($v:tt)*] $field:ident $(, $($rest:tt)*)?) => {
        $crate::__dormouse_fields!(@$what $name, [$($n)* $field] [$($v)* (value $field)] $($($rest)*)?)
    };
}

/// Expands to the site and the code behind it.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_awake {
    (@point $key:ident $probe:ident $(($how:ident $value:expr))*) => {
        if $crate::unlikely!($key) {
            $crate::macros::point(&$probe, |writer| {
                let _ = &writer;
                $($crate::__dormouse_put!($how writer $value);)*
            });
        }
    };
    (@scope $key:ident $probe:ident $(($how:ident $value:expr))*) => {
        if $crate::unlikely!($key) {
            ::core::option::Option::Some($crate::macros::ProbedScope::enter(&$probe, |writer| {
                let _ = &writer;
                $($crate::__dormouse_put!($how writer $value);)*
            }))
        } else {
            ::core::option::Option::None
        }
    };
}

/// One field into a record.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_put {
    (value $writer:ident $value:expr) => {
        $crate::Value::record(&$value, $writer)
    };
    (debug $writer:ident $value:expr) => {
        $writer.formatted(::core::format_args!("{:?}", $value))
    };
    (display $writer:ident $value:expr) => {
        $writer.formatted(::core::format_args!("{}", $value))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_by_text_or_macro() {
        for (arguments, expected) in [
            ("", &[][..]),
            (",cups,kind", &["cups", "kind"]),
            ("\"brew, then, step\", cups, order->id", &["cups", "order->id"]),
            ("\"a\\\",b\", most(a, (b, c)), ',', \",\"", &["most(a, (b, c))", "','", "\",\""]),
            ("\"a\", DORMOUSE_FIELD(order, o->id), DORMOUSE_TEXT(body, n)", &["order", "body"]),
            (
                "\"a\", dormouse_field_(\"order\", _Generic((o->id), int: f, long: g)(o->id)), n",
                &["order", "n"],
            ),
            (
                "\"a\", m[{1, 2}], [a, b] {}, pair{a, b}.first",
                &["m[{1, 2}]", "[a, b] {}", "pair{a, b}.first"],
            ),
            ("\"a\", 1'000 * n, 0x1'f, a8,'1','2'", &["1'000 * n", "0x1'f", "a8", "'1'", "'2'"]),
            ("\"a\", u8',', L',', x1 + ',', (2)", &["u8','", "L','", "x1 + ','", "(2)"]),
            ("\"a\", f<int, long>(n)", &["f<int", "long>(n)"]),
            ("\"a\", DORMOUSE_FIELD(", &[""]),
            ("\"a\", )x, y", &[")x", "y"]),
        ] {
            assert_eq!(Probe::new(arguments).fields().collect::<Vec<_>>(), expected, "{arguments}");
        }
    }
}
