//! A small random generator: an adversary needs far more choices than a strategy's value could hold.

#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u32) -> u32 {
        u32::try_from(self.next() % u64::from(n)).unwrap()
    }

    pub fn below16(&mut self, n: u16) -> u16 {
        u16::try_from(self.below(n.into())).unwrap()
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}
