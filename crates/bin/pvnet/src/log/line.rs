//! One message as one line of bounded length. A guest chooses part of some messages: it must not forge a line, move the
//! terminal's cursor or fill a disk.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::{Map, Value};

use super::LogFormat;

/// Longest line in bytes, its newline included.
const LINE_MAX: usize = 4096;
/// Longest text in an object that was longer than a line.
const FIELD_MAX: usize = 256;
/// Where something was cut off.
const CUT: char = '…';

/// Writes each message to standard error, in one call of the system.
pub struct Line(pub LogFormat);

impl Write for Line {
    /// Takes a whole message, as `tracing_subscriber` hands it over.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(message);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let mut line = match self.0 {
            LogFormat::Text => escaped(text),
            LogFormat::Json => of_json(text),
        }
        .into_owned();
        line.push('\n');
        io::stderr().lock().write_all(line.as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Escapes control characters, and cuts the line.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    if text.len() < LINE_MAX && !text.contains(char::is_control) {
        return text.into();
    }
    let mut line = String::new();
    for character in text.chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
        if line.len() >= LINE_MAX {
            break;
        }
    }
    cut(&mut line, LINE_MAX - 1);
    line.into()
}

/// Cuts the texts of an object that is too long; control characters are escaped already.
fn of_json(text: &str) -> Cow<'_, str> {
    if text.len() < LINE_MAX {
        return text.into();
    }
    let Ok(mut object) = serde_json::from_str::<Map<String, Value>>(text) else {
        return escaped(text);
    };
    for value in object.values_mut() {
        if let Value::String(text) = value {
            cut(text, FIELD_MAX);
        }
    }
    Value::Object(object).to_string().into()
}

/// Shortens a text to `bytes` bytes.
pub(super) fn cut(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes - CUT.len_utf8()));
        text.push(CUT);
        // Some of these texts are kept.
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        assert_eq!(escaped("a guest=red"), "a guest=red");
        let forged = escaped("not connected reason=x\nERROR pvnet: \u{1b}[2Jroot");
        assert_eq!(forged, "not connected reason=x\\nERROR pvnet: \\u{1b}[2Jroot");
        for long in ["ä".repeat(LINE_MAX), "\n".repeat(LINE_MAX)] {
            let line = escaped(&long);
            assert!(line.len() < LINE_MAX && line.ends_with(CUT), "{}", line.len());
        }
    }

    #[test]
    fn an_object_that_is_too_long_stays_an_object() {
        let short = r#"{"level":"INFO","guest":"red"}"#;
        assert_eq!(of_json(short), short);
        let long = format!(r#"{{"level":"WARN","port":7,"reason":"{}"}}"#, "\\n".repeat(LINE_MAX));
        let line = of_json(&long);
        assert!(line.len() < LINE_MAX && !line.contains('\n'), "{line}");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&object["level"], &object["port"]), (&"WARN".into(), &7.into()));
        assert!(object["reason"].as_str().unwrap().ends_with(CUT));
    }
}
