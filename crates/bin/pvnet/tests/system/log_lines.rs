//! The daemon's log: JSON on demand, and bounded however often a stranger knocks.

use serde_json::Value;

use crate::testbed::{Testbed, requires};

/// How often a stranger asks to join. Ten lines of this kind come at once.
const KNOCKS: u64 = 40;

#[test]
fn a_stranger_who_knocks_in_a_loop_fills_no_log_and_hides_no_guest() {
    requires!();
    let mut testbed = Testbed::start(1, "workers = 1\nlog = \"json\"");
    for _ in 0..KNOCKS {
        let mut command = testbed.command("guest");
        let output = command.args(["mallory", "--log-format", "json"]).output().unwrap();
        let error: Value = serde_json::from_slice(&output.stderr).expect("one object");
        assert_eq!((output.status.code(), &error["level"]), (Some(1), &"ERROR".into()));
    }
    testbed.join(0, &[]);
    assert!(testbed.daemon.stop().unwrap().success());
    let text = testbed.daemon.stderr();
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let with = |message: &str| lines.iter().filter(|line| line["message"] == message).count();
    let refused = with("a guest is refused") as u64;
    let suppressed = lines.iter().filter_map(|line| line["suppressed"].as_u64()).sum::<u64>();
    // One more every ten seconds, for as long as a busy machine takes.
    assert!((10..KNOCKS).contains(&refused), "{text}");
    assert_eq!(refused + suppressed, KNOCKS, "{text}");
    assert_eq!(with("guest connected"), 1, "{text}");
    let connected = lines.iter().find(|line| line["message"] == "guest connected").unwrap();
    assert_eq!(connected["guest"], testbed.guests[0].namespace.name());
    for key in ["timestamp", "level", "target"] {
        assert!(connected[key].is_string(), "{connected}");
    }
}
