//! The buffers that a guest lends for frames of its queue.

use hypervisor::PAGE_SIZE;
use offload::Features;
use port::{Frame, HEADER_MAX, LENT_MAX, LentBuffer, Wanted};

use crate::guest_queue::{Copied, Station};

/// Bytes of a page behind a frame's header.
pub(crate) const BEHIND_HEADER: usize = PAGE_SIZE - HEADER_MAX;
/// After this many frames of one page, the next is expected to be one too.
const SMALL_FRAMES: u32 = 16;

/// Buffers that the guest has lent.
pub(crate) struct Loans {
    /// What frames of this tap may need.
    needed: Features,
    /// The most pages of a frame.
    pages: usize,
    /// Buffers that the guest must lend: the pages, and one for an extra.
    least: usize,
    /// Buffers that hold no frame. The last one is used next.
    stock: Vec<LentBuffer>,
    /// The number of frames of one page since the last larger one.
    small_frames: u32,
    /// Why the guest is not asked again before the next turn.
    refusal: Option<Copied>,
    /// How many were borrowed last in this turn.
    lot: usize,
    /// How many the frames of this turn have taken.
    taken: usize,
    /// How many buffers the last turn's frames took: as many are borrowed at once.
    expected: usize,
    /// Loans that end with the turn.
    back: Vec<u32>,
}

impl Loans {
    /// For a tap's frames. `large`: they may be longer than the MTU.
    pub(crate) fn new(large: bool) -> Self {
        let checksums = Features { csum_v4: true, csum_v6: true, ..Features::NONE };
        let (needed, pages, least) = match large {
            // A tap with queues for guests has no unsegmented UDP. Tagged frames that netif's guests do not take are withdrawn.
            true => (Features::NETIF, LENT_MAX - 1, LENT_MAX),
            false => (checksums, 1, 1),
        };
        let (stock, back) = (Vec::new(), Vec::new());
        Self {
            needed,
            pages,
            least,
            stock,
            small_frames: 0,
            refusal: None,
            lot: 0,
            taken: 0,
            expected: 0,
            back,
        }
    }

    /// A turn begins: the guest may be asked again.
    pub(crate) fn begin(&mut self) {
        self.refusal = None;
        self.expected = std::mem::take(&mut self.taken);
        self.lot = 0;
    }

    /// Has the buffers for one read, or says why not.
    pub(crate) fn prepare(&mut self, station: &Station) -> Result<(), Copied> {
        let memory = station.memory.as_ref().ok_or(Copied::Interface)?;
        if !covers(memory.features, self.needed) {
            return Err(Copied::Interface);
        }
        if let Some(why) = self.refusal {
            return Err(why);
        }
        if self.stock.len() < self.least {
            // More each time, so that a lone frame borrows little and many frames borrow seldom.
            let first = if self.lot == 0 { self.expected } else { 0 };
            self.lot = (self.lot * 2).max(first).max(self.least);
            let wanted = Wanted { buffers: self.lot, held: true };
            station.lender.lend(wanted, &mut self.stock);
        }
        if self.stock.len() < self.least {
            self.refusal = Some(Copied::NoBuffers);
            return Err(Copied::NoBuffers);
        }
        Ok(())
    }

    /// A frame in hand is finished in software, and each of its segments takes a buffer: many more than the guest keeps back of its
    /// ring. So it has back at once what holds no frame, and lends nothing to frames behind in this turn, which would wait with
    /// their buffers for that frame, and that frame for their buffers.
    pub(crate) fn pause(&mut self, station: &Station) {
        self.refusal = Some(Copied::Interface);
        self.end(station);
    }

    /// The most pages of a frame.
    pub(crate) fn all_pages(&self) -> usize {
        self.pages
    }

    /// How many pages to read the next frame into. After small frames it is one: the kernel checks every place of a read, whether it
    /// fills it or not, and seventeen cost it 750 instructions per frame, and the worker 500.
    pub(crate) fn pages_of_next(&self) -> usize {
        if self.small_frames < SMALL_FRAMES { self.pages } else { 1 }
    }

    /// Whether all that was read of a body lies in the guest's pages, if it was read into `pages` of them.
    pub(crate) fn holds(&self, body: usize, pages: usize) -> bool {
        pages == self.pages || body <= BEHIND_HEADER
    }

    /// Where the body of the next frame goes: behind the place of its header, and into the pages that follow, `pages` in all.
    pub(crate) fn places(&self, pages: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
        self.stock.iter().rev().take(pages).enumerate().map(|(n, buffer)| {
            // An offset in memory that is mapped here.
            let start = usize::try_from(buffer.offset).unwrap_or(usize::MAX);
            if n == 0 { (start + HEADER_MAX, BEHIND_HEADER) } else { (start, PAGE_SIZE) }
        })
    }

    /// Notes in a frame that it lies in the next buffers, and takes them.
    pub(crate) fn take(&mut self, frame: &mut Frame, lender: u64) {
        let pages = (frame.len as usize).div_ceil(PAGE_SIZE);
        self.small_frames = if pages > 1 { 0 } else { self.small_frames.saturating_add(1) };
        let buffers = pages + usize::from(frame.gso.is_some());
        self.taken += buffers;
        let left = self.stock.len().saturating_sub(buffers);
        // In place: a whole `Lent` would be read back, wide, right after its parts are written.
        let lent = &mut frame.lent;
        (lent.lender, lent.has_header, lent.offset) = (lender, false, 0);
        lent.tokens.clear();
        lent.tokens.extend(self.stock.drain(left..).rev().map(|buffer| buffer.token));
    }

    /// A frame was not handed over: the loans of its buffers end with the turn.
    pub(crate) fn give_up(&mut self, frame: &mut Frame) {
        self.back.extend(frame.lent.tokens.drain(..));
    }

    /// Ends all loans but those of frames in hand.
    pub(crate) fn end(&mut self, station: &Station) {
        self.back.extend(self.stock.drain(..).map(|buffer| buffer.token));
        if !self.back.is_empty() {
            station.lender.take_back(&self.back);
            self.back.clear();
        }
    }
}

/// Whether an interface with these features takes frames that may need others.
fn covers(features: Features, needed: Features) -> bool {
    let all =
        |Features { sg, csum_v4, csum_v6, tso_v4, tso_v6, uso_v4, uso_v6, tagged }: Features| {
            [sg, csum_v4, csum_v6, tso_v4, tso_v6, uso_v4, uso_v6, tagged]
        };
    all(features).into_iter().zip(all(needed)).all(|(has, needs)| has || !needs)
}
