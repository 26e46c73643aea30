//! For any content of a guest's rings, grant table and pages, and any change of them while the
//! backend reads: the backend does not panic, answers only real requests, and touches no other
//! memory.

mod adopted;
mod control;
mod flip;
mod guest;
mod persistent;
mod receive;
mod restart;
mod states;
mod taker;
mod tampered;
mod transmit;
mod turn;

/// A small random generator, seeded by proptest: an adversary needs far more choices than a
/// strategy's value could hold.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        u32::try_from(self.next() % u64::from(n)).unwrap()
    }

    fn below16(&mut self, n: u16) -> u16 {
        u16::try_from(self.below(n.into())).unwrap()
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}
