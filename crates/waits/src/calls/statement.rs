//! A statement of SQL without its values.
//!
//! The dialect is not known. So where dialects differ, a value is assumed:
//!
//! - After a backslash inside of a string, some dialects end the string at the next quote and some
//!   do not. The statement is cut there, and at strings with ends of their own: those of `BigQuery`
//!   that begin with three quotes, and `q'[…]'` of Oracle.
//! - A text in double quotes is a value in MySQL and a name elsewhere. It is kept where no dialect
//!   has a value: beside a point, and after a word that a table or a new name follows ([`NAMES`]).
//!   After `FROM` that is so in a query alone: `EXTRACT(DAY FROM "…")` has a value there.
//! - What follows `#` or `--` is a comment up to the end of the line; `/*` may be nested.
//!
//! Values that follow each other, and rows of such values, become one: `IN (?, ?, ?)` is `IN (?)`.
//! Otherwise each length of a list would be a peer of its own.

use super::buffer::{LONGEST_PEER, NameBuffer};

/// Words that a name follows in all dialects.
const NAMES: [&[u8]; 5] = [b"as", b"into", b"join", b"table", b"update"];

/// The letters before strings of Oracle that have ends of their own.
const ORACLE: [&[u8]; 2] = [b"q", b"nq"];

/// Words with which a query begins that stands in parentheses.
const QUERIES: [&[u8]; 3] = [b"delete", b"select", b"with"];

/// Writes the statement, as far as there is room.
pub(super) fn write(statement: &str, to: &mut NameBuffer) {
    let text = statement.as_bytes();
    let mut at = 0;
    while let Some(&byte) = text.get(at)
        && !to.is_full()
    {
        let next = text.get(at + 1).copied();
        at = match byte {
            b'#' => blank(to, end_of_line(text, at)),
            b'-' if next == Some(b'-') => blank(to, end_of_line(text, at)),
            b'/' if next == Some(b'*') => blank(to, end_of_comment(text, at)),
            byte if byte.is_ascii_whitespace() => blank(to, at + 1),
            b'\'' => {
                drop_prefix(to);
                value(to, end_of_string(text, at))
            }
            b'"' => quoted(text, at, to),
            b'`' => verbatim(text, at, end_of_quoted(text, at), to),
            b'$' if !ends_in_word(to) => dollar(text, at, to),
            b'?' => value(to, end_of_digits(text, at + 1)),
            b'0'..=b'9' if !ends_in_word(to) => value(to, end_of_number(text, at)),
            b')' => close(to, at + 1),
            _ => verbatim(text, at, at + 1, to),
        };
    }
    to.truncate(trimmed(to.written()).len());
}

fn verbatim(text: &[u8], from: usize, end: usize, to: &mut NameBuffer) -> usize {
    to.push_all(&text[from..end]);
    end
}

fn blank(to: &mut NameBuffer, end: usize) -> usize {
    if !matches!(to.written().last(), None | Some(b' ')) {
        to.push(b' ');
    }
    end
}

/// Writes a value, unless it follows another one.
fn value(to: &mut NameBuffer, end: usize) -> usize {
    drop_sign(to);
    let list = trimmed(to.written()).strip_suffix(b",").map(trimmed);
    match list.filter(|list| list.ends_with(b"?")).map(<[u8]>::len) {
        Some(kept) => to.truncate(kept),
        None => to.push(b'?'),
    }
    end
}

/// Takes back a sign that belongs to the value after it, because no number can stand before it.
fn drop_sign(to: &mut NameBuffer) {
    let before = trimmed(to.written());
    let unsigned = before.strip_suffix(b"-").or_else(|| before.strip_suffix(b"+"));
    if let Some(unsigned) = unsigned
        && matches!(trimmed(unsigned).last(), None | Some(b'(' | b',' | b'=' | b'<' | b'>'))
    {
        to.truncate(unsigned.len());
    }
}

