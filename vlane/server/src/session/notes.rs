//! Facts that a session knows from the ones before, by the notes behind the marks of what is in
//! flight. They are the image of the guest's disk, its size, and the state of its write cache. A
//! front end says none of it a second time.

use std::fs::File;

use vhost::vhost_user::Result;
use vhost::vhost_user::message::VhostUserInflight;
use vlane_engine::file::Identity;
use vlane_ring::{NotedImage, Notes, Queue, RingFormat};

use super::tracking::Tracking;
use super::{State, refuse, refuse_reported};
use crate::config_change;
use crate::features;

/// The base at which a split or packed ring begins: its first entry, with both wrap counters set if
/// it has some.
const BEGINNINGS: [u32; 3] = [0, 0x8000, 0x8000_8000];

impl State {
    fn notes(&self) -> Option<Notes> {
        self.tracking.as_ref().and_then(Tracking::notes)
    }

    /// The volume's image, as it is noted.
    fn image(&self) -> Option<NotedImage> {
        let (kind, digest) = self.volume.identity()?.words();
        // The whole path: the next server may be started elsewhere.
        let name = &self.volume.config.name;
        let path = std::path::absolute(name).unwrap_or_else(|_| name.into());
        Some(NotedImage { kind, digest, name: path.to_string_lossy().into_owned() })
    }

    /// New memory for the front end to keep, with the image noted.
    pub(super) fn create_tracking(
        &self,
        queues: u16,
        size: u16,
    ) -> Result<(VhostUserInflight, File)> {
        let (shape, file) = Tracking::create(queues, size)?;
        let copy = file.try_clone().map_err(refuse)?;
        if let (Some(notes), Some(image)) = (Tracking::open(shape, copy)?.notes(), self.image()) {
            notes.set_image(&image);
        }
        Ok((shape, file))
    }

