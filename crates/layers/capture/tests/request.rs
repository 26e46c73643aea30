//! Requests on the control socket.

use capture::{CaptureRequest, Options};

#[test]
fn options_that_are_missing_have_their_defaults() {
    let request: CaptureRequest = serde_json::from_str(r#"{"port":"red"}"#).unwrap();
    assert_eq!(request, CaptureRequest { port: "red".into(), options: Options::default() });
    let text =
        r#"{"port":"wan","options":{"snaplen":96,"segmented":true,"count":10,"filter":"arp"}}"#;
    let request: CaptureRequest = serde_json::from_str(text).unwrap();
    let filter = "arp".into();
    let options = Options { snaplen: 96, segmented: true, count: Some(10), filter };
    assert_eq!(request, CaptureRequest { port: "wan".into(), options });
    assert_eq!(serde_json::to_string(&request).unwrap(), text);
}

#[test]
fn an_unknown_option_is_refused() {
    let text = r#"{"port":"red","options":{"ring":5}}"#;
    let error = serde_json::from_str::<CaptureRequest>(text).unwrap_err();
    assert!(error.to_string().contains("unknown field `ring`"), "{error}");
}
