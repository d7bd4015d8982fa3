//! Effects of each vhost-user message on a session's [`State`].

use super::tracking::Tracking;
use super::{State, refuse, refuse_for_good};
use crate::arriving;
use crate::features;
use crate::signal_fd::Use;
use crate::vring::Addresses;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vlane_error::describe;
use vlane_memory::{GuestMemory, Region, RegionSpec};

/// Memory regions that a front end may have; announced as the number of memory slots.
const MAX_REGIONS: usize = 509;

/// Maps memory of the front end's, and keeps its file.
pub(super) fn map(spec: RegionSpec, file: File) -> Result<Region> {
    let file = arriving::closing(file).map_err(Error::ReqHandlerError)?;
    let mapped = Region::map(spec, &file).map_err(|error| refuse(describe(&error)));
    mapped.map(|region| region.keeping(file))
}

fn region(region: &VhostUserMemoryRegion, file: File) -> Result<Region> {
    let spec = RegionSpec {
        guest: region.guest_phys_addr,
        size: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    };
    map(spec, file)
}

impl VhostUserBackendReqHandlerMut for State {
    fn set_owner(&mut self) -> Result<()> {
        self.goes_on();
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset()
    }

    fn get_features(&mut self) -> Result<u64> {
        self.talked.asked_features = true;
        Ok(features::offered(&self.volume.geometry()))
    }