/// Ends a parenthesis. One that is a row of values, as the one before it is, goes.
fn close(to: &mut NameBuffer, end: usize) -> usize {
    to.push(b')');
    let row = |text: &[u8]| text.strip_suffix(b"(?)").map(<[u8]>::len);
    let before = row(to.written()).and_then(|begins| trimmed(&to.written()[..begins]).strip_suffix(b","));
    let kept = before.map(trimmed).filter(|before| row(before).is_some()).map(<[u8]>::len);
    if let Some(kept) = kept {
        to.truncate(kept);
    }
    end
}

/// A text in double quotes: a name, or a value.
fn quoted(text: &[u8], at: usize, to: &mut NameBuffer) -> usize {
    let end = end_of_quoted(text, at);
    let is_whole = end - at >= 2
        && text[end - 1] == b'"'
        && !text[at..end].contains(&b'\\')
        && !text[at..].starts_with(b"\"\"\"");
    let is_name = to.written().last() == Some(&b'.')
        || text.get(end) == Some(&b'.')
        || comes_before_names(to.written());
    if is_whole && is_name {
        verbatim(text, at, end, to)
    } else {
        value(to, if is_whole { end } else { text.len() })
    }
}

/// Whether a name follows this text in all dialects.
fn comes_before_names(text: &[u8]) -> bool {
    let (before, word) = last_word(text);
    if word.eq_ignore_ascii_case(b"from") {
        let is_distinct = last_word(before).1.eq_ignore_ascii_case(b"distinct");
        // `PREPARE s FROM "SELECT …"`, `IMPORT TABLE FROM "file"`.
        let is_text = is_one_of(first_word(text), &[b"prepare", b"import"]);
        return !is_distinct && !is_text && is_in_query(before);
    }
    // `IDENTIFIED WITH plugin AS "hash"`.
    let is_password = || text.windows(IDENTIFIED.len()).any(|part| part.eq_ignore_ascii_case(IDENTIFIED));
    is_one_of(word, &NAMES) && !(word.eq_ignore_ascii_case(b"as") && is_password())
}

const IDENTIFIED: &[u8] = b"identified";

/// The first word of a text.
fn first_word(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|byte| !is_word(*byte)).unwrap_or(text.len());
    &text[..end]
}

/// The last word of a text, and what is before it.
fn last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = trimmed(text);
    let begins = text.iter().rposition(|byte| !byte.is_ascii_alphabetic()).map_or(0, |other| other + 1);
    text.split_at(begins)
}

