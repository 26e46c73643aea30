//! The messages of a front-end.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};
use virtqueue::{DirtyLog, GuestMemory, Range, RingAddresses};

use crate::config_space::{self, ConfigSpace};
use crate::features::Negotiated;
use crate::inflight::Inflight;
use crate::memory::{map, map_part};
use crate::session::{Part, Session};
use crate::vring::Vring;

/// Why serving stops while the front-end goes on.
const RECONFIGURED: &str = "the front-end changed the device";
const STOPPED: &str = "the guest's driver stopped";

impl Session {
    /// Ends the session with a reason.
    #[expect(clippy::needless_pass_by_value, reason = "an error, as `map_err` passes it")]
    fn refuse(&mut self, why: impl ToString) -> Error {
        let why = why.to_string();
        self.error = Some(why.clone());
        Error::ReqHandlerError(io::Error::other(why))
    }

    /// The ring of this number, which is not served from here on.
    fn idle_ring(&mut self, index: u32) -> Result<&mut Vring> {
        self.ring(index)?;
        self.stop_ring(index as usize, RECONFIGURED);
        self.ring(index)
    }

    fn ring(&mut self, index: u32) -> Result<&mut Vring> {
        let count = self.rings.len();
        match self.rings.get_mut(index as usize) {
            // Found again, because a borrow cannot be returned from one arm only.
            Some(_) => Ok(&mut self.rings[index as usize]),
            None => Err(self.refuse(format!("ring {index} of {count}"))),
        }
    }

    fn set_memory(&mut self, parts: Vec<(VhostUserMemoryRegion, File)>) -> Result<()> {
        // Before anything is mapped.
        if self.parts.len() + parts.len() > GuestMemory::RANGES_MAX {
            return Err(self.refuse(virtqueue::MemoryError::TooMany));
        }
        for (region, file) in parts {
            let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } =
                region;
            let range = Range { guest: guest_phys_addr, user: user_addr, len: memory_size };
            let region = map(&range, &file, mmap_offset, &self.budget);
            let region = region.map_err(|error| self.refuse(error))?;
            self.parts.push(Part { range, region, file: Arc::new(file), offset: mmap_offset });
        }
        self.show_files();
        // Overlaps are found now, not when rings are served.
        self.memory().map(drop).map_err(|error| self.refuse(error))
    }

    fn reset(&mut self) -> Result<()> {
        self.stop("the front-end reset the device");
        (0..self.rings.len()).for_each(|ring| self.forget_inflight(ring));
        self.reset_rings().map_err(Error::ReqHandlerError)
    }
}

fn range_of(region: &VhostUserSingleMemoryRegion) -> Range {
    let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, .. } = **region;
    Range { guest: guest_phys_addr, user: user_addr, len: memory_size }
}

fn not_offered<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.options.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let negotiated = Negotiated::new(features, self.options.bits());
        let Some(negotiated) = negotiated else {
            let offered = self.options.bits();
            return Err(self.refuse(format!(
                "features {features:#x} were accepted of which {:#x} were not offered",
                features & !offered
            )));
        };
        // QEMU repeats them.
        if self.negotiated != Some(negotiated) {
            self.stop(RECONFIGURED);
            self.negotiated = Some(negotiated);
        }
        if !negotiated.has_protocol_features() {
            self.rings.iter_mut().for_each(|ring| ring.is_enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.stop(RECONFIGURED);
        self.parts.clear();
        self.set_memory(regions.iter().copied().zip(files).collect())?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.idle_ring(index)?.size = num;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let at = RingAddresses { descriptors: descriptor, driver: available, device: used };
        self.idle_ring(index)?.at = Some(at);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.idle_ring(index)?.position.set(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?;
        self.stop_ring(index as usize, STOPPED);
        let ring = self.ring(index)?;
        ring.is_started = false;
        let position = ring.position.get();
        self.forget_inflight(index as usize);
        // The guest's driver, or the next session, describes it anew.
        Ok(VhostUserVringState::new(index, position))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let started = self.ring(index.into())?.start(fd);
        started.map_err(|error| self.refuse(error))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let set = self.ring(index.into())?.call.set(fd);
        set.map_err(|error| self.refuse(error))
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        self.ring(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let config_space = match self.offers_config_space {
            true => VhostUserProtocolFeatures::CONFIG,
            false => VhostUserProtocolFeatures::empty(),
        };
        Ok(config_space
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::RARP
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MTU
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::STATUS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let offered = self.get_protocol_features()?.bits();
        match features & !offered {
            0 => {
                self.protocol = features;
                Ok(())
            }
            other => Err(self.refuse(format!("protocol features {other:#x} were not offered"))),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        self.watch.has_asked_for_queues = true;
        Ok(self.options.queues.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let ring = self.ring(index)?;
        if ring.is_enabled != enable {
            ring.is_enabled = enable;
            self.stop_ring(index as usize, RECONFIGURED);
        }
        Ok(())
    }

    fn get_config(&mut self, offset: u32, len: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = ConfigSpace::new(self.mac, self.options.queues, self.mtu, self.link.is_up());
        Ok(space.read(offset as usize, len as usize))
    }

    /// A driver may write its address, as far as virtio is concerned. The port's own address stays what the operator said.
    fn set_config(&mut self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        match (offset as usize).saturating_add(bytes.len()) {
            end if end <= config_space::WRITABLE => Ok(()),
            _ => Err(self.refuse("a write to a read-only part of the configuration space")),
        }
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        not_offered("a GPU")
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        not_offered("shared objects")
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wanted;
        if usize::from(num_queues) > self.rings.len() {
            return Err(
                self.refuse(format!("a log of inflight descriptors for {num_queues} rings"))
            );
        }
        let (file, len) =
            Inflight::create(num_queues, queue_size).map_err(|error| self.refuse(error))?;
        Ok((VhostUserInflight::new(len, 0, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        self.stop(RECONFIGURED);
        // The old one is not needed beside it.
        self.inflight = None;
        let at = (mmap_offset, mmap_size);
        let mapped = Inflight::map(file, at, num_queues, queue_size, &self.budget);
        self.inflight = Some(mapped.map_err(|error| self.refuse(error))?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(GuestMemory::RANGES_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let added = range_of(region);
        // QEMU before version 8 sends it once for each pair of rings.
        if self.parts.iter().any(|part| part.range == added) {
            return Ok(None);
        }
        self.stop(RECONFIGURED);
        self.set_memory(vec![(**region, file)])?;
        self.removed.retain(|range| *range != added);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let gone = range_of(region);
        if self.parts.iter().all(|part| part.range != gone) {
            // As above.
            return match self.removed.contains(&gone) {
                true => Ok(()),
                false => Err(self.refuse(format!("no memory at {:#x} to be removed", gone.guest))),
            };
        }
        self.stop(RECONFIGURED);
        self.parts.retain(|part| part.range != gone);
        self.show_files();
        self.removed.truncate(GuestMemory::RANGES_MAX - 1);
        self.removed.insert(0, gone);
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        not_offered("the transfer of the device's state")
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered("the transfer of the device's state")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered("shared memory of the device")
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        self.stop(RECONFIGURED);
        // The old one is not needed beside it.
        self.dirty_log = None;
        let bitmap = map_part(&file, log.mmap_offset, log.mmap_size, &self.budget);
        self.dirty_log = Some(DirtyLog::new(bitmap.map_err(|error| self.refuse(error))?));
        Ok(())
    }
}