    fn set_features(&mut self, wanted: u64) -> Result<()> {
        self.goes_on();
        self.talked.features = Some(wanted);
        let geometry = self.volume.geometry();
        let in_the_way = features::in_the_way(wanted, &geometry);
        if in_the_way != 0 {
            return Err(refuse(features::refusal(in_the_way, &geometry, &self.front_end())));
        }
        let changed = self.features ^ wanted;
        let running = self.running();
        if changed & !features::LOG_ALL != 0 && !running.is_empty() {
            return Err(refuse("features cannot change while queues run"));
        }
        self.features = wanted;
        self.is_negotiated = true;
        if changed & (features::BLK_FLUSH | features::BLK_CONFIG_WCE) != 0 {
            self.begin_write_cache();
        }
        for index in running {
            self.update_log(index)?;
        }
        self.try_start_all()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mapped = regions
            .iter()
            .zip(files)
            .map(|(spec, file)| region(spec, file))
            .collect::<Result<Vec<_>>>()?;
        let memory = GuestMemory::new(mapped).map_err(refuse)?;
        self.use_memory(memory, true)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let (number, vring) = self.vring(index)?;
        if vring.running {
            return Err(refuse(format_args!("queue {index} cannot change its size while it runs")));
        }
        vring.size = u16::try_from(num)
            .ok()
            .filter(|size| (1..=vlane_ring::MAX_QUEUE_SIZE).contains(size))
            .ok_or_else(|| {
                refuse(format_args!("queue {index}: {num} is not a legal size (1 to 32768)"))
            })?;
        self.try_start(number)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let addresses = Addresses { desc: descriptor, driver: available, device: used };
        let (number, vring) = self.vring(index)?;
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        vring.log_addr = is_logged.then_some(log);
        if vring.running {
            // Only how a running ring is logged may change.
            if vring.addresses != Some(addresses) {
                return Err(refuse(format_args!("queue {index} cannot move while it runs")));
            }
            return self.update_log(number);
        }
        vring.addresses = Some(addresses);
        self.try_start(number)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let (_, vring) = self.vring(index)?;
        if vring.running {
            return Err(refuse(format_args!("queue {index} cannot change its base while it runs")));
        }
        vring.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.take_base(index, features::base_suspends(self.protocol))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = self.signal_fd(Use::Kick, index, fd)?;
        let (number, _) = self.vring(index)?;
        // A new descriptor for a running ring: the lane starts again with it.
        self.stop(number)?;
        let vring = &mut self.vrings[usize::from(number)];
        vring.kick = fd.map(OwnedFd::from);
        vring.started = true;
        self.try_start(number)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.goes_on();
        let fd = self.signal_fd(Use::Call, index, fd)?.map(OwnedFd::from);
        let (number, vring) = self.vring(index)?;
        //= vhost-user Ring states
        //# While processing the rings (whether they are enabled or not), the back-end must support
        //# changing some configuration aspects on the fly.
        let copy =
            fd.as_ref().map(OwnedFd::try_clone).transpose().map_err(Error::ReqHandlerError)?;
        let old = std::mem::replace(&mut vring.call, fd);
        if vring.running {
            let mut calls = self.calls();
            calls.extend(old.as_ref().map(AsFd::as_fd));
            let set = self.volume.pool.set_call(number, copy, &calls);
            drop(calls);
            set.map_err(|error| self.lane_failed(number, error))?;
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = self.signal_fd(Use::Error, index, fd)?;
        self.vring(index)?.1.err = fd;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        //= vhost-user Front-end message types
        //# Back-ends that report VHOST_USER_F_PROTOCOL_FEATURES must support this message even
        //# before VHOST_USER_SET_FEATURES was called.
        Ok(features::protocol())
    }

    fn set_protocol_features(&mut self, wanted: u64) -> Result<()> {
        self.talked.protocol = Some(wanted);
        //= vhost-user Front-end message types
        //# Back-ends that report VHOST_USER_F_PROTOCOL_FEATURES must support this message even
        //# before VHOST_USER_SET_FEATURES was called.
        let unknown = wanted & !features::protocol().bits();
        if unknown != 0 {
            return Err(refuse(format_args!("protocol features {unknown:#x} were not offered")));
        }
        if !features::is_whole(wanted) {
            return Err(refuse(format_args!(
                "protocol features {wanted:#x}: one of them needs one that is missing"
            )));
        }
        self.protocol = wanted;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        self.was_asked_for_queues = true;
        Ok(u64::from(self.volume.queues()))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let (number, vring) = self.vring(index)?;
        vring.enabled = enable;
        if enable {
            return self.try_start(number);
        }
        self.stop(number)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        self.goes_on();
        let bytes = self.config.read(offset, size).map(<[u8]>::to_vec);
        if bytes.is_some() && offset == 0 && size >= 8 {
            self.seen_sectors = Some(self.config.sectors());
        }
        bytes.ok_or_else(|| refuse("beyond the configuration space"))
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        if !self.config.write(offset, buf) {
            return Err(refuse(
                "only the write cache's switch can be changed in the configuration space",
            ));
        }
        self.switch_write_cache(self.config.write_back());
        self.apply_write_cache()
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is not a graphics device"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("there are no shared objects"))
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        self.goes_on();
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        if queues > self.volume.queues() {
            let offered = self.volume.queues();
            return Err(refuse_for_good(refuse(format_args!(
                "in-flight tracking is asked for {queues} queues, and vlane offers {offered}"
            ))));
        }
        self.create_tracking(queues, size).map_err(refuse_for_good)
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        if !self.running().is_empty() {
            return Err(refuse(
                "the memory of the in-flight tracking cannot change while queues run",
            ));
        }
        let file = arriving::closing(file).map_err(Error::ReqHandlerError)?;
        self.use_tracking(Tracking::open(*inflight, file)?)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        self.goes_on();
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        spec: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        //= vhost-user Front-end message types
        //# The message payload contains a memory region descriptor struct, describing a region of
        //# guest memory which the back-end device must map in.
        let region = region(spec, fd)?;
        let memory = match self.running().is_empty() {
            // A front end that begins anew at the same connection, with another device, keeps the
            // regions that the earlier one had added.
            true => self.memory.replacing(region),
            false => self.memory.with(region).map_err(refuse)?,
        };
        if memory.len() > MAX_REGIONS {
            return Err(refuse(format_args!("more than {MAX_REGIONS} memory regions")));
        }
        // Old memory stays in place: lanes need not wait.
        self.use_memory(memory, false)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, spec: &VhostUserSingleMemoryRegion) -> Result<()> {
        //= vhost-user Front-end message types
        //# The message payload contains a memory region descriptor struct, describing a region of
        //# guest memory which the back-end device must unmap.
        let memory = self.memory.without(spec.guest_phys_addr, spec.memory_size).map_err(refuse)?;
        self.use_memory(memory, true)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("this device has no state to transfer"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("this device has no state to transfer"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("there is no shared memory"))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let file =
            arriving::closing(file).map_err(Error::ReqHandlerError).map_err(refuse_for_good)?;
        self.use_log(file, log.mmap_offset, log.mmap_size).map_err(refuse_for_good)
    }
}
