//! The JSON of the commands is as `pvnet schema` says.

use std::process::Command;

use control_socket::{
    Address, ContextState, ContextStatus, CpuStatus, FaultStatus, GuardStatus, GuestCopyStatus,
    GuestQueueStatus, KeptPages, LimitStatus, MemoryStatus, MirrorStatus, MulticastStatus,
    NicStatus, PersistentStatus, PortKind, PortState, PortStatus, Rates, Reason, RecordingStatus,
    Status, Traffic, View, VlanStatus,
};
use serde_json::Value;

use crate::testbed::{LIMIT, Testbed, pvnet, requires};

/// The schema of a document.
fn schema(name: &str) -> Value {
    let mut command = pvnet();
    command.args(["schema", name]);
    serde_json::from_str(&lab::run(command, LIMIT).unwrap()).unwrap()
}

/// Checks what a command prints, also if it fails afterwards. Returns the first document.
fn check(name: &str, mut command: Command) -> Value {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let schema = schema(name);
    let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let documents: Vec<_> = documents.map(Result::unwrap).collect();
    for document in &documents {
        let errors = document::errors(&schema, document);
        assert!(errors.is_empty(), "{errors:#?}\n{document:#}");
        let mut other = document.clone();
        other["brand_new"] = 1.into();
        assert_eq!(document::errors(&schema, &other), ["/brand_new: not allowed"]);
    }
    documents.into_iter().next().unwrap_or_else(|| panic!("{name} prints nothing: {error}"))
}

