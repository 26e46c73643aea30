//! Receive-side scaling, as a frontend asks for it over the control ring (`public/io/netif.h`).
//!
//! The frontend chooses an algorithm, a key, which packets are hashed and which queue each hash maps to. The
//! datapath then steers its frames by this hash, and each of its RX queues passes the hashes on.
//!
//! netif has no message by which a backend could ask for all this again, so it outlives the backend, as the rings do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hypervisor::GrantRef;
use port::{HashInput, Steering, SteeringCell};
use shm::{OutOfBounds, Region};
use wire::netif::ctrl::status;
use wire::netif::{CtrlMessage, HashAlgorithm, HashKind};
use wire::toeplitz::{KEY_LEN, Table};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of the largest mapping table, as in Linux's netback. A page holds them all.
const MAPPING_SIZE: u32 = 128;
const MAPPING_MAX: usize = MAPPING_SIZE as usize;
/// The kinds of hash that netif has.
const KINDS: [HashKind; 4] = [HashKind::Ipv4, HashKind::Ipv4Tcp, HashKind::Ipv6, HashKind::Ipv6Tcp];
/// The flags of all kinds.
const FLAGS: u32 = {
    let [a, b, c, d] = KINDS;
    a.mask() | b.mask() | c.mask() | d.mask()
};

/// What the frontend has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Settings {
    /// [`HashAlgorithm`].
    algorithm: u32,
    /// [`HashKind::mask`]s.
    flags: u32,
    /// Entries of the mapping table; 0 means that a hash modulo the queues is the queue.
    entries: u32,
    /// Zeros after its end.
    key: [u8; KEY_LEN],
    /// Queue numbers.
    mapping: [u16; MAPPING_MAX],
}

impl Settings {
    /// What applies before the first message: no hash.
    const DEFAULT: Self = Self {
        algorithm: HashAlgorithm::None as u32,
        flags: 0,
        entries: 0,
        key: [0; KEY_LEN],
        mapping: [0; MAPPING_MAX],
    };

    fn has_algorithm(&self) -> bool {
        self.algorithm != HashAlgorithm::None as u32
    }

    /// The entries of the mapping table that are used.
    fn mapping(&self) -> &[u16] {
        &self.mapping[..(self.entries as usize).min(MAPPING_MAX)]
    }

    /// Whether a backend with `queues` queues can have accepted this.
    fn is_valid(&self, queues: u16) -> bool {
        HashAlgorithm::from_raw(self.algorithm).is_some()
            && self.flags & !FLAGS == 0
            && self.entries <= MAPPING_SIZE
            && self.mapping().iter().all(|queue| *queue < queues)
    }
}

/// What a frontend has set, and what follows from it.
pub(crate) struct Hashing {
    settings: Settings,
    /// The expanded key, once it is used.
    key: Option<Arc<Table>>,
    queues: u16,
    kept: KeptSettings,
    cell: Arc<SteeringCell>,
}

impl Hashing {
    /// The hashes of a frontend, by its number of queues. They are published in `cell`. `kept` is the memory in which the settings
    /// outlive this backend; a backend that `resumes` live rings goes on with those that it finds there.
    ///
    /// # Errors
    /// `kept` is too small.
    pub(crate) fn new(
        kept: Region,
        queues: u16,
        cell: Arc<SteeringCell>,
        resumes: bool,
    ) -> Result<Self, OutOfBounds> {
        let kept = KeptSettings::new(kept)?;
        let found = if resumes { kept.read() } else { None };
        let found = found.filter(|settings| settings.is_valid(queues));
        let settings = found.unwrap_or_else(|| {
            // An earlier frontend may have left some.
            kept.write(&Settings::DEFAULT);
            Settings::DEFAULT
        });
        let mut hashing = Self { settings, key: None, queues, kept, cell };
        hashing.apply();
        Ok(hashing)
    }

