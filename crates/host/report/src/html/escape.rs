//! Text that stays text inside a page.

/// `text` with the five characters that HTML gives a meaning replaced, fit for elements and quoted
/// attributes. Control characters that HTML forbids become U+FFFD.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(
            escape(r#"<a href="x">'&'</a>"#),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
        );
        assert_eq!(escape("a\0b\x1b[1m\n\tµs"), "a\u{fffd}b\u{fffd}[1m\n\tµs");
    }

    proptest! {
        #[test]
        fn nothing_that_html_reads_is_left(text in any::<String>()) {
            let escaped = escape(&text);
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
            let entities = ["amp;", "lt;", "gt;", "quot;", "#39;"];
            for (at, _) in escaped.match_indices('&') {
                prop_assert!(entities.iter().any(|entity| escaped[at + 1..].starts_with(entity)));
            }
        }
    }
}
