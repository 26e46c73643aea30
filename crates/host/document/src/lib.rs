//! The JSON documents that commands and labs print, and their schemas.

#![forbid(unsafe_code)]

mod check;

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};

pub use check::{checked, errors, faults};

/// What a command prints with `--json`, or writes to a file.
pub trait Document: Serialize + JsonSchema {
    /// The first field of the document: its name, and the version of its form. A field that is added leaves the version as it is; one
    /// that is removed or means something else changes it.
    const SCHEMA: &str;
}

/// The document with the field that names its schema.
#[derive(Serialize)]
struct Labelled<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    document: &'a T,
}

impl<'a, T: Document> Labelled<'a, T> {
    fn new(document: &'a T) -> Self {
        Self { schema: T::SCHEMA, document }
    }
}

/// A document on one line.
///
/// # Errors
/// The value has no JSON form, such as a map whose keys are not strings.
pub fn line(document: &impl Document) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Labelled::new(document)).map(|line| line + "\n")
}

/// A document on several lines.
pub fn pretty(document: &impl Document) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&Labelled::new(document)).map(|text| text + "\n")
}

/// A kind of document, and the commands that print or write it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its short name, which is in its schema's.
    pub name: &'static str,
    /// The commands, without the program's name.
    pub commands: &'static [&'static str],
    /// [`Document::SCHEMA`].
    pub id: &'static str,
    /// Makes its schema.
    pub schema: fn() -> Value,
}

impl Kind {
    /// The kind of `T`.
    #[must_use]
    pub const fn of<T: Document>(name: &'static str, commands: &'static [&'static str]) -> Self {
        Self { name, commands, id: T::SCHEMA, schema: schema::<T> }
    }
}

/// The schema of a document, JSON Schema of 2020-12. It knows all fields, so that any other is an error.
pub fn schema<T: Document>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), T::SCHEMA.into());
    // A type whose fields are all optional requires none, and one without fields has no properties.
    let object = schema.ensure_object();
    let fields = object.entry("properties").or_insert_with(|| json!({}));
    fields["schema"] = json!({ "const": T::SCHEMA });
    if let Value::Array(names) = object.entry("required").or_insert_with(|| json!([])) {
        names.insert(0, "schema".into());
    }
    NoOtherFields.transform(&mut schema);
    schema.to_value()
}

/// Has objects with named fields take no others.
#[derive(Clone)]
struct NoOtherFields;

impl Transform for NoOtherFields {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Ordinary {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u32>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Optional {
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u32>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Empty {}

    impl Document for Ordinary {
        const SCHEMA: &str = "ordinary/1";
    }

    impl Document for Optional {
        const SCHEMA: &str = "optional/1";
    }

    impl Document for Empty {
        const SCHEMA: &str = "empty/1";
    }

    /// A document has its schema, and must name it; nothing else may be in it.
    fn must_name_its_schema<T: Document>(document: &T) {
        let schema = schema::<T>();
        let mut value: Value = serde_json::from_str(&line(document).unwrap()).unwrap();
        assert_eq!(errors(&schema, &value), [""; 0]);
        value["schema"] = "another/1".into();
        assert_eq!(errors(&schema, &value).len(), 1, "another schema in {value}");
        value.as_object_mut().unwrap().remove("schema");
        assert_eq!(errors(&schema, &value), [": \"schema\" is missing"]);
        value["schema"] = T::SCHEMA.into();
        value["colour"] = 1.into();
        assert_eq!(errors(&schema, &value), ["/colour: not allowed"]);
    }

    #[test]
    fn a_document_must_name_its_schema_whatever_fields_it_has() {
        must_name_its_schema(&Ordinary { name: "a".to_owned(), size: None });
        must_name_its_schema(&Optional { size: Some(1) });
        must_name_its_schema(&Optional { size: None });
        must_name_its_schema(&Empty {});
    }
}
