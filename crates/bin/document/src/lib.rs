//! The JSON documents that commands and labs print, and their schemas.

#![forbid(unsafe_code)]

mod check;

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};

pub use check::errors;

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
/// It holds what JSON has not, such as a map whose keys are no strings.
pub fn line(document: &impl Document) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Labelled::new(document)).map(|line| line + "\n")
}

/// A document on several lines.
///
/// # Errors
/// As [`line()`].
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
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(NoOtherFields);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), T::SCHEMA.into());
    let mut field = |list: &str, add: &dyn Fn(&mut Value)| {
        schema.ensure_object().get_mut(list).map(add);
    };
    field("properties", &|fields| fields["schema"] = json!({ "const": T::SCHEMA }));
    field("required", &|names| {
        if let Value::Array(names) = names {
            names.insert(0, "schema".into());
        }
    });
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
