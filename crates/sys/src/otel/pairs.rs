//! Lists of `key=value` in OpenTelemetry's variables: headers, and attributes of the resource.
//!
//! Commas, equals signs and other special characters in keys and values are percent-encoded. One
//! invalid member makes the whole list invalid, because half of an identity is a wrong one. If a
//! key occurs twice, the last value counts.
//!
//! # References
//!
//! OpenTelemetry, "Resource SDK", §Specifying resource information via an environment variable;
//! "OTLP Exporter", §Specifying headers via environment variables (W3C Baggage without its
//! properties).

/// The members of a list of `key=value`, in order.
///
/// # Errors
///
/// The member that is invalid.
pub fn pairs(list: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for member in list.split(',').map(str::trim).filter(|member| !member.is_empty()) {
        let new = pair(member).ok_or_else(|| member.to_owned())?;
        pairs.retain(|(key, _)| *key != new.0);
        pairs.push(new);
    }
    Ok(pairs)
}

fn pair(member: &str) -> Option<(String, String)> {
    let (key, value) = member.split_once('=')?;
    let (key, value) = (decoded(key.trim())?, decoded(value.trim())?);
    (!key.is_empty()).then_some((key, value))
}

/// Text with its `%XX` taken for bytes.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            other => other,
        });
    }
    String::from_utf8(plain).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::pairs;

    fn own(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn members_are_trimmed_and_decoded() {
        let list = " a = 1 ,,b=x%2Cy%3Dz, c=, d=1=2 ,%C3%A4=%C3%B6";
        let wanted = own(&[("a", "1"), ("b", "x,y=z"), ("c", ""), ("d", "1=2"), ("ä", "ö")]);
        assert_eq!(pairs(list), Ok(wanted));
        assert_eq!(pairs(" , "), Ok(Vec::new()));
    }

    #[test]
    fn the_last_value_of_a_key_counts() {
        assert_eq!(pairs("a=1,b=2,a=3"), Ok(own(&[("b", "2"), ("a", "3")])));
    }

    #[test]
    fn one_bad_member_spoils_the_list() {
        for bad in ["b", "=1", "b=%", "b=%2", "b=%zz", "b=%+1", "b=%ff"] {
            assert_eq!(pairs(&format!("a=1,{bad}")), Err(bad.to_owned()), "{bad}");
        }
    }
}
