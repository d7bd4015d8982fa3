//! Where the volume's layout places its journals, read from the image while it is recorded.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use vlane_policy::journal::layout::{self, JournalLayout};
use vlane_policy::journal::{Disk, FileSystem};
use vlane_trace::{Entry, LayoutPiece, SECTOR, Writer};

/// How long a layout that was written to is left alone: most of what changes comes together.
const PAUSE: Duration = Duration::from_millis(200);

/// The image, and what its layout says.
pub(super) struct Layouts {
    file: Option<File>,
    size: u64,
    layout: JournalLayout,
    /// It was written to since it was read.
    is_stale: bool,
    is_told: bool,
    read: Option<Instant>,
    /// The latest time of the trace.
    time: u64,
}

struct Image<'a>(&'a File);

impl Disk for Image<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, offset).is_ok()
    }
}

impl Layouts {
    /// Of an image of a volume of `size` bytes. One that cannot be read, or is no image, has no
    /// layout.
    pub(super) fn of(image: &Path, size: u64) -> Layouts {
        let is_image = std::fs::metadata(image).is_ok_and(|meta| !meta.is_dir());
        let file = File::open(image).ok().filter(|_| is_image);
        Layouts {
            file,
            size,
            layout: JournalLayout::default(),
            is_stale: true,
            is_told: false,
            read: None,
            time: 0,
        }
    }

    /// Looks at an entry of the trace, which was completed, and at the image if it is time.
    pub(super) fn look(
        &mut self,
        entry: &Entry,
        to: &mut Writer<impl Write>,
    ) -> Result<(), vlane_trace::Error> {
        if let Entry::Record(record) = entry
            && record.kind.changes_data()
        {
            self.time = self.time.max(record.completed());
            let range = record.sector.saturating_mul(SECTOR)
                ..record.sector.saturating_add(record.sectors.into()).saturating_mul(SECTOR);
            let first = self.layout.watched.partition_point(|watched| watched.end <= range.start);
            self.is_stale |=
                self.layout.watched.get(first).is_some_and(|watched| watched.start < range.end);
        }
        if self.is_stale && self.read.is_none_or(|read| read.elapsed() >= PAUSE) {
            self.tell(to)
        } else {
            Ok(())
        }
    }

    /// Reads the layout if it is not known, and writes it down if it is another one.
    pub(super) fn tell(&mut self, to: &mut Writer<impl Write>) -> Result<(), vlane_trace::Error> {
        let (Some(file), true) = (&self.file, std::mem::take(&mut self.is_stale)) else {
            return Ok(());
        };
        let layout = layout::read(&mut Image(file), self.size);
        let is_new = !self.is_told || layout.journals != self.layout.journals;
        (self.layout, self.is_told, self.read) = (layout, true, Some(Instant::now()));
        if !is_new {
            return Ok(());
        }
        let pieces = self.layout.journals.iter().flat_map(|journal| {
            let filesystem = match journal.filesystem {
                FileSystem::Ext4 => 0,
                FileSystem::Xfs => 1,
                FileSystem::Unknown => 2,
            };
            journal
                .ranges
                .iter()
                .map(move |range| (filesystem, range.start, range.end - range.start))
        });
        let pieces: Vec<_> = pieces.collect();
        let none = [(0, 0, 0)];
        let all = if pieces.is_empty() { &none[..] } else { &pieces };
        for (place, (filesystem, start, len)) in all.iter().enumerate() {
            let (sector, sectors, more) = (start / SECTOR, len / SECTOR, place + 1 < all.len());
            to.write(&Entry::Layout(LayoutPiece {
                time: self.time,
                filesystem: *filesystem,
                sector,
                sectors,
                more,
            }))?;
        }
        Ok(())
    }
}
