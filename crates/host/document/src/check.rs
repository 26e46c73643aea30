//! Checks a document against a JSON Schema. It knows the keywords that `pvnet schema` uses, and panics at any other, so that nothing is
//! left unchecked.

use serde_json::{Map, Value};

use crate::{Document, Kind};

/// The pattern of keys that are numbers.
const NUMBER: &str = r"^\d+$";

/// What is wrong with a document, each with its place: for tests.
///
/// # Panics
/// The schema has a keyword that is not known here.
#[must_use]
pub fn errors(schema: &Value, document: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(schema, schema, document, "", &mut errors);
    errors
}

/// A document as JSON, checked against its schema: for tests.
///
/// # Panics
/// It is not as its schema says.
pub fn checked<T: Document>(document: &T) -> Value {
    let json = crate::line(document).ok().and_then(|line| serde_json::from_str(&line).ok());
    let json = json.unwrap_or_default();
    assert_eq!(errors(&crate::schema::<T>(), &json), [""; 0], "{json}");
    json
}

/// What is wrong with the schema of this kind, each with its place: for tests. A schema must name itself, and an object must allow no
/// other fields than it names; only the rows of benches may have fields of their own.
#[must_use]
pub fn faults(kind: &Kind) -> Vec<String> {
    let schema = (kind.schema)();
    let mut faults = Vec::new();
    let mut is = |what: &str, found: &Value, wanted: Value| {
        if *found != wanted {
            faults.push(format!("{what}: {found} where {wanted} was expected"));
        }
    };
    is("the name", &schema["properties"]["schema"]["const"], kind.id.into());
    is("$schema", &schema["$schema"], "https://json-schema.org/draft/2020-12/schema".into());
    is("the first required field", &schema["required"][0], "schema".into());
    let mut objects = Vec::new();
    objects_of(&schema, &mut objects);
    for object in objects {
        let others = kind.name == "bench" && object["properties"]["median"].is_object();
        is("other fields", &object["additionalProperties"], others.into());
    }
    faults
}

/// Finds the schemas of all objects with named fields, at any depth.
fn objects_of<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
    if schema.get("properties").is_some() {
        found.push(schema);
    }
    match schema {
        Value::Object(parts) => parts.values().for_each(|part| objects_of(part, found)),
        Value::Array(parts) => parts.iter().for_each(|part| objects_of(part, found)),
        _ => {}
    }
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, errors: &mut Vec<String>) {
    let keywords = match schema {
        Value::Bool(true) => return,
        Value::Bool(false) => return errors.push(format!("{at}: not allowed")),
        Value::Object(keywords) => keywords,
        other => panic!("a schema is {other}"),
    };
    for (keyword, wanted) in keywords {
        let matching = |schemas: &Value| -> usize {
            let alternatives = schemas.as_array().unwrap().iter();
            alternatives.filter(|schema| is_valid(root, schema, value)).count()
        };
        let holds = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "format" | "default" | "required" => {
                true
            }
            "$ref" => {
                let name = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                let target = root.pointer(name).expect("a reference within the schema");
                check(root, target, value, at, errors);
                true
            }
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|one| is_of(one, value)),
                one => is_of(one, value),
            },
            "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap()),
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().unwrap())
            }
            "maxItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap())
            }
            "oneOf" => matching(wanted) == 1,
            "anyOf" => matching(wanted) > 0,
            "prefixItems" => {
                let (items, schemas) = (value.as_array(), wanted.as_array().unwrap());
                for (number, (item, schema)) in items.into_iter().flatten().zip(schemas).enumerate()
                {
                    check(root, schema, item, &format!("{at}/{number}"), errors);
                }
                true
            }
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{at}/{number}"), errors);
                }
                true
            }
            // `check_fields` does.
            "properties" | "patternProperties" | "additionalProperties" => true,
            other => panic!("keyword {other} is not known here"),
        };
        if !holds {
            errors.push(format!("{at}: {value} is not as {keyword} {wanted} says"));
        }
    }
    if let Value::Object(fields) = value {
        check_fields(root, keywords, fields, at, errors);
    }
}

fn check_fields(
    root: &Value,
    keywords: &Map<String, Value>,
    fields: &Map<String, Value>,
    at: &str,
    errors: &mut Vec<String>,
) {
    let of = |keyword: &str| keywords.get(keyword).and_then(Value::as_object);
    let numbered = of("patternProperties").map(|patterns| {
        let mut patterns = patterns.iter();
        let (pattern, schema) = patterns.next().expect("a pattern");
        assert_eq!((&**pattern, patterns.next()), (NUMBER, None), "no other pattern is known here");
        schema
    });
    for (name, value) in fields {
        let named = of("properties").and_then(|known| known.get(name));
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let schema = named.or(numbered.filter(|_| is_number));
        let schema = schema.or(keywords.get("additionalProperties"));
        if let Some(schema) = schema {
            check(root, schema, value, &format!("{at}/{name}"), errors);
        }
    }
    for name in keywords.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            errors.push(format!("{at}: {name} is missing"));
        }
    }
}

fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let mut errors = Vec::new();
    check(root, schema, value, "", &mut errors);
    errors.is_empty()
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("type {other} is not known here"),
    }
}

#[test]
fn what_a_schema_does_not_allow_is_found() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "port": { "$ref": "#/$defs/Port" },
            "sizes": { "type": "array", "items": { "type": "integer", "minimum": 0 }, "maxItems": 2 },
            "state": { "oneOf": [{ "const": "up" }, { "const": "down" }] },
            "time": { "type": ["number", "null"] },
            "point": { "type": "array", "prefixItems": [{ "type": "string" }, { "type": "number" }], "maxItems": 2 },
        },
        "required": ["name"],
        "additionalProperties": false,
        "$defs": { "Port": { "type": "object", "additionalProperties": { "type": "boolean" } } },
    });
    for (document, wrong) in [
        (r#"{"name":"a","port":{"x":true},"sizes":[1,2],"state":"up","time":null}"#, ""),
        (r#"{"name":"a","time":1.5}"#, ""),
        (r#"{"name":"a","point":["x",1.5]}"#, ""),
        (r#"{"name":"a","point":["x","y"]}"#, "/point/1"),
        (r#"{"name":"a","point":["x",1.5,2]}"#, "/point: "),
        (r#"{}"#, ": \"name\" is missing"),
        (r#"{"name":1}"#, "/name"),
        (r#"{"name":"a","colour":1}"#, "/colour: not allowed"),
        (r#"{"name":"a","port":{"x":1}}"#, "/port/x"),
        (r#"{"name":"a","sizes":[0,-1]}"#, "/sizes/1"),
        (r#"{"name":"a","sizes":[0,1,2]}"#, "/sizes: "),
        (r#"{"name":"a","state":"sideways"}"#, "/state"),
    ] {
        let found = errors(&schema, &serde_json::from_str(document).unwrap());
        match wrong {
            "" => assert_eq!(found, [""; 0], "{document}"),
            place => {
                assert!(found.len() == 1 && found[0].starts_with(place), "{document}: {found:?}");
            }
        }
    }
}
