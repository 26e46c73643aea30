//! The example that newcomers read does what it says.

#[path = "../../../../examples/two_ports.rs"]
mod two_ports;

#[test]
fn frames_cross_between_two_ports() {
    two_ports::main().unwrap();
}