    /// SET_INFLIGHT_FD: the front end gives what the back ends before have left with it.
    ///
    /// # Errors
    /// An error if the notes are another image's. No ring of the session starts then: it would
    /// write what belongs there.
    pub(super) fn use_tracking(&mut self, tracking: Tracking) -> Result<()> {
        self.is_barred = false;
        let notes = tracking.notes();
        if let Some(why) = notes.as_ref().and_then(|notes| self.why_not(notes)) {
            let name = &self.volume.config.name;
            if !self.volume.may_be_another() {
                tracing::error!(
                    "{name}: refused for this guest, and its disk stands still: {why}; its writes \
                     would ruin this image; serve the right image at this socket, or start with \
                     --danger-other-image if this is its disk"
                );
                self.tracking = None;
                self.is_barred = true;
                return Err(refuse_reported("the requests in flight belong to another image"));
            }
            tracing::warn!("{name}: served all the same (--danger-other-image): {why}");
        }
        self.tracking = Some(tracking);
        if let Some(notes) = notes {
            if let Some(image) = self.image() {
                notes.set_image(&image);
            }
            match (self.switched, notes.write_back()) {
                (None, Some(on)) => self.switch_write_cache(on),
                (Some(on), _) => notes.set_write_back(on),
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// The note that does not fit the volume, in words.
    fn why_not(&self, notes: &Notes) -> Option<String> {
        let noted = notes.image();
        let here = self.image().map_or_else(|| self.volume.config.name.clone(), |image| image.name);
        let name = |image: &NotedImage| vlane_socket::printable(&image.name).to_string();
        if let (Some(noted), Some(own)) = (&noted, self.volume.identity())
            && Identity::from_words(noted.kind, noted.digest)
                .is_some_and(|noted| noted.is_other(&own))
        {
            return Some(format!("its disk is {}, and this is another image, {here}", name(noted)));
        }
        let (had, has) = (notes.sectors()?, self.volume.geometry().sectors);
        let which = noted
            .map_or_else(|| "its disk".to_owned(), |noted| format!("its disk, {},", name(&noted)));
        (has < had).then(|| {
            format!(
                "{which} had {} bytes, and this image, {here}, has only {}",
                u128::from(had) * 512,
                has * 512
            )
        })
    }

    /// The front end, or the notes, say whether the write cache is on.
    pub(super) fn switch_write_cache(&mut self, on: bool) {
        self.switched = Some(on);
        self.config.set_write_back(on && !self.cannot_flush());
        if let Some(notes) = self.notes() {
            notes.set_write_back(on);
        }
    }

    /// Sets the write cache that the driver begins with.
    pub(super) fn begin_write_cache(&mut self) {
        let on = self.switched.unwrap_or(self.volume.geometry().write_cache);
        self.config.set_write_back(on && !self.cannot_flush());
    }

    pub(super) fn cannot_flush(&self) -> bool {
        //= virtio 5.2.5.2
        //# If VIRTIO_BLK_F_CONFIG_WCE is negotiated but VIRTIO_BLK_F_FLUSH is not, the device MUST
        //# initialize writeback to 0.
        self.has(features::BLK_CONFIG_WCE) && !self.has(features::BLK_FLUSH)
    }

    /// A ring is about to start. The driver of a continued ring may have switched the write cache
    /// off, which no message repeats. `again` requests of it are repeated.
    pub(super) fn settle_write_cache(
        &mut self,
        index: u16,
        queue: &Queue,
        again: usize,
    ) -> Result<()> {
        let vring = &mut self.vrings[usize::from(index)];
        let is_ours = std::mem::replace(&mut vring.has_run, true);
        let geometry = self.volume.geometry();
        let goes_on = again > 0 || queue.went_on() || !BEGINNINGS.contains(&queue.config().base);
        let has_switch = self.has(features::BLK_CONFIG_WCE) && !self.cannot_flush();
        let may_differ = has_switch && geometry.write_cache && !geometry.read_only;
        if self.switched.is_none() && goes_on && !is_ours && may_differ {
            tracing::warn!(
                "{}: queue {index} continues in the middle of its work, and its guest's \
                 write-cache setting is unknown: each write is on the storage before it is \
                 answered until the guest sets it (in Linux: write \"write through\" and then \
                 \"write back\" to /sys/block/vdX/cache_type)",
                self.volume.config.name
            );
            self.switch_write_cache(false);
            self.apply_write_cache()?;
        }
        if let Some(notes) = self.notes() {
            notes.set_write_back(self.switched.unwrap_or(geometry.write_cache));
        }
        Ok(())
    }

    /// Tells the lanes that run.
    pub(super) fn apply_write_cache(&self) -> Result<()> {
        for index in self.running() {
            let set =
                self.volume.pool.set_write_through(index, self.write_through(), &self.calls());
            set.map_err(|error| self.lane_failed(index, error))?;
        }
        Ok(())
    }

    /// The first ring of a session, or of a machine that was stopped, has started. A front end that
    /// has not asked for the present size since may expect another one. It heeds no message while
    /// it is stopped.
    pub(super) fn tell_size_at_start(&mut self) {
        let sectors = self.volume.geometry().sectors;
        self.config.set_sectors(sectors);
        if let Some(notes) = self.notes() {
            notes.set_sectors(sectors);
        }
        if self.seen_sectors != Some(sectors) {
            self.tell_size();
        }
    }

    /// Informs the front end, if it supports that, that the size may have changed.
    pub(super) fn tell_size(&self) {
        if let Some(notes) = self.notes() {
            notes.set_sectors(self.config.sectors());
        }
        if let Some(channel) = &self.backend_channel
            && let Err(error) = config_change::send(channel)
        {
            tracing::warn!(
                "{}: cannot tell the front end of the size: {error}",
                self.volume.config.name
            );
        }
    }

    /// The form of the rings.
    pub(super) fn layout(&self) -> RingFormat {
        if self.has(features::RING_PACKED) { RingFormat::Packed } else { RingFormat::Split }
    }
}
