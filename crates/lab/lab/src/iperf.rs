//! Bulk traffic by `iperf3`, the tool behind most published numbers.

use crate::{Error, Namespace, Process, Result, on_cpu};
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;

/// How long the server may take to listen, and how long both ends may take beyond the measured time.
const SLACK: Duration = Duration::from_secs(15);

/// One run between two namespaces.
#[derive(Clone, Copy, Debug)]
pub struct Iperf<'a> {
    /// Where the client runs, which sends.
    pub client: &'a Namespace,
    /// Where the server runs.
    pub server: &'a Namespace,
    /// The server's address.
    pub address: IpAddr,
    /// The server's port; the tool's own default is 5201.
    pub port: u16,
    /// How long to send, in seconds.
    pub seconds: u32,
    /// What to send.
    pub traffic: Traffic,
    /// Whether the sender hands over pages of a file (`sendfile`) instead of copying from its buffer (`write`).
    pub zerocopy: bool,
    /// TCP's limit in bits per second, if any. Datagrams have their own rate.
    pub pace: Option<u64>,
    /// The CPUs that the client and the server run on; any if absent.
    pub cpus: [Option<usize>; 2],
    /// TCP's congestion control at both ends, such as `cubic`; the system's default if absent. It becomes the default of both
    /// namespaces. It may decide a stream's rate more than the path does: BBR sends at a pace of its own.
    pub congestion: Option<&'a str>,
}

/// The kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// TCP at full speed.
    Tcp {
        /// Parallel connections.
        streams: u32,
    },
    /// UDP at a given pace.
    Udp {
        /// Payload bits per second to send; 0 for full speed.
        bits_per_second: u64,
        /// Payload bytes per datagram.
        length: u16,
    },
}

/// The receiver's results.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// Payload received, in 10⁶ bits per second.
    pub mbps: f64,
    /// Payload bytes received.
    pub bytes: u64,
    /// TCP segments that were retransmitted; 0 for UDP.
    pub retransmits: u64,
    /// How long the receiver received, in seconds.
    pub seconds: f64,
    /// Datagrams lost, in per cent of those sent; 0 for TCP.
    pub lost_percent: f64,
    /// Datagrams sent; 0 for TCP.
    pub packets: u64,
    /// The client's throughput in each full second, in 10⁶ bits per second.
    pub per_second: Vec<f64>,
    /// The sender's congestion control; none for UDP.
    pub congestion: Option<String>,
    /// The client's ports, one per stream.
    pub ports: Vec<u16>,
}

impl<'a> Iperf<'a> {
    /// One TCP connection for `seconds`, from `client` to `server`, on the usual port.
    #[must_use]
    pub fn tcp(
        client: &'a Namespace,
        server: &'a Namespace,
        address: impl Into<IpAddr>,
        seconds: u32,
    ) -> Self {
        let traffic = Traffic::Tcp { streams: 1 };
        Self {
            client,
            server,
            address: address.into(),
            port: 5201,
            seconds,
            traffic,
            zerocopy: false,
            pace: None,
            cpus: [None; 2],
            congestion: None,
        }
    }

    /// The same with datagrams of `length` payload bytes at `bits_per_second`.
    #[must_use]
    pub fn udp(self, bits_per_second: u64, length: u16) -> Self {
        Self { traffic: Traffic::Udp { bits_per_second, length }, ..self }
    }

    /// The same with this congestion control.
    #[must_use]
    pub fn congestion(self, congestion: Option<&'a str>) -> Self {
        Self { congestion, ..self }
    }

    /// Starts a server, waits until it listens, and runs the client to its end. Nothing is left running.
    pub fn run(&self) -> Result<Throughput> {
        self.start()?.finish()
    }

    /// Starts a server, waits until it listens, and starts the client.
    pub fn start(&self) -> Result<RunningIperf> {
        if let Some(name) = self.congestion {
            // iperf3 would set it only after the connection is made. A connection that began with BBR keeps BBR's pacing
            // timers: one that changed to CUBIC armed 29,000 of them per second over pvnet.
            self.client.set_congestion(name)?;
            self.server.set_congestion(name)?;
        }
        let server = self.listen()?;
        let mut command = self.client.exec("iperf3")?;
        command.args(self.client_arguments());
        let client = on_cpu(self.cpus[0], || Process::capture(command))?;
        let limit = Duration::from_secs(u64::from(self.seconds)) + SLACK;
        Ok(RunningIperf { client, server, limit, address: self.address })
    }

    fn listen(&self) -> Result<Process> {
        let mut command = self.server.exec("iperf3")?;
        // For one client only. The wait below reads the line about listening, so output is flushed at once.
        command.args(["--server", "--one-off", "--forceflush", "--port", &self.port.to_string()]);
        command.args(["--bind", &self.address.to_string()]);
        let mut server = on_cpu(self.cpus[1], || Process::capture(command))?;
        server.says("Server listening on", SLACK)?;
        Ok(server)
    }

    fn client_arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = ["--json", "--client"].map(str::to_owned).into();
        arguments.push(self.address.to_string());
        let mut option =
            |name: &str, value: u64| arguments.extend([name.to_owned(), value.to_string()]);
        option("--port", self.port.into());
        option("--time", self.seconds.into());
        match self.traffic {
            Traffic::Tcp { streams } => {
                option("--parallel", streams.into());
                if let Some(pace) = self.pace {
                    option("--bitrate", pace);
                }
            }
            Traffic::Udp { bits_per_second, length } => {
                option("--length", length.into());
                option("--bitrate", bits_per_second);
                arguments.push("--udp".to_owned());
            }
        }
        if let Some(name) = self.congestion.filter(|_| matches!(self.traffic, Traffic::Tcp { .. }))
        {
            arguments.extend(["--congestion".to_owned(), name.to_owned()]);
        }
        if self.zerocopy {
            arguments.push("--zerocopy".to_owned());
        }
        arguments
    }
}