fn is_one_of(word: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// Whether the end of the text is in no parenthesis, or the innermost one has a query.
fn is_in_query(text: &[u8]) -> bool {
    let (mut open, mut depth, mut quote) = ([0_u8; LONGEST_PEER], 0, None);
    for (at, &byte) in text.iter().enumerate() {
        match (quote, byte) {
            (Some(end), _) if byte == end => quote = None,
            (None, b'"' | b'`') => quote = Some(byte),
            (None, b'(') => (open[depth], depth) = (at as u8 + 1, depth + 1),
            (None, b')') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth
        .checked_sub(1)
        .is_none_or(|innermost| is_one_of(first_word(&text[usize::from(open[innermost])..]), &QUERIES))
}

/// A placeholder, a string of PostgreSQL between `$tag$` and `$tag$`, or the name of a parameter.
fn dollar(text: &[u8], at: usize, to: &mut NameBuffer) -> usize {
    if text.get(at + 1).is_some_and(u8::is_ascii_digit) {
        return value(to, end_of_digits(text, at + 1));
    }
    let rest = &text[at + 1..];
    let tag = rest.iter().position(|byte| !is_word(*byte) || *byte == b'$').unwrap_or(rest.len());
    if rest.get(tag) != Some(&b'$') {
        return verbatim(text, at, at + 1, to);
    }
    let (begins, tag) = (at + tag + 2, &text[at..at + tag + 2]);
    let end = text[begins..].windows(tag.len()).position(|there| there == tag);
    value(to, end.map_or(text.len(), |end| begins + end + tag.len()))
}

/// Takes back the letter before a string, as in `E'…'` and `X'…'`.
fn drop_prefix(to: &mut NameBuffer) {
    if let [.., before, b'b' | b'B' | b'e' | b'E' | b'n' | b'N' | b'q' | b'Q' | b'x' | b'X'] = to.written()
        && !is_word(*before)
    {
        to.truncate(to.written().len() - 1);
    }
}

fn end_of_line(text: &[u8], at: usize) -> usize {
    text[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| at + end)
}

fn end_of_comment(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0_u32;
    while at < text.len() {
        match text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

/// The end of a string; that of the text if its end is not certain.
fn end_of_string(text: &[u8], at: usize) -> usize {
    let end = end_of_quoted(text, at);
    let has_own_end = text[at..].starts_with(b"'''") || is_one_of(last_word(&text[..at]).1, &ORACLE);
    if has_own_end || text[at..end].contains(&b'\\') { text.len() } else { end }
}

/// The end of what begins with a quote. A quote inside is written twice.
fn end_of_quoted(text: &[u8], at: usize) -> usize {
    let quote = text[at];
    let mut next = at + 1;
    while let Some(found) = text[next..].iter().position(|byte| *byte == quote) {
        next += found + 1;
        if text.get(next) != Some(&quote) {
            return next;
        }
        next += 1;
    }
    text.len()
}

fn end_of_digits(text: &[u8], at: usize) -> usize {
    text[at..].iter().position(|byte| !byte.is_ascii_digit()).map_or(text.len(), |end| at + end)
}

fn end_of_number(text: &[u8], at: usize) -> usize {
    let mut end = at;
    while let Some(&byte) = text.get(end) {
        let follows_exponent = matches!(text[end.max(1) - 1], b'e' | b'E') && end > at;
        if !(is_word(byte) || byte == b'.' || matches!(byte, b'+' | b'-') && follows_exponent) {
            break;
        }
        end += 1;
    }
    end
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || !byte.is_ascii()
}

fn ends_in_word(to: &NameBuffer) -> bool {
    to.written().last().is_some_and(|byte| is_word(*byte))
}

fn trimmed(text: &[u8]) -> &[u8] {
    text.strip_suffix(b" ").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{CallKind, LONGEST_PEER, PeerName};

    fn name(statement: &str) -> String {
        PeerName::of(CallKind::Sql, statement).as_str().to_owned()
    }

    #[test]
    fn values_become_question_marks() {
        for (statement, expected) in [
            ("SELECT 1", "SELECT ?"),
            (
                "select * from tea\n  where id = 77 and name='it''s'",
                "select * from tea where id = ? and name=?",
            ),
            ("SELECT t1.c2 FROM t1 LIMIT 10 OFFSET -5", "SELECT t1.c2 FROM t1 LIMIT ? OFFSET -?"),
            ("VALUES (-1, +2.5e-7, 0xFF, X'00', E'a', N'b')", "VALUES (?)"),
            ("WHERE a IN (1, 2 ,3,'x') AND b IN ($1, $2)", "WHERE a IN (?) AND b IN (?)"),
            ("INSERT INTO t (a, b) VALUES (1, 'x'), (2, 'y'),\n(3, 'z')", "INSERT INTO t (a, b) VALUES (?)"),
            (
                "WHERE a = ?1 AND b = :name AND c = @p AND d = $d",
                "WHERE a = ? AND b = :name AND c = @p AND d = $d",
            ),
            ("SELECT 'a' -- secret 'x\nFROM t /* /* y */ z */ WHERE 1", "SELECT ? FROM t WHERE ?"),
            ("SELECT 1 # secret", "SELECT ?"),
            ("SELECT $$it's$$, $q$ $$ $q$, $1::text", "SELECT ?::text"),
            (r"WHERE a = 'C:\' AND b = 'secret'", "WHERE a = ?"),
            ("SELECT '''it's secret''', 2", "SELECT ?"),
            ("SELECT q'[it's secret]', 2", "SELECT ?"),
            ("SELECT a, NQ'{it's secret}'", "SELECT a, NQ?"),
            ("SELECT faq'x' FROM t", "SELECT faq? FROM t"),
            ("a < -3", "a < ?"),
            ("a - 3", "a - ?"),
            ("  \n", "?"),
            ("", "?"),
        ] {
            assert_eq!(name(statement), expected, "{statement}");
        }
    }

    #[test]
    fn double_quotes_keep_certain_names() {
        for (statement, expected) in [
            (
                r#"SELECT "tea"."cups" AS "n" FROM "tea" JOIN "pot" WHERE "tea"."id" = $1"#,
                r#"SELECT "tea"."cups" AS "n" FROM "tea" JOIN "pot" WHERE "tea"."id" = ?"#,
            ),
            (r#"WHERE name = "Ann" OR name IN ("Bob", "Eve")"#, "WHERE name = ? OR name IN (?)"),
            (r#"SELECT `a b` FROM `t` WHERE x = "Ann"#, "SELECT `a b` FROM `t` WHERE x = ?"),
            (r#"FROM "a\" WHERE x = "secret""#, "FROM ?"),
            (r#"SELECT EXTRACT(DAY FROM "secret") FROM "tea""#, r#"SELECT EXTRACT(DAY FROM ?) FROM "tea""#),
            (r#"SELECT TRIM("a)"."b" FROM "secret")"#, r#"SELECT TRIM("a)"."b" FROM ?)"#),
            (r#"WHERE a IN (SELECT f(1) FROM "tea")"#, r#"WHERE a IN (SELECT f(?) FROM "tea")"#),
            (r#"WITH x AS ( delete from "tea")"#, r#"WITH x AS ( delete from "tea")"#),
            (r#"WHERE a IS NOT DISTINCT FROM "secret""#, "WHERE a IS NOT DISTINCT FROM ?"),
            (r#"SELECT """it"s secret""" FROM t"#, "SELECT ?"),
            (r#"PREPARE s FROM "SELECT 'secret'""#, "PREPARE s FROM ?"),
            (r#"IMPORT TABLE FROM "/secret""#, "IMPORT TABLE FROM ?"),
            (r#"CREATE USER u IDENTIFIED WITH p AS "secret""#, "CREATE USER u IDENTIFIED WITH p AS ?"),
            (r#"SELECT TRIM(select_mask FROM "secret")"#, "SELECT TRIM(select_mask FROM ?)"),
        ] {
            assert_eq!(name(statement), expected, "{statement}");
        }
    }

    #[test]
    fn lists_of_any_length_are_one_peer() {
        let of = |n: usize| {
            let list = vec!["'x'"; n].join(", ");
            name(&format!("DELETE FROM t WHERE id IN ({list}) AND a = 1"))
        };
        assert_eq!([of(1), of(2), of(1_000)], ["DELETE FROM t WHERE id IN (?) AND a = ?"; 3]);
    }

    proptest! {
        /// Values of each form, among words and in any order: none is in the name.
        #[test]
        fn no_value_is_in_a_name(pieces in prop::collection::vec(0..20_usize, 0..40)) {
            let forms = [
                "q'[x'SECRET]'", "'''x'SECRET'''", "EXTRACT(DAY FROM \"SECRET\")", "\"\"\"x\"SECRET\"\"\"",
                "SELECT", "a", "FROM", "(", ")", ",", "=", "\n", "'SECRET'", "'x''SECRET'", "777", "-777.5e-7",
                "\"SECRET\" ", "/* SECRET ' */", "-- SECRET '\n", "$t$ SECRET ' $t$",
            ];
            // After a name's word `"SECRET"` is one, and after a point.
            let text: Vec<&str> = pieces.iter().map(|&piece| forms[piece]).filter(|form| *form != "FROM").collect();
            let name = name(&text.join(" "));
            prop_assert!(!name.contains("SECRET") && !name.contains('7'), "{name}");
        }

        #[test]
        fn any_text_gives_a_name(text in "[ -~äß\n]{0,200}") {
            let name = name(&text);
            prop_assert!(name.len() <= LONGEST_PEER && !name.is_empty(), "{name}");
        }

        /// A string of any content stays out of the name.
        #[test]
        fn strings_hide_any_content(content in "[ -~]{0,40}") {
            let content = content.replace('S', "s");
            let quoted = content.replace('\'', "''");
            let name = name(&format!("A '{quoted}S' B"));
            prop_assert!(!name.contains('S'), "{name}");
        }
    }
}
