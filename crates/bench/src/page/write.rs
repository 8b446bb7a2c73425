//! HTML under way.
//!
//! # Invariants
//!
//! Text from elsewhere (names, reasons, notes, the machine) goes in by [`Html::text`] alone, which
//! leaves nothing that ends a text or an attribute, and shows letters that are not seen, or that
//! turn the order of others, as their numbers.

use std::fmt::{Display, Write as _};

/// A page, or a part of one.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup of this program.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text, or the value of an attribute in double quotes.
    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        for letter in text.to_string().chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\n' => self.0.push('\n'),
                _ if is_hidden(letter) => self.0.extend(letter.escape_unicode()),
                _ => self.0.push(letter),
            }
        }
        self
    }

    /// A percentage of the width.
    pub(super) fn percent(&mut self, share: f64) -> &mut Self {
        let _ = write!(self.0, "{share:.2}%");
        self
    }

    /// A number of pixels.
    pub(super) fn pixels(&mut self, number: f64) -> &mut Self {
        let _ = write!(self.0, "{}", (number * 10.0).round() / 10.0);
        self
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let mut html = Html::default();
        html.raw("<p title=\"").text("\"><script>").raw("\">").text("a & b\u{202e}c\u{7}").raw("</p>");
        assert_eq!(html.finish(), "<p title=\"&quot;&gt;&lt;script&gt;\">a &amp; b\\u{202e}c\\u{7}</p>");
    }
}