/// A run that was started. Dropping it stops it.
#[derive(Debug)]
pub struct RunningIperf {
    client: Process,
    server: Process,
    limit: Duration,
    address: IpAddr,
}

impl RunningIperf {
    /// Waits for the end.
    pub fn finish(mut self) -> Result<Throughput> {
        self.client.wait(self.limit)?;
        // Some versions exit with success after a failure: the JSON document has the real result.
        let throughput = Throughput::parse(&self.client.stdout(), &self.address.to_string())?;
        self.server.wait(SLACK)?;
        Ok(throughput)
    }
}

/// The part of the output of `iperf3 --json` that is used here.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    start: Start,
    #[serde(default)]
    intervals: Vec<Interval>,
    end: Option<End>,
    error: Option<String>,
}

#[derive(Default, Deserialize)]
struct Start {
    #[serde(default)]
    connected: Vec<Connected>,
}

#[derive(Deserialize)]
struct Connected {
    local_port: u16,
}

#[derive(Deserialize)]
struct Interval {
    sum: Sum,
}

#[derive(Deserialize)]
struct End {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    sender_tcp_congestion: Option<String>,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: u64,
    bits_per_second: f64,
    #[serde(default)]
    retransmits: u64,
    #[serde(default)]
    lost_percent: f64,
    #[serde(default)]
    packets: u64,
}

impl Throughput {
    /// Parses the output of `iperf3 --json`. `to` is the server's name in errors.
    pub fn parse(json: &str, to: &str) -> Result<Self> {
        let what = "the output of iperf3";
        let document: Document =
            serde_json::from_str(json).map_err(|cause| Error::parse(what, &cause))?;
        if let Some(message) = document.error {
            return Err(Error::Iperf { to: to.to_owned(), message });
        }
        let Some(End {
            sum_sent: Some(sent),
            sum_received: Some(received),
            sender_tcp_congestion: congestion,
        }) = document.end
        else {
            return Err(Error::parse(what, "no summary of what was sent and received"));
        };
        // A run ends with a very short interval, whose rate is meaningless.
        let whole = document.intervals.iter().filter(|interval| interval.sum.seconds > 0.5);
        Ok(Self {
            mbps: received.bits_per_second / 1e6,
            bytes: received.bytes,
            retransmits: sent.retransmits,
            seconds: received.seconds,
            lost_percent: received.lost_percent,
            packets: received.packets,
            per_second: whole.map(|interval| interval.sum.bits_per_second / 1e6).collect(),
            congestion,
            ports: document.start.connected.iter().map(|stream| stream.local_port).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Recorded with iperf 3.12 between two namespaces on a veth pair.
    const TCP: &str = include_str!("../tests/recorded/iperf3-tcp.json");
    const REVERSE: &str = include_str!("../tests/recorded/iperf3-tcp-reverse.json");
    const UDP: &str = include_str!("../tests/recorded/iperf3-udp-loss.json");
    const REFUSED: &str = r#"{ "start": { "connected": [], "version": "iperf 3.12" }, "intervals": [], "end": { },
        "error": "unable to connect to server: Connection refused" }"#;

    #[test]
    fn tcp() {
        let throughput = Throughput::parse(TCP, "10.9.0.2").expect("recorded");
        assert_eq!(
            (throughput.bytes, throughput.retransmits, throughput.packets),
            (5_022_285_824, 45, 0)
        );
        assert_eq!(
            format!("{:.2} Mb/s in {:.2} s", throughput.mbps, throughput.seconds),
            "20017.06 Mb/s in 2.01 s"
        );
        let rounded: Vec<f64> = throughput.per_second.iter().map(|mbps| mbps.round()).collect();
        assert_eq!(rounded, [15_788.0, 24_408.0]);
        assert_eq!(throughput.congestion.as_deref(), Some("bbr"));
        assert_eq!(throughput.ports, [43_864]);
    }

    #[test]
    fn reverse_tcp_counts_what_the_client_received() {
        let throughput = Throughput::parse(REVERSE, "10.9.0.2").expect("recorded");
        assert_eq!((throughput.bytes, throughput.retransmits), (2_511_339_520, 32));
    }

    #[test]
    fn udp_with_loss() {
        let throughput = Throughput::parse(UDP, "10.9.0.2").expect("recorded");
        assert_eq!((throughput.packets, throughput.bytes), (365_440, 23_232_256));
        assert!((throughput.lost_percent - 0.667).abs() < 0.001);
    }

    #[test]
    fn the_tools_own_error_is_passed_on() {
        let message = Throughput::parse(REFUSED, "10.9.0.2").expect_err("refused").to_string();
        assert_eq!(message, "iperf3 to 10.9.0.2: unable to connect to server: Connection refused");
    }

    #[test]
    fn an_empty_or_foreign_document_is_an_error() {
        for text in ["", "{}", "[]", r#"{"end":{}}"#, r#"{"end":{"sum_sent":{}}}"#] {
            assert!(matches!(Throughput::parse(text, "x"), Err(Error::Parse { .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_document_cut_short_is_an_error(length in 0..TCP.trim_end().len() - 1) {
            prop_assert!(Throughput::parse(&TCP[..length], "x").is_err());
        }
    }
}
