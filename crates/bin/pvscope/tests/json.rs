//! The JSON of the commands that need no recording is as `pvscope schema` says.

use std::process::Command;

use serde_json::Value;

/// The JSON that a command prints, which must be all that it prints.
fn json(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_pvscope")).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

#[test]
fn what_commands_print_is_as_their_schemas_say() {
    let folder = lab::TempDir::new().unwrap();
    let marks = folder.path().join("marks").display().to_string();
    for arguments in [
        &["list", "--json"][..],
        &["marks", "--json", &marks],
        &["snapshots", "--json"],
        // No name begins so.
        &["snapshots", "--clear", "none", "--json"],
    ] {
        let (schema, document) = (json(&["schema", arguments[0]]), json(arguments));
        assert_eq!(document::errors(&schema, &document), [""; 0], "{document}");
        let mut other = document.clone();
        other["brand_new"] = 1.into();
        assert_eq!(document::errors(&schema, &other), ["/brand_new: not allowed"]);
    }
}
