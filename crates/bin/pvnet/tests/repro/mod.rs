//! Experiments of papers.

use lab::{Process, TempDir};

use crate::json::schema;
use crate::testbed::{LIMIT, able, pvnet};

#[test]
fn a_paper_is_repeated_and_compared_with_its_numbers() {
    if !able(&["iperf3", "ping", "ethtool"]) {
        return;
    }
    let folder = TempDir::new().unwrap();
    let [json, html] = ["menon06.json", "menon06.html"].map(|name| folder.path().join(name));
    let mut command = pvnet();
    command.args(["repro", "menon06", "--figure", "5,9", "--config", "none,high,SP-GP"]);
    command.args(["--seconds", "1", "--rounds", "1", "--json"]).arg(&json);
    command.arg("--html").arg(&html);
    let mut repro = Process::capture(command).unwrap();
    repro.succeed(LIMIT).unwrap();
    let table = repro.stdout();
    assert!(table.contains("2,794") && table.contains("TLB misses"), "{table}");
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(document::errors(&schema("repro menon06"), &document), [""; 0]);
    assert_eq!(document["paper"], "menon06");
    let [none, high, global] = &document["rows"].as_array().unwrap()[..] else {
        panic!("{document}")
    };
    assert_eq!([&none["config"], &high["config"], &global["config"]], ["none", "high", "SP-GP"]);
    for row in [none, high] {
        assert!(row["mbps"]["median"].as_f64() > Some(1.0), "{row}");
        assert!(row["cpu_s_per_gb"]["hypervisor"].as_f64() > Some(0.0), "{row}");
        // A frame of a page or more is mapped, and what was sent went through the NIC.
        assert!(row["per_packet"]["maps"].as_f64() > Some(0.0), "{row}");
        assert!(row["per_packet"]["frames"].as_f64() > Some(0.0), "{row}");
    }
    assert!(high["ratio_to_none"].as_f64() > Some(0.0), "{high}");
    assert!(global["mbps"].is_null() && global["not_measurable"].is_string(), "{global}");
    assert!(std::fs::read_to_string(html).unwrap().contains("<figure>"));
    let mut namespaces = lab::command("ip").unwrap();
    namespaces.arg("netns");
    let client = format!("pvnet-client-{}-", repro.pid());
    assert!(!lab::run(namespaces, LIMIT).unwrap().contains(&client));
}