#[test]
fn what_commands_print_is_as_their_schemas_say() {
    requires!();
    let mut testbed = Testbed::start_each(2, "workers = 1", |guest| match guest {
        0 => {
            "balloon = true\nmemory_mib = 64\nhuge_pages = true\nguard = \"addresses\"\nlimit = { egress = { mbps = 100 } }\n"
        }
        _ => "vlan = 7\n",
    });
    testbed.join(0, &[]);
    let folder = testbed.folder().to_owned();
    let name = testbed.guests[0].namespace.name().to_owned();
    let run = |words: &[&str]| {
        let mut command = pvnet();
        command.args(words).arg("--json").arg("--directory").arg(&folder);
        command
    };
    let status = check("status", run(&["status"]));
    assert_eq!(
        (&status["schema"], &status["ports"][0]["kind"]),
        (&"pvnet-status/1".into(), &"guest".into())
    );
    let top = check("top", run(&["top", "--once", "--interval", "0.2", "--sort", "-name"]));
    assert_eq!(top["ports"][0]["name"], *name);
    let top = check("top", run(&["top", "--once", "--interval", "0.2", "--filter", "uplink"]));
    assert_eq!(top["ports"].as_array().map(Vec::len), Some(0));
    let change = check("change", run(&["port", "set", &name, "guard=mac"]));
    assert_eq!(change["steps"][0]["keys"][0], "guard");
    check("change", run(&["port", "down", &name]));
    let (from, to) = (format!("from={name}"), testbed.guests[1].namespace.name().to_owned());
    let to = format!("to={to}");
    let change = check("change", run(&["mirror", "add", "span", &from, &to]));
    assert_eq!(change["steps"][0]["table"], "mirror");
    let mirrors = check("mirror", run(&["mirror", "list"]));
    assert_eq!(mirrors["mirrors"][0]["name"], "span");
    check("change", run(&["mirror", "del", "span"]));
    check("change", run(&["port", "del", testbed.guests[1].namespace.name()]));
    let reload = check("change", run(&["reload", "--dry-run"]));
    assert_eq!(reload["dry_run"], true);
    let file = folder.join("pvnet.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "[switch]\nage_seconds = 60\n").unwrap();
    let reload = check("change", run(&["reload"]));
    let refused = reload["steps"].as_array().unwrap().iter();
    assert_eq!(refused.filter(|step| step["action"] == "refuse").count(), 1, "{reload}");
    assert_eq!(check("balloon", run(&["balloon", &name, "62"]))["mib"], 62);
    let doctor = check("doctor", run(&["doctor"]));
    assert_eq!(doctor["features"][0]["name"], "daemon");
}

#[test]
fn a_configuration_that_is_checked_is_valid_or_has_an_error() {
    let folder = lab::TempDir::new().unwrap();
    let file = folder.path().join("pvnet.toml");
    for (text, error) in [
        ("[daemon]\nworkers = 1\n", None),
        ("[daemon]\nwrokers = 1\n", Some("wrokers")),
        ("[daemon]\ncpus = \"1022\"\n", Some("CPU 1022 is not there or not allowed")),
    ] {
        std::fs::write(&file, text).unwrap();
        let mut command = pvnet();
        command.args(["run", "--check", "--json", "--config"]).arg(&file);
        let code = command.status().unwrap().code();
        assert_eq!(code, Some(if error.is_some() { 2 } else { 0 }));
        let document = check("check", command);
        assert_eq!(document["valid"], error.is_none());
        let said = document["error"].as_str();
        assert!(error.is_none_or(|error| said.unwrap().contains(error)), "{document}");
    }
}

/// A status in which every field has a value.
fn full_status() -> Status {
    let traffic = Traffic { frames: 1, bytes: 60 };
    let memory = MemoryStatus {
        reservation: 1,
        huge_pages: true,
        daemon: Some(View { large: 1, total: 2 }),
        guest: None,
    };
    let pages = KeptPages { mapped: 1, hits: 2, misses: 3, evictions: 4 };
    let rates = Rates { bytes_per_second: Some(1), packets_per_second: Some(2) };
    let port = PortStatus {
        domain: Some(1),
        mac: Some("02:00:00:00:00:01".to_owned()),
        device: Some("vif1.0".to_owned()),
        reason: Some(Reason::Disabled("req_prod 1".to_owned())),
        guard: Some(GuardStatus::Addresses { addresses: vec!["10.0.0.1".to_owned()] }),
        limit: Some(LimitStatus {
            ingress: Some(rates),
            egress: None,
            packets: control_socket::LimitedPackets::default(),
        }),
        vlans: Some(VlanStatus { vlan: Some(1), trunk: vec![2], native: Some(3), isolated: true }),
        memory: Some(memory.clone()),
        persistent_grants: Some(PersistentStatus { bound: 1, bytes: 2, tx: pages, rx: pages }),
        guest_copy: Some(GuestCopyStatus::default()),
        queues: 1,
        guest_queues: vec![GuestQueueStatus {
            guest: Some("red".to_owned()),
            copied: [("later".to_owned(), 1)].into(),
            reason: Some("gone".to_owned()),
            ..GuestQueueStatus::default()
        }],
        ingress: traffic,
        gro: control_socket::GroStatus { segments: 2, frames: 1 },
        gso_checksum_fixups: 1,
        lock_waits: control_socket::LockWaits { count: 1, nanoseconds: 2 },
        guest_hash: true,
        socket_drops: Some(1),
        drops: frame::DropReason::ALL.iter().map(|reason| (*reason, 1)).collect(),
        ..PortStatus::new("red", PortKind::Guest, PortState::Up)
    };
    let context = ContextStatus {
        context: 1,
        guest: "red".to_owned(),
        domain: Some(1),
        memory: Some(memory),
        mac: String::new(),
        protection: "none".to_owned(),
        state: ContextState::Revoked,
        reason: Some("revoked".to_owned()),
        generation: 1,
        references: 1,
        pending: [1, 2],
        tx: traffic,
        rx: traffic,
        drops: [("no_descriptors".to_owned(), 1)].into(),
        events: 1,
        vectored: 1,
        interrupts: 1,
        calls: 1,
        descriptors: 1,
        mapped: 1,
        refused: 1,
    };
    let nic = NicStatus {
        name: "card0".to_owned(),
        state: PortState::Down,
        process: Some(1),
        wire: "w0".to_owned(),
        rate_mbps: 1,
        attachments: 1,
        vectors: 1,
        faults: 1,
        newest_faults: vec![FaultStatus {
            context: 1,
            guest: String::new(),
            reason: String::new(),
        }],
        contexts: vec![context],
    };
    let address = Address { mac: String::new(), vlan: Some(1), port: 1, age: 1, taught: true };
    Status {
        cpu: Some(CpuStatus::default()),
        ports: vec![port],
        nics: vec![nic],
        absent: vec!["blue".to_owned()],
        addresses: vec![address],
        multicast: Some(MulticastStatus::default()),
        mirrors: vec![MirrorStatus {
            to: Some("probe".to_owned()),
            file: Some(RecordingStatus {
                path: Some("/x".to_owned()),
                bytes: 1,
                error: Some("full".to_owned()),
            }),
            ..MirrorStatus::default()
        }],
        ..Status::default()
    }
}

#[test]
fn a_status_with_every_field_is_as_its_schema_says() {
    let schema = schema("status");
    let mut document = serde_json::to_value(full_status()).unwrap();
    document["schema"] = "pvnet-status/1".into();
    assert_eq!(document::errors(&schema, &document), [""; 0]);
    // What differs in kind or depth is found.
    for (place, value) in [
        ("/ports/0/ingress/frames", "1".into()),
        ("/ports/0/state", "sideways".into()),
        ("/ports/0/reason/code", "bored".into()),
        ("/ports/0/drops/stalled", (-1).into()),
        ("/nics/0/contexts/0/pending", vec![1].into()),
        ("/schema", "pvnet-status/2".into()),
    ] {
        let mut other = document.clone();
        let field: &mut Value = other.pointer_mut(place).expect(place);
        *field = value;
        assert!(!document::errors(&schema, &other).is_empty(), "{place}");
    }
    for place in ["/ports/0", "/ports/0/ingress", "/ports/0/drops", "/nics/0/contexts/0", "/cpu"] {
        let mut other = document.clone();
        other.pointer_mut(place).expect(place)["brand_new"] = 1.into();
        assert_eq!(document::errors(&schema, &other).len(), 1, "{place}");
    }
}
