//! Rules of triggers: any text is refused with a reason, or armed as it was understood.

use dormouse::triggers::check_rules;

/// Bytes are a list of rules.
///
/// # Panics
///
/// When a rule that is written out reads otherwise, or a refusal gives no reason.
pub fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match check_rules(&text) {
        Ok(rules) => {
            for rule in rules {
                assert_eq!(check_rules(&rule).as_deref(), Ok(&[rule][..]));
            }
        }
        Err(why) => assert!(!why.what.is_empty() && !why.instead.is_empty()),
    }
}