    /// Serves a message. `copy` copies the start of a granted page and returns whether that was possible; it is called once at
    /// most. Returns the data of the response.
    ///
    /// # Errors
    /// The status of the response. Nothing has changed then.
    pub(crate) fn serve(
        &mut self,
        message: CtrlMessage,
        copy: impl FnOnce(GrantRef, &mut [u8]) -> bool,
    ) -> Result<u32, u32> {
        let Self { settings, queues, .. } = self;
        match message {
            // Which kinds there are depends on the algorithm, of which there is none yet.
            CtrlMessage::GetHashFlags if !settings.has_algorithm() => {
                return Err(status::NOT_SUPPORTED);
            }
            CtrlMessage::GetHashFlags => return Ok(FLAGS),
            CtrlMessage::GetHashMappingSize => return Ok(MAPPING_SIZE),
            CtrlMessage::SetHashAlgorithm { algorithm } => {
                HashAlgorithm::from_raw(algorithm).ok_or(status::INVALID_PARAMETER)?;
                settings.algorithm = algorithm;
            }
            CtrlMessage::SetHashFlags { flags } => {
                if flags & !FLAGS != 0 || !settings.has_algorithm() {
                    return Err(status::INVALID_PARAMETER);
                }
                settings.flags = flags;
            }
            CtrlMessage::SetHashKey { gref, len } => {
                let len = usize::try_from(len).ok().filter(|len| *len <= KEY_LEN);
                let mut key = [0; KEY_LEN];
                let bytes = &mut key[..len.ok_or(status::BUFFER_OVERFLOW)?];
                if !bytes.is_empty() && !copy(GrantRef(gref), bytes) {
                    return Err(status::INVALID_PARAMETER);
                }
                (settings.key, self.key) = (key, None);
            }
            CtrlMessage::SetHashMappingSize { entries } => {
                if entries > MAPPING_SIZE {
                    return Err(status::INVALID_PARAMETER);
                }
                (settings.entries, settings.mapping) = (entries, [0; MAPPING_MAX]);
            }
            CtrlMessage::SetHashMapping { gref, entries, offset } => {
                let [entries, offset] = [entries, offset].map(|n| n as usize);
                // The sum could wrap, and did in Linux (XSA-270).
                let end = offset.checked_add(entries).filter(|end| *end <= MAPPING_MAX);
                let end = end.ok_or(status::BUFFER_OVERFLOW)?;
                if end > settings.mapping().len() {
                    return Err(status::INVALID_PARAMETER);
                }
                let mut list = [0u32; MAPPING_MAX];
                let list = &mut list[..entries];
                if !list.is_empty() && !copy(GrantRef(gref), list.as_mut_bytes()) {
                    return Err(status::INVALID_PARAMETER);
                }
                let mut mapping = settings.mapping;
                for (entry, queue) in mapping[offset..end].iter_mut().zip(list) {
                    let queue = u16::try_from(*queue).ok().filter(|queue| queue < queues);
                    *entry = queue.ok_or(status::INVALID_PARAMETER)?;
                }
                settings.mapping = mapping;
            }
            _ => return Err(status::NOT_SUPPORTED),
        }
        // Before the response: the frontend may rely on it then.
        self.kept.write(&self.settings);
        self.apply();
        Ok(0)
    }

    /// Publishes what the settings mean for frames.
    fn apply(&mut self) {
        let Self { settings, key, .. } = self;
        let is_on = settings.has_algorithm() && settings.flags != 0;
        self.cell.publish(is_on.then(|| {
            let key = key.get_or_insert_with(|| Arc::new(Table::new(&settings.key))).clone();
            let kinds = KINDS.into_iter().filter(|kind| settings.flags & kind.mask() != 0);
            Steering::new(key, kinds.map(input_of), settings.mapping().into())
        }));
    }
}

/// What a kind of hash covers.
fn input_of(kind: HashKind) -> HashInput {
    match kind {
        HashKind::Ipv4 => HashInput::Ipv4,
        HashKind::Ipv4Tcp => HashInput::Ipv4Tcp,
        HashKind::Ipv6 => HashInput::Ipv6,
        HashKind::Ipv6Tcp => HashInput::Ipv6Tcp,
    }
}

/// The kind of a hash that covers this.
pub(crate) fn kind_of(input: HashInput) -> HashKind {
    match input {
        HashInput::Ipv4 => HashKind::Ipv4,
        HashInput::Ipv4Tcp => HashKind::Ipv4Tcp,
        HashInput::Ipv6 => HashKind::Ipv6,
        HashInput::Ipv6Tcp => HashKind::Ipv6Tcp,
    }
}

/// Memory that outlives the backend: two places for settings, and the number of the valid one. A backend may be killed at any
/// time, so the valid one is never overwritten.
struct KeptSettings(Region);

impl KeptSettings {
    /// Bytes of a place. The first one begins after as many bytes.
    const PLACE: usize = 512;

    fn new(region: Region) -> Result<Self, OutOfBounds> {
        const { assert!(size_of::<Settings>() <= Self::PLACE) };
        let (offset, len, size) = (0, 3 * Self::PLACE, region.len());
        if size < len || region.atomic_u64(0).is_err() {
            return Err(OutOfBounds { offset, len, size });
        }
        Ok(Self(region))
    }

    /// The valid settings, if there are some.
    fn read(&self) -> Option<Settings> {
        let valid = self.0.atomic_u64(0).ok()?.load(Ordering::Acquire);
        let place = usize::try_from(valid).ok().filter(|place| (1..=2).contains(place))?;
        self.0.read(place * Self::PLACE).ok()
    }

    /// Replaces the settings. The bounds were checked at first.
    fn write(&self, settings: &Settings) {
        let Ok(valid) = self.0.atomic_u64(0) else { return };
        let (number, place) = if valid.load(Ordering::Relaxed) == 1 { (2, 2) } else { (1, 1) };
        if self.0.write(place * Self::PLACE, *settings).is_ok() {
            valid.store(number, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
