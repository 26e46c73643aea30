//! Two ports of this program's own on one switch: frames come and go by channels.
//!
//! A port has two sides: here [`FromProgram`] and [`ToProgram`]. The rest plugs two of them into
//! a switch and sends frames between them.
//!
//! Run it with `cargo run -p datapath --example two_ports`.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use datapath::{Config, Datapath, Port};
use port::{
    Armed, Body, Broken, Budget, Doorbell, Egress, Event, Fragment, HEADER_MAX, Ingress, Offer,
    Outcome, Outcomes, Queue, Received, WINDOW, Window, linearise,
};
use shm::Region;

/// Bytes of the longest frame.
const FRAME_MAX: usize = 1514;

/// Frames from the program into the switch.
struct FromProgram {
    frames: mpsc::Receiver<Vec<u8>>,
    doorbell: Arc<Doorbell>,
    window: Window,
    /// The bodies of the frames in hand. Each slot of the window has its place.
    bodies: Arc<[Region]>,
}

impl Ingress for FromProgram {
    fn event(&self) -> Arc<dyn Event> {
        self.doorbell.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && !self.window.is_full() {
            let Ok(bytes) = self.frames.try_recv() else { break };
            let Some((slot, frame)) = self.window.push() else { break };
            budget.charge(1, bytes.len());
            // The header is private and checked. The body lies where its fragments say.
            let (header, body) = bytes.split_at(bytes.len().min(HEADER_MAX));
            if bytes.len() > FRAME_MAX || frame.set_header(header).is_err() {
                self.window.undo_push();
                received.malformed += 1;
                continue;
            }
            let place = slot * FRAME_MAX;
            self.bodies[0].copy_in(place, body).map_err(Broken::new)?;
            let len = u16::try_from(body.len()).map_err(Broken::new)?;
            frame.fragments.push(Fragment::in_region(0, place as u64, len));
            frame.len += u32::from(len);
            received.fresh += 1;
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.bodies));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // The program rings after every frame, so none is missed.
        Ok(Armed::Asleep)
    }
}

/// Frames from the switch to the program. Next to ports with offloads it would need a `Finisher`.
struct ToProgram(mpsc::Sender<Vec<u8>>);

impl Egress for ToProgram {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            let mut bytes = vec![0; offer.frame.len as usize];
            offer.outcome = match linearise(offer.frame, body, &mut bytes) {
                Ok(_) => self.0.send(bytes).map(|()| Outcome::Delivered).map_err(Broken::new)?,
                Err(fault) => fault,
            };
        }
        Ok(())
    }
}

/// What the program has of a port.
struct Plugged {
    port: Arc<Port>,
    send: mpsc::Sender<Vec<u8>>,
    doorbell: Arc<Doorbell>,
    arrived: mpsc::Receiver<Vec<u8>>,
}

/// Plugs a port into the switch.
fn plug(datapath: &Datapath, name: &str) -> std::io::Result<Plugged> {
    let ((send, frames), (to_program, arrived)) = (mpsc::channel(), mpsc::channel());
    let (doorbell, window) = (Arc::new(Doorbell::new()?), Window::new());
    let bodies = Arc::new([Region::anonymous(WINDOW * FRAME_MAX)?]);
    let ingress = Box::new(FromProgram { frames, doorbell: doorbell.clone(), window, bodies });
    let egress = Box::new(ToProgram(to_program));
    let port = datapath.attach(name, vec![Queue { ingress, egress }], vec![]);
    Ok(Plugged { port, send, doorbell, arrived })
}

/// Sends a frame each way.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let failed = |failure: datapath::Failure| eprintln!("{}", failure.reason);
    let datapath = Datapath::start(&Config::default(), Box::new(failed))?;
    let (a, b) = (plug(&datapath, "a")?, plug(&datapath, "b")?);
    // A worker that is within a round learns of the other port in the next one.
    datapath.synchronise(a.port.id());
    for (from, to, len) in [(&a, &b, 100), (&b, &a, 1500)] {
        let mut frame = vec![7; 14 + len];
        frame[..6].fill(0xff); // the destination: everybody
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]); // the source
        frame[12..14].copy_from_slice(&[0x88, 0xb5]); // the type: local experimental
        from.send.send(frame.clone())?;
        from.doorbell.ring();
        let arrived = to.arrived.recv_timeout(Duration::from_secs(10))?;
        assert_eq!(arrived, frame);
        println!("{} bytes arrived: {:02x?}...", arrived.len(), &arrived[..16]);
    }
    Ok(())
}
